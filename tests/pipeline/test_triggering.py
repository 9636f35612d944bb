"""The thread that starts runs by itself, over connections that fail it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from freezing import freezing
from pipeline.piping import Bench
from trunq.connection.silence import limit
from trunq.pipeline.triggering import Triggers
from waiting import wait_until


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
