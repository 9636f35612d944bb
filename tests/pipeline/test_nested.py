"""Arrays are lists in a lake, composites structs, and JSON a struct where a pipeline says of which types."""

from __future__ import annotations

import datetime as dt
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyarrow import parquet

from pipeline.piping import Bench
from scope import some
from trunq.errors import InvalidPipeline
from trunq.pipeline import Pipeline

TABLE = {"format": "table", "table": "source"}
MOVED = {"format": "table", "table": "moved"}
LAKE = {"format": "delta", "path": "lake"}


@pytest.fixture(autouse=True)
def _in_a_directory_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def lake(path: str = "lake") -> pa.Table:
    return DeltaTable(path).to_pyarrow_table().sort_by("id")


@dataclass(frozen=True)
class Kind:
    """A type of Postgres, what it is in a lake, and how a value is written in SQL."""

    name: str
    arrow: pa.DataType
    value: Callable[[random.Random], Any]
    sql: Callable[[Any], str]


def literal(value: Any) -> str:
    return "'" + str(value).replace("'", "''") + "'"


TEXTS = ("", "a", "NULL", "null", 'q"\\', "{,}", "(x)", "\u00e9 \n\t", "'")
ZONED = pa.timestamp("us", "UTC")
PLAIN = [
    Kind("integer", pa.int32(), lambda r: r.randint(-9, 9), str),
    Kind("bigint", pa.int64(), lambda r: r.choice((-(2**63), 2**63 - 1)), literal),
    Kind("real", pa.float32(), lambda r: r.choice((0.5, -0.25, float("inf"))), literal),
    Kind("float8", pa.float64(), lambda r: r.choice((0.1, 1e300, -1e-300, float("-inf"))), literal),
    Kind("boolean", pa.bool_(), lambda r: r.random() < 0.5, str),
    Kind("text", pa.string(), lambda r: r.choice(TEXTS), literal),
    Kind("varchar(9)", pa.string(), lambda r: r.choice(TEXTS), literal),
    Kind("bytea", pa.binary(), lambda r: r.randbytes(r.randint(0, 3)), lambda v: f"'\\x{v.hex()}'"),
    Kind("date", pa.date32(), lambda r: dt.date(r.randint(1, 9999), 1, 31), lambda v: literal(v.isoformat())),
    Kind("timestamptz", ZONED, lambda r: dt.datetime(2030, 1, 1, 12, 0, 0, r.choice((0, 1)), dt.UTC),
         lambda v: literal(v.isoformat())),
    Kind("timestamp", pa.timestamp("us"), lambda r: dt.datetime(r.randint(1, 9999), 2, 3, 4),
         lambda v: literal(v.isoformat())),
    Kind("numeric(9,2)", pa.decimal128(9, 2), lambda r: Decimal(r.randint(-999, 999)) / 100, literal),
    Kind("numeric", pa.string(), lambda r: r.choice(("NaN", "1.50", "-1000000000000000000000")), literal),
    Kind("uuid", pa.string(), lambda _: "0b8c5b1c-0b5c-4b5c-8b5c-0b5c4b5c8b5c", literal),
    Kind("mood", pa.string(), lambda r: r.choice("ab"), literal),
    Kind("small", pa.int32(), lambda r: r.randint(0, 8), str),
    Kind("jsonb", pa.string(), lambda r: r.choice(('{"a": [1, 2.50, "x"]}', '"s"', "[]", "7")), literal),
]  # fmt: skip


def array(of: Kind, dimensions: int = 1) -> Kind:
    def value(r: random.Random) -> Any:
        sizes = [r.randint(0 if dimensions == 1 else 1, 3) for _ in range(dimensions)]

        def made(sizes: list[int]) -> Any:
            if not sizes:
                return None if r.random() < 0.2 else of.value(r)
            return [made(sizes[1:]) for _ in range(sizes[0])]

        return made(sizes)

    def written(value: Any) -> str:
        if isinstance(value, list):
            return f"array[{', '.join(map(written, value))}]::{of.name}[]"
        return "null" if value is None else f"{of.sql(value)}::{of.name}"

    kind = of.arrow
    for _ in range(dimensions):
        kind = pa.list_(kind)
    return Kind(of.name + "[]" * dimensions, kind, value, written)


