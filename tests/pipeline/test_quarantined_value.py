"""A value that a sink's column does not hold goes to the quarantine with its reason, and the others go on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from pipeline.piping import Bench
from trunq.errors import InvalidPipeline
from trunq.pipeline import Pipeline

ALL = {"format": "table", "table": "source", "changes": "all"}
MOVED = {"format": "table", "table": "moved"}
APPENDED = {**ALL, "changes": "window"}

# What comes as text, the type of the column, the values that fit with what they become, and those that do
# not.
RULES: list[tuple[str, dict[str, Any], list[str]]] = [
    ("integer", {"1": 1, "-7": -7, "0042": 42}, ["1.5", "abc", "", "3000000000", "NaN", " 1"]),
    ("bigint", {"3000000000": 3000000000}, ["9223372036854775808", "1e3"]),
    ("numeric(5,2)", {"1.5": "1.50", "999.99": "999.99", "NaN": "NaN"}, ["1.005", "1000", "Infinity", "x"]),
    ("numeric(5,-2)", {"1200": "1200", "-0": "0"}, ["1234", "99999900"]),
    ("numeric(80,2)", {"1.01": "1.01", "1e70": "1" + "0" * 70 + ".00"}, ["1.005", "1" * 79]),
    ("timestamp(3)", {"2030-01-31 12:00:00.125": "2030-01-31T12:00:00.125000"}, ["2030-01-31 12:00:00.0001"]),
    ("numeric", {"1.23456789": "1.23456789", "Infinity": "Infinity", "1e2": "100"}, ["1,5", "one"]),
    ("double precision", {"0.5": 0.5, "1e300": 1e300}, ["0,5"]),
    ("boolean", {"true": True, "false": False}, ["maybe"]),
    ("date", {"2030-01-31": "2030-01-31"}, ["0044-03-15 BC", "2030-02-30", "2030-01-31 12:00:00"]),
    ("timestamp", {"2030-01-31 12:00:00": "2030-01-31T12:00:00"}, ["noon", "infinity"]),
    ("varchar(3)", {"abc": "abc", "äöü": "äöü"}, ["abcd"]),
]


def reasons(bench: Bench, name: str) -> dict[str, int]:
    return {each.reason: each.quarantined for each in bench.client.count_quarantine(name)}


def shown(value: Any) -> Any:
    return value.isoformat() if hasattr(value, "isoformat") else value


@pytest.mark.parametrize(("kind", "fit", "unfit"), RULES, ids=[rule[0] for rule in RULES])
def test_texts_that_read_as_a_value_of_the_column_fit_and_others_are_kept_with_their_reason(
    bench: Bench, kind: str, fit: dict[str, Any], unfit: list[str]
) -> None:
    bench.sql(f"create table source (v text); create table moved (v {kind})")
    for value in [*fit, *unfit]:
        bench.sql("insert into source values (%s)", value)
    bench.sql("insert into source values (null)")
    name = bench.make(ALL, MOVED, evolve="quarantine")
    done = bench.run(name)
    assert (done["rows_out"], done["rows_bad"]) == (len(fit) + 1, len(unfit))
    found = [shown(row[0]) for row in bench.sql("select v from moved where v is not null")]
    assert sorted(map(str, found)) == sorted(map(str, fit.values()))
    kept = bench.client.list_quarantine(name)
    assert sorted(each.content["v"] for each in kept) == sorted(unfit)
    said = {
        "timestamp": "timestamp without time zone",
        "timestamp(3)": "timestamp(3) without time zone",
        "varchar(3)": "character varying(3)",
    }.get(kind, kind)
    assert reasons(bench, name) == {f"v does not fit {said}": len(unfit)}


@pytest.mark.parametrize(
    ("given", "values", "kind", "fit"),
    [
        ("float8", ["1", "1.5", "'NaN'", "1e30"], "int", [1]),
        ("float8", ["0.1", "1.5", "'Infinity'", "'NaN'"], "numeric", ["0.1", "1.5", "Infinity", "NaN"]),
        ("float8", ["0.1", "1.005", "'Infinity'", "'NaN'"], "numeric(4,2)", ["0.10", "NaN"]),
        ("numeric", ["3.00", "3.5", "'NaN'", "99999999999999999999"], "bigint", [3]),
        ("numeric(9,3)", ["1.500", "1.005", "123456.789"], "numeric(5,2)", ["1.50"]),
        ("bigint", ["1", "70000"], "smallint", [1]),
        ("bigint", ["1", "9007199254740993"], "float8", [1.0]),
        ("boolean", ["true"], "int", []),
        ("timestamp", ["'2030-01-31'", "'2030-01-31 00:00:01'", "'infinity'"], "date", ["2030-01-31"]),
        ("date", ["'2030-01-31'", "'0044-03-15 BC'"], "text", ["2030-01-31", "-0043-03-15"]),
        ("date", ["'2030-01-31'", "'0044-03-15 BC'"], "int", []),
        ("int", ["7"], "text", ["7"]),
        ("bytea", ["'\\x00'"], "text", []),
    ],
)
def test_what_loses_nothing_becomes_a_value_of_the_column(
    bench: Bench, given: str, values: list[str], kind: str, fit: list[Any]
) -> None:
    bench.sql(f"create table source (v {given}); create table moved (v {kind})")
    bench.sql(f"insert into source values {', '.join(f'({value})' for value in values)}")
    name = bench.make(ALL, MOVED, evolve="quarantine")
    done = bench.run(name)
    assert [shown(row[0]) if kind != "numeric" and "numeric" not in kind else str(row[0])
            for row in bench.sql("select v from moved")] == fit  # fmt: skip
    assert done["rows_bad"] == len(values) - len(fit)


def test_a_row_that_was_kept_is_sent_again_when_the_column_holds_it(bench: Bench) -> None:
    bench.sql("create table source (id int, v text); create table moved (id bigint, v int)")
    bench.sql("insert into source values (1, '1'), (2, 'two'), (3, '3')")
    name = bench.make(APPENDED, MOVED, evolve="quarantine")
    bench.run(name)
    assert bench.sql("select id, v from moved order by id") == [(1, 1), (3, 3)]
    bench.execute(bench.client.resend_quarantine(name))
    assert reasons(bench, name) == {"v does not fit integer": 1}
    bench.sql("alter table moved alter v type text")
    bench.execute(bench.client.resend_quarantine(name))
    assert bench.sql("select id, v from moved order by id") == [(1, "1"), (2, "two"), (3, "3")]
    assert reasons(bench, name) == {}


def test_a_run_whose_rows_are_all_kept_out_is_a_run_and_the_next_goes_on(
    bench: Bench, tmp_path: Path
) -> None:
    bench.sql("create table source (id int, v text); create table moved (id int, v int)")
    bench.sql("insert into source values (1, '1')")
    lake = str(tmp_path / "lake")
    first = bench.make(ALL, {"format": "delta", "path": lake})
    bench.run(first)
    names = [
        bench.make(APPENDED, MOVED, evolve="quarantine"),
        bench.make(APPENDED, {"format": "delta", "path": lake}, evolve="quarantine"),
    ]
    bench.sql("update source set v = 'x'")
    bench.sql("drop table source; create table source (id text, v text)")
    bench.sql("insert into source values ('a', 'x')")
    for name in names:
        assert bench.run(name)["rows_out"] == 0
        assert bench.run(name) == {"outcome": "nothing new"}
    bench.sql("insert into source values ('2', '2')")
    for name in names:
        assert bench.run(name)["rows_out"] == 1
    assert bench.sql("select id, v from moved") == [(2, 2)]
    assert sorted(DeltaTable(lake).to_pyarrow_table().to_pylist(), key=lambda row: row["id"]) == [
        {"id": 1, "v": "1"},
        {"id": 2, "v": "2"},
    ]


def test_a_lake_keeps_out_what_it_has_no_value_for(bench: Bench, tmp_path: Path) -> None:
    bench.sql("create table source (n numeric(5,2), t timestamp, a date[], d date)")
    bench.sql(
        "insert into source values ('NaN', null, null, null), (1, 'infinity', null, null),"
        " (2, '2030-01-31', '{0044-03-15 BC}', null), (3, '2030-01-31', '{2030-01-31}', '0044-03-15 BC')"
    )
    lake = str(tmp_path / "lake")
    name = bench.make(ALL, {"format": "delta", "path": lake}, evolve="quarantine")
    assert bench.run(name)["rows_out"] == 1
    assert reasons(bench, name) == {
        "n does not fit decimal128(5, 2)": 1,
        "t does not fit timestamp[us]": 1,
        "a does not fit list<item: date32[day]>": 1,
    }
    found = DeltaTable(lake).to_pyarrow_table()
    assert (str(found["n"][0]), found["d"].cast("int32").to_pylist()) == ("3.00", [-735160])


def test_rows_with_a_value_in_a_new_column_are_kept_and_others_go_on(bench: Bench) -> None:
    bench.sql("create table source (id int, more text); create table moved (id int)")
    bench.sql("insert into source values (1, null), (2, 'x')")
    name = bench.make(ALL, MOVED, evolve={"columns": "quarantine"})
    bench.run(name)
    assert bench.sql("select * from moved") == [(1,)]
    assert reasons(bench, name) == {"more is a new column": 1}
    [kept] = bench.client.list_quarantine(name)
    assert kept.content == {"id": 2, "more": "x"}


def test_of_two_reasons_both_are_told_and_a_column_has_a_rule_of_its_own(bench: Bench) -> None:
    bench.sql("create table source (a text, b text); create table moved (a int, b date)")
    bench.sql("insert into source values ('x', 'y'), ('1', '2030-01-31')")
    both = bench.make(ALL, MOVED, evolve="quarantine")
    bench.run(both)
    [kept] = bench.client.list_quarantine(both)
    assert kept.reasons == ["a does not fit integer", "b does not fit date"]
    one = bench.make(ALL, MOVED, evolve={"column": {"a": "quarantine"}})
    with pytest.raises(InvalidPipeline, match='column "b" of moved is date and comes as text'):
        bench.run(one)


def test_a_type_that_changes_in_the_middle_of_a_run_is_sorted_too(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "mixed_rows.py").write_text(
        "import pyarrow as pa\n"
        "def rows(table):\n"
        "    yield pa.table({'v': [1, 2]})\n"
        "    yield pa.table({'v': ['3', 'x'], 'more': ['y', None]})\n"
        "    yield pa.table({'v': [4.0, 4.5]})\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    bench.sql("create table source (id int); insert into source values (1)")
    evolve = {"types": "quarantine", "columns": "quarantine"}
    name = bench.make(ALL, MOVED, function="mixed_rows:rows", evolve=evolve)
    bench.run(name)
    assert bench.sql("select v from moved") == [(1,), (2,), (4,)]
    assert reasons(bench, name) == {"v does not fit int64": 2, "more is a new column": 1}


def test_values_of_several_types_in_one_batch_are_texts_which_the_sink_sorts(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "mixed_values.py").write_text(
        "def rows(context):\n"
        "    context.state = {'done': True}\n"
        "    for value in (1, 'x', 2.5, '3', True, None, [4]):\n"
        "        yield {'v': value}\n"
    )
    (tmp_path / "mixed.json").write_text("".join(f'{{"v": {v}}}\n' for v in ("1", '"x"', '"3"', "null")))
    monkeypatch.syspath_prepend(str(tmp_path))
    bench.sql("create table moved (v numeric); create table of_files (v int)")
    name = bench.make({"format": "python", "function": "mixed_values:rows"}, MOVED, evolve="quarantine")
    bench.run(name)
    assert [str(row[0]) for row in bench.sql("select v from moved")] == ["1", "2.5", "3", "None"]
    assert sorted(row.content["v"] for row in bench.client.list_quarantine(name)) == ["[4]", "true", "x"]
    files = {"format": "json", "path": str(tmp_path / "*.json"), "settled": 0}
    name = bench.make(files, {**MOVED, "table": "of_files"}, evolve="quarantine")
    bench.run(name)
    assert bench.sql("select v from of_files") == [(1,), (3,), (None,)]


def test_a_column_that_begins_with_nulls_is_of_the_type_of_the_sink(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "late_values.py").write_text(
        "import pyarrow as pa\n"
        "def rows(table):\n"
        "    yield pa.table({'v': pa.nulls(1)})\n"
        "    yield pa.table({'v': ['2', 'x']})\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    bench.sql("create table source (id int); insert into source values (1); create table moved (v int)")
    name = bench.make(ALL, MOVED, function="late_values:rows", evolve="quarantine")
    bench.run(name)
    assert bench.sql("select v from moved") == [(None,), (2,)]
    assert reasons(bench, name) == {"v does not fit integer": 1}


def test_too_many_kept_out_fail_the_run_by_max_bad(bench: Bench) -> None:
    bench.sql("create table source (v text); create table moved (v int)")
    bench.sql("insert into source values ('1'), ('x'), ('y')")
    name = bench.make(ALL, MOVED, evolve="quarantine", max_bad=0.5)
    with pytest.raises(Exception, match="2 of 3 rows"):
        bench.run(name)
    assert bench.sql("select * from moved") == []


def test_a_row_that_is_deleted_is_deleted_though_its_value_does_not_fit(bench: Bench) -> None:
    bench.sql("create table source (id int primary key, v text)")
    bench.sql("create table moved (id int primary key, v int)")
    bench.sql("insert into source values (1, '1'), (2, 'x')")
    applied, captured = {**MOVED, "mode": "apply"}, {**ALL, "changes": "capture"}
    name = bench.make(captured, applied, evolve="quarantine")
    bench.run(name)
    assert bench.sql("select id from moved") == [(1,)]
    bench.sql("update source set v = 'y' where id = 1")
    bench.sql("delete from source where id = 1")
    bench.run(name)
    assert bench.sql("select id from moved") == []


def test_a_sink_without_columns_has_nothing_that_does_not_fit() -> None:
    sink = {"format": "queue", "queue": "orders"}
    with pytest.raises(InvalidPipeline, match="a sink of format 'queue' has no columns: leave quarantine"):
        Pipeline("p", source=ALL, sink=sink, evolve="quarantine")
