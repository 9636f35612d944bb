"""Columns of a lake whose names have quotes and other signs, in a key, beside it, and as what is newest."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Schema

from pipeline.piping import Bench

NAMES = ("a\"b 'c'", "a`b.{c} %s")


@pytest.mark.parametrize("mode", ["upsert", "history", "apply"])
@pytest.mark.parametrize("key", NAMES)
def test_a_name_with_quotes_is_merged_as_any_other(bench: Bench, tmp_path: Path, mode: str, key: str) -> None:
    value = next(name for name in NAMES if name != key)
    newest = f"{key} at"
    named = [f'"{name.replace(chr(34), 2 * chr(34))}"' for name in (key, value, newest)]
    bench.connection.execute(
        f"create table source ({named[0]} int primary key, {named[1]} text, {named[2]} timestamptz)".encode()
    )
    bench.connection.execute(b"insert into source values (1, 'one', now()), (2, 'two', now())")
    changes = {"changes": "capture"} if mode == "apply" else {}
    more = {} if mode == "apply" else {"newest": newest}
    lake = str(tmp_path / "lake")
    sink = {"format": "delta", "path": lake, "mode": mode, "key": [key], **more}
    name = bench.make({"format": "table", "table": "source", **changes}, sink)
    bench.run(name)
    # With a column of others, deltalake merges an upsert, too.
    DeltaTable(lake).alter.add_columns(Schema.from_arrow(pa.schema([("other", pa.int32())])).fields)
    bench.connection.execute(
        f"update source set {named[1]} = 'three', {named[2]} = now() + interval '1 hour'"
        f" where {named[0]} = 2".encode()
    )
    bench.run(name)
    found = sorted((row[key], row[value]) for row in DeltaTable(lake).to_pyarrow_table().to_pylist())
    before = [(2, "two")] if mode == "history" else []
    assert found == [(1, "one"), (2, "three"), *before]