def composite(name: str, parts: dict[str, Kind]) -> Kind:
    def value(r: random.Random) -> Any:
        return {each: None if r.random() < 0.3 else of.value(r) for each, of in parts.items()}

    def written(value: Any) -> str:
        inner = (
            "null" if value[each] is None else f"{of.sql(value[each])}::{of.name}"
            for each, of in parts.items()
        )
        return f"row({', '.join(inner)})::{name}"

    return Kind(name, pa.struct([(each, of.arrow) for each, of in parts.items()]), value, written)


def make_table(bench: Bench, number: int, r: random.Random) -> dict[str, Kind]:
    """A table of random types; its columns."""
    made: list[Kind] = []
    for depth in range(2):
        parts: dict[str, Kind] = {}
        for at in range(r.randint(1, 4)):
            of = r.choice([*PLAIN, *made])
            # An array of what has a composite in it, of one dimension: to_json has no other of empty ones.
            parts[f"p {at}"] = array(of) if r.random() < 0.3 and not of.name.endswith("]") else of
        name = f"made_{number}_{depth}"
        bench.sql(
            f"create type {name} as ({', '.join(f'{json.dumps(p)} {of.name}' for p, of in parts.items())})"
        )
        made.append(composite(name, parts))
    columns = {}
    for at in range(r.randint(3, 6)):
        of = r.choice([*PLAIN, *made, *made])
        columns[f"c {at}"] = (
            r.choice((of, array(of), array(of, 2))) if of in PLAIN else r.choice((of, array(of)))
        )
    body = ", ".join(f"{json.dumps(name)} {of.name}" for name, of in columns.items())
    bench.sql(f"create table source_{number} (id int, {body})")
    return columns


def fill(bench: Bench, number: int, columns: dict[str, Kind], r: random.Random) -> list[dict[str, Any]]:
    rows = []
    for id in range(12):
        row = {name: None if r.random() < 0.2 else of.value(r) for name, of in columns.items()}
        values = (
            "null" if row[name] is None else f"{of.sql(row[name])}::{of.name}" for name, of in columns.items()
        )
        bench.sql(f"insert into source_{number} values ({id}, {', '.join(values)})")
        rows.append({"id": id, **row})
    return rows


@pytest.fixture
def typed(bench: Bench) -> Bench:
    bench.sql("create type mood as enum ('a', 'b'); create domain small as int check (value < 9)")
    return bench


@pytest.mark.parametrize("seed", range(some(3, 30)))
def test_random_nested_values_are_in_a_lake_what_they_were_and_come_back(typed: Bench, seed: int) -> None:
    r = random.Random(seed)
    columns = make_table(typed, seed, r)
    rows = fill(typed, seed, columns, r)
    source = {"format": "table", "table": f"source_{seed}"}
    for sink in (LAKE, {"format": "parquet", "path": "files"}):
        typed.run(typed.make(source, sink))
    expected = {"id": pa.int32(), **{name: of.arrow for name, of in columns.items()}}
    found = parquet.read_table(next(Path("files").glob("run-*/*.parquet"))).sort_by("id")
    for table in (lake(), found):
        assert {field.name: field.type for field in table.schema} == expected
        assert repr(plainly(table.to_pylist())) == repr(plainly(rows))
    typed.sql(f"create table same (like source_{seed})")
    typed.run(typed.make(source, {"format": "table", "table": "same"}))
    query = "select id, to_jsonb(t)::text from {} t order by 1"
    assert typed.sql(query.format("same")) == typed.sql(query.format(f"source_{seed}"))


def test_both_engines_give_the_same_lists_and_structs(typed: Bench) -> None:
    for seed in range(100, 100 + some(3, 20)):
        r = random.Random(seed)
        fill(typed, seed, make_table(typed, seed, r), r)
        source = {"format": "table", "table": f"source_{seed}"}
        typed.run(typed.make(source, {**LAKE, "path": f"process_{seed}"}, engine="process"))
        typed.run(typed.make(source, {**LAKE, "path": f"spark_{seed}"}, engine="spark"))
        typed.run(typed.make(source, {**LAKE, "path": f"sql_{seed}"}, sql=["select * from input"]))
        expected = lake(f"process_{seed}")
        for path in (f"spark_{seed}", f"sql_{seed}"):
            assert lake(path).schema == expected.schema
            assert repr(plainly(lake(path).to_pylist())) == repr(plainly(expected.to_pylist()))
    r = random.Random(0)
    columns = {f"c{at}": array(of) for at, of in enumerate(PLAIN)}
    typed.sql(
        f"create table source_0 (id int, {', '.join(f'{name} {of.name}' for name, of in columns.items())})"
    )
    fill(typed, 0, columns, r)
    source = {"format": "table", "table": "source_0"}
    for place, more in (("plain", {}), ("by_sql", {"sql": ["select * from input"]})):
        typed.run(typed.make(source, {"format": "table", "table": place}, **more))
    kinds = (
        "select attname, format_type(atttypid, atttypmod) from pg_attribute where attrelid = %s::regclass"
        " and attnum > 0"
    )
    assert typed.sql(kinds, "by_sql") == typed.sql(kinds, "plain")
    query = "select id, to_jsonb(t)::text from {} t order by 1"
    assert typed.sql(query.format("by_sql")) == typed.sql(query.format("plain"))


