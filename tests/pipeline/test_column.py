"""Columns and checks as data: what they do to rows, without Spark, and which of them cannot be."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from pipeline.piping import Bench
from trunq.errors import InvalidPipeline
from trunq.pipeline import Check, Columns, Pipeline, load
from trunq.pipeline.engine import Engine
from trunq.pipeline.errors import CheckFailed, TooManyBad
from trunq.pipeline.source import Context

TABLE = {"format": "table", "table": "source"}
MOVED = {"format": "table", "table": "moved"}
SALT = "salty-and-long"


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here starts a Java process."""
    monkeypatch.setattr(Engine, "session", None)


@pytest.fixture
def people(bench: Bench) -> Bench:
    """A table of people."""
    bench.sql("create table source (id int, email text, born text, pay numeric(10,2), state text)")
    bench.sql(
        "insert into source values (1, 'a@x.org', '2001-02-03', 10.50, 'CZ'),"
        " (2, null, '2002-02-03', 20, 'DE'), (3, 'c', 'unknown', 30, 'XX')"
    )
    return bench


def digest(text: str) -> str:
    """What a mask makes of a text."""
    return hmac.new(SALT.encode(), text.encode(), hashlib.sha256).hexdigest()


def test_one_column_less_costs_no_spark_and_never_leaves_the_database(people: Bench) -> None:
    name = people.make(TABLE, MOVED, columns={"exclude": ["email"]})
    # A role that may not read it reads the others.
    people.sql("create role clerk; grant select (id, born, pay, state) on source to clerk")
    assert (people.run(name)["rows_out"], people.one("select count(*) from moved")) == (3, 3)
    query = "select array_agg(attname::text order by attnum) from pg_attribute where attrelid = %s::regclass"
    assert people.one(f"{query} and attnum > 0", "moved") == ["id", "born", "pay", "state"]
    people.sql("drop owned by clerk; drop role clerk")


