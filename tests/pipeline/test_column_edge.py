"""Columns and checks as data at the edges of their types: what is kept out, and comes back whole."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from pydantic import ValidationError

from pipeline.piping import Bench
from trunq.errors import InvalidPipeline
from trunq.pipeline import Check, Columns, Pipeline, figures
from trunq.pipeline import sink as sinks
from trunq.pipeline.control import Control, Run
from trunq.pipeline.definition.reading import read_definition
from trunq.pipeline.engine import Engine
from trunq.pipeline.errors import CheckFailed
from trunq.pipeline.source import Context
from trunq.pipeline.work.again import alike
from trunq.pipeline.work.column import arrow_type, cast
from trunq.pipeline.work.ruling import Ruling
from trunq.pipeline.work.share import Quarantined
from trunq.pipeline.work.stager import Stager

TABLE = {"format": "table", "table": "source"}
MOVED = {"format": "table", "table": "moved"}
SALT = "salty-and-long"


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here starts a Java process."""
    monkeypatch.setattr(Engine, "session", None)


def resent(bench: Bench, name: str) -> tuple[int, int, int]:
    """What became of the rows of a quarantine that are sent again: read, written, kept out."""
    done = bench.execute(bench.client.resend_quarantine(name))
    return done["rows_in"], done["rows_out"], done["rows_bad"]


def reasons(bench: Bench, name: str) -> list[list[str]]:
    """Why which rows are in a quarantine, the newest first."""
    return [row.reasons for row in bench.client.list_quarantine(name)]


WHOLE = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]


@pytest.mark.parametrize("kind", WHOLE, ids=str)
def test_whole_numbers_become_decimals_where_they_fit(kind: pa.DataType) -> None:
    made, wrong = cast(pa.array([5, None, 100], kind), arrow_type("decimal(4,2)"))
    assert ([None if each is None else str(each) for each in made.to_pylist()], wrong) == (
        ["5.00", None, None],
        [2],
    )


def test_a_whole_number_that_a_decimal_has_no_room_for_is_kept_out(bench: Bench) -> None:
    bench.sql("create table source (id int, n int)")
    bench.sql("insert into source values (1, 5), (2, 1000000000), (3, null)")
    name = bench.make(TABLE, MOVED, columns={"cast": {"n": "decimal(10,2)"}})
    done = bench.run(name)
    assert (done["rows_out"], done["rows_bad"]) == (2, 1)
    assert bench.sql("select id, n::text from moved order by id") == [(1, "5.00"), (3, None)]
    assert reasons(bench, name) == [["n cannot be cast to decimal(10,2)"]]


@pytest.mark.parametrize(
    ("values", "wrong"),
    [
        (pa.array([1e300, float("inf"), 2.5, None, float("nan")], pa.float64()), [0]),
        (pa.array(["1e39", "-Infinity", "2.5", None, "inf"]), [0]),
    ],
    ids=["numbers", "texts"],
)
def test_a_number_that_a_float_has_no_room_for_is_kept_out(values: pa.Array, wrong: list[int]) -> None:
    made, found = cast(values, pa.float32())
    assert found == wrong
    assert [each.is_valid for each in made] == [False, True, True, False, True]


@pytest.mark.parametrize(
    "kind", ["char(2)", "varchar(2)", "bit(2)", "uuid", "numeric(5,2)", "timestamptz(0)"]
)
def test_a_value_refers_to_one_of_a_type_with_a_length(bench: Bench, kind: str) -> None:
    values = {
        "bit(2)": ("10", "11"),
        "uuid": ("0" * 32, "1" * 32),
        "numeric(5,2)": ("1.5", "2"),
        "timestamptz(0)": ("2030-01-01", "2031-01-01"),
    }
    here, nowhere = values.get(kind, ("CZ", "XX"))
    bench.sql(f"create table states (code {kind} primary key)")
    bench.sql(f"create table source (id int, state {kind})")
    for row, value in enumerate((here, nowhere, None)):
        bench.sql("insert into states values (%s)", here) if not row else None
        bench.sql("insert into source values (%s, %s)", row, value)
    check = {"column": "state", "refers_to": {"table": "states", "column": "code"}}
    name = bench.make(TABLE, MOVED, checks=[check])
    bench.run(name)
    assert bench.sql("select id from moved order by id") == [(0,), (2,)]
    assert reasons(bench, name) == [["state refers to"]]


