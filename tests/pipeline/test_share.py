"""Shares of a slice have each of its rows once, whatever becomes of the table meanwhile."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

import pytest
from psycopg.conninfo import make_conninfo

from pipeline.piping import Bench
from pipeline.test_window import Connect, source
from trunq.pipeline import source as sources
from trunq.pipeline.definition.pipeline import Pipeline
from trunq.pipeline.errors import SourceChanged
from trunq.pipeline.source import Context
from trunq.pipeline.source.share import WORTH_A_SHARE, cut
from trunq.pipeline.source.table import TableSource
from trunq.pipeline.work.frame import _SMALL, _bytes

SECONDS = 3.0


@pytest.fixture(autouse=True)
def _a_block_is_worth_a_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trunq.pipeline.source.share.WORTH_A_SHARE", 1)
    monkeypatch.setattr("trunq.pipeline.source.queue._WORTH_A_SHARE", 1)


def read(reader: Any, shares: list[dict[str, Any]]) -> list[int]:
    ids: list[int] = []
    for share in shares:
        for batch in reader.read(share, Context("seen", 1)):
            ids += batch["id"].to_pylist()
    return ids


def planned(reader: TableSource, state: dict[str, Any] | None = None, at_most: int = 4) -> Any:
    plan = reader.plan(state or {})
    assert plan.slice is not None
    return reader.shares(plan.slice, at_most), plan.state


def fill(bench: Bench, table: str, first: int, last: int) -> None:
    bench.sql(f"insert into {table} select g, repeat('x', 500) from generate_series({first}, {last}) g")


@pytest.mark.parametrize(
    ("tables", "at_most"),
    [([], 3), ([0], 3), ([1], 3), ([7], 3), ([7], 1), ([3, 0, 9, 1], 4), ([1, 1, 1, 1, 1], 2), ([100], 64)],
)
def test_each_block_is_in_one_share_and_the_end_is_open(tables: list[int], at_most: int) -> None:
    shares = cut([(oid, blocks, 0) for oid, blocks in enumerate(tables)], at_most)
    assert len(shares) <= at_most
    covered: dict[int, list[tuple[int, int | None]]] = {}
    for share in shares:
        for table, start, stop, _ in share:
            covered.setdefault(table, []).append((start, stop))
    for oid in range(len(tables)):
        ranges = covered[oid]
        assert ranges[0][0] == 0
        assert ranges[-1][1] is None
        assert [stop for _, stop in ranges[:-1]] == [start for start, _ in ranges[1:]]
    sizes = [sum((stop or tables[t]) - start for t, start, stop, _ in share) for share in shares]
    assert max(sizes) <= -(-sum(tables) // len(shares))


def test_a_small_table_is_one_share(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.sql("create table raced (id int, w text)")
    fill(bench, "raced", 1, 100)
    monkeypatch.setattr("trunq.pipeline.source.share.WORTH_A_SHARE", WORTH_A_SHARE)
    shares, _ = planned(source(bench))
    assert [set(share) for share in shares] == [{"lo", "hi"}]


def test_rows_that_come_between_planning_and_reading_are_the_next_slice_s(bench: Bench) -> None:
    bench.sql("create table raced (id int, w text)")
    fill(bench, "raced", 1, 400)
    reader = source(bench)
    shares, state = planned(reader)
    assert len(shares) == 4
    fill(bench, "raced", 401, 900)
    bench.sql("update raced set w = 'y' where id = 3")
    assert sorted(read(reader, shares)) == [id for id in range(1, 401) if id != 3]
    shares, state = planned(reader, state)
    assert len(shares) == 4
    assert sorted(read(reader, shares)) == [3, *range(401, 901)]


def test_a_table_that_shrinks_after_it_was_cut_loses_no_row(bench: Bench) -> None:
    bench.sql("create table raced (id int, w text) with (vacuum_truncate = on)")
    fill(bench, "raced", 1, 900)
    reader = source(bench)
    shares, _ = planned(reader)
    bench.sql("delete from raced where id > 200")
    before = bench.one("select pg_relation_size('raced')")
    bench.sql("vacuum raced")
    assert bench.one("select pg_relation_size('raced')") < before / 2
    assert sorted(read(reader, shares)) == list(range(1, 201))


@pytest.mark.parametrize("rewrite", ["vacuum full raced", "truncate raced", "drop table raced"])
def test_a_table_that_is_rewritten_after_it_was_cut_is_cut_anew(bench: Bench, rewrite: str) -> None:
    bench.sql("create table raced (id int, w text)")
    fill(bench, "raced", 1, 400)
    bench.sql("delete from raced where id < 200")
    reader = source(bench)
    plan = reader.plan({})
    assert plan.slice is not None
    shares = reader.shares(plan.slice, 4)
    first = read(reader, shares[:1])
    bench.sql(rewrite)
    with pytest.raises(Exception) as caught:
        read(reader, shares[1:])
    if "drop" in rewrite:
        return
    assert isinstance(caught.value, SourceChanged)
    assert first == []
    assert sorted(read(reader, reader.shares(plan.slice, 4))) == (
        [] if "truncate" in rewrite else [*range(200, 401)]
    )


def test_against_writers_the_shares_of_all_slices_have_each_row_once(bench: Bench, connect: Connect) -> None:
    bench.sql("create table raced (id bigint generated always as identity, w text default repeat('x', 500))")
    until = time.monotonic() + SECONDS

    def write(seed: int) -> None:
        chance, connection = random.Random(seed), connect(autocommit=False)
        stop = threading.Event()
        while time.monotonic() < until:
            connection.execute(
                "insert into raced select from generate_series(1, %s)", (chance.randint(1, 60),)
            )
            stop.wait(chance.random() * chance.choice([0, 0.05, 0.3]))
            connection.rollback() if chance.random() < 0.2 else connection.commit()

    writers = [threading.Thread(target=write, args=(seed,)) for seed in range(4)]
    for writer in writers:
        writer.start()
    reader, seen, state, most = source(bench), list[int](), dict[str, Any](), 0
    while any(writer.is_alive() for writer in writers):
        plan = reader.plan(state)
        state = plan.state or {}
        if plan.slice is not None:
            shares = reader.shares(plan.slice, 4)
            random.shuffle(shares)
            seen += read(reader, shares)
            most = max(most, len(shares))
    plan = reader.plan(state)
    if plan.slice is not None:
        seen += read(reader, reader.shares(plan.slice, 4))
    assert most == 4
    assert sorted(seen) == [id for (id,) in bench.sql("select id from raced order by id")]


def test_partitions_are_shared_and_one_that_was_filled_before_is_read_whole(bench: Bench) -> None:
    bench.sql("create table raced (id int, w text) partition by range (id)")
    for low in (0, 1000):
        bench.sql(f"create table raced_{low} partition of raced for values from ({low}) to ({low + 1000})")
    fill(bench, "raced", 1, 1200)
    reader = source(bench)
    shares, state = planned(reader)
    assert len(shares) == 4
    assert sorted(read(reader, shares)) == list(range(1, 1201))
    # Filled by itself, and attached after a run: its rows are older than the window.
    bench.sql("create table filled (w text, id int)")
    bench.sql("insert into filled select 'x', g from generate_series(2000, 2500) g")
    assert reader.plan(state).slice is None
    state = reader.plan(state).state
    bench.sql("alter table raced attach partition filled for values from (2000) to (3000)")
    fill(bench, "raced", 1201, 1210)
    plan = reader.plan(state)
    assert plan.slice is not None
    wanted = [*range(1201, 1211), *range(2000, 2501)]
    assert sorted(read(reader, [plan.slice])) == wanted
    assert sorted(read(reader, reader.shares(plan.slice, 4))) == wanted
    # Away and back, it brings nothing.
    bench.sql("alter table raced detach partition filled")
    state = reader.plan(plan.state).state
    bench.sql("alter table raced attach partition filled for values from (2000) to (3000)")
    assert reader.plan(state).slice is None


def test_who_may_read_a_table_but_not_its_partitions_reads_it_whole(bench: Bench, connect: Connect) -> None:
    bench.sql("create table raced (id int, w text) partition by range (id)")
    bench.sql("create table raced_0 partition of raced for values from (0) to (1000)")
    fill(bench, "raced", 1, 900)
    name = f"reader_{bench.one('select pg_current_xact_id()')}"
    bench.sql(f"create role {name} login; grant select on raced to {name}")
    try:
        made = Pipeline(
            "seen",
            source={"format": "table", "table": "raced", "dsn": make_conninfo(bench.dsn, user=name)},
            sink={"format": "table", "table": "x"},
        )
        reader = TableSource(made, bench.dsn, bench.executor.control)
        shares, _ = planned(reader)
        assert len(shares) == 1
        assert len(read(reader, shares)) == 900
    finally:
        bench.sql(f"drop owned by {name}; drop role {name}")


def test_what_is_as_of_one_moment_is_not_shared(bench: Bench) -> None:
    bench.sql("create table raced (id int, w text)")
    fill(bench, "raced", 1, 400)
    assert source(bench).shares({"range": {"column": "id", "from": "1", "to": "2"}}, 4) != []
    whole = source(bench, changes="all")
    plan = whole.plan({})
    assert plan.slice is not None
    assert whole.shares(plan.slice, 4) == [plan.slice]


def test_a_schema_is_that_of_what_is_read(bench: Bench) -> None:
    bench.sql("create type mood as enum ('a', 'b')")
    bench.sql('create table raced (id int, n numeric(9, 2), "a b" mood, j jsonb[], t timestamptz)')
    bench.sql("insert into raced values (1, 1.5, 'a', array['{}'::jsonb], now())")
    reader = source(bench)
    plan = reader.plan({})
    assert plan.slice is not None
    (batch,) = reader.read(plan.slice, Context("seen", 1))
    assert batch.schema.equals(reader.schema(plan.slice), check_metadata=True)


def test_messages_of_a_queue_are_shared_and_each_is_in_one(bench: Bench, connect: Connect) -> None:
    bench.client.create_queue("orders")
    made = Pipeline(
        "seen", source={"format": "queue", "queue": "orders"}, sink={"format": "table", "table": "x"}
    )
    reader = sources.make(made, bench.dsn, bench.executor.control)
    late = connect(autocommit=False)
    late.execute("select trunq.publish('orders', '1')")
    for _ in range(5):
        bench.client.publish_many("orders", [{"n": n} for n in range(40)])
    plan = reader.plan({})
    assert plan.slice is not None
    shares = reader.shares(plan.slice, 3)  # type: ignore[attr-defined]
    assert len(shares) == 3
    assert len(set(read(reader, shares))) == len(read(reader, shares)) == 200
    assert sorted(read(reader, shares)) == sorted(read(reader, [plan.slice]))
    late.commit()
    bench.client.publish_many("orders", [{"n": n} for n in range(40)])
    following = reader.plan(plan.state or {})
    assert following.slice is not None
    assert len(read(reader, reader.shares(following.slice, 3))) == 41  # type: ignore[attr-defined]


def test_a_lookup_of_long_texts_is_as_large_as_they_are(bench: Bench) -> None:
    bench.sql("create table long (doc text); alter table long alter doc set storage external")
    bench.sql("insert into long select repeat('x', 100000) from generate_series(1, 100)")
    bench.sql("create view seen as table long")
    assert 9_000_000 < _bytes(bench.dsn, "long") < 20_000_000
    assert _bytes(bench.dsn, "seen") > _SMALL
