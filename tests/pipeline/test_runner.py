"""The runner: what starts runs, what is continuous, its end, and runs in processes of their own."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest

from pipeline.piping import Bench
from trunq.pipeline.runner import Runner, asked
from trunq.pipeline.source.table import TableSource
from waiting import wait_until

TABLE = {"format": "table", "table": "source"}
MOVED = {"format": "table", "table": "moved"}
CONTINUOUS = {"continuous": True}


@contextmanager
def running(bench: Bench, **settings: Any) -> Iterator[Runner]:
    """A runner in a thread; at the end it is stopped, and has ended."""
    runner = Runner(bench.dsn)
    for name, value in settings.items():
        setattr(runner, name, value)
    thread = threading.Thread(target=lambda: asyncio.run(runner.run_async()))
    thread.start()
    try:
        yield runner
    finally:
        runner.stop()
        thread.join(120)
        assert not thread.is_alive()


@contextmanager
def runner_process(bench: Bench) -> Iterator[subprocess.Popen[bytes]]:
    """A runner in a process of its own, which is killed at the end if it is still there."""
    program = "import sys; from trunq.pipeline.runner import Runner; Runner(sys.argv[1]).run()"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", program, bench.dsn], env=environment) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def filled(bench: Bench) -> Bench:
    """A table `source`, and queues `orders` and `pipelines`."""
    bench.sql("create table source (id bigint)")
    bench.client.create_queue("orders")
    bench.client.create_queue("pipelines")
    return bench


def moved(bench: Bench) -> int:
    """How many rows arrived."""
    if bench.one("select to_regclass('moved') is null"):
        return 0
    return int(bench.one("select count(*) from moved"))


def messages(bench: Bench) -> int:
    return int(bench.one("select count(*) from trunq_log.pipelines"))


def looks_after(bench: Bench) -> int:
    """How many runners look after continuous pipelines."""
    return int(
        bench.one("select count(*) from pg_locks where classid = trunq._lock_class('continuous') and granted")
    )


def sleeps_at_the_bell(bench: Bench, queue: str = "orders") -> bool:
    """Whether who looks after a queue waits to be woken."""
    return bool(
        bench.one(
            "select count(*) from pg_locks where classid = trunq._lock_class('bell') and granted"
            " and objid = (select queue_id from trunq.queue where name = %s)",
            queue,
        )
    )


def read_pid(path: Path) -> int:
    return wait_until(lambda: path.exists() and int(path.read_text() or 0), 120)


def test_messages_of_a_queue_start_runs(filled: Bench) -> None:
    source = {"format": "python", "function": "pipeline.transforms:numbers"}
    filled.make(source, MOVED, trigger={"on": "message", "queue": "orders"})
    with running(filled):
        filled.client.publish("orders", {"a": 1})
        filled.client.publish("orders", {"a": 2})
        wait_until(lambda: moved(filled) == 10, 120)
    assert filled.sql("select of, count(*) from moved group by 1 order by 1") == [
        ({"a": 1}, 5),
        ({"a": 2}, 5),
    ]


class Counted:
    """A function, and how often it was called."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function, self.count = function, 0

    @property
    def of(self) -> Callable[..., Any]:
        """In its place."""

        def counted(*given: Any) -> Any:
            self.count += 1
            return self._function(*given)

        return counted