def test_texts_and_numbers_of_one_column_are_sent_again_together(bench: Bench) -> None:
    bench.sql("create table source (id int, n float8, word text)")
    bench.sql("insert into source values (1, 'NaN', '7'), (2, 1.5, 'abc'), (3, 2.5, '9')")
    bad = {"column": "id", "one_of": [9]}
    columns = {"cast": {"word": "int64"}}
    name = bench.make(TABLE, MOVED, columns=columns, checks=[bad])
    assert bench.run(name)["rows_bad"] == 3
    control = Control(bench.client)
    written = read_definition(name, bench.one("select definition from trunq.pipeline where name = %s", name))
    ids = control.quarantined(name, None)
    # As a task of Spark reads them.
    source, slice = Quarantined(written, control, None), {"quarantine": ids}
    schema = source.schema(slice)
    assert schema is not None
    assert {field.name: field.type for field in schema} == {
        "id": pa.int64(),
        "n": pa.string(),
        "word": pa.string(),
    }
    assert sum(batch.num_rows for batch in source.read(slice, Context(name, 1))) == 3
    bench.make(TABLE, MOVED, columns=columns, name=name)
    assert resent(bench, name) == (3, 2, 1)
    rows = bench.sql("select id, n::text, word from moved order by id")
    assert rows == [(1, "NaN", 7), (3, "2.5", 9)]
    assert reasons(bench, name) == [["word cannot be cast to int64"]]
    assert resent(bench, name) == (1, 0, 1)


def test_values_of_several_kinds_become_texts() -> None:
    rows = [{"a": 1, "b": True, "c": 1}, {"a": "x", "b": 0, "c": 1.5}, {"a": None, "b": None, "c": None}]
    assert alike(rows) == [
        {"a": "1", "b": "true", "c": 1},
        {"a": "x", "b": "0", "c": 1.5},
        {"a": None, "b": None, "c": None},
    ]
    assert alike(rows[:1]) is not rows
    assert alike(rows[:1]) == rows[:1]


def test_rows_with_times_without_end_are_kept_out_and_come_back(bench: Bench) -> None:
    bench.sql(
        "create table source (id int, name text, born text, till date, upto timestamptz, since timestamp)"
    )
    bench.sql(
        "insert into source values (1, null, '2001-02-03', 'infinity', '-infinity', 'infinity'),"
        " (2, null, '2001-02-03', '2030-01-31', '2030-01-31 12:00:00.5+00', '12030-01-31'),"
        " (3, 'c', 'unknown', '-infinity', 'infinity', null)"
    )
    columns = {"cast": {"born": "date32"}}
    name = bench.make(TABLE, MOVED, columns=columns, checks=[{"column": "name", "not_null": True}])
    done = bench.run(name)
    assert (done["rows_out"], done["rows_bad"]) == (0, 3)
    kept = {row.content["id"]: row.content for row in bench.client.list_quarantine(name)}
    assert [kept[1][column] for column in ("till", "upto", "since")] == ["infinity", "-infinity", "infinity"]
    assert [kept[2][column] for column in ("till", "since")] == ["2030-01-31", "12030-01-31 00:00:00.000000"]
    assert [kept[3][column] for column in ("born", "till", "upto")] == ["unknown", "-infinity", "infinity"]
    bench.sql(
        "update trunq.quarantine set content = content || '{\"since\": null}' where content->>'id' = '2'"
    )
    bench.make(TABLE, MOVED, columns=columns, name=name)
    assert resent(bench, name) == (3, 2, 1)
    rows = bench.sql(
        "select id, till::text, upto at time zone 'UTC' || '', since::text from moved order by id"
    )
    assert rows == [
        (1, "infinity", "-infinity", "infinity"),
        (2, "2030-01-31", "2030-01-31 12:00:00.5", None),
    ]
    assert bench.client.list_quarantine(name)[0].content == kept[3]


def test_a_time_without_end_is_cast_to_a_text_alone(bench: Bench) -> None:
    bench.sql("create table source (id int, till date, upto timestamptz)")
    bench.sql("insert into source values (1, 'infinity', '2030-01-31'), (2, '2030-01-31', '-infinity')")
    columns = {"cast": {"till": "string", "upto": "date32"}}
    name = bench.make(TABLE, MOVED, columns=columns)
    bench.run(name)
    assert bench.sql("select id, till, upto::text from moved") == [(1, "infinity", "2030-01-31")]
    assert reasons(bench, name) == [["upto cannot be cast to date32"]]
    assert bench.client.list_quarantine(name)[0].content["upto"] == "-infinity"


def test_a_run_that_fails_at_a_time_without_end_says_which_row(bench: Bench) -> None:
    bench.sql("create table source (id int, till date)")
    bench.sql("insert into source values (1, 'infinity')")
    name = bench.make(TABLE, MOVED, checks=[{"column": "id", "one_of": [2], "otherwise": "fail"}])
    with pytest.raises(CheckFailed, match=r'broke the check .*: {"id": 1, "till": "infinity"}'):
        bench.run(name)


