"""Parquet files at an object store, which renames nothing: the commit is one small object, the mark.

It names the newest run, the attempt, and its files below the stage, and is written in place of the version
that was read before: of two attempts the storage refuses one. Then each file is copied to the directory of
its run and goes from the stage, and the run's `_attempt` says that all are there. Whoever finds a mark whose
files are not all copied goes on with that, before the run can end.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING

import pyarrow as pa

from trunq.pipeline.control import Run
from trunq.pipeline.definition.pipeline import Pipeline
from trunq.pipeline.definition.sink import ParquetSink as Model
from trunq.pipeline.figures import SinkColumns, lake_columns
from trunq.pipeline.sink import Mark
from trunq.pipeline.sink.directory import prefix
from trunq.pipeline.sink.stored import StoredStage

if TYPE_CHECKING:
    from trunq.pipeline.storage.objects import Tag

MARKS = "_trunq_mark"
"""Readers of a lake pass over names that begin so."""


class PublishedSink:
    """A prefix of a bucket."""

    def __init__(self, pipeline: Pipeline, dsn: str) -> None:  # noqa: ARG002  # as all sinks
        assert isinstance(pipeline.sink, Model)
        self._stage = StoredStage(pipeline.name, pipeline.sink)
        self._storage = self._stage.storage
        self._may_be_marked = False
        """Whether the mark may be ours, or become it, though we do not know."""

    def check(self) -> None:
        """An object store has each directory that one names."""

    def applied(self, run: Run) -> Mark:
        mark, names, _ = self._read(run)
        if mark.number == run.number and names:
            # Older runs have ended, and so are published; whoever read them may have removed them.
            self._publish(run, mark, names)
        return mark

    def columns(self) -> pa.Schema | None:
        """Only listing all files would tell the newest run of all series: each run has its own columns."""
        return None

    def begin(self, run: Run, schema: pa.Schema) -> SinkColumns:
        self._stage.begin(run)
        self._stage.require_swap()
        return lake_columns(schema)

    def stage(self, run: Run, part: str, batches: Iterable[pa.RecordBatch]) -> int:
        return self._stage.write(run, part, batches)

    def commit(self, run: Run, parts: list[str], rows: int) -> bool:
        if self._read(run)[0].number >= run.number:
            self.discard(run)
            return False
        names = self._stage.staged(run, parts, rows)
        mark = Mark(run.number, run.attempt)
        content = json.dumps({"number": run.number, "attempt": run.attempt, "files": names}).encode()
        while True:
            found, _, tag = self._read(run)
            if found.number >= run.number:
                break
            self._may_be_marked = True
            if self._take(run, content, tag):
                found = mark
                break
        # The version that we were to replace is gone, so no write of ours is on its way.
        self._may_be_marked = False
        if found != mark:
            self.discard(run)
            return False
        self._publish(run, mark, names)
        return True

    def discard(self, run: Run) -> None:
        if not self._may_be_marked and self._read(run)[0] != Mark(run.number, run.attempt):
            self._stage.discard(run)

    def clear(self, run: Run) -> bool:
        mark, names, _ = self._read(run)
        if names and mark.number < run.number:
            # They are in the sink by the mark, also where nobody has copied them yet.
            self._publish(run, mark, names)
        return self._stage.clear(run)

    def _take(self, run: Run, content: bytes, tag: Tag | None) -> bool:
        """Write the mark in place of the version that was read."""
        return self._storage.swap(self._path(run), content, tag)

    def _publish(self, run: Run, mark: Mark, names: list[str]) -> None:
        """Copy what is still below the stage, which may be done twice, and by two at once."""
        stage = f"{self._stage.root}_trunq_stage/{prefix(run)}{mark.number:08d}-{mark.attempt}"
        target = f"{self._stage.root}run-{prefix(run)}{mark.number:08d}"
        for name in names:
            # One that is not there, another has copied.
            self._storage.copy(f"{stage}/{name}", f"{target}/{name}")
        # Only when all are copied, and before anybody is told so: a copy that comes later finds nothing.
        self._empty(f"{stage}/{name}" for name in names)
        if names:
            self._storage.upload(str(mark.attempt).encode(), f"{target}/_attempt")

    def _empty(self, paths: Iterable[str]) -> None:
        self._storage.remove(paths)

    def _path(self, run: Run) -> str:
        return f"{self._stage.root}{MARKS}/{prefix(run).removesuffix('-')}.json"

    def _read(self, run: Run) -> tuple[Mark, list[str], Tag | None]:
        """The mark, the files of its run, and the tag of its version."""
        if (found := self._storage.read_tagged(self._path(run))) is None:
            return Mark(), [], None
        content = json.loads(found[0])
        return Mark(content["number"], content["attempt"]), content["files"], found[1]
