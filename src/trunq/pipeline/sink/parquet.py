"""A directory a run: renaming it is the commit, and a directory that is there refuses the second.

Any reader of Parquet sees whole runs. The mark is the name of the directory, and the attempt in its file
_attempt.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa

from trunq.pipeline.control import Run
from trunq.pipeline.definition.pipeline import Pipeline
from trunq.pipeline.definition.sink import ParquetSink as Model
from trunq.pipeline.figures import SinkColumns
from trunq.pipeline.sink import Mark
from trunq.pipeline.sink.directory import StageDirectory, explaining_disk, prefix, sync
from trunq.pipeline.sink.files import FilesOfRuns


class ParquetSink:
    """A directory of them."""

    def __init__(self, pipeline: Pipeline, dsn: str) -> None:  # noqa: ARG002  # as all sinks
        assert isinstance(pipeline.sink, Model)
        self._name = pipeline.name
        self._stage = StageDirectory(pipeline.name, pipeline.sink.path)
        self._lake = FilesOfRuns(pipeline, pipeline.sink.path, self._newest)

    def check(self) -> None:
        """A directory is made when it is not there."""

    def applied(self, run: Run) -> Mark:
        begin = f"run-{prefix(run)}"
        for found in sorted(self._stage.root.glob(f"{begin}*"), reverse=True):
            # Its reader may just be removing it.
            with suppress(FileNotFoundError):
                return Mark(int(found.name.removeprefix(begin)), int((found / "_attempt").read_text()))
        return Mark()

    def columns(self) -> pa.Schema | None:
        with explaining_disk(self._name, str(self._stage.root)):
            return self._lake.there()

    def begin(self, run: Run, schema: pa.Schema) -> SinkColumns:
        with explaining_disk(self._name, str(self._stage.root)):
            columns = self._lake.agreed(schema)
            self._stage.begin(run)
        return {each.name: str(each.type) for each in columns}

    def stage(self, run: Run, part: str, batches: Iterable[pa.RecordBatch]) -> int:
        with explaining_disk(self._name, str(self._stage.root)):
            return self._stage.write(run, part, self._lake.rows(batches))

    def commit(self, run: Run, parts: list[str], rows: int) -> bool:
        with explaining_disk(self._name, str(self._stage.root)):
            return self._commit(run, parts, rows)

    def discard(self, run: Run) -> None:
        self._stage.discard(run)

    def clear(self, run: Run) -> bool:
        return self._stage.clear(run)

    def _newest(self) -> Iterator[str]:
        """Files of runs, the newest first; those of a run that is removed meanwhile may be among them."""
        found: list[tuple[int, Path]] = []
        for run in self._stage.root.glob("run-*"):
            with suppress(FileNotFoundError):
                found.append((run.stat().st_mtime_ns, run))
        for _, run in sorted(found, reverse=True):
            yield from map(str, sorted(run.glob("*.parquet")))

    def _commit(self, run: Run, parts: list[str], rows: int) -> bool:
        if self.applied(run).number >= run.number:
            self._stage.discard(run)
            return False
        self._stage.keep_only(run, parts, rows)
        directory = self._stage.directory(run)
        attempt = directory / "_attempt"
        attempt.write_text(str(run.attempt))
        sync(attempt)
        sync(directory)
        target = self._stage.root / f"run-{prefix(run)}{run.number:08d}"
        try:
            directory.rename(target)
        except OSError:
            if not target.exists():
                raise
            shutil.rmtree(directory, ignore_errors=True)
            return False
        sync(self._stage.root)
        return True