@pytest.mark.parametrize("format", ["queue", "table", "capture"])
def test_a_continuous_pipeline_follows_its_source_and_idles_without_a_trace(
    filled: Bench, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    captured = {**TABLE, "changes": "capture"}
    source = {"queue": {"format": "queue", "queue": "orders"}, "table": TABLE, "capture": captured}[format]
    name = filled.make(source, MOVED, trigger=CONTINUOUS)

    def add() -> None:
        filled.sql("insert into source values (1)")
        filled.client.publish("orders", {"a": 1})

    traces = "select xmin::text, (select count(*) from trunq_log.pipelines) from trunq.pipeline"
    looks = Counted(TableSource.has_new)
    monkeypatch.setattr(TableSource, "has_new", looks.of)

    def is_idle() -> bool:
        if format != "table":
            return sleeps_at_the_bell(filled, "orders" if format == "queue" else f"changes_{name}")
        runs = filled.client.list_runs(name)
        return bool(runs) and all(run.outcome for run in runs)

    with running(filled), running(filled):
        for count in (1, 2, 3):
            add()
            wait_until(lambda count=count: moved(filled) == count, 120)  # type: ignore[misc]
            wait_until(is_idle, 120)
        assert looks_after(filled) == 1
        before = filled.sql(traces)
        if format == "table":
            seen = looks.count
            wait_until(lambda: looks.count >= seen + 3, 120)
        assert filled.sql(traces) == before
        assert len(filled.client.list_runs(name)) <= messages(filled) <= 4
        filled.client.pause_pipeline(name)
        wait_until(lambda: looks_after(filled) == 0)
        add()
        filled.client.resume_pipeline(name)
        wait_until(lambda: moved(filled) == 4, 120)
        filled.client.drop_pipeline(name)
        wait_until(lambda: looks_after(filled) == 0)


def test_a_run_that_is_cancelled_in_a_process_of_its_own_is_killed(filled: Bench, tmp_path: Path) -> None:
    source = {"format": "python", "function": "pipeline.transforms:sleeps"}
    name = filled.make(source, MOVED, isolate=True)
    with running(filled):
        filled.client.run_pipeline(name, str(tmp_path / "pid"))
        pid = read_pid(tmp_path / "pid")
        assert filled.client.cancel_pipeline(name)
        wait_until(lambda: filled.client.list_runs(name)[0].outcome == "cancelled", 120)
        assert not psutil.pid_exists(pid)
    assert moved(filled) == 0


def test_a_process_of_a_run_dies_with_its_runner(filled: Bench, tmp_path: Path) -> None:
    source = {"format": "python", "function": "pipeline.transforms:sleeps"}
    name = filled.make(source, MOVED, isolate=True)
    with runner_process(filled) as runner:
        filled.client.run_pipeline(name, str(tmp_path / "pid"))
        pid = read_pid(tmp_path / "pid")
        runner.kill()
    wait_until(lambda: not psutil.pid_exists(pid), 120)


def test_a_run_that_crashes_three_times_dies_alone(filled: Bench) -> None:
    filled.sql("insert into source values (1)")
    filled.client.subscribe("pipelines", "default", backoff_base=0.05, jitter=0)
    bad = filled.make({"format": "python", "function": "pipeline.transforms:crashes"}, MOVED, isolate=True)
    good = filled.make(TABLE, MOVED, isolate=True)
    with running(filled):
        filled.client.run_pipeline(bad)
        filled.client.run_pipeline(good)
        wait_until(lambda: filled.client.list_dead("pipelines"), 120)
    (dead,) = filled.client.list_dead("pipelines")
    assert dead.kind == bad
    assert "was killed by SIGKILL; it has crashed 3 times" in str(dead.errors)
    assert filled.client.list_runs(good)[0].outcome == "done"
    assert moved(filled) == 1


@pytest.mark.parametrize("function", ["trickles", "sleeps"])
def test_a_run_that_outlasts_the_grace_goes_on_elsewhere_at_once(
    filled: Bench, tmp_path: Path, function: str
) -> None:
    name = filled.make({"format": "python", "function": f"pipeline.transforms:{function}"}, MOVED)
    with running(filled, grace=4.0):
        id = filled.client.run_pipeline(name, str(tmp_path / "there"))
        wait_until(lambda: filled.client.list_runs(name) and filled.client.list_runs(name)[0].attempts, 120)
    (message,) = filled.client.show_message("pipelines", id)
    assert message.state in ("ready", "retrying", "scheduled")
    assert message.error is None
    (tmp_path / "there").touch()
    if function == "trickles":
        with running(filled):
            wait_until(lambda: filled.client.list_runs(name)[0].outcome == "done", 120)


def test_a_runner_whose_pipelines_need_no_spark_starts_none(filled: Bench) -> None:
    filled.sql("insert into source values (1)")
    name = filled.make(TABLE, MOVED)
    with running(filled) as runner:
        filled.client.run_pipeline(name)
        wait_until(lambda: moved(filled) == 1, 120)
        assert runner._executor is not None
        assert runner._executor.engine._session is None


def test_who_waits_for_a_run_is_done_when_another_runner_did_it(
    filled: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    filled.sql("insert into source values (1)")
    name = filled.make(TABLE, MOVED)
    broken = filled.make({"format": "python", "function": "pipeline.transforms:breaks"}, MOVED)
    awaited, other = filled.client.run_pipeline(name), filled.client.run_pipeline(broken)
    # Another runner has it.
    (held,) = filled.client.lease("pipelines", "default", "another", 1)
    assert held.id == awaited
    runner = Runner(filled.dsn, until_empty=True, awaited=awaited)
    waiting = threading.Thread(target=lambda: asyncio.run(runner.run_async()))
    waiting.start()
    wait_until(lambda: filled.client.show_message("pipelines", other)[0].state == "retrying", 120)
    filled.executor.execute(asked(held))
    filled.client.ack([held])
    waiting.join(60)
    assert not waiting.is_alive()
    assert runner.failure is None
    assert filled.client.show_message("pipelines", other)[0].state in ("retrying", "ready", "leased")
    # What fails besides is said, without the lines of others' functions.
    assert "breaks in this line" in caplog.text
    assert "Traceback" not in caplog.text


def test_who_waits_for_a_run_that_fails_at_another_runner_hears_of_it(filled: Bench) -> None:
    broken = filled.make({"format": "python", "function": "pipeline.transforms:breaks"}, MOVED)
    awaited = filled.client.run_pipeline(broken)
    for after in (0, 0, 3600):
        (held,) = filled.client.lease("pipelines", "default", "another", 1)
        filled.client.retry([held], error="ValueError: it breaks", after=timedelta(seconds=after))
    runner = Runner(filled.dsn, until_empty=True, awaited=awaited)
    asyncio.run(asyncio.wait_for(runner.run_async(), 120))
    assert "it breaks" in str(runner.failure)


def test_sigterm_ends_a_runner_that_waits(filled: Bench) -> None:
    filled.make(TABLE, MOVED, trigger=CONTINUOUS)
    with runner_process(filled) as runner:
        wait_until(lambda: looks_after(filled) == 1, 120)
        runner.send_signal(signal.SIGTERM)
        assert runner.wait(120) == 0
