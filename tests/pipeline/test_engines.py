"""Columns and checks as data mean the same with Spark and without: whatever rows, steps and checks come."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from pipeline.piping import Bench
from scope import some

pytestmark = pytest.mark.usefixtures("spark")

TABLE = {"format": "table", "table": "source"}
WORDS = ("", "a", "a ", "ab", "B", "é", "12", "-3", "1.5", "true", "2030-01-31", "x" * 300, "\\", '"', "\t")
ROW = st.fixed_dictionaries(
    {
        "i": st.none() | st.integers(-4, 4) | st.sampled_from([2**31 - 1, -(2**31)]),
        "w": st.none() | st.sampled_from(WORDS),
        "f": st.none()
        | st.sampled_from([0.0, -0.0, 1.0, 0.1, 1e20, 1e300, 1e-7, float("inf")])
        | st.floats(-9, 9),
        "n": st.none() | st.decimals(-99, 99, places=2, allow_nan=False),
        "d": st.none() | st.dates(dt.date(2029, 12, 30), dt.date(2030, 1, 2)),
        "t": st.none() | st.datetimes(dt.datetime(2030, 1, 1), dt.datetime(2030, 1, 2)),
        "b": st.none() | st.booleans(),
    }
)
CASTS = {
    "i": ("int16", "string", "float64", "decimal(5,2)"),
    "w": ("int32", "float64", "bool", "date32", "timestamp[us, UTC]", "decimal(6,1)", "binary"),
    "f": ("int64", "string", "float32"),
    "n": ("int32", "float64", "string", "decimal(3,1)"),
    "d": ("string", "timestamp[us]"),
    "t": ("date32", "string", "timestamp[us, UTC]"),
    "b": ("int32", "string"),
}
CHECKS: list[dict[str, Any]] = [
    *({"column": name, "not_null": True} for name in CASTS),
    *({"column": name, "unique": True} for name in CASTS),
    {"column": ["i", "w"], "unique": True},
    {"column": "i", "one_of": [1, 2, -3]},
    {"column": "w", "one_of": ["a", "B", ""]},
    {"column": "f", "one_of": [0, 0.1]},
    {"column": "n", "one_of": [1.5, 2]},
    {"column": "d", "one_of": ["2030-01-01"]},
    {"column": "b", "one_of": [True]},
    {"column": "i", "between": [-1, 3]},
    {"column": "w", "between": ["a", "b"]},
    {"column": "f", "between": [-1, 0.1]},
    {"column": "n", "between": [-12345678, 1.5]},
    {"column": "d", "between": ["2030-01-01", "2030-01-01"]},
    {"column": "t", "between": ["2030-01-01", "2030-01-01 12:00:00"]},
    {"column": "w", "matches": "^[a-z]+ ?$"},
    *({"column": name, "refers_to": {"table": "known", "column": name}} for name in CASTS),
]


@st.composite
def pipelines(draw: st.DrawFn) -> dict[str, Any]:
    """Steps, and checks of columns that these leave as they are."""
    names = sorted(CASTS)
    out = draw(st.lists(st.sampled_from(names), max_size=2, unique=True))
    left = [name for name in names if name not in out]
    cast = {name: draw(st.sampled_from(CASTS[name])) for name in left if draw(st.booleans())}
    mask = {name: draw(st.sampled_from(["hash", "null"])) for name in left if draw(st.integers(0, 3)) == 0}
    columns: dict[str, Any] = {
        "exclude": out,
        "cast": cast,
        "constant": {"k": draw(st.sampled_from([1, "k", 0.5]))},
    }
    columns["rename"] = {name: f"{name} new" for name in left if name in cast and draw(st.booleans())}
    columns["mask"] = {columns["rename"].get(name, name): how for name, how in mask.items()}
    if "hash" in mask.values():
        columns["salt"] = "${MASK_SALT}"
    plain = [name for name in left if name not in cast and name not in mask]
    fit = [check for check in CHECKS if set(check["column"]) <= set(plain)]
    checks = draw(st.lists(st.sampled_from(fit), max_size=6, unique_by=json.dumps)) if fit else []
    answers = st.sampled_from(["quarantine", "quarantine", "drop", "warn"])
    return {"columns": columns, "checks": [{**check, "otherwise": draw(answers)} for check in checks]}


def outcome(bench: Bench, sink: str, made: str = "", **parts: Any) -> Any:
    """All that a pipeline makes of the table; `made` makes that of its sink."""
    bench.sql(f"drop table if exists {sink}; {made}")
    name = bench.make({**TABLE, "changes": "all"}, {"format": "table", "table": sink}, **parts)
    done = bench.run(name)
    rows: list[str] = []
    if bench.one("select to_regclass(%s) is not null", sink):
        rows = sorted(row for (row,) in bench.sql(f"select to_jsonb(whole)::text from {sink} whole"))
    kept = bench.client.list_quarantine(name, None, 1000)
    told = bench.client.list_runs(name)[0].progress or {}
    return {
        "counts": [done[each] for each in ("rows_in", "rows_out", "rows_bad")],
        "rows": rows,
        "kept": sorted(json.dumps([row.reasons, row.content], sort_keys=True, default=str) for row in kept),
        "broken": told.get("broken"),
    }


@pytest.mark.slow
@settings(
    max_examples=some(15, 150),
    # Smaller examples take minutes of Spark.
    phases=[Phase.generate],
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(rows=st.lists(ROW, min_size=1, max_size=12), parts=pipelines())
def test_both_engines_give_the_same_rows_reasons_and_counts(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, rows: list[dict[str, Any]], parts: dict[str, Any]
) -> None:
    monkeypatch.setenv("MASK_SALT", "salty-and-long")
    bench.sql("drop table if exists source, known")
    bench.sql(
        "create table source (i int, w text, f float8, n numeric(10,2), d date, t timestamp, b boolean)"
    )
    with bench.connection.cursor() as cursor:
        cursor.executemany(
            "insert into source values (%(i)s, %(w)s, %(f)s, %(n)s, %(d)s, %(t)s, %(b)s)", rows
        )
    bench.sql("create table known as select * from source limit 3")
    there = outcome(bench, "by_spark", sql=["select * from input"], **parts)
    here = outcome(bench, "by_process", **parts)
    assert comparable(here) == comparable(there)


HELD = {
    "i": ("smallint", "numeric(3,1)", "text", "float8", "date"),
    "w": ("int", "float8", "boolean", "date", "timestamptz", "numeric(6,1)", "varchar(2)", "numeric"),
    "f": ("bigint", "text", "real", "numeric", "numeric(4,2)"),
    "n": ("int", "float8", "text", "numeric(3,1)", "boolean"),
    "d": ("text", "timestamp", "int"),
    "t": ("date", "text", "timestamptz"),
    "b": ("int", "text"),
}


@pytest.mark.slow
@settings(
    max_examples=some(5, 100),
    phases=[Phase.generate],
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    rows=st.lists(ROW, min_size=1, max_size=12),
    held=st.fixed_dictionaries({name: st.sampled_from(kinds) for name, kinds in HELD.items()}),
)
def test_both_engines_keep_out_the_same_values_that_the_sink_does_not_hold(
    bench: Bench, rows: list[dict[str, Any]], held: dict[str, str]
) -> None:
    bench.sql("drop table if exists source")
    bench.sql(
        "create table source (i int, w text, f float8, n numeric(10,2), d date, t timestamp, b boolean)"
    )
    with bench.connection.cursor() as cursor:
        cursor.executemany(
            "insert into source values (%(i)s, %(w)s, %(f)s, %(n)s, %(d)s, %(t)s, %(b)s)", rows
        )
    columns = ", ".join(f"{name} {kind}" for name, kind in held.items())
    ways: dict[str, dict[str, Any]] = {
        "process": {"engine": "process"},
        "tasks": {"engine": "spark"},
        "frames": {"sql": ["select * from input"]},
    }
    found = []
    for way, parts in ways.items():
        made = f"create table by_{way} ({columns})"
        found.append(comparable(outcome(bench, f"by_{way}", made, evolve="quarantine", **parts)))
    assert found[0] == found[1] == found[2]
    assert found[0]["counts"][1] + found[0]["counts"][2] == len(rows)


@pytest.mark.slow
def test_a_lake_gets_the_same_rows_by_both_engines_and_the_same_are_kept_out(
    bench: Bench, tmp_path: Path
) -> None:
    bench.sql("create table source (n text, d numeric(5,2), more text)")
    bench.sql(
        "insert into source values ('1', 1.5, null), ('x', 2, null), ('3', 'NaN', null), ('4', 3, 'y'),"
        " ('5', 4, null)"
    )
    ways: dict[str, dict[str, Any]] = {
        "process": {"engine": "process"},
        "tasks": {"engine": "spark"},
        "frames": {"sql": ["select * from input"]},
    }
    evolve = {"types": "quarantine", "columns": "quarantine"}
    for way, parts in ways.items():
        path = str(tmp_path / way)
        kinds = pa.schema([("n", pa.int32()), ("d", pa.decimal128(5, 2))])
        write_deltalake(path, pa.Table.from_pylist([{"n": 0, "d": Decimal(0)}], kinds))
        sink = {"format": "delta", "path": path}
        name = bench.make({**TABLE, "changes": "all"}, sink, evolve=evolve, **parts)
        done = bench.run(name)
        assert (done["rows_out"], done["rows_bad"]) == (2, 3), way
        rows = DeltaTable(path).to_pyarrow_table().to_pylist()
        assert sorted((row["n"], str(row["d"])) for row in rows) == [(0, "0.00"), (1, "1.50"), (5, "4.00")]
        assert {each.reason for each in bench.client.count_quarantine(name)} == {
            "n does not fit int32",
            "d does not fit decimal128(5, 2)",
            "more is a new column",
        }


def comparable(told: dict[str, Any]) -> dict[str, Any]:
    """Numbers of one value are the same, as 1.50 and 1.5 are."""

    def value(each: Any) -> Any:
        if isinstance(each, dict):
            return {key: value(inner) for key, inner in each.items()}
        if isinstance(each, list):
            return [value(inner) for inner in each]
        return float(each) if isinstance(each, Decimal) else each

    return {key: value(each) for key, each in told.items()}


@pytest.mark.slow
def test_a_row_that_broke_a_check_in_spark_is_sent_again_as_it_is(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, connection: psycopg.Connection[Any]
) -> None:
    monkeypatch.setenv("MASK_SALT", "salty-and-long")
    bench.sql(
        "create table source as select g as id, 'w' || g as word, '5' as n from generate_series(1, 4) g"
    )
    columns: dict[str, Any] = {
        "rename": {"word": "secret"},
        "cast": {"n": "int32"},
        "mask": {"secret": "hash"},
    }
    columns["salt"] = "${MASK_SALT}"
    check = {"column": "id", "between": [1, 3]}
    sink = {"format": "table", "table": "moved"}
    sql = ["select * from input"]
    name = bench.make(TABLE, sink, columns=columns, sql=sql, checks=[check])
    assert bench.run(name)["rows_bad"] == 1
    bench.make(TABLE, sink, columns=columns, sql=sql, checks=[], name=name)
    assert bench.execute(bench.client.resend_quarantine(name))["rows_out"] == 1
    assert bench.one("select count(distinct secret) from moved where length(secret) = 64 and n = 5") == 4


@pytest.mark.slow
def test_what_could_not_be_cast_is_sent_again_through_spark_as_without(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MASK_SALT", "salty-and-long")
    bench.sql("create table source (id int, n text, secret text)")
    bench.sql("insert into source values (1, 'x', '1'), (2, '5', '2'), (3, '6', 'much')")
    columns = {"cast": {"n": "int32", "secret": "int64"}, "mask": {"secret": "hash"}, "salt": "${MASK_SALT}"}
    sink = {"format": "table", "table": "moved"}
    sql = ["select * from input"]
    name = bench.make(TABLE, sink, columns=columns, sql=sql, checks=[{"column": "id", "one_of": [9]}])
    assert bench.run(name)["rows_bad"] == 3
    bench.make(TABLE, sink, columns=columns, sql=sql, name=name)
    done = bench.execute(bench.client.resend_quarantine(name))
    assert (done["rows_in"], done["rows_out"], done["rows_bad"]) == (3, 1, 2)
    assert bench.sql("select id, n, length(secret) from moved") == [(2, 5, 64)]
    assert [row.reasons for row in bench.client.list_quarantine(name)] == [
        ["n cannot be cast to int32"],
        ["secret cannot be cast to int64"],
    ]
