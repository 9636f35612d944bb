"""A Delta table gets the partitions that its pipeline asks for, in one step, beside other writers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, write_deltalake

from pipeline.piping import Bench
from trunq.errors import InvalidPipeline
from trunq.pipeline import Pipeline
from trunq.pipeline.errors import Outrun
from trunq.pipeline.sink import delta, rewrite

TABLE = {"format": "table", "table": "source"}
LAKE: dict[str, Any] = {"format": "delta", "path": "lake", "partition_by": ["day"]}
REWRITE = {"partitions": "rewrite"}


@pytest.fixture
def written(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A table of five rows in partitions by day, and a row that its pipeline has not written."""
    monkeypatch.chdir(tmp_path)
    bench.sql("create table source (id int, day date, shop text, tags text[])")
    bench.make(TABLE, LAKE, name="into_lake")
    for id in range(5):
        shop = ("a b", "50% \u00fc/x=:", None)[id % 3]
        bench.sql("insert into source values (%s, make_date(2030, 1, 1 + %s %% 2), %s, '{x}')", id, id, shop)
    bench.run("into_lake")
    bench.sql("insert into source values (5, null, 'c', null)")
    return bench


def change(bench: Bench, sink: dict[str, Any], **more: Any) -> None:
    made = Pipeline("into_lake", source=TABLE, sink=sink, **more)
    bench.client.create_pipeline("into_lake", made.definition)


def ids() -> list[int]:
    return sorted(DeltaTable("lake").to_pyarrow_table()["id"].to_pylist())


def partitions() -> list[str]:
    return list(DeltaTable("lake").metadata().partition_columns)


@pytest.mark.slow
def test_other_partitions_are_refused_and_the_way_out_rewrites_the_table(written: Bench) -> None:
    change(written, {**LAKE, "partition_by": ["shop"]})
    with pytest.raises(
        InvalidPipeline, match=r"partitioned by \(day\), and partition_by is \(shop\)"
    ) as refused:
        written.run("into_lake")
    assert 'evolve = { partitions = "rewrite" }' in str(refused.value)
    before = DeltaTable("lake").version()
    change(written, {**LAKE, "partition_by": ["shop"]}, evolve=REWRITE)
    written.run("into_lake")
    # One entry rewrites it, another takes the run.
    assert (DeltaTable("lake").version(), partitions(), ids()) == (before + 2, ["shop"], [0, 1, 2, 3, 4, 5])
    rows = sorted(DeltaTable("lake").to_pyarrow_table().to_pylist(), key=lambda row: row["id"])
    assert (rows[1]["shop"], rows[1]["tags"], rows[2]["shop"]) == ("50% \u00fc/x=:", ["x"], None)
    assert DeltaTable("lake", version=before).to_pyarrow_table().num_rows == 5
    assert written.run("into_lake") == {"outcome": "nothing new"}
    change(written, {**LAKE, "partition_by": ["day", "shop"]}, evolve=REWRITE)
    written.sql("insert into source values (6, '2030-01-01', 'c', null)")
    written.run("into_lake")
    assert (partitions(), ids()) == (["day", "shop"], [0, 1, 2, 3, 4, 5, 6])


@pytest.mark.slow
def test_a_rewrite_that_dies_before_its_entry_changes_nothing_and_is_done_by_the_next_attempt(
    written: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(written, {**LAKE, "partition_by": ["shop"]}, evolve=REWRITE)
    with monkeypatch.context() as patched:
        patched.setattr(rewrite, "CommitProperties", lambda **_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            written.run("into_lake")
    assert (partitions(), ids()) == (["day"], [0, 1, 2, 3, 4])
    with monkeypatch.context() as patched:
        patched.setattr(rewrite, "write_deltalake", _after(write_deltalake))
        with pytest.raises(ZeroDivisionError):
            written.run("into_lake")
    assert (partitions(), ids()) == (["shop"], [0, 1, 2, 3, 4])
    written.run("into_lake")
    assert (partitions(), ids()) == (["shop"], [0, 1, 2, 3, 4, 5])


def _after(write: Any) -> Any:
    def and_die(*given: Any, **more: Any) -> None:
        write(*given, **more)
        _ = 1 / 0

    return and_die


@pytest.mark.slow
def test_a_row_that_another_writes_meanwhile_is_in_the_new_partitions(
    written: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(written, {**LAKE, "partition_by": ["shop"]}, evolve=REWRITE)
    original, met = rewrite.write_deltalake, []

    def meeting(*given: Any, **more: Any) -> None:
        if not met:
            met.append(1)
            write_deltalake("lake", DeltaTable("lake").to_pyarrow_table().slice(0, 1), mode="append")
        original(*given, **more)

    monkeypatch.setattr(rewrite, "write_deltalake", meeting)
    written.run("into_lake")
    table = DeltaTable("lake")
    assert len(ids()) == 7
    assert all("shop=" in uri for uri in table.file_uris())


@pytest.mark.slow
def test_rows_that_were_staged_for_the_old_partitions_are_staged_again(
    written: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = written.make(TABLE, {key: value for key, value in LAKE.items() if key != "partition_by"})
    change(written, {**LAKE, "partition_by": ["shop"]}, evolve=REWRITE)
    original, met = delta.DeltaSink._try, []

    def meeting(self: Any, run: Any, write: Any) -> bool:
        if run.pipeline == other and not met:
            met.append(1)
            written.run("into_lake")
        return original(self, run, write)

    monkeypatch.setattr(delta.DeltaSink, "_try", meeting)
    with pytest.raises(Outrun, match=r"lake is partitioned by \(shop\) since rows were staged for it"):
        written.run(other)
    written.run(other)
    assert (partitions(), ids()) == (["shop"], sorted([0, 1, 2, 3, 4, 5] * 2))


@pytest.mark.slow
def test_only_delta_has_partitions_that_are_rewritten(written: Bench) -> None:
    with pytest.raises(
        InvalidPipeline, match="evolve rewrites partitions, and a sink of format 'parquet' has none"
    ):
        change(written, {"format": "parquet", "path": "files"}, evolve=REWRITE)
