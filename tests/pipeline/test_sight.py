"""What one sees of a pipeline: how fresh its sink is, what runs moved in which time, what columns came."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipeline.piping import Bench
from trunq.errors import InvalidPipeline
from trunq.pipeline import figures
from trunq.pipeline.sink.table import TableSink
from trunq.record import PipelineRun, PipelineState

TABLE = {"format": "table", "table": "source"}
MOVED = {"format": "table", "table": "moved"}
KEYED = {"mode": "upsert", "key": ["id"], "newest": "at"}


@pytest.fixture
def filled(bench: Bench) -> Bench:
    """A table `source` with ids 1 to 10, each changed on that day of January."""
    bench.sql("create table source (id int, word text, at timestamptz)")
    bench.sql(
        "insert into source select g, 'w', make_timestamptz(2030, 1, g, 0, 0, 0, 'UTC')"
        " from generate_series(1, 10) g"
    )
    return bench


def run_of(bench: Bench, name: str) -> PipelineRun:
    return bench.client.list_runs(name, limit=1)[0]


def state_of(bench: Bench, name: str) -> PipelineState:
    [found] = bench.client.list_pipelines(name)
    return found


def changes(bench: Bench, name: str) -> list[tuple[Any, ...]]:
    return [tuple(each[:4]) for each in bench.client.list_schema_changes(name)]


def day(number: int) -> datetime:
    return datetime(2030, 1, number, tzinfo=UTC)


def slow(rows: pa.Table) -> pa.Table:
    """A function whose time is seen."""
    until = time.monotonic() + 0.05
    while time.monotonic() < until:
        pass
    return rows.slice(0, 5)


def test_a_run_says_its_bytes_and_where_its_time_went(filled: Bench) -> None:
    name = filled.make(TABLE, MOVED, function="pipeline.test_sight:slow")
    filled.run(name)
    seen = run_of(filled, name)
    assert (seen.rows_in, seen.rows_out) == (10, 5)
    assert seen.bytes_in is not None
    assert seen.bytes_out is not None
    assert 10 * 12 < seen.bytes_in < 1000
    assert 5 * 12 < seen.bytes_out < seen.bytes_in
    assert seen.work_ms is not None
    assert seen.sink_ms is not None
    assert seen.source_ms is not None
    assert seen.work_ms >= 50
    assert seen.sink_ms > 0
    assert seen.source_ms >= 0
    assert seen.ended_at is not None
    whole = (seen.ended_at - seen.begun_at) / timedelta(milliseconds=1)
    assert seen.source_ms + seen.work_ms + seen.sink_ms <= whole + 2


def test_the_newest_value_of_a_column_says_how_fresh_a_sink_is(filled: Bench) -> None:
    name = filled.make(TABLE, {**MOVED, **KEYED})
    assert (state_of(filled, name).fresh_at, state_of(filled, name).age) == (None, None)
    filled.run(name)
    seen = state_of(filled, name)
    assert (seen.fresh_at, seen.fresh_by) == (day(10), "at")
    assert run_of(filled, name).newest_at == day(10)
    filled.sql("insert into source values (11, 'late', make_timestamptz(2030, 1, 5, 0, 0, 0, 'UTC'))")
    filled.run(name)
    assert run_of(filled, name).newest_at == day(5)
    assert state_of(filled, name).fresh_at == day(10)


def test_an_age_is_never_below_nothing(filled: Bench) -> None:
    name = filled.make(TABLE, {**MOVED, **KEYED})
    filled.sql("update source set at = at + interval '1000 years' where id = 1")
    filled.run(name)
    assert state_of(filled, name).age == timedelta(0)


def test_without_a_column_it_is_when_the_source_was_read(filled: Bench) -> None:
    name = filled.make(TABLE, MOVED)
    filled.run(name)
    seen = state_of(filled, name)
    assert (seen.fresh_at, seen.fresh_by) == (run_of(filled, name).begun_at, None)
    assert filled.run(name) == {"outcome": "nothing new"}
    looked = state_of(filled, name)
    assert looked.fresh_at is not None
    assert seen.fresh_at is not None
    assert looked.fresh_at > seen.fresh_at


def test_the_definition_names_a_column_that_has_a_time(filled: Bench) -> None:
    name = filled.make(TABLE, MOVED, freshness="at")
    filled.run(name)
    assert (state_of(filled, name).fresh_at, state_of(filled, name).fresh_by) == (day(10), "at")
    filled.sql("insert into source values (12)")
    filled.run(name)
    assert (run_of(filled, name).newest_at, state_of(filled, name).fresh_at) == (None, day(10))
    filled.make(TABLE, MOVED, name=name, freshness="word")
    assert state_of(filled, name).fresh_by is None
    filled.sql("insert into source values (13)")
    with pytest.raises(InvalidPipeline, match=r'"word".* is string') as refused:
        filled.run(name)
    assert refused.value.hint is not None
    assert refused.value.hint.endswith(": at")
    filled.make(TABLE, MOVED, name=name, freshness="gone")
    with pytest.raises(InvalidPipeline, match=r'"gone".* is not there'):
        filled.run(name)
    filled.make(TABLE, MOVED, name=name, freshness="at")
    # The run that was open is ended, and finds the rows of both.
    filled.run(name)
    assert (run_of(filled, name).outcome, run_of(filled, name).rows_out) == ("done", 1)


def test_a_newest_that_is_no_time_is_no_age(bench: Bench) -> None:
    bench.sql("create table source (id int, version int); insert into source values (1, 7)")
    name = bench.make(TABLE, {**MOVED, "mode": "upsert", "key": ["id"], "newest": "version"})
    bench.run(name)
    assert (state_of(bench, name).fresh_by, state_of(bench, name).fresh_at) == (
        None,
        run_of(bench, name).begun_at,
    )


def test_a_sink_that_was_replaced_is_as_fresh_as_what_it_has(filled: Bench) -> None:
    name = filled.make({**TABLE, "changes": "all"}, {**MOVED, "mode": "replace"}, freshness="at")
    filled.run(name)
    filled.sql("delete from source where id > 3")
    filled.run(name)
    assert state_of(filled, name).fresh_at == day(3)


@pytest.mark.parametrize(
    ("kind", "value", "newest"),
    [
        ("date", "2030-01-02", day(2)),
        ("timestamp", "2030-01-02", day(2)),
        ("timestamptz", "2030-01-02 01:00+01", day(2)),
        ("timestamptz", "infinity", None),
        ("timestamptz", None, None),
    ],
)
def test_times_of_each_kind(bench: Bench, kind: str, value: str | None, newest: datetime | None) -> None:
    bench.sql(f"create table source (id int, at {kind})")
    bench.sql("insert into source values (1, %s)", value)
    name = bench.make(TABLE, MOVED, freshness="at")
    bench.run(name)
    assert run_of(bench, name).newest_at == newest


def test_a_column_that_comes_is_a_change_and_the_first_ones_are_none(filled: Bench) -> None:
    name = filled.make(TABLE, MOVED)
    filled.run(name)
    assert changes(filled, name) == []
    filled.sql("alter table source add day date; insert into source values (20, 'w', null, '2030-01-01')")
    filled.run(name)
    assert changes(filled, name) == [("day", None, "date", 2)]
    filled.sql("alter table moved alter id type bigint; insert into source values (21)")
    filled.run(name)
    filled.sql("insert into source values (22)")
    filled.run(name)
    assert changes(filled, name) == [("id", "integer", "bigint", 3), ("day", None, "date", 2)]
    assert len(filled.client.list_schema_changes(name, limit=1)) == 1


def test_a_column_that_is_ignored_is_no_change(filled: Bench) -> None:
    name = filled.make(TABLE, MOVED, evolve="ignore")
    filled.run(name)
    filled.sql("alter table source add day date; insert into source values (20)")
    filled.run(name)
    assert changes(filled, name) == []


def test_a_change_is_noted_by_the_run_that_ends_after_one_that_failed(
    filled: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = filled.make(TABLE, MOVED)
    filled.run(name)
    filled.sql("alter table source add day date; insert into source values (20)")

    def fail(*_: Any) -> bool:
        raise OSError("cut off")

    with monkeypatch.context() as patch:
        patch.setattr(TableSink, "commit", fail)
        with pytest.raises(OSError, match="cut off"):
            filled.run(name)
    assert changes(filled, name) == []
    filled.run(name)
    assert changes(filled, name) == [("day", None, "date", 2)]


def test_a_run_that_another_process_ends_has_its_figures(
    filled: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = filled.make(TABLE, {**MOVED, **KEYED})
    asked = filled.client.run_pipeline(name)

    def die(*_: Any) -> dict[str, Any]:
        raise OSError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(filled.executor.control.__class__, "finish", die)
        with pytest.raises(OSError, match="killed"):
            filled.execute(asked)
    assert run_of(filled, name).bytes_in is None
    filled.execute(asked)
    seen = run_of(filled, name)
    assert (seen.attempts, seen.newest_at) == (1, day(10))
    assert seen.bytes_in is not None
    assert seen.sink_ms is not None
    assert state_of(filled, name).fresh_at == day(10)


def test_a_run_that_brings_nothing_has_no_figures_and_one_that_was_cancelled_neither(filled: Bench) -> None:
    name = filled.make(TABLE, MOVED, freshness="at")
    filled.sql("create table moved (id smallint)")
    with pytest.raises(InvalidPipeline):
        filled.run(name)
    assert filled.client.cancel_pipeline(name)
    seen = run_of(filled, name)
    assert (seen.outcome, seen.bytes_in, seen.sink_ms) == ("cancelled", None, None)
    assert state_of(filled, name).fresh_at is None


def test_another_sink_has_columns_of_its_own(filled: Bench) -> None:
    name = filled.make(TABLE, MOVED, freshness="at")
    filled.run(name)
    filled.sql("create table other (id bigint); insert into source values (30)")
    filled.make(TABLE, {**MOVED, "table": "other"}, name=name, freshness="at")
    assert state_of(filled, name).fresh_by is None
    filled.run(name)
    assert changes(filled, name) == []


@pytest.mark.parametrize("format", ["delta", "parquet"])
def test_columns_of_a_lake(filled: Bench, tmp_path: Path, format: str) -> None:
    name = filled.make(TABLE, {"format": format, "path": str(tmp_path / "lake")})
    filled.run(name)
    filled.sql("alter table source add day date; insert into source values (20, 'w', null, '2030-01-01')")
    filled.run(name)
    [change] = changes(filled, name)
    assert (change[0], change[1], change[3]) == ("day", None, 2)
    assert change[2].startswith("date")


def test_a_queue_has_no_columns(filled: Bench) -> None:
    filled.client.create_queue("moved")
    name = filled.make(TABLE, {"format": "queue", "queue": "moved"}, freshness="at")
    filled.run(name)
    filled.sql("alter table source add day date; insert into source values (20)")
    filled.run(name)
    assert changes(filled, name) == []
    assert state_of(filled, name).fresh_at == day(10)


def test_a_reason_has_its_newest_row_as_an_example(filled: Bench) -> None:
    name = filled.make(TABLE, MOVED, function="pipeline.transforms:only_even")
    filled.run(name)
    newest = filled.client.list_quarantine(name, limit=1)[0]
    assert newest.content["id"] == 9
    for reason in filled.client.count_quarantine(name):
        assert (reason.quarantined, reason.newest_at) == (5, newest.created_at)
        assert reason.example == newest.content


@pytest.mark.usefixtures("spark")
def test_spark_says_the_same(filled: Bench) -> None:
    name = filled.make(
        TABLE,
        {**MOVED, **KEYED},
        sql=["select max(id) as id, word, max(at) as at from input group by word, id % 2"],
        checks=[{"name": "known", "holds": "id > 0"}],
    )
    filled.run(name)
    seen = run_of(filled, name)
    assert (seen.rows_in, seen.rows_out, seen.newest_at) == (10, 2, day(10))
    assert seen.bytes_in is not None
    assert seen.bytes_out is not None
    assert 0 < seen.bytes_out < seen.bytes_in
    assert seen.source_ms is not None
    assert seen.work_ms is not None
    assert seen.sink_ms is not None
    assert seen.source_ms > 0
    assert seen.work_ms > 0
    assert seen.sink_ms > 0
    assert state_of(filled, name).fresh_by == "at"
    filled.sql("alter table moved add more int; insert into source values (20, 'w', now())")
    filled.run(name)
    assert changes(filled, name) == []


def test_each_step_is_timed_where_it_waits() -> None:
    of = figures.Figures()

    def rows() -> Any:
        yield from range(3)

    assert list(figures.timed_each(figures.timed_each(rows(), of.read), of.pulled)) == [0, 1, 2]
    of.staged(2.0)
    assert of.work is not None
    assert 0 <= of.work < 1
    assert 1 < of.sink <= 2.0