def test_the_steps_are_done_in_their_order(people: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASK_SALT", SALT)
    name = people.make(
        TABLE,
        MOVED,
        columns={
            "include": ["pay", "id", "email", "born"],
            "cast": {"id": "int64", "pay": "float64", "born": "date32"},
            "rename": {"id": "person", "email": "mail"},
            "constant": {"origin": "shop", "version": 3, "is_new": True, "weight": 1.0},
            "mask": {"mail": "hash", "person": "hash", "pay": "null"},
            "salt": "${MASK_SALT}",
        },
    )
    done = people.run(name)
    assert (done["rows_in"], done["rows_out"], done["rows_bad"]) == (3, 2, 1)
    rows = people.sql(
        "select mail, person, pay, born::text, origin, version, is_new, weight from moved order by 4"
    )
    more = (None, "shop", 3, True, 1.0)
    assert rows == [
        (digest("a@x.org"), digest("1"), more[0], "2001-02-03", *more[1:]),
        (None, digest("2"), None, "2002-02-03", *more[1:]),
    ]
    kinds = "select attname, format_type(atttypid, -1) from pg_attribute where attrelid = 'moved'::regclass"
    assert dict(people.sql(f"{kinds} and attnum > 0"))["pay"] == "double precision"
    kept = people.client.list_quarantine(name)[0]
    assert kept.reasons == ["born cannot be cast to date32"]
    # What is masked is masked there, too, and what was left out is not there.
    assert (kept.content["mail"], kept.content["born"], "state" in kept.content) == (
        digest("c"),
        "unknown",
        False,
    )


def test_rows_sent_again_are_cast_and_masked_no_second_time(
    people: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MASK_SALT", SALT)
    columns: dict[str, Any] = {
        "cast": {"born": "date32"},
        "rename": {"born": "birth"},
        "mask": {"email": "hash"},
        "salt": "${MASK_SALT}",
    }
    name = people.make(TABLE, MOVED, columns=columns)
    assert people.run(name)["rows_bad"] == 1
    assert people.execute(people.client.resend_quarantine(name))["rows_bad"] == 1
    # As the operator mends it.
    people.sql('update trunq.quarantine set content = content || \'{"birth": "2003-04-05"}\'')
    done = people.execute(people.client.resend_quarantine(name))
    assert (done["rows_out"], done["rows_bad"]) == (1, 0)
    assert people.sql("select birth::text, email from moved where id = 3") == [("2003-04-05", digest("c"))]
    assert people.client.list_quarantine(name) == []


def test_each_kind_of_check_keeps_what_breaks_it_with_its_reason(people: Bench) -> None:
    people.sql("create table states (code text primary key); insert into states values ('CZ'), ('DE')")
    people.sql("insert into source values (3, 'd@x.org', null, null, null)")
    checks = [
        {"column": "email", "not_null": True},
        {"column": "email", "matches": "@"},
        {"column": "id", "one_of": [1, 2, 3, 4]},
        {"column": "pay", "between": [10, 20]},
        {"column": "id", "unique": True},
        {"column": "state", "refers_to": {"table": "states", "column": "code"}, "name": "a known state"},
    ]
    columns = {"cast": {"pay": "decimal(10,2)"}}
    name = people.make(TABLE, MOVED, checks=checks, columns=columns)
    done = people.run(name)
    assert (done["rows_in"], done["rows_out"], done["rows_bad"]) == (4, 1, 3)
    assert people.sql("select id, pay::text from moved") == [(1, "10.50")]
    reasons = {row.content["email"]: row.reasons for row in people.client.list_quarantine(name)}
    assert reasons == {
        None: ["email not null"],
        "c": ["email matches", "pay between", "id unique", "a known state"],
        "d@x.org": ["id unique"],
    }
    assert people.client.list_runs(name)[0].progress["broken"]["id unique"] == 2


def test_rows_that_break_a_check_are_dropped_counted_or_fail_the_run(people: Bench) -> None:
    small = {"column": "id", "between": [1, 2]}
    name = people.make(TABLE, MOVED, checks=[{**small, "otherwise": "drop"}])
    assert (people.run(name)["rows_out"], people.client.list_quarantine(name)) == (2, [])
    other = {**MOVED, "table": "other"}
    name = people.make(TABLE, other, checks=[{**small, "otherwise": "warn"}])
    assert people.run(name)["rows_out"] == 3
    assert people.client.list_runs(name)[0].progress["broken"] == {"id between": 1}
    third = {**MOVED, "table": "third"}
    name = people.make(TABLE, third, checks=[{**small, "otherwise": "fail"}])
    with pytest.raises(CheckFailed, match=f"{name}: a row broke the check 'id between': {{\"id\": 3"):
        people.run(name)
    assert people.one("select count(*) from third") == 0
    assert people.one("select count(*) from pg_class where relname like 'stage\\_%'") == 0
    people.make(TABLE, third, checks=[small], max_bad=0.1, name=name)
    with pytest.raises(TooManyBad, match="1 of 3"):
        people.run(name)


def test_a_run_of_which_every_row_breaks_a_check_brings_nothing(people: Bench) -> None:
    sink = {**MOVED, "mode": "replace"}
    name = people.make({**TABLE, "changes": "all"}, sink, checks=[{"column": "id", "one_of": [9]}])
    people.sql("create table moved as select * from source")
    assert (people.run(name)["rows_out"], people.one("select count(*) from moved")) == (0, 0)


def same(rows: pa.Table, context: Context) -> pa.Table:
    """A function that says which columns it was given."""
    assert rows.column_names == context.message
    return rows


def test_a_function_is_given_what_the_steps_left_and_checks_see_what_it_gave(people: Bench) -> None:
    check = {"column": "id", "not_null": True}
    function = "pipeline.test_column:same"
    name = people.make(TABLE, MOVED, columns={"include": ["id"]}, function=function, checks=[check])
    assert people.run(name, ["id"])["rows_out"] == 3


def test_columns_that_some_files_lack_are_known_from_the_others(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"id": 1}\n')
    (tmp_path / "b.json").write_text('{"id": 2, "mail": "x", "on": "2030-01-31T10:00:00+02:00"}\n')
    source = {"format": "json", "path": f"{tmp_path}/*.json", "settled": 0}
    columns = {"exclude": ["mail"], "cast": {"on": "timestamp[us, UTC]"}}
    bench.run(bench.make(source, MOVED, columns=columns))
    assert bench.sql("select id, \"on\" at time zone 'UTC' || '' from moved order by id") == [
        (1, None),
        (2, "2030-01-31 08:00:00"),
    ]


def test_lakes_and_queues_take_what_is_left(bench: Bench, tmp_path: Path) -> None:
    parquet.write_table(pa.table({"id": [1, 2, 2], "word": ["a", "b", "b"]}), tmp_path / "in.parquet")
    source = {"format": "parquet", "path": f"{tmp_path}/in.parquet", "settled": 0}
    more: dict[str, Any] = {
        "columns": {"rename": {"word": "text"}},
        "checks": [{"column": ["id", "text"], "unique": True}],
    }
    bench.client.create_queue("moved")
    bench.run(bench.make(source, {"format": "queue", "queue": "moved", "key": "id"}, **more))
    assert bench.sql("select key, payload from trunq_log.moved") == [("1", {"id": 1, "text": "a"})]
    bench.run(bench.make(source, {"format": "parquet", "path": f"{tmp_path}/lake"}, **more))
    assert parquet.read_table(tmp_path / "lake").select(["id", "text"]).to_pylist() == [
        {"id": 1, "text": "a"}
    ]


def test_the_salt_is_in_no_run_no_error_and_no_definition(
    people: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MASK_SALT", SALT)
    columns = {"mask": {"email": "hash"}, "salt": "${MASK_SALT}"}
    name = people.make(TABLE, MOVED, columns=columns, checks=[{"column": "nope", "not_null": True}])
    with pytest.raises(InvalidPipeline, match="no column"):
        people.run(name)
    function = "pipeline.test_column:tells"
    name = people.make(TABLE, MOVED, columns=columns, function=function)
    with pytest.raises(Exception, match=r"not \*\*\*") as caught:
        people.run(name, SALT)
    assert SALT not in str(caught.value)
    people.make(TABLE, MOVED, columns=columns, name=name)
    people.run(name)
    for table in ("pipeline", "pipeline_run", "pipeline_attempt", "quarantine"):
        found = people.sql(f"select to_jsonb(t)::text from trunq.{table} t")
        # The message alone says it, which this test has published.
        assert not [row for (row,) in found if SALT in row.replace(f'"payload": "{SALT}"', "")]
    made = Pipeline("p", source=TABLE, sink=MOVED, columns=columns).expanded({"MASK_SALT": SALT})
    assert SALT not in repr(made)


def tells(rows: pa.Table, context: Context) -> pa.Table:
    """It fails with what it was told."""
    raise ValueError(f"not {context.message}")


def many(context: Context) -> Iterator[pa.RecordBatch]:
    """As many batches of a megabyte as the message says."""
    for number in range(context.message):
        ids = pa.array(range(number * 1000, number * 1000 + 1000), pa.int64())
        yield pa.RecordBatch.from_pydict({"id": ids, "text": ["x" * 1000] * 1000})


@pytest.mark.parametrize("checks", [[], [{"column": "n", "unique": True}]], ids=["steps", "unique"])
def test_memory_does_not_grow_with_the_run(bench: Bench, checks: list[dict[str, Any]]) -> None:
    source = {"format": "python", "function": "pipeline.test_column:many"}
    peaks = []
    for count in (4, 40):
        sink = {**MOVED, "table": f"moved_{count}"}
        name = bench.make(source, sink, columns={"rename": {"id": "n"}}, checks=checks)
        before, peak = pa.total_allocated_bytes(), [0]
        assert _peaking(bench, name, count, peak)["rows_out"] == count * 1000
        peaks.append(peak[0] - before)
    assert peaks[1] < 2 * peaks[0] + (4 << 20)


def _peaking(bench: Bench, name: str, count: int, peak: list[int]) -> dict[str, Any]:
    """Run, and see how much Arrow held at each batch that a step gave."""
    from trunq.pipeline.work.column import Steps  # noqa: PLC0415

    step = Steps.step

    def watched(self: Steps, batch: pa.RecordBatch, refuse: Any) -> pa.RecordBatch:
        made = step(self, batch, refuse)
        peak[0] = max(peak[0], pa.total_allocated_bytes())
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Steps, "step", watched)
        return bench.run(name, count)


def test_a_range_fills_no_partitions_of_columns_that_are_changed(people: Bench, tmp_path: Path) -> None:
    sink = {
        "format": "delta",
        "path": f"{tmp_path}/lake",
        "mode": "replace_partitions",
        "partition_by": ["state"],
    }
    all_of_it = {**TABLE, "changes": "all"}
    range = {"column": "state", "from": "A", "to": "Z"}
    name = people.make(all_of_it, sink, columns={"mask": {"state": "null"}})
    with pytest.raises(InvalidPipeline, match="casts, renames or masks columns") as caught:
        people.client.backfill_pipeline(name, range)
    assert caught.value.hint == "a range can be filled with mode upsert"
    people.make(all_of_it, sink, columns={"exclude": ["email"]}, name=name)
    assert people.execute(people.client.backfill_pipeline(name, range))["rows_out"] == 3


HASHED = {"mask": {"email": "hash"}}

NEVER: list[tuple[dict[str, Any], str]] = [
    ({"include": ["a"], "exclude": ["b"]}, "include and exclude do not go together"),
    ({"include": []}, "columns.include"),
    ({"cast": {"a": "int46"}}, "'a' is to be 'int46', which is no type: is it int64"),
    ({"cast": {"a": "decimal(39,1)"}}, "which is no type"),
    (
        {"exclude": ["a"], "cast": {"a": "int64"}},
        "cast names 'a', which is not taken: take it out of exclude",
    ),
    ({"include": ["a"], "rename": {"b": "c"}}, "rename names 'b', which is not taken"),
    ({"rename": {"a": "c", "b": "C"}}, "two columns would be called 'C': exclude one, or rename it"),
    ({"include": ["a", "b"], "rename": {"a": "b"}}, "two columns would be called 'b'"),
    ({"rename": {"a": "b"}, "constant": {"b": 1}}, "two columns would be called 'b'"),
    (HASHED, r"hashes 'email' and there is no salt.*salt = '\$\{NAME\}'"),
    ({**HASHED, "salt": "pepper"}, "a salt does not belong into a pipeline"),
    ({**HASHED, "salt": "$${SALT}"}, "a salt does not belong into a pipeline"),
    ({"salt": "${SALT}"}, "salt is for mask"),
    ({"mask": {"a": "sha"}}, "columns.mask.a: Input should be 'hash' or 'null'"),
    ({"mask": {"a": "null"}, "constant": {"a": 1}}, "mask names 'a', which is a constant"),
    ({"mask": {"a": "null"}, "rename": {"a": "b"}}, "mask names 'a', which rename calls 'b': mask that"),
    ({"mask": {"a": "null"}, "exclude": ["a"]}, "mask names 'a', which is not taken"),
    ({"constant": {"a": float("nan")}}, "'a' is nan, which is no constant"),
    ({"constant": {"a": 2**63}}, "64 bits do not hold"),
    ({"constant": {"a": [1]}}, r"\[1\] is neither text, nor a number"),
    ({"exclud": ["a"]}, "there is no columns.exclud; is it exclude"),
]


@pytest.mark.parametrize(("columns", "words"), NEVER)
def test_columns_that_cannot_be_are_refused_when_they_are_written(
    columns: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidPipeline, match=f"pipeline p: .*{words}") as caught:
        Pipeline("p", source=TABLE, sink=MOVED, columns=columns)
    assert "\n" not in caught.value.message


NO_CHECK: list[tuple[dict[str, Any], str]] = [
    ({"column": "a"}, "give column and one of not_null, .* not none"),
    ({"not_null": True, "name": "a"}, "give column and one of"),
    (
        {"column": "a", "not_null": True, "unique": True},
        "not not_null and unique: each rule is a check of its own",
    ),
    ({"column": "a", "unique": True, "holds": "a > 1", "name": "b"}, "holds is a whole rule"),
    ({"holds": "a > 1"}, "name is missing"),
    ({"column": ["a", "b"], "not_null": True}, "several columns are for unique"),
    ({"column": ["a", "a"], "unique": True}, "column names one twice"),
    ({"column": "a", "one_of": []}, "one_of"),
    ({"column": "a", "one_of": [None]}, "None is neither text"),
    ({"column": "a", "between": [1]}, "between"),
    ({"column": "a", "between": [2, 1]}, "nothing is between 2 and 1: write the smaller one first"),
    ({"column": "a", "between": ["a", 1]}, "write both as text, or as numbers"),
    ({"column": "a", "between": [False, True]}, "one_of is for true and false"),
    ({"column": "a", "matches": "(a"}, r"'\(a' is no pattern: missing \): \(a; it is written as RE2 has it"),
    ({"column": "a", "matches": "(?=a)"}, "is no pattern: .* without look-around"),
    ({"column": "a", "refers_to": {"table": "t"}}, "checks.0.refers_to.column is missing"),
    ({"column": "a", "refers_to": {"table": "t", "colum": "c"}}, "checks.0.refers_to.colum; is it column"),
    (
        {"column": "a", "refers_to": {"table": "t", "column": "c", "dsn": "password=x"}},
        "a password does not belong",
    ),
]


@pytest.mark.parametrize(("check", "words"), NO_CHECK)
def test_checks_that_cannot_be_are_refused_when_they_are_written(check: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidPipeline, match=f"pipeline p: .*{words}") as caught:
        Pipeline("p", source=TABLE, sink=MOVED, checks=[check])
    assert "\n" not in caught.value.message


UNFIT: list[tuple[dict[str, Any], str, str]] = [
    (
        {"columns": {"exclude": ["nope"]}},
        'columns.exclude names "nope", and rows have no such',
        "there are id, email",
    ),
    ({"columns": {"include": ["id", "nope"]}}, 'columns.include names "nope"', "there are id"),
    ({"columns": {"cast": {"nope": "int64"}}}, 'columns.cast names "nope"', "there are id"),
    ({"columns": {"rename": {"nope": "a"}}}, 'columns.rename names "nope"', "there are id"),
    ({"columns": {"mask": {"nope": "null"}}}, 'columns.mask names "nope"', "there are id"),
    ({"columns": {"rename": {"id": "Email"}}}, "two columns would be called 'email'", ""),
    ({"columns": {"constant": {"id": 1}}}, "two columns would be called 'id'", ""),
    (
        {"columns": {"cast": {"id": "binary"}}},
        r'"id" is int32, which cannot be cast to binary',
        "leave it out of cast",
    ),
    (
        {"columns": {"exclude": ["id", "email", "born", "pay", "state"]}},
        "columns leaves no column",
        "exclude fewer",
    ),
    (
        {"checks": [{"column": "nope", "not_null": True}]},
        "'nope not null': there is no column \"nope\"",
        "there are id",
    ),
    (
        {"checks": [{"column": "id", "matches": "1"}]},
        'for text, and column "id" is int32',
        "cast it first: .*'string'",
    ),
    (
        {"checks": [{"column": "id", "one_of": ["a"]}]},
        "'a' is no value of column \"id\", which is int32",
        "cast it",
    ),
    ({"checks": [{"column": "id", "one_of": [2**40]}]}, "1099511627776 is no value of column", "cast it"),
    ({"checks": [{"column": "id", "between": [0.5, 2]}]}, "0.5 is no value of column", "cast it"),
    ({"checks": [{"column": "born", "between": [1, 2]}]}, '1 is no value of column "born"', "cast it"),
    (
        {"checks": [{"column": "ever", "between": [1, 2]}]},
        "is numeric, which is here as text",
        r"decimal\(38,6\)",
    ),
    (
        {"checks": [{"column": "id", "refers_to": {"table": "no", "column": "a"}}]},
        "no column a of a table no",
        "refers",
    ),
    (
        {"checks": [{"column": "id", "refers_to": {"table": "source", "column": "email"}}]},
        'column "id" is integer, and source.email is text: they are never equal',
        "cast one of them",
    ),
]


@pytest.mark.parametrize(("parts", "words", "hint"), UNFIT)
def test_what_does_not_go_with_the_rows_is_said_before_anything_is_written(
    people: Bench, parts: dict[str, Any], words: str, hint: str
) -> None:
    if "ever" in json.dumps(parts):
        people.sql("alter table source add ever numeric")
    name = people.make(TABLE, MOVED, **parts)
    with pytest.raises(InvalidPipeline, match=f"pipeline {name}: .*{words}") as caught:
        people.run(name)
    assert "\n" not in caught.value.message
    if hint:
        assert caught.value.hint is not None
        assert hint.split(".*", maxsplit=1)[0].replace("\\", "") in caught.value.hint
    assert people.one("select to_regclass('moved')") is None
    assert people.client.list_quarantine(name) == []


def test_a_salt_that_hides_nothing_is_refused_when_it_is_expanded() -> None:
    made = Pipeline("p", source=TABLE, sink=MOVED, columns={**HASHED, "salt": "${SALT}"})
    with pytest.raises(InvalidPipeline, match="too short to hide anything: give it 8 characters") as caught:
        made.expanded({"SALT": "pepper"})
    assert "pepper" not in str(caught.value)
    with pytest.raises(InvalidPipeline, match=r"names \$\{SALT\}, which is not in the environment"):
        made.expanded({})


def test_it_is_the_same_from_toml_and_from_python(tmp_path: Path) -> None:
    file = tmp_path / "p.toml"
    file.write_text(
        "[pipeline.p]\nsource = {format = 'table', table = 't'}\nsink = {format = 'table', table = 'u'}\n"
        "columns = {exclude = ['a'], mask = {b = 'null'}}\n"
        "checks = [{column = 'c', between = [2030-01-01, 2030-02-01]}]\n"
    )
    made = Pipeline(
        "p",
        source={"format": "table", "table": "t"},
        sink={"format": "table", "table": "u"},
        columns=Columns(exclude=["a"], mask={"b": "null"}),
        checks=[Check(column="c", between=("2030-01-01", "2030-02-01"))],
    )
    assert load(file)[0].definition == made.definition
    assert not made.needs_spark
