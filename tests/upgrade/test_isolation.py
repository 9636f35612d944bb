"""Procedures that commit choose how their transactions see others, whatever the default is."""

from __future__ import annotations

import psycopg
import pytest

from calling import OUTDATED, ask, drain, fetch, publish
from conftest import Connect
from trunq import install

LEVELS = ("serializable", "repeatable read")


@pytest.mark.parametrize("level", LEVELS)
def test_what_commits_by_itself_is_read_committed(database: str, connect: Connect, level: str) -> None:
    session = connect()
    for queue in ("one", "two"):
        ask(session, "create_queue", queue=queue)
    ids = publish(session, "one", 2)
    with psycopg.connect(database, autocommit=True) as strict:
        strict.execute(f"set default_transaction_isolation = '{level}'".encode())
        strict.execute("call trunq.perform_each_duty()")
        assert session.execute("select * from trunq.duty_failure").fetchall() == []
        assert fetch(session, "select count(*) from trunq.duty_done") > 5
        session.execute("update trunq.cluster set system_identifier = 1")
        strict.execute("call trunq.rebase_each_queue()")
        session.execute("select trunq._outdate_queues('[]')")
        strict.execute("call trunq._refresh_each()")
        assert fetch(session, "select count(*) from trunq.outdated") == 0
        assert fetch(strict, "show transaction_isolation") == level
        session.execute(OUTDATED.encode())
        assert install.install(strict).queues == 2
    assert drain(session, "one") == ids
