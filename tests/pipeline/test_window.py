"""The window between two snapshots loses no row, in whatever order transactions commit.

TRUNQ_TEST_SECONDS says how long the races are.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import psycopg
import pytest

from pipeline.piping import Bench
from trunq.errors import InvalidPipeline
from trunq.pipeline.definition.pipeline import Pipeline
from trunq.pipeline.source import Context
from trunq.pipeline.source.table import TableSource

Connect = Callable[..., psycopg.Connection[Any]]
Way = Callable[[Bench], Iterator[list[tuple[int, int]]]]
"""How it is read: the versions of rows, slice by slice."""

SECONDS = float(os.environ.get("TRUNQ_TEST_SECONDS", "3"))
WRITERS = 6


def source(bench: Bench, **more: Any) -> TableSource:
    made = Pipeline(
        "seen",
        source={"format": "table", "table": "raced", **more},
        sink={"format": "table", "table": "x"},
    )
    return TableSource(made, bench.dsn, bench.executor.control)


def look(reader: TableSource, state: dict[str, Any]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    plan = reader.plan(state)
    rows: list[dict[str, Any]] = []
    if plan.slice is not None:
        for batch in reader.read(plan.slice, Context("seen", 1)):
            rows += batch.to_pylist()
    assert plan.state is not None
    return rows, plan.state


def test_a_row_written_after_a_savepoint_is_not_lost(bench: Bench, connect: Connect) -> None:
    bench.sql("create table raced (id int)")
    writer = connect(autocommit=False)
    writer.execute("select pg_current_xact_id()")
    writer.execute("savepoint a")
    writer.execute("insert into raced values (1)")
    writer.execute("savepoint b")
    writer.execute("insert into raced values (2)")
    writer.execute("release savepoint b")
    # Transactions that end meanwhile: the ids of the subtransactions lie below the end of the snapshot.
    bench.sql("insert into raced values (3)")
    reader = source(bench)
    rows, state = look(reader, {})
    assert [row["id"] for row in rows] == [3]
    assert look(reader, state)[0] == []
    _, state = look(reader, state)
    writer.commit()
    rows, state = look(reader, state)
    assert sorted(row["id"] for row in rows) == [1, 2]
    assert look(reader, state)[0] == []


class Race:
    """Writers who insert, update and roll back in transactions that stay open, and what was committed of it.

    Each version of a row has a number of its own, that of its writing.
    """

    def __init__(self, bench: Bench, connect: Connect) -> None:
        bench.sql(
            "create table raced (id bigint generated always as identity primary key, v bigint not null,"
            " w text default repeat('x', 300)); create index on raced (v)"
        )
        self.bench, self.connect = bench, connect
        self.numbers = count(1)
        self.committed: set[int] = set()
        self.until = time.monotonic() + SECONDS
        self.writers = [threading.Thread(target=self._write, args=(seed,)) for seed in range(WRITERS)]

    def __enter__(self) -> Race:
        for writer in self.writers:
            writer.start()
        return self

    def __exit__(self, *_: object) -> None:
        for writer in self.writers:
            writer.join()

    @property
    def is_on(self) -> bool:
        return any(writer.is_alive() for writer in self.writers)

    def _write(self, seed: int) -> None:
        chance, connection, stop = random.Random(seed), self.connect(autocommit=False), threading.Event()
        while time.monotonic() < self.until:
            written = self._change(chance, connection)
            if chance.random() < 0.5:
                connection.execute("savepoint s")
                more = self._change(chance, connection)
                if chance.random() < 0.3:
                    connection.execute("rollback to savepoint s")
                else:
                    connection.execute("release savepoint s")
                    written += more
            stop.wait(chance.random() * chance.choice([0, 0.05, 0.4]))
            if chance.random() < 0.15:
                connection.rollback()
            else:
                connection.commit()
                self.committed.update(written)

    def _change(self, chance: random.Random, connection: psycopg.Connection[Any]) -> list[int]:
        """Some rows are new, and some that nobody else holds are changed."""
        numbers = [next(self.numbers) for _ in range(chance.randint(1, 9))]
        connection.execute("insert into raced (v) select unnest(%s::bigint[])", (numbers,))
        changed = next(self.numbers)
        found = connection.execute(
            "update raced set v = %s where id = (select id from raced where id >= (select (random() *"
            " max(id))::bigint from raced) order by id limit 1 for update skip locked)",
            (changed,),
        )
        return [*numbers, *([changed] if found.rowcount else [])]


def read_window(bench: Bench) -> Iterator[list[tuple[int, int]]]:
    """Versions, with the rows they are of, slice by slice."""
    reader, state = source(bench), dict[str, Any]()
    while True:
        rows, state = look(reader, state)
        yield [(row["id"], row["v"]) for row in rows]


def read_window_in_shares(bench: Bench) -> Iterator[list[tuple[int, int]]]:
    """The same, each slice in shares, in any order."""
    reader, state, chance = source(bench), dict[str, Any](), random.Random(7)
    while True:
        plan = reader.plan(state)
        assert plan.state is not None
        state, rows = plan.state, list[tuple[int, int]]()
        shares = [] if plan.slice is None else reader.shares(plan.slice, 4)
        chance.shuffle(shares)
        for share in shares:
            for batch in reader.read(share, Context("seen", 1)):
                rows += [(row["id"], row["v"]) for row in batch.to_pylist()]
        yield rows


def read_by_maximum(bench: Bench) -> Iterator[list[tuple[int, int]]]:
    """What is lost by asking for what is greater than the greatest."""
    greatest = 0
    while True:
        rows = bench.sql("select id, v from raced where v > %s", greatest)
        greatest = max([greatest, *(v for _, v in rows)])
        yield rows


def race(
    bench: Bench, connect: Connect, way: Way
) -> tuple[list[int], set[int], dict[int, int], dict[int, int]]:
    """Versions as they were read, those committed, and of each row the last read, and the one there is."""
    slices, seen, last = way(bench), list[int](), dict[int, int]()

    def read() -> None:
        rows = next(slices)
        seen.extend(v for _, v in rows)
        last.update(rows)

    with Race(bench, connect) as going:
        while going.is_on:
            read()
    read()
    read()
    return seen, going.committed, last, dict(bench.sql("select id, v from raced"))


@pytest.mark.parametrize("way", [read_window, read_window_in_shares])
def test_against_writers_with_open_transactions_nothing_is_missing_old_or_twice(
    bench: Bench, connect: Connect, way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trunq.pipeline.source.share.WORTH_A_SHARE", 1)
    seen, committed, last, truth = race(bench, connect, way)
    assert len(truth) > 50
    assert last == truth
    assert max(Counter(seen).values()) == 1
    assert committed.issuperset(seen)


def test_the_maximum_of_a_column_loses_rows_in_the_same_race(bench: Bench, connect: Connect) -> None:
    _, _, last, truth = race(bench, connect, read_by_maximum)
    assert truth.keys() - last.keys(), "no row is missing: the race was none"
    assert any(last[id] != truth[id] for id in last), "no row is old: the race was none"


def test_updates_come_again_and_an_upsert_equals_its_source(bench: Bench) -> None:
    bench.sql(
        "create table raced (id int primary key, v int); insert into raced select g, 0 from"
        " generate_series(1, 9) g"
    )
    name = bench.make(
        {"format": "table", "table": "raced"},
        {"format": "table", "table": "moved", "mode": "upsert", "key": ["id"]},
    )
    bench.run(name)
    bench.sql("update raced set v = id where id % 2 = 0")
    assert bench.run(name)["rows_in"] == 4
    bench.sql("vacuum (full, freeze) raced")
    assert bench.run(name)["outcome"] == "nothing new"
    assert bench.sql("select * from moved order by id") == bench.sql("select * from raced order by id")


@pytest.mark.parametrize(
    ("made", "source", "words"),
    [
        ("create view raced as select 1 as id", {}, "is a view"),
        ("create table other (id int)", {}, "no table raced"),
        ("create table raced (id int)", {"table": "a.b.c"}, "not the name of a table"),
    ],
)
def test_what_cannot_be_read_so_is_refused(
    bench: Bench, made: str, source: dict[str, str], words: str
) -> None:
    bench.sql(made)
    name = bench.make({"format": "table", "table": "raced", **source}, {"format": "table", "table": "moved"})
    with pytest.raises(InvalidPipeline, match=words):
        bench.run(name)


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"snapshot": "999999999999:999999999999:"}, "set back"),
        ({"snapshot": "5:5:", "system": "1"}, "another database"),
    ],
)
def test_a_source_that_was_set_back_is_refused(bench: Bench, state: dict[str, str], words: str) -> None:
    bench.sql("create table raced (id int)")
    name = bench.make({"format": "table", "table": "raced"}, {"format": "table", "table": "moved"})
    bench.client.set_pipeline_state(name, state)
    with pytest.raises(InvalidPipeline, match=words):
        bench.run(name)


def test_a_look_back_reads_what_is_not_older_than_the_lag(bench: Bench) -> None:
    bench.sql("create table raced (id int, at timestamptz)")
    reader = source(bench, cursor="at", lag="1 hour")
    bench.sql("insert into raced values (1, '2020-01-01 12:00Z')")
    rows, state = look(reader, {})
    assert [row["id"] for row in rows] == [1]
    bench.sql("insert into raced values (2, '2020-01-01 11:30Z'), (3, '2020-01-01 10:30Z')")
    rows, state = look(reader, state)
    assert [row["id"] for row in rows] == [2]


def test_a_look_back_loses_no_row_without_a_time_or_behind_one_of_a_time_to_come(bench: Bench) -> None:
    bench.sql("create table raced (id int, at timestamptz default now())")
    bench.sql("insert into raced values (1, '2998-01-01'), (2, '2999-01-01')")
    reader = source(bench, cursor="at", lag="1 hour")
    rows, state = look(reader, {})
    assert sorted(row["id"] for row in rows) == [1, 2]
    bench.sql("insert into raced values (3, null), (4, '2997-01-01')")
    bench.sql("insert into raced values (5)")
    rows, state = look(reader, state)
    assert sorted(row["id"] for row in rows) == [3, 4, 5]
    assert look(reader, state)[0] == []
