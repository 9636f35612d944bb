from __future__ import annotations

from typing import Any

import pytest

from pipeline.piping import Bench

CAPTURED = {"format": "table", "table": "source", "changes": "capture"}


def test_first(bench: Bench) -> None:
    bench.sql("create table source (id int primary key, word text, at timestamptz default now(), n numeric)")
    bench.sql("insert into source values (1, 'a'), (2, 'b'), (3, 'c')")
    name = bench.make(CAPTURED, {"format": "table", "table": "copy", "mode": "apply"})
    print(bench.run(name))
    print(bench.sql("select * from copy order by id"))
    bench.sql("update source set word = 'x' where id = 1")
    bench.sql("delete from source where id = 2")
    bench.sql("update source set id = 4 where id = 3")
    bench.sql("insert into source values (5, 'e')")
    print(bench.run(name))
    print(bench.sql("select * from copy order by id"))
    print(bench.run(name))
    bench.sql("truncate source; insert into source values (7)")
    print(bench.run(name))
    print(bench.sql("select * from copy order by id"))
    print(bench.client.list_pipelines()[0].state)
    assert 0
