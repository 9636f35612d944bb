"""Directories of Parquet are removed by whoever has read them, however quick that is."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pipeline.piping import Bench
from trunq.pipeline.control import Run
from trunq.pipeline.sink.parquet import ParquetSink


def test_a_run_whose_directory_is_removed_at_once_is_done(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, read = ParquetSink.commit, []

    def and_read(sink: ParquetSink, run: Run, parts: list[str], rows: int) -> bool:
        is_taken = commit(sink, run, parts, rows)
        for directory in tmp_path.glob("run-*"):
            read.append(directory.name)
            shutil.rmtree(directory)
        return is_taken

    monkeypatch.setattr(ParquetSink, "commit", and_read)
    bench.sql("create table source (id int); insert into source values (1), (2)")
    name = bench.make({"format": "table", "table": "source"}, {"format": "parquet", "path": str(tmp_path)})
    assert bench.run(name)["rows_out"] == 2
    bench.sql("insert into source values (3)")
    assert bench.run(name)["rows_out"] == 1
    assert [each.rpartition("-")[2] for each in read] == ["00000001", "00000002"]


def test_a_directory_that_is_being_removed_keeps_no_run_from_the_next(bench: Bench, tmp_path: Path) -> None:
    bench.sql("create table source (id int); insert into source values (1), (2)")
    name = bench.make({"format": "table", "table": "source"}, {"format": "parquet", "path": str(tmp_path)})
    bench.run(name)
    [first] = tmp_path.glob("run-*")
    (first / "_attempt").unlink()
    bench.sql("insert into source values (3)")
    assert bench.run(name)["rows_out"] == 1
