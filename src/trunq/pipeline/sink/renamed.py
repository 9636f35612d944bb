"""Parquet files in a directory of another machine, over SFTP: as on this machine, renaming a directory is the
commit, and one that is there refuses the second.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pyarrow as pa
from pyarrow import parquet

from trunq.arrow.batch import for_lake
from trunq.pipeline.control import Run
from trunq.pipeline.definition.pipeline import Pipeline
from trunq.pipeline.definition.sink import ParquetSink as Model
from trunq.pipeline.errors import StageLost, StorageFailed
from trunq.pipeline.figures import SinkColumns, lake_columns
from trunq.pipeline.sink import Mark, checked
from trunq.pipeline.sink.directory import STAGE, prefix, write_part
from trunq.pipeline.storage import open_storage, split

if TYPE_CHECKING:
    from trunq.pipeline.storage.sftp import SftpStorage


class RenamedSink:
    """A directory of a host."""

    def __init__(self, pipeline: Pipeline, dsn: str) -> None:  # noqa: ARG002  # as all sinks
        model = pipeline.sink
        assert isinstance(model, Model)
        self._base, self._root = split(model.path)
        self._storage = cast("SftpStorage", open_storage(pipeline.name, model.path, model.storage))
        self._may_be_renamed = False
        """Whether the server may rename our stage yet, though we do not know."""

    def check(self) -> None:
        """A directory is made when it is not there."""

    def applied(self, run: Run) -> Mark:
        begin = f"run-{prefix(run)}"
        found = sorted(name for name in self._storage.names(self._root) if name.startswith(begin))
        for name in reversed(found):
            # One that has none, its reader is just removing.
            if attempt := self._storage.read(f"{self._root}/{name}/_attempt"):
                return Mark(int(name.removeprefix(begin)), int(attempt))
        return Mark()

    def columns(self) -> pa.Schema | None:
        """Only listing all files would tell the newest run of all series: each run has its own columns."""
        return None

    def begin(self, run: Run, schema: pa.Schema) -> SinkColumns:
        self.clear(run)
        self._storage.make_directory(self._directory(run))
        return lake_columns(schema)

    def stage(self, run: Run, part: str, batches: Iterable[pa.RecordBatch]) -> int:
        with tempfile.TemporaryDirectory(prefix="trunq_stage_") as made_in:
            made = write_part(Path(made_in), part, map(for_lake, checked(batches)))
            for file in made:
                self._storage.upload(Path(made_in) / file.path, f"{self._directory(run)}/{file.path}")
        return sum(file.rows for file in made)

    def commit(self, run: Run, parts: list[str], rows: int) -> bool:
        if self.applied(run).number >= run.number:
            self.discard(run)
            return False
        directory = self._directory(run)
        self._keep_only(run, directory, parts, rows)
        self._storage.upload(str(run.attempt).encode(), f"{directory}/_attempt")
        target = f"{self._root}/run-{prefix(run)}{run.number:08d}"
        try:
            self._storage.rename(directory, target)
        except OSError:
            if not self._storage.has_directory(target):
                raise
            self.discard(run)
            return False
        except StorageFailed:
            # Were its files removed meanwhile, a run would be there without them.
            self._may_be_renamed = True
            raise
        return True

    def discard(self, run: Run) -> None:
        if not self._may_be_renamed:
            self._storage.remove_tree(self._directory(run))

    def clear(self, run: Run) -> bool:
        begin = prefix(run)
        for name in self._storage.names(f"{self._root}/{STAGE}"):
            if name.startswith(begin) and int(name.removeprefix(begin).partition("-")[0]) < run.number:
                self._storage.remove_tree(f"{self._root}/{STAGE}/{name}")
        return True

    def _directory(self, run: Run) -> str:
        return f"{self._root}/{STAGE}/{prefix(run)}{run.number:08d}-{run.attempt}"

    def _keep_only(self, run: Run, directory: str, parts: list[str], rows: int) -> None:
        """Remove files of writers that were killed; raises StageLost when the others have fewer rows."""
        self._storage.make_directory(directory)
        there = 0
        for entry in list(self._storage.walk(directory)):
            if Path(entry.path).stem not in parts:
                self._storage.remove([entry.path])
                continue
            with self._storage.open(entry.path) as file:
                there += parquet.read_metadata(file).num_rows
        if there != rows:
            raise StageLost(
                f"{rows} rows of run {run.number} of pipeline {run.pipeline} were staged at"
                f" {self._base}/{directory}, and {there} are there"
            )
