"""A table that is captured, and its copy."""

from __future__ import annotations

from typing import Any

from pipeline.piping import Bench

SOURCE = {"format": "table", "table": "source", "changes": "capture"}
COPY = {"format": "table", "table": "copy", "mode": "apply"}


def words(bench: Bench, table: str = "copy", alive: str = "") -> list[Any]:
    return bench.sql(f"select id, word from {table} {alive} order by id")


def copied(bench: Bench, *rows: str, sink: dict[str, Any] = COPY, **more: Any) -> str:
    """A pipeline whose first run has copied these rows."""
    bench.sql("create table source (id int primary key, word text)")
    for at, word in enumerate(rows, 1):
        bench.sql("insert into source values (%s, %s)", at, word)
    name = bench.make(SOURCE, sink, **more)
    bench.run(name)
    return name


def slice_of(bench: Bench, name: str) -> Any:
    """That of the newest run."""
    runs = "trunq.pipeline_run r join trunq.pipeline p using (pipeline_id)"
    return bench.one(f"select slice from {runs} where p.name = %s order by number desc limit 1", name)