def plainly(value: Any) -> Any:
    """Times in one zone object."""
    match value:
        case list():
            return [plainly(each) for each in value]
        case dict():
            return {key: plainly(each) for key, each in value.items()}
        case dt.datetime():
            return value.isoformat()
        case Decimal():
            return f"{value:.2f}"
        case _:
            return value


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("int[]", "{{1,2},{3,4}}"),
        ("int[][]", "{1,2}"),
        ("numeric(5,2)[]", "{NaN}"),
        ("timestamptz[]", "{infinity}"),
        ("date[]", '{"0044-03-15 BC"}'),
    ],
)
def test_a_value_that_a_list_cannot_hold_is_refused_and_the_way_out_takes_it_as_text(
    bench: Bench, kind: str, value: str
) -> None:
    bench.sql(f"create table source (id int, what {kind}); insert into source values (1, '{value}')")
    with pytest.raises(InvalidPipeline, match='column "what" has a value that list<') as refused:
        bench.run(bench.make(TABLE, LAKE))
    assert 'cast = { what = "string" } in columns' in str(refused.value)
    bench.run(bench.make(TABLE, {**LAKE, "path": "texts"}, columns={"cast": {"what": "string"}}))
    assert lake("texts")["what"].to_pylist() == [value]
    # A table has a value for it.
    bench.run(bench.make(TABLE, MOVED))
    assert bench.sql("select what::text from moved") == [(value,)]


BODY = {
    "id": "int64",
    "price": "decimal(6,2)",
    "tags": ["string"],
    "at": "timestamp[us, UTC]",
    "lines": [{"sku": "string", "n": "int32"}],
}
GOOD = {
    "id": 1,
    "price": 2.5,
    "tags": ["a", None, 7, {"x": 1.50}],
    "at": "2030-01-31T12:00:00+02:00",
    "lines": [{"sku": "s", "n": 2, "more": 1}, None, {}],
    "more": {},
}


@pytest.mark.parametrize("engine", ["process", "spark"])
def test_json_is_a_struct_of_the_types_that_a_pipeline_gives(bench: Bench, engine: str) -> None:
    bench.sql("create table source (id int, body jsonb)")
    bad = ({"id": "x"}, {"tags": "a"}, {"lines": [{"n": 1.5}]}, [1], {"lines": [[1]]}, {"price": 99999.999})
    for id, each in enumerate((GOOD, None, {}, *bad)):
        bench.sql("insert into source values (%s, %s)", id, None if each is None else json.dumps(each))
    name = bench.make(TABLE, LAKE, columns={"cast": {"body": BODY}}, engine=engine)
    done = bench.run(name)
    assert (done["rows_out"], done["rows_bad"]) == (3, len(bad))
    nothing = dict.fromkeys(BODY)
    assert plainly(lake()["body"].to_pylist()) == [
        {"id": 1, "price": "2.50", "tags": ["a", None, "7", '{"x": 1.5}'], "at": "2030-01-31T10:00:00+00:00",
         "lines": [{"sku": "s", "n": 2}, None, {"sku": None, "n": None}]},
        None,
        nothing,
    ]  # fmt: skip
    ((reason, count, *_),) = bench.client.count_quarantine(name)
    assert (reason.partition("<")[0], count) == ("body cannot be cast to struct", len(bad))
    # Mended, they are sent again.
    bench.sql('update trunq.quarantine set content = content || \'{"body": "{\\"id\\": 5}"}\'')
    bench.execute(bench.client.resend_quarantine(name))
    assert lake()["body"].to_pylist()[3:] == [nothing | {"id": 5}] * len(bad)


