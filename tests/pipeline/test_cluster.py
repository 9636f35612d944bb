"""Pipelines on a standalone cluster of two executors: one that is killed while it stages, tasks that are done
twice beside each other, and executors that come late.

The source has a row that Postgres does not give before the test lets it: what is to happen in the middle of a
task happens there. A push takes a sink for each way to commit; TRUNQ_TEST_ALL, or TRUNQ_KILLS, takes each.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import psycopg
import pytest

from pipeline.attempting import FIRST, SINKS, words
from pipeline.killing import LONG
from pipeline.piping import Bench
from scope import ALL, EVERY
from spark.cluster import CONF, Cluster, master_in, program
from waiting import wait_until

pytestmark = pytest.mark.timeout(3600)

Start = Callable[..., subprocess.Popen[str]]

KINDS: Final = [
    kind for kind in SINKS if not any(word in kind for word in ("replace", "partitions", "apply"))
]
"""Those of a window, which is read in shares."""
CHOSEN: Final = KINDS if EVERY else list(FIRST)
LOCK: Final = 4711
ROWS: Final = 20_000
RUNNER: Final = ("-m", "trunq", "worker", "trunq.pipeline.runner:worker", "-c", "1")
TWICE: Final = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.5",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Of two hosts: Spark does no task twice on one."""
    with master_in(tmp_path_factory.mktemp("cluster")) as running:
        running.start_worker("1")
        running.start_worker("2", host="127.0.0.2")
        yield running


@pytest.fixture
def start(database: str) -> Iterator[Start]:
    """Start a driver on a cluster; it is killed in the end."""
    started: list[subprocess.Popen[str]] = []

    def begin(cluster: Cluster, *arguments: str, **conf: str) -> subprocess.Popen[str]:
        given = json.dumps({**CONF, **conf})
        started.append(program(cluster, database, *arguments, TRUNQ_SPARK_CONF=given))
        return started[-1]

    yield begin
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


class Moving:
    """A table of two shares, with rows for which their reader waits until the test lets them pass, and
    pipelines of it.
    """

    def __init__(self, bench: Bench, path: Path, waits: str) -> None:
        self.bench, self.path = bench, path
        bench.sql("create type gate as enum ('open', 'shut')")
        bench.sql(
            "create function pass(p_gate gate) returns text language plpgsql as $$ begin"
            f" if p_gate = 'shut' then perform pg_advisory_xact_lock_shared({LOCK}); end if;"
            " return 'passed'; end $$"
        )
        bench.sql("create cast (gate as text) with function pass(gate)")
        bench.sql("create table source (id int, word text, run text, pad text, gate gate)")
        bench.sql(
            "insert into source select id, 'w' || id, 'r', repeat('x', 500),"
            f" (case when {waits} then 'shut' else 'open' end)::gate from generate_series(1, {ROWS}) id"
        )
        bench.client.create_queue("moved")

    def ask(self, kind: str) -> str:
        """A pipeline into such a sink, and a message that asks for its run; its name."""
        sink = {**SINKS[kind], **({"path": str(self.path / "moved")} if "path" in SINKS[kind] else {})}
        name = self.bench.make({"format": "table", "table": "source"}, sink, engine="spark")
        self.bench.client.run_pipeline(name)
        return name

    @contextmanager
    def shut(self) -> Iterator[None]:
        """No such row passes meanwhile."""
        with psycopg.connect(self.bench.dsn, autocommit=True) as holding:
            holding.execute("select pg_advisory_lock(%s)", (LOCK,))
            yield
        wait_until(lambda: not self.waiting(), 120)

    def waiting(self) -> int:
        """How many readers wait."""
        count: int = self.bench.one(
            "select count(*) from pg_locks where locktype = 'advisory' and objid = %s and not granted"
            " and database = (select oid from pg_database where datname = current_database())", LOCK
        )  # fmt: skip
        return count

    def check(self, name: str, kind: str) -> None:
        """Each row came once, in one attempt; then room is made for the next sink."""
        wait_until(lambda: [run.outcome for run in self.bench.client.list_runs(name)] == ["done"], LONG)
        run = self.bench.client.list_runs(name)[0]
        assert (run.attempts, run.engine, run.rows_out) == (1, "spark", ROWS)
        assert sorted(words(self.bench, kind)) == sorted(f"w{id}" for id in range(1, ROWS + 1)), kind
        self.bench.sql("drop table if exists moved")
        shutil.rmtree(self.path / "moved", ignore_errors=True)


