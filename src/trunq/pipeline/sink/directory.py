"""What sinks in a directory have in common: each attempt stages Parquet files in a directory of its own."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import chain
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyarrow import parquet

from trunq.arrow import delta
from trunq.arrow.batch import for_lake
from trunq.arrow.parquet import DataFile, write_files
from trunq.errors import InvalidPipeline
from trunq.pipeline.control import Run
from trunq.pipeline.errors import SinkUnwritable, StageLost
from trunq.pipeline.sink import checked

STAGE: Final = "_trunq_stage"
"""Readers of a lake pass over names that begin so."""


class StageDirectory:
    """Where attempts stage; what killed ones left goes when a newer run begins."""

    def __init__(self, pipeline: str, path: str) -> None:
        if "://" in path:
            raise InvalidPipeline(f"pipeline {pipeline}: {path} is no directory of this machine")
        self.root = Path(path)

    def directory(self, run: Run) -> Path:
        """That of an attempt."""
        return self.root / STAGE / f"{prefix(run)}{run.number:08d}-{run.attempt}"

    def begin(self, run: Run) -> Path:
        """Make it."""
        self.clear(run)
        directory = self.directory(run)
        directory.mkdir(parents=True, exist_ok=True)
        return directory

    def clear(self, run: Run) -> bool:
        """Remove those of runs before this one; False: one is still there."""
        for path in (self.root / STAGE).glob(f"{prefix(run)}*"):
            if int(path.name.removeprefix(prefix(run)).split("-")[0]) < run.number:
                shutil.rmtree(path, ignore_errors=True)
                if path.exists():
                    return False
        return True

    def write(self, run: Run, part: str, batches: Iterable[pa.RecordBatch]) -> int:
        """Write a part, to the disk, and say how many rows it has."""
        made = write_part(self.directory(run), part, map(for_lake, checked(batches)))
        return sum(file.rows for file in made)

    def keep_only(self, run: Run, parts: list[str], rows: int) -> list[Path]:
        """The files of these parts, which have so many rows; others, of writers that were killed, go.

        Raises StageLost.
        """
        directory = self.directory(run)
        directory.mkdir(parents=True, exist_ok=True)
        for path in directory.glob("*.parquet"):
            if path.stem not in parts:
                path.unlink()
        # Of two rows with one key, that of the later share is the last.
        files = sorted(directory.glob("*.parquet"), key=lambda path: parts.index(path.stem))
        there = sum(parquet.read_metadata(path).num_rows for path in files)
        if there != rows:
            raise StageLost(
                f"{rows} rows of run {run.number} of pipeline {run.pipeline} were staged in {directory}, and"
                f" {there} are there"
            )
        return files

    def discard(self, run: Run) -> None:
        """Remove what this attempt staged."""
        shutil.rmtree(self.directory(run), ignore_errors=True)


def explaining_disk(pipeline: str, path: str) -> AbstractContextManager[None]:
    """Says of a disk that is full, or closed to us, that it is.

    Raises SinkUnwritable.
    """

    def unwritable(reason: str) -> SinkUnwritable:
        return SinkUnwritable(
            f"pipeline {pipeline} cannot write to {path}: {reason}",
            "nothing of this run is in the sink; free space, or allow writing, and the run is tried again",
        )

    return delta.explaining_disk(path, unwritable, delta.CLOSED)


def write_part(
    directory: Path, stem: str, batches: Iterator[pa.RecordBatch], partition_by: Sequence[str] = ()
) -> list[DataFile]:
    """Write files of rows, to the disk."""
    if (first := next(batches, None)) is None:
        return []
    made = write_files(directory, stem, first.schema, chain([first], batches), partition_by)
    for file in made:
        sync(directory / file.path)
    return made


def prefix(run: Run) -> str:
    """How names of a series of runs begin. No backfill's begins as those of the other runs do."""
    return f"{run.mark.replace('/', '_')}-"


def read(files: list[Path]) -> Iterator[pa.RecordBatch]:
    """The rows of staged files."""
    for path in files:
        with parquet.ParquetFile(path) as file:
            yield from file.iter_batches()


def sync(path: Path) -> None:
    """See to it that a file, or the names in a directory, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
