from __future__ import annotations

from typing import Any

import pytest
from deltalake import DeltaTable
from pipeline.piping import Bench
from pathlib import Path

CAPTURED = {"format": "table", "table": "source", "changes": "capture"}


@pytest.mark.parametrize("deletes", ["hard", "soft"])
@pytest.mark.parametrize("sink", [{"format": "table", "table": "copy"}, {"format":"delta","path":"copy"}])
def test_first(bench: Bench, tmp_path, monkeypatch, sink, deletes) -> None:
    monkeypatch.chdir(tmp_path)
    bench.sql("create table source (id int primary key, word text, at timestamptz default now(), n numeric)")
    bench.sql("insert into source values (1, 'a'), (2, 'b'), (3, 'c')")
    name = bench.make(CAPTURED, {**sink, "mode": "apply", "deletes": deletes})
    def show():
        if sink["format"] == "delta":
            print(DeltaTable("copy").to_pyarrow_table().sort_by("id").drop_columns(["at"]).to_pylist())
        else:
            print(bench.sql("select to_jsonb(c)-'at' from copy c order by id"))
    print(bench.run(name))
    show()
    bench.sql("update source set word = 'x' where id = 1")
    bench.sql("delete from source where id = 2")
    bench.sql("update source set id = 4 where id = 3")
    bench.sql("insert into source values (5, 'e')")
    print(bench.run(name))
    show()
    print(bench.run(name))
    bench.sql("truncate source; insert into source values (7)")
    print(bench.run(name))
    show()
    bench.sql("truncate source")
    print(bench.run(name))
    show()
    bench.sql("insert into source values (5, 'again')")
    print(bench.run(name))
    show()
    print(bench.client.list_pipelines()[0].state)
    assert 0
