"""A process dies while it widens and renames columns of its sink, and keeps rows out: each arrives once."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from pipeline.killing import execute_and_die
from pipeline.piping import Bench
from pipeline.test_frozen import frozen
from scope import some

TABLE = {"format": "table", "table": "source"}
SINKS: dict[str, dict[str, Any]] = {
    "table": {"format": "table", "table": "moved"},
    "delta": {"format": "delta", "path": "moved"},
    "delta upsert": {"format": "delta", "path": "moved", "mode": "upsert", "key": ["id"]},
}
EVOLVE = {"types": "widen", "rename": {"n": "amount"}, "column": {"word": "quarantine"}}
POINTS = ("evolving", "evolved", "staging", "marked", "committed", "finished")


@pytest.fixture(autouse=True)
def _in_a_directory_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.killing.DIRECTORY", str(tmp_path))
    monkeypatch.chdir(tmp_path)


def moved(bench: Bench, sink: str) -> list[tuple[Any, ...]]:
    if sink == "table":
        return sorted(bench.sql("select id, amount, word from moved"))
    rows = DeltaTable("moved").to_pyarrow_table().to_pylist()
    return sorted((row["id"], row["amount"], row["word"]) for row in rows)


def changed(bench: Bench, sink: str) -> str:
    """A pipeline whose source has changed since its first run."""
    bench.sql("create table source (id int primary key, n int, word int)")
    bench.sql("insert into source select g, g, g from generate_series(1, 50) g")
    name = bench.make(TABLE, SINKS[sink], evolve=EVOLVE)
    bench.run(name)
    bench.sql("delete from source; alter table source rename n to amount")
    bench.sql("alter table source alter amount type bigint, alter word type text")
    bench.sql(
        "insert into source select g, 3000000000 + g, case when g % 10 = 0 then 'x' else g::text end"
        " from generate_series(51, 100) g"
    )
    return name


def check(bench: Bench, sink: str, name: str) -> None:
    """Each row has arrived, or is kept, once."""
    whole = [(id, id, id) for id in range(1, 51)]
    assert moved(bench, sink) == whole + [(g, 3000000000 + g, g) for g in range(51, 101) if g % 10]
    kept = bench.client.list_quarantine(name)
    assert sorted(row.content["id"] for row in kept) == [60, 70, 80, 90, 100]
    assert [each.version for each in bench.client.list_schemas(name)] == [2, 1]
    assert bench.run(name) == {"outcome": "nothing new"}


@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS[: some(5, 6)])
@pytest.mark.parametrize("sink", SINKS)
def test_killed_while_columns_change_every_row_arrives_or_is_kept_once(
    bench: Bench, sink: str, point: str
) -> None:
    name = changed(bench, sink)
    message = bench.client.run_pipeline(name)
    for _ in range(2):
        # The second comes where the first has come, or further.
        code = execute_and_die(bench.dsn, bench.asked(message), point)
        if point not in ("evolving", "evolved") or code == 0:
            break
        assert code == -signal.SIGKILL
    bench.execute(message)
    check(bench, sink, name)


@pytest.mark.slow
@pytest.mark.parametrize("sink", SINKS)
def test_one_who_is_frozen_while_it_changes_columns_keeps_nobody_from_the_table(
    bench: Bench, sink: str
) -> None:
    name = changed(bench, sink)
    message = bench.client.run_pipeline(name)
    with frozen(bench, message, "evolving"):
        bench.execute(message)
        check(bench, sink, name)
    check(bench, sink, name)
