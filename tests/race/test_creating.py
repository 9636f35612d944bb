"""Creating queues at the same time: trunq.publish is generated for those there are."""

from __future__ import annotations

from typing import Any

import pytest

from calling import ask, fetch, lease
from conftest import Connect
from waiting import wait_until_blocked

SOURCE = "select prosrc from pg_proc where oid = to_regproc('trunq.publish')"


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read"])
def test_of_two_who_make_queues_neither_leaves_the_other_out(
    connect: Connect, meanwhile: Any, isolation: str
) -> None:
    session, first, second = connect(), connect(autocommit=False), connect(autocommit=False)
    second.execute(f"set transaction isolation level {isolation}".encode())
    fetch(second, "select count(*) from trunq.queue")
    ask(first, "create_queue", queue="one")
    late = meanwhile(ask, second, "create_queue", queue="two")
    wait_until_blocked(session, second)
    first.commit()
    assert late.result(10) is True
    second.commit()
    for queue in ("one", "two"):
        id = ask(session, "publish", queue=queue)
        assert lease(session, queue).ids == [id]
    if isolation == "read committed":
        assert "trunq_log.one" in fetch(session, SOURCE)
    assert "trunq_log.two" in fetch(session, SOURCE)
