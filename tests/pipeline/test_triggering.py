"""The thread that starts runs by itself, over connections that fail it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from freezing import freezing
from pipeline.piping import Bench
from trunq.connection.silence import limit
from trunq.pipeline.triggering import Triggers
from waiting import wait_until

Connect = Callable[..., psycopg.Connection[Any]]


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A second of silence is enough to ask."""
    monkeypatch.setenv("TRUNQ_SILENCE", "1")
    limit.cache_clear()
    yield
    limit.cache_clear()


def test_triggers_go_on_after_a_silence(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.client.create_queue("orders")
    source = {"format": "python", "function": "pipeline.transforms:numbers"}
    bench.make(source, {"format": "table", "table": "moved"}, trigger={"on": "message", "queue": "orders"})
    asked = "select count(*) from trunq_log.pipelines"
    with freezing(bench.dsn) as proxy:
        lookout = Triggers(proxy.dsn, bench.executor.control)
        lookout.start()
        try:
            for count in (1, 2):
                bench.client.publish("orders", count)
                wait_until(lambda count=count: bench.one(asked) == count, 120)  # type: ignore[misc]
                proxy.silence()
        finally:
            lookout.stop()
    assert "closed a silent connection (trunq pipelines)" in caplog.text


def test_a_source_that_is_locked_keeps_no_other_pipeline_waiting(
    bench: Bench, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    bench.sql("create table locked (id int)")
    bench.sql("create table open (id int)")
    names = [
        bench.make(
            {"format": "table", "table": table},
            {"format": "table", "table": f"of_{table}"},
            name=f"{at}_{table}",
            trigger={"continuous": True},
        )
        for at, table in (("a", "locked"), ("b", "open"))
    ]
    for name in names:
        bench.run(name)
    before = bench.one("select count(*) from trunq_log.pipelines")
    holder = connect(autocommit=False)
    holder.execute("lock table locked")
    lookout = Triggers(bench.dsn, bench.executor.control)
    lookout.start()
    try:
        bench.sql("insert into open values (1)")
        wait_until(lambda: bench.one("select count(*) from trunq_log.pipelines") > before, 60)
        # It says why, and asks for a run of that one as well, once it can look.
        told = f"pipeline {names[0]}, which is continuous: canceling statement due to lock timeout"
        assert told in caplog.text
        holder.execute("insert into locked values (1)")
        holder.commit()
        wait_until(lambda: bench.one("select count(*) from trunq_log.pipelines") > before + 1, 60)
    finally:
        holder.close()
        lookout.stop()
