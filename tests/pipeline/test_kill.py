"""Whatever is killed at whatever line, every row arrives once.

TRUNQ_KILLS=200 kills that many processes a sink. Without it, a push kills one at each point of each way to
commit and three at random; of a mode that commits as another does, at the points of its commit, and one more.
TRUNQ_TEST_ALL kills at each point of each mode, and ten and four at random.
"""

from __future__ import annotations

import random
import signal
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from pyarrow import dataset, parquet

from pipeline.attempting import FIRST
from pipeline.killing import POINTS, execute_and_die, start
from pipeline.piping import Bench
from scope import EVERY, KILLS, some

OF_COMMIT = ("staged", "committing", "marked", "committed")

EACH = 100
"""Rows a run, each with another key `k`; each run has the same keys."""

ALL = {"changes": "all"}
CAPTURED = {"changes": "capture"}
SINKS: dict[str, dict[str, Any]] = {
    "append": {"format": "table", "table": "moved"},
    "upsert": {"format": "table", "table": "moved", "mode": "upsert", "key": ["k"]},
    "replace": {"format": "table", "table": "moved", "mode": "replace"},
    "history": {"format": "table", "table": "moved", "mode": "history", "key": ["k"]},
    "queue": {"format": "queue", "queue": "moved", "kind": "row", "key": "id"},
    "delta": {"format": "delta", "path": "moved"},
    "delta upsert": {"format": "delta", "path": "moved", "mode": "upsert", "key": ["k"], "compact": 1},
    "delta replace": {"format": "delta", "path": "moved", "mode": "replace"},
    "delta partitions": {
        "format": "delta",
        "path": "moved",
        "compact": 1,
        "mode": "replace_partitions",
        "partition_by": ["part"],
    },
    "delta history": {"format": "delta", "path": "moved", "mode": "history", "key": ["k"]},
    "parquet": {"format": "parquet", "path": "moved"},
    "apply": {"format": "table", "table": "moved", "mode": "apply"},
    "apply anew": {"format": "table", "table": "moved", "mode": "apply"},
    "delta apply": {"format": "delta", "path": "moved", "mode": "apply"},
    "delta apply anew": {"format": "delta", "path": "moved", "mode": "apply"},
}
"""Of these that are applied anew, each slice is a snapshot of the table."""


def random_kills(kind: str) -> int:
    """How many die at random moments, after those at each point."""
    return max(1, KILLS - len(POINTS)) if KILLS else some(3, 10) if kind in FIRST else some(1, 4)


def points(kind: str) -> list[str]:
    """Where one dies: what is before a commit is the same in every mode."""
    chosen = POINTS if EVERY or kind in FIRST else OF_COMMIT
    return [*chosen, *(["taken"] if "delta" in kind else [])]