def test_what_could_not_be_cast_and_is_masked_stays_where_it_is(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MASK_SALT", SALT)
    bench.sql("create table source (id int, born text, pay text)")
    bench.sql("insert into source values (1, 'unknown', '1'), (2, null, 'much'), (3, '2001-02-03', '3')")
    columns: dict[str, Any] = {
        "cast": {"born": "date32", "pay": "int64"},
        "rename": {"born": "birth"},
        "mask": {"birth": "hash"},
        "salt": "${MASK_SALT}",
    }
    name = bench.make(TABLE, MOVED, columns=columns)
    assert bench.run(name)["rows_bad"] == 2
    assert bench.client.list_quarantine(name)[1].content["birth"] is None
    bench.sql("update trunq.quarantine set content = content || '{\"pay\": 2}' where content->>'id' = '2'")
    # A null that was one is written.
    assert resent(bench, name) == (2, 1, 1)
    assert bench.sql("select id, birth from moved where birth is null") == [(2, None)]
    assert reasons(bench, name) == [["birth cannot be cast to date32"]]
    bench.sql('update trunq.quarantine set content = content || \'{"birth": "mended"}\'')
    assert resent(bench, name) == (1, 1, 0)
    assert bench.one("select birth from moved where id = 1") == "mended"


def test_bytes_that_are_no_text_do_not_become_one_when_they_are_sent_again(
    bench: Bench, tmp_path: Path
) -> None:
    table = pa.table({"id": [1, 2], "word": pa.array([b"\xff\xfe\x00", b"good"], pa.binary())})
    parquet.write_table(table, tmp_path / "in.parquet")
    source = {"format": "parquet", "path": f"{tmp_path}/in.parquet", "settled": 0}
    name = bench.make(source, MOVED, columns={"cast": {"word": "string"}})
    assert bench.run(name)["rows_bad"] == 1
    assert resent(bench, name) == (1, 0, 1)
    assert reasons(bench, name) == [["word cannot be cast to string"]]
    bench.sql('update trunq.quarantine set content = content || \'{"word": "mended"}\'')
    assert resent(bench, name) == (1, 1, 0)
    assert bench.sql("select id, word from moved order by id") == [(1, "mended"), (2, "good")]


def test_values_that_spark_lacks_are_outside_of_each_range(bench: Bench) -> None:
    bench.sql("create table source (id int, n numeric(6,2), till date, upto timestamptz)")
    bench.sql(
        "insert into source values (1, 1.5, '2030-01-31', '2030-01-31'), (2, 'NaN', '2030-01-31', null),"
        " (3, 2, 'infinity', null), (4, null, null, '-infinity')"
    )
    checks = [
        {"column": "n", "between": [0, 10]},
        {"column": "n", "one_of": [1.5, 2], "name": "known"},
        {"column": "till", "between": ["2000-01-01", "2040-01-01"]},
        {"column": "upto", "between": ["2000-01-01", "2040-01-01"]},
    ]
    name = bench.make(TABLE, MOVED, checks=checks)
    done = bench.run(name)
    assert (done["rows_out"], done["rows_bad"]) == (1, 3)
    found = {row.content["id"]: row.reasons for row in bench.client.list_quarantine(name)}
    assert found == {2: ["n between", "known"], 3: ["till between"], 4: ["upto between"]}


def test_values_that_spark_lacks_are_unique_and_looked_up_as_others(bench: Bench) -> None:
    bench.sql("create table numbers (n numeric(6,2)); insert into numbers values ('NaN'), (1)")
    bench.sql("create table days (till date); insert into days values ('infinity')")
    bench.sql("create table source (id int, n numeric(6,2), till date)")
    bench.sql(
        "insert into source values (1, 'NaN', 'infinity'), (2, 'NaN', 'infinity'), (3, 1.00, '-infinity'),"
        " (4, 'NaN', null)"
    )
    checks = [
        {"column": ["n", "till"], "unique": True},
        {"column": "n", "refers_to": {"table": "numbers", "column": "n"}},
        {"column": "till", "refers_to": {"table": "days", "column": "till"}},
    ]
    name = bench.make(TABLE, MOVED, checks=checks)
    bench.run(name)
    assert bench.sql("select id from moved") == [(4,)]
    found = {row.content["id"]: row.reasons for row in bench.client.list_quarantine(name)}
    assert found == {1: ["n and till unique"], 2: ["n and till unique"], 3: ["till refers to"]}


def test_rows_that_are_sent_again_make_no_sink_fresh(bench: Bench) -> None:
    bench.sql("create table source (id int); insert into source values (1), (2)")
    name = bench.make(TABLE, MOVED, checks=[{"column": "id", "one_of": [1]}])
    bench.run(name)
    before = bench.client.list_pipelines(name)[0].fresh_at
    assert before is not None
    bench.make(TABLE, MOVED, checks=[{"column": "id", "one_of": [1, 2]}], name=name)
    assert resent(bench, name) == (1, 1, 0)
    assert bench.client.list_pipelines(name)[0].fresh_at == before


def test_rows_that_are_sent_again_have_the_types_of_their_source_when_checks_are_gone(bench: Bench) -> None:
    bench.sql("create table source (id int, on_day date, share real)")
    bench.sql("insert into source values (1, '2030-01-31', 0.5), (2, 'infinity', 'NaN')")
    name = bench.make(TABLE, MOVED, checks=[{"column": "id", "one_of": [1]}])
    assert bench.run(name)["rows_bad"] == 1
    bench.make(TABLE, MOVED, name=name)
    assert resent(bench, name) == (1, 1, 0)
    assert bench.sql("select id, on_day::text, share::text from moved order by id") == [
        (1, "2030-01-31", "0.5"),
        (2, "infinity", "NaN"),
    ]


def growing(context: Context) -> Iterator[pa.RecordBatch]:
    """A column that has nothing but nulls at first, and is of two types later."""
    context.state["seen"] = True
    yield pa.RecordBatch.from_pydict({"id": [1], "n": pa.nulls(1)})
    yield pa.RecordBatch.from_pydict({"id": [2], "n": ["two"]})
    yield pa.RecordBatch.from_pydict({"id": [3], "n": [3]})


def test_a_column_that_is_cast_may_begin_with_nulls(bench: Bench) -> None:
    source = {"format": "python", "function": "pipeline.test_column_edge:growing"}
    bench.run(bench.make(source, MOVED, columns={"cast": {"n": "string"}}))
    assert bench.sql("select id, n from moved order by id") == [(1, None), (2, "two"), (3, "3")]


def test_no_error_shows_a_salt_that_is_written_as_it_is() -> None:
    with pytest.raises(ValidationError, match="a salt does not belong") as caught:
        Columns(mask={"a": "hash"}, salt="pepper-and-more")
    assert "pepper" not in str(caught.value)
    with pytest.raises(InvalidPipeline) as refused:
        Pipeline("p", source=TABLE, sink=MOVED, columns={"mask": {"a": "hash"}, "salt": "pepper-and-more"})
    assert "pepper" not in str(refused.value)


def test_the_ends_of_a_range_of_times_are_compared_as_times() -> None:
    ends = ("2030-01-01T23:00:00-05:00", "2030-01-02T00:00:00-01:00")
    with pytest.raises(ValidationError, match="nothing is between"):
        Check(column="a", between=ends)
    assert Check(column="a", between=ends[::-1]).between == ends[::-1]
    assert Check(column="a", between=("2030-01-01", "2030-01-01T12:00:00+00:00")).between
    with pytest.raises(ValidationError, match="nothing is between"):
        Check(column="a", between=("b", "a"))


class Clock:
    """It stands but where checks are at work, which takes a second for each call."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(figures, "monotonic", lambda: self.now)
        for name in ("wrong", "keys", "_ready"):
            monkeypatch.setattr(Ruling, name, self._slow(getattr(Ruling, name)))

    def _slow(self, method: Any) -> Any:
        def slow(*given: Any) -> Any:
            self.now += 1
            return method(*given)

        return slow


def test_the_time_that_checks_take_is_that_of_the_work(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.sql("create table source (id int); insert into source values (1), (2)")
    checks = [Check(column="id", unique=True), Check(column="id", not_null=True)]
    clock = Clock(monkeypatch)
    name = bench.make(TABLE, MOVED, checks=checks)
    bench.run(name)
    (run,) = bench.client.list_runs(name)
    # Each is made ready; keys are made twice.
    assert (run.source_ms, run.work_ms, run.sink_ms) == (0, 5000, 0)
    made = Pipeline("p", source=TABLE, sink={**MOVED, "table": "other"}, checks=checks[1:])
    batch = pa.RecordBatch.from_pydict({"id": pa.array([3, 4], pa.int32())})
    attempt = Run("p", "identity", 1, 1, 1, {}, attempt=1)
    sink = sinks.make(made, bench.dsn)
    sink.begin(attempt, batch.schema)
    before = clock.now
    told = Stager(made, bench.dsn, attempt, batch.schema).stage([batch])
    assert (told["rows"], told["seconds"], clock.now - before) == (2, 0, 2)
    sink.discard(attempt)
