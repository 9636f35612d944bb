"""The whole chain, worker and Spark and sinks: the runner is killed with all its processes, and Postgres too,
while rows are staged and just before they are committed. Every row arrives once.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from copying import copied_server
from pipeline.test_kill import read_delta
from spark.test_crash import kill_tree
from trunq import Client
from trunq.embedded import Embedded
from trunq.pipeline import Pipeline
from waiting import wait_until

SINKS: dict[str, dict[str, Any]] = {
    "table": {"format": "table", "table": "moved"},
    "delta": {"format": "delta", "path": "delta/lake"},
    "parquet": {"format": "parquet", "path": "parquet/lake"},
}
SPARK = {"TRUNQ_SPARK_MASTER": "local[4]", "TRUNQ_SPARK_MEMORY": "512m"}
LONG = 240
"""Seconds for Spark to start, on a machine that has much else to do."""


@pytest.fixture
def own_server() -> Iterator[Embedded]:
    """A server that may be killed."""
    with copied_server(settings={"fsync": "off"}) as server:
        yield server


class Chain:
    """Files, a pipeline into each sink, and runners one after the other."""

    def __init__(self, server: Embedded, root: Path) -> None:
        self.server, self.root = server, root
        self.batches = 0
        with self.client() as client:
            client.create_queue("pipelines")
            client.subscribe("pipelines", "default", backoff_base=0.1, jitter=0)
            for kind, sink in SINKS.items():
                (root / kind).mkdir()
                source = {"format": "csv", "path": f"{root}/*.csv", "settled": 0}
                made = Pipeline(kind, source=source, sink=sink, transform="pipeline.chained:halting")
                client.create_pipeline(kind, made.definition)

    @contextmanager
    def client(self) -> Iterator[Client]:
        with Client(self.server.dsn, max_connections=1) as client:
            yield client

    @contextmanager
    def runner(self) -> Iterator[subprocess.Popen[bytes]]:
        """A runner's process; at the end it is killed with all that it started."""
        environment = {**os.environ, **SPARK, "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-m", "pipeline.chained", self.server.dsn, str(self.root)]
        with (
            (self.root / "log").open("ab") as log,
            subprocess.Popen(command, stdout=log, stderr=log, env=environment) as process,
        ):
            try:
                yield process
            finally:
                kill_tree(process.pid)

    def ask(self, halt_at: str) -> None:
        """A thousand rows more, of which each pipeline is to halt at a place."""
        for part in range(4):
            first = self.batches * 1000 + part * 250 + 1
            lines = "".join(f"{id}\n" for id in range(first, first + 250))
            (self.root / f"{self.batches}-{part}.csv").write_text(f"id\n{lines}")
        self.batches += 1
        self.halt_at(halt_at)
        with self.client() as client:
            for kind in SINKS:
                client.run_pipeline(kind, str(self.root / kind))

    def halt_at(self, place: str) -> None:
        for kind in SINKS:
            (self.root / kind / f"{place}.reached").unlink(missing_ok=True)
            (self.root / kind / place).touch()

    def await_halt(self, place: str) -> None:
        reached = [self.root / kind / f"{place}.reached" for kind in SINKS]
        self.wait(lambda: all(path.exists() for path in reached), place)

    def let_go(self, place: str) -> None:
        for kind in SINKS:
            (self.root / kind / place).unlink()

    def wait(self, predicate: Any, what: str) -> None:
        try:
            wait_until(predicate, LONG, what)
        except AssertionError:
            print((self.root / "log").read_text()[-8000:])
            raise

    def crash_the_server(self) -> None:
        self.server.kill()
        self.server.restart()

    def check(self) -> None:
        """All runs end, and every row is in each sink once."""
        ended = f"select count(*) = {3 * self.batches} from trunq.pipeline_run where outcome = 'done'"
        self.wait(lambda: self.sql(ended)[0][0], f"{self.batches} runs of each")
        ids = list(range(1, self.batches * 1000 + 1))
        assert [id for (id,) in self.sql("select id from moved order by id")] == ids
        for reader, found in read_delta(str(self.root / "delta/lake")).items():
            assert sorted(found) == ids, reader
        once = "select count(*) from trunq.list_runs('table') where attempts = 1"
        assert self.sql(once) == [(0,)]

    def sql(self, query: str) -> list[Any]:
        with psycopg.connect(self.server.dsn, autocommit=True) as connection:
            cursor = connection.execute(query.encode())
            return cursor.fetchall() if cursor.description else []

    def staged(self) -> int:
        """Rows in stages of the newest attempts, in Postgres."""
        names = self.sql("select oid::regclass::text from pg_class where relname like 'stage\\_%'")
        return sum(self.sql(f"select count(*) from {name}")[0][0] for (name,) in names)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_whatever_is_killed_from_worker_to_sink_every_row_arrives_once(
    own_server: Embedded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    chain = Chain(own_server, tmp_path)
    chain.ask("staging")
    with chain.runner():
        chain.await_halt("staging")
    # The runner, Java and the Python workers died while rows were staged.
    chain.let_go("staging")
    chain.halt_at("written")
    with chain.runner():
        chain.await_halt("written")
        assert chain.staged() >= 1000
        chain.crash_the_server()
        assert chain.staged() == 0
        # The attempts are noted, and what one of them had staged is no more.
        chain.let_go("written")
        chain.check()
        chain.ask("staging")
        chain.await_halt("staging")
        chain.crash_the_server()
        chain.let_go("staging")
        chain.check()
        chain.ask("written")
        chain.await_halt("written")
    chain.let_go("written")
    with chain.runner():
        chain.check()
        check_as_spark_reads(chain)


def check_as_spark_reads(chain: Chain) -> None:
    """Spark finds in both lakes what is in the table."""
    made = Pipeline(
        "seen",
        source={"format": "table", "table": "moved", "changes": "all"},
        sink={"format": "table", "table": "seen"},
        lookups={
            "lake": {"format": "delta", "path": f"{chain.root}/delta/lake"},
            "files": {"format": "parquet", "path": f"{chain.root}/parquet/lake/run-*/*.parquet"},
        },
        sql=[
            " union all ".join(
                f"select count(*) as count, count(distinct id) as ids, sum(id) as sum from {each}"
                for each in ("input", "lake", "files")
            )
        ],
    )
    with chain.client() as client:
        client.create_pipeline("seen", made.definition)
        client.run_pipeline("seen")
    chain.wait(lambda: chain.sql("select to_regclass('seen') is not null")[0][0], "Spark has read")
    chain.wait(lambda: chain.sql("select count(*) from seen")[0][0], "Spark has read")
    rows = chain.batches * 1000
    wanted = (rows, rows, rows * (rows + 1) // 2)
    assert chain.sql("select count, ids, sum from seen") == [wanted] * 3
