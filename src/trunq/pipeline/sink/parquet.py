"""A directory a run: renaming it is the commit, and a directory that is there refuses the second.

Any reader of Parquet sees whole runs. The mark is the name of the directory, and the attempt in its file
_attempt.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable

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

    def applied(self, run: Run) -> Mark | None:
        begin = f"run-{prefix(run)}"
        found = sorted(self._stage.root.glob(f"{begin}*"))
        if not found:
            return Mark()
        return Mark(int(found[-1].name.removeprefix(begin)), int((found[-1] / "_attempt").read_text()))

    def columns(self) -> pa.Schema | None:
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

    def _newest(self) -> str | None:
        runs = sorted(self._stage.root.glob("run-*"), key=lambda path: path.stat().st_mtime_ns, reverse=True)
        return next((str(file) for run in runs for file in sorted(run.glob("*.parquet"))), None)

    def _commit(self, run: Run, parts: list[str], rows: int) -> bool:
        if (mark := self.applied(run)) is not None and mark.number >= run.number:
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