def test_lists_and_objects_of_files_are_arrays_and_jsonb_of_tables_or_what_these_have(
    bench: Bench, tmp_path: Path
) -> None:
    rows = [{"id": 1, "tags": ["a", None], "of": {"x": 1, "y": "z"}, "ns": [[1], [2, 3]]}, {"id": 2}]
    (tmp_path / "a.json").write_text("\n".join(map(json.dumps, rows)))
    files = {"format": "json", "path": f"{tmp_path}/*.json", "settled": 0}
    bench.run(bench.make(files, MOVED))
    assert bench.sql(
        "select pg_typeof(tags)::text, pg_typeof(of)::text, pg_typeof(ns)::text from moved limit 1"
    ) == [("text[]", "jsonb", "jsonb")]
    expected = [(1, ["a", None], {"x": 1, "y": "z"}, [[1], [2, 3]]), (2, None, None, None)]
    assert sorted(bench.sql("select id, tags, of, ns from moved")) == expected
    bench.sql("create type pair as (x bigint, y text)")
    bench.sql("create table own (id bigint, tags varchar(5)[], of pair, ns jsonb)")
    bench.run(bench.make(files, {"format": "table", "table": "own"}))
    assert bench.sql("select tags::text, (of).y, ns::text from own where id = 1") == [
        ("{a,NULL}", "z", "[[1], [2, 3]]")
    ]
    bench.sql("create table wrong (id bigint, tags int[], of jsonb, ns jsonb)")
    with pytest.raises(InvalidPipeline, match=r'"tags" of wrong is integer\[\] and comes as text\[\]'):
        bench.run(bench.make(files, {"format": "table", "table": "wrong"}))


def test_an_array_can_be_cast_to_a_list_of_another_type(bench: Bench) -> None:
    bench.sql("create table source (id int, n int[]); insert into source values (1, '{1,null}')")
    bench.run(bench.make(TABLE, LAKE, columns={"cast": {"n": ["string"]}}))
    assert lake()["n"].to_pylist() == [["1", None]]


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        ([], "which is no type: a list is written"),
        ({}, "which is no type: a list is written"),
        (["int64", "int64"], "which is no type: a list is written"),
        ({"a": "int46"}, "'body.a' is to be 'int46', which is no type: is it int64"),
    ],
)
def test_what_is_no_type_is_refused(kind: Any, wrong: str) -> None:
    with pytest.raises(InvalidPipeline, match=wrong):
        Pipeline("p", source=TABLE, sink=LAKE, columns={"cast": {"body": kind}})


def test_messages_have_composites_as_objects(bench: Bench) -> None:
    bench.sql("create type pair as (x int, y text)")
    bench.sql("create table source (id int, p pair, ps pair[], ns int[]); insert into source values (2)")
    bench.sql("insert into source values (1, (1, 'a'), array[(2, null)::pair, null], '{1,2}')")
    bench.client.create_queue("moved")
    bench.run(bench.make(TABLE, {"format": "queue", "queue": "moved"}))
    query = "select payload->'p', payload->'ps', payload->'ns' from trunq_log.moved"
    assert sorted(bench.sql(query), key=str) == [
        (None, None, None),
        ({"x": 1, "y": "a"}, [{"x": 2, "y": None}, None], "{1,2}"),
    ]


def test_composites_and_their_arrays_of_captured_rows_become_those_of_the_table(bench: Bench) -> None:
    bench.sql("create type pair as (n int, word text)")
    for table in ("source", "copy"):
        bench.sql(f"create table {table} (id int primary key, n int[], pair pair, pairs pair[], j json)")
    bench.sql("""insert into source values (1, '{1,2}', '(1,a)', '{"(1,q)"}', '{"b":  2}')""")
    bench.sql("insert into source values (2)")
    copy = {"format": "table", "table": "copy", "mode": "apply"}
    name = bench.make({"format": "table", "table": "source", "changes": "capture"}, copy)
    bench.run(name)
    bench.sql("""update source set n = '{3}', pair = '(2,b)', pairs = '{"(5,z)",null}' where id = 1""")
    bench.sql("delete from source where id = 2; insert into source values (3, '{}', null, '{}')")
    bench.run(name)
    rows = "select id, n, pair::text, pairs::text, j from {} order by id"
    assert bench.sql(rows.format("copy")) == bench.sql(rows.format("source"))
