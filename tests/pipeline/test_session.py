"""The session of a runner: how far a run is, and the end of one whose task sleeps."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from pipeline.piping import Bench
from pipeline.test_runner import running
from trunq.pipeline.engine import Engine
from waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.usefixtures("spark")

TABLE = {"format": "table", "table": "source"}
MOVED = {"format": "table", "table": "moved"}
SLOW: dict[str, Any] = {"transform": "pipeline.transforms:dawdles"}


@pytest.fixture
def filled(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A table `source`; the session is that of all tests, and is not ended."""
    bench.sql("create table source (id bigint)")
    bench.sql("insert into source select generate_series(1, 10)")
    monkeypatch.setattr(Engine, "close", lambda _engine: None)
    return bench


def test_a_run_says_how_far_it_is_and_is_cancelled_while_its_task_sleeps(
    filled: Bench, tmp_path: Path
) -> None:
    slow = filled.make(TABLE, MOVED, **SLOW)
    other = filled.make(TABLE, {**MOVED, "table": "other"}, sql=["select id + 1 as id from input"])
    with running(filled) as runner:
        wait_until(lambda: runner._executor is not None and runner._executor.engine._session is not None, 120)
        filled.client.run_pipeline(slow, str(tmp_path))
        wait_until(lambda: [*tmp_path.iterdir()], 120)
        wait_until(lambda: (filled.client.list_runs(slow)[0].progress or {}).get("tasks"), 120)
        # Another one is done beside it.
        filled.client.run_pipeline(other)
        wait_until(lambda: filled.client.list_runs(other) and filled.client.list_runs(other)[0].outcome, 120)
        assert filled.client.list_runs(slow)[0].outcome is None
        assert filled.client.cancel_pipeline(slow)
        wait_until(lambda: filled.client.list_runs(slow)[0].outcome == "cancelled", 120)
    assert filled.one("select count(*) from pg_class where relname like 'stage\\_%'") == 0


def test_a_lost_lease_ends_the_jobs_of_a_run(filled: Bench, tmp_path: Path) -> None:
    slow = filled.make(TABLE, MOVED, **SLOW)
    with running(filled) as runner:
        filled.client.run_pipeline(slow, str(tmp_path))
        wait_until(lambda: [*tmp_path.iterdir()], 120)
        tracker = wait_until(lambda: runner._executor and runner._executor.engine._session, 120)
        active = tracker.sparkContext.statusTracker().getActiveJobsIds
        assert active()
        (lost,) = runner._in_hand.runs
        assert isinstance(lost, threading.Event)
        lost.set()
        wait_until(lambda: not active(), 120)
        wait_until(lambda: not runner._in_hand.runs, 120)
        # Nobody is at it, and it has not failed.
        assert filled.sql("select outcome, error, holder from trunq.pipeline_run") == [(None, None, None)]


@pytest.fixture
def busy(spark: SparkSession, tmp_path: Path) -> Iterator[Path]:
    """All that Spark has is taken, until a file is there."""
    free = tmp_path / "free"

    def hold(_number: int) -> None:
        while not free.exists():
            threading.Event().wait(0.05)

    def work() -> None:
        context = spark.sparkContext
        context.parallelize(range(context.defaultParallelism), context.defaultParallelism).foreach(hold)

    working = threading.Thread(target=work)
    working.start()
    tracker = spark.sparkContext.statusTracker()
    wait_until(lambda: _running(tracker) >= spark.sparkContext.defaultParallelism, 120)
    yield free
    free.touch()
    working.join(120)


def _running(tracker: Any) -> int:
    stages = [tracker.getStageInfo(id) for id in tracker.getActiveStageIds()]
    return sum(stage.numActiveTasks for stage in stages if stage is not None)


def test_pipelines_that_need_no_spark_do_not_wait_for_executors(filled: Bench, busy: Path) -> None:
    plain = filled.make(TABLE, MOVED)
    others = [
        filled.make(TABLE, {**MOVED, "table": f"other_{n}"}, sql=["select id + 1 as id from input"])
        for n in range(5)
    ]
    for other in others:
        filled.client.run_pipeline(other)
    with running(filled):
        waiting = {"scheduled", "retrying"}
        wait_until(lambda: waiting & {row.state for row in filled.client.list_messages("pipelines")}, 120)
        # More than there are slots: none of them keeps one.
        filled.client.run_pipeline(plain)
        wait_until(lambda: [run.outcome for run in filled.client.list_runs(plain)] == ["done"], 120)
        assert [run.pipeline for run in filled.client.list_runs()] == [plain]
        busy.touch()
        wait_until(lambda: len(filled.client.list_runs()) == 6, 120)
        wait_until(lambda: {run.outcome for run in filled.client.list_runs()} == {"done"}, 120)
    assert {run.attempts for run in filled.client.list_runs()} == {1}


def test_a_runner_is_alive_and_not_ready_until_spark_has_done_a_job(filled: Bench, busy: Path) -> None:
    filled.make(TABLE, MOVED, sql=["select id + 1 as id from input"])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        at = f"127.0.0.1:{free.getsockname()[1]}"

    def says(path: str) -> tuple[int, str]:
        try:
            answer = httpx.get(f"http://{at}{path}", timeout=60)
        except httpx.TransportError:
            return 0, ""
        return answer.status_code, answer.text.strip()

    with running(filled, health=at):
        cold = (503, "Spark starts, or its cluster has no free executor")
        wait_until(lambda: says("/readyz") == cold, 120)
        assert says("/healthz") == (200, "ok")
        busy.touch()
        wait_until(lambda: says("/readyz") == (200, "ok"), 120)


PROGRAM = """
import sys
from trunq import Client
from trunq.pipeline.run import Executor
from trunq.pipeline.runner import asked

client = Client(sys.argv[1], max_connections=4)
executor = Executor(client, sys.argv[1])


def run(name):
    id = client.run_pipeline(name)
    (held,) = [each for each in client.lease("pipelines", "default", "w", 10) if each.id == id]
    print(executor.execute(asked(held))["rows_out"], flush=True)
    client.ack([held])


run(sys.argv[2])
java = executor.engine.session().sparkContext._gateway.proc
# As a master does that has lost sight of it.
executor.engine.session().sparkContext._jsc.sc().stop()
assert java.poll() is None
with client.transaction() as connection:
    connection.execute("insert into source values (11)")
run(sys.argv[2])
executor.engine.close()
"""


def test_a_runner_whose_spark_application_has_ended_starts_another(filled: Bench) -> None:
    name = filled.make(TABLE, MOVED, sql=["select id + 1 as id from input"])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, filled.dsn, name],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.stdout.split() == ["10", "1"], done.stderr[-3000:]
    assert filled.one("select count(*) from moved") == 11