class Moving:
    """A table `source`, a pipeline of it, and what its sink is to have."""

    def __init__(self, bench: Bench, kind: str, **parts: Any) -> None:
        self.bench, self.kind = bench, kind
        self.rounds = count(1)
        self._mode = SINKS[kind].get("mode", "append")
        bench.sql("create table source (id bigint generated always as identity primary key, k int, part int)")
        if kind == "queue":
            bench.client.create_queue("moved")
        source = {"format": "table", "table": "source"}
        changes = ALL if "replace" in self._mode else CAPTURED if self._mode == "apply" else {}
        self.pipeline = bench.make({**source, **changes}, SINKS[kind], **parts)

    def ask(self, payload: Any = None) -> tuple[int, int]:
        """Another slice; the number of the run that is to take it, and the message that asks for it."""
        round = next(self.rounds)
        if "anew" in self.kind:
            self.bench.sql("truncate source")
        if self._mode in ("replace", "apply"):
            # Those that stay are in each run; those that go may be in none that ends from now on.
            self.bench.sql("delete from source where id %% 3 = %s", round % 3)
        if self._mode == "replace_partitions":
            # A partition that a run has rows of has no others.
            self.bench.sql("delete from source where part = %s", round % 4)
        self.bench.sql(
            "insert into source (k, part) select g, %s from generate_series(1, %s) g", round % 4, EACH
        )
        return round, self.bench.client.run_pipeline(self.pipeline, payload)

    def end(self, round: int, message: int, at: Any) -> None:
        """Whoever comes next brings it to its end, and all is as if nobody had been killed."""
        done = self.bench.execute(message)
        assert (done["number"], done["outcome"]) == (round, "done"), at
        self.check(at)

    def check(self, at: Any) -> None:
        wanted = "max(id) from source group by k" if "upsert" in self.kind else "id from source"
        ids = [id for (id,) in self.bench.sql(f"select {wanted} order by 1")]
        for reader, found in self._read().items():
            assert sorted(found) == ids, (at, reader, len(found), len(set(found)), len(ids))
        if self._mode == "history":
            query = "select id from moved where valid_to is null order by id"
            if "delta" in self.kind:
                found = QueryBuilder().register("moved", DeltaTable("moved")).execute(query).read_all()
                newest = pa.table(found)["id"].to_pylist()
            else:
                newest = [id for (id,) in self.bench.sql(query)]
            assert newest == ids[-EACH:], at

    def check_leftovers(self) -> None:
        """What the dead left behind goes with the next run, and vacuum finds nothing that is read."""
        round, message = self.ask()
        self.end(round, message, "last")
        assert self.bench.one("select count(*) from pg_class where relname like 'stage\\_%%'") == 0
        stages = Path("moved/_trunq_stage")
        assert not stages.exists() or not [*stages.iterdir()]
        if "delta" in self.kind:
            DeltaTable("moved").vacuum(0, dry_run=False, enforce_retention_duration=False)
            self.check("vacuumed")

    def _read(self) -> dict[str, list[int]]:
        """Ids in the sink, as each of its readers finds them."""
        if "delta" in self.kind:
            return read_delta("moved")
        if self.kind == "parquet":
            return {
                "dataset": dataset.dataset("moved", format="parquet").to_table()["id"].to_pylist(),
                "parquet": parquet.read_table("moved")["id"].to_pylist(),
            }
        what = "(payload->>'id')::bigint from trunq_log.moved" if self.kind == "queue" else "id from moved"
        return {"sql": [id for (id,) in self.bench.sql(f"select {what}")]}


def read_delta(path: str) -> dict[str, list[int]]:
    """Ids in a Delta table: by pyarrow, by deltalake's own engine, and in the files that its log names."""
    table = DeltaTable(path)
    found = QueryBuilder().register("moved", table).execute("select id from moved").read_all()
    files = [parquet.read_table(uri, columns=["id"], partitioning=None) for uri in table.file_uris()]
    return {
        "pyarrow": table.to_pyarrow_table()["id"].to_pylist(),
        "deltalake": pa.table(found)["id"].to_pylist(),
        "files": [id for each in files for id in each["id"].to_pylist()],
    }


@pytest.fixture(autouse=True)
def _in_a_directory_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.killing.DIRECTORY", str(tmp_path))
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", SINKS)
def test_killed_at_each_point_every_row_arrives_once(bench: Bench, kind: str) -> None:
    moving = Moving(bench, kind)
    for point in points(kind):
        round, message = moving.ask()
        assert execute_and_die(bench.dsn, bench.asked(message), point) == -signal.SIGKILL, point
        moving.end(round, message, point)
    moving.check_leftovers()


@pytest.mark.slow
@pytest.mark.parametrize("kind", SINKS)
def test_killed_at_random_every_row_arrives_once(bench: Bench, kind: str) -> None:
    moving = Moving(bench, kind)
    chance = random.Random()
    kills, longest, wanted = 0, 0.4, random_kills(kind)
    while kills < wanted:
        round, message = moving.ask()
        asked = bench.asked(message)
        while kills < wanted:
            process = start(bench.dsn, asked)
            process.join(chance.random() * longest)
            process.kill()
            process.join()
            if process.exitcode == 0:
                # However loaded the machine is, about every third is done before it is killed.
                longest *= 0.7
                break
            assert process.exitcode == -signal.SIGKILL
            kills, longest = kills + 1, longest * 1.2
        moving.end(round, message, kills)
    moving.check_leftovers()


@pytest.mark.slow
def test_a_message_that_died_leaves_no_hole(bench: Bench) -> None:
    moving = Moving(bench, "append")
    _, lost = moving.ask()
    execute_and_die(bench.dsn, bench.asked(lost), "written")
    _, message = moving.ask()
    # The hold of the dead is over.
    bench.sql("update trunq.pipeline_run set held_until = null")
    moving.end(2, message, "after it")
    runs = bench.client.list_runs(moving.pipeline)
    assert [row.message_id == lost for row in runs] == [False, True]