@pytest.fixture
def moving(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Moving]:
    monkeypatch.chdir(tmp_path)
    return lambda waits: Moving(bench, tmp_path, waits)


@pytest.mark.slow
def test_an_executor_that_is_killed_while_it_stages_brings_each_row_once(
    cluster: Cluster, moving: Callable[[str], Moving], start: Start
) -> None:
    made = moving("id % 5000 = 2500")
    driver = start(cluster, *RUNNER)
    for kind in CHOSEN:
        name = made.ask(kind)
        with made.shut():
            wait_until(lambda: _alive(driver) and made.waiting() == 2, LONG, kind)
            cluster.executors()[0].kill()
            # Another one reads that share again, up to the same row.
            wait_until(lambda: _alive(driver) and made.waiting() == 3, LONG, kind)
        made.check(name, kind)


@pytest.mark.slow
def test_of_tasks_that_are_done_twice_beside_each_other_the_sink_takes_one(
    cluster: Cluster, moving: Callable[[str], Moving], start: Start
) -> None:
    made = moving("id = 2500")
    driver = start(cluster, *RUNNER, **TWICE)
    for kind in CHOSEN:
        name = made.ask(kind)
        with made.shut():
            wait_until(lambda: _alive(driver) and made.waiting() == 2, LONG, kind)
        made.check(name, kind)


@pytest.mark.slow
def test_executors_of_another_python_are_refused_before_anything_runs(
    cluster: Cluster, moving: Callable[[str], Moving], start: Start, tmp_path: Path
) -> None:
    # A runner of several slots, and two messages: neither begins its run.
    made, other = moving("false"), tmp_path / "python"
    other.write_text("#!/bin/sh\necho 3.1\n")
    other.chmod(0o755)
    name = made.ask("append")
    run = ("-m", "trunq", "pipeline", "run", name)
    refused = start(cluster, *run, **{"spark.executorEnv.TRUNQ_REAL_PYTHON": str(other)})
    _, said = refused.communicate(timeout=LONG)
    assert refused.returncode == 1, said
    version = "{}.{}".format(*sys.version_info)
    assert f"executors of {cluster.master} have Python 3.1, and the runner has {version}: nothing was" in said
    assert f"install Python {version} with trunq on each machine" in said
    assert "Traceback" not in said
    assert made.bench.client.list_runs(name) == []
    assert start(cluster, *run).wait(LONG) == 0
    made.check(name, "append")


@pytest.mark.slow
@pytest.mark.skipif(not ALL, reason="TRUNQ_TEST_ALL starts a cluster of its own")
def test_executors_may_come_late(
    bench: Bench, moving: Callable[[str], Moving], start: Start, tmp_path: Path
) -> None:
    made = moving("false")
    with master_in(tmp_path) as cluster:
        name = made.ask("append")
        early = start(cluster, "-m", "trunq", "pipeline", "run", name, "--json")
        put_off = {"scheduled", "retrying"}
        wait_until(
            lambda: (
                _alive(early) and put_off & {row.state for row in bench.client.list_messages("pipelines")}
            ),
            LONG,
        )
        assert bench.client.list_runs(name) == []
        cluster.start_worker("1")
        made.check(name, "append")
        assert early.wait(LONG) == 0


def _alive(driver: subprocess.Popen[str]) -> bool:
    assert driver.poll() is None, driver.communicate()
    return True
