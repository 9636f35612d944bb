"""Changes of a table through Spark's tasks: where the snapshot was taken comes back from who read it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from pipeline.copying import COPY, copied, words
from pipeline.piping import Bench

DELTA = {"format": "delta", "path": "copy", "mode": "apply"}
SPARK: Any = {"engine": "spark"}


def found(bench: Bench, sink: dict[str, Any]) -> list[tuple[int, str]]:
    if sink["format"] == "table":
        return words(bench)
    rows = DeltaTable("copy").to_pyarrow_table().to_pylist()
    return sorted((row["id"], row["word"]) for row in rows)


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("sink", [COPY, DELTA], ids=["table", "delta"])
def test_tasks_bring_the_rows_then_the_changes_and_read_anew_what_was_truncated(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sink: dict[str, Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    name = copied(bench, "a", "b", "c", sink=sink, **SPARK)
    assert found(bench, sink) == words(bench, "source")
    bench.sql("update source set word = 'x' where id = 1; delete from source where id = 2")
    bench.sql("update source set id = 4 where id = 3; insert into source values (5, 'e')")
    assert bench.run(name)["rows_out"] == 5
    assert found(bench, sink) == words(bench, "source") == [(1, "x"), (4, "c"), (5, "e")]
    assert bench.run(name) == {"outcome": "nothing new"}
    bench.sql("truncate source; insert into source values (4, 'new')")
    bench.run(name)
    assert found(bench, sink) == words(bench, "source") == [(4, "new")]
    bench.sql("truncate source")
    bench.run(name)
    assert found(bench, sink) == []
