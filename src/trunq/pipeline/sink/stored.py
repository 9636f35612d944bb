"""Stages of sinks at an object store, where nothing can be renamed.

Files of a lake are written where its table has its files: no reader sees them before an entry of the log
names them. Those of others lie below the stage, as in a directory. All are written on this machine first, so
that half a file is nowhere.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import pyarrow as pa
from deltalake.exceptions import CommitFailedError, DeltaError
from pyarrow import parquet

from trunq.arrow.batch import for_lake
from trunq.arrow.parquet import DataFile
from trunq.errors import InvalidPipeline
from trunq.pipeline.control import Run
from trunq.pipeline.definition.storage import Stored
from trunq.pipeline.errors import StageLost
from trunq.pipeline.sink import checked
from trunq.pipeline.sink.directory import STAGE, prefix, write_part
from trunq.pipeline.storage import open_storage, split
from trunq.pipeline.storage.option import of_deltalake
from trunq.pipeline.storage.told import told

if TYPE_CHECKING:
    from trunq.pipeline.storage.objects import ObjectStorage, Tag

_LIST: Final = "files.json"


class StoredStage:
    """Where attempts stage; what killed ones left goes when a newer run begins."""

    def __init__(self, pipeline: str, model: Stored) -> None:
        base, path = split(model.path)
        storage = cast("ObjectStorage", open_storage(pipeline, model.path, model.storage))
        self._pipeline, self._base, self.storage = pipeline, base, storage
        self.root = f"{path}/" if path else ""
        given = {} if model.storage is None else model.storage.given
        self.uri, self.options = of_deltalake(model.path, given)
        self._merging: tempfile.TemporaryDirectory[str] | None = None
        self._may_be_named = False
        """Whether an entry of a log may name our files, though we know of none."""

    def directory(self, run: Run) -> str:
        """That of an attempt."""
        return f"{self.root}{STAGE}/{prefix(run)}{run.number:08d}-{run.attempt}"

    def begin(self, run: Run) -> None:
        """Remove what older runs left, and refuse a storage on which two writers could both be first."""
        self.clear(run)
        # The first time it is not there.
        is_refused = not (self._probe(None) and self._probe(None))
        self._require_condition("If-None-Match", is_refused=is_refused)

    def require_swap(self) -> None:
        """Refuse a storage that writes over another version of an object than the one that it is told."""
        never: Tag = {"e_tag": '"0"', "version": "1"}
        self._require_condition("If-Match", is_refused=not self._probe(never))

    def _probe(self, tag: Tag | None) -> bool:
        return self.storage.swap(f"{self.root}{STAGE}/probe", b"", tag)

    def _require_condition(self, name: str, *, is_refused: bool) -> None:
        if not is_refused:
            raise InvalidPipeline(
                f"pipeline {self._pipeline}: {self._base} writes over an object that it is told to refuse"
                f" ({name}), so two runners at once could lose rows",
                "take a storage with conditional writes, as S3, GCS, Azure and MinIO are",
            )

    def clear(self, run: Run) -> bool:
        """Remove what runs before this one left."""
        begin = f"{self.root}{STAGE}/{prefix(run)}"
        old = [
            entry.path
            for entry in self.storage.walk(f"{self.root}{STAGE}")
            if entry.path.startswith(begin)
            and int(entry.path.removeprefix(begin).partition("-")[0]) < run.number
        ]
        self.storage.remove(old)
        return True

    def write(self, run: Run, part: str, batches: Iterable[pa.RecordBatch]) -> int:
        """Write a part, and say how many rows it has."""
        made = self._uploaded(self.directory(run), part, map(for_lake, checked(batches)), ())
        return sum(file.rows for file in made)

    def write_listed(
        self, run: Run, part: str, batches: Iterator[pa.RecordBatch], partition_by: Sequence[str]
    ) -> int:
        """Write the files of a part where the table has its files, and their list."""
        stem = f"run-{run.number:08d}-{run.attempt}-{part}"
        made = self._uploaded(self.root.rstrip("/"), stem, batches, partition_by)
        if made:
            listed = json.dumps([asdict(file) for file in made]).encode()
            self.storage.upload(listed, f"{self.directory(run)}/{part}/{_LIST}")
        return sum(file.rows for file in made)

    def _uploaded(
        self, directory: str, stem: str, batches: Iterator[pa.RecordBatch], partition_by: Sequence[str]
    ) -> list[DataFile]:
        with tempfile.TemporaryDirectory(prefix="trunq_stage_") as made_in:
            made = write_part(Path(made_in), stem, batches, partition_by)
            for file in made:
                self.storage.upload(Path(made_in) / file.path, f"{directory}/{file.path}".lstrip("/"))
        return made

    def move_in(self, run: Run, parts: list[str], rows: int) -> list[DataFile]:
        """The files of these parts, which are in their place; raises StageLost when they have fewer rows."""
        found: list[DataFile] = []
        for part in parts:
            listed = self.storage.read(f"{self.directory(run)}/{part}/{_LIST}")
            found += [DataFile(**each) for each in json.loads(listed or b"[]")]
        there = 0
        for file in found:
            entry = self.storage.look(f"{self.root}{file.path}")
            there += file.rows if entry is not None and entry.size == file.size else 0
        self._require(run, there, rows)
        self._may_be_named = True
        return found

    def keep_only(self, run: Run, parts: list[str], rows: int) -> list[Path]:
        """The files of these parts, on this machine for as long as this object is."""
        names = self.staged(run, parts, rows)
        self._merging = tempfile.TemporaryDirectory(prefix="trunq_stage_")
        made = []
        for name in names:
            made.append(Path(self._merging.name) / name)
            with self.storage.open(f"{self.directory(run)}/{name}") as source, made[-1].open("wb") as target:
                while some := source.read(1 << 22):
                    target.write(some)
        return made

    def staged(self, run: Run, parts: list[str], rows: int) -> list[str]:
        """The names of the files of these parts; raises StageLost when they have fewer rows."""
        directory = self.directory(run)
        there = {entry.path.removeprefix(f"{directory}/") for entry in self.storage.walk(directory)}
        # In the order of the shares: of two rows with one key, that of the later one is the last.
        names = [name for part in parts if (name := f"{part}.parquet") in there]
        count = 0
        for name in names:
            with self.storage.open(f"{directory}/{name}") as file:
                count += parquet.read_metadata(file).num_rows
        self._require(run, count, rows)
        return names

    def _require(self, run: Run, there: int, rows: int) -> None:
        if there != rows:
            raise StageLost(
                f"{rows} rows of run {run.number} of pipeline {run.pipeline} were staged at"
                f" {self._base}/{self.directory(run)}, and {there} are there"
            )

    def remove(self, files: Iterable[DataFile]) -> None:
        """Remove files of a table that no entry of its log will ever name."""
        self.storage.remove([f"{self.root}{file.path}" for file in files])

    def leave(self, files: Iterable[DataFile]) -> None:
        """Files that an entry may name that is still on its way: vacuum removes them if none does."""

    def discard(self, run: Run) -> None:
        """Remove what this attempt staged, but what an entry may name."""
        staged = [entry.path for entry in self.storage.walk(self.directory(run))]
        if not self._may_be_named:
            for path in staged:
                if path.endswith(f"/{_LIST}"):
                    self.remove(DataFile(**each) for each in json.loads(self.storage.read(path) or b"[]"))
        self.storage.remove(staged)
        if self._merging is not None:
            self._merging.cleanup()
            self._merging = None

    def sync_log(self, version: int, series: str, number: int) -> None:
        """An object that is written is on its disk."""

    def sync_entries(self, after: int, version: int) -> None:
        """An object that is written is on its disk."""

    def delete(self, paths: Iterable[str]) -> None:
        """Delete files of the table."""
        self.storage.remove(f"{self.root}{path}" for path in paths)

    def explaining(self) -> AbstractContextManager[None]:
        """Says of a storage why it takes nothing. Raises InvalidPipeline, StorageFailed."""
        return explaining(self._pipeline, self._base)


@contextmanager
def explaining(pipeline: str, base: str) -> Iterator[None]:
    """Says what deltalake has from a storage in a sentence. Raises InvalidPipeline, StorageFailed."""
    try:
        yield
    except CommitFailedError:
        raise
    except (DeltaError, OSError) as error:
        raise told(pipeline, base, error) or error from None
