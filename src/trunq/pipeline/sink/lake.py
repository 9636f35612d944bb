"""Files of a Delta table on their way into it; at an object store stored.py has the same.

Each part stages them below the stage's directory, with a list of what is in them. The commit moves them to
where the table has its files, and names them in an entry of its log. A process that is killed in between
leaves files that no reader sees, which Delta's vacuum removes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.transaction import RemoveAction

from trunq.arrow.delta import Actions, remove_files
from trunq.arrow.parquet import DataFile, encode
from trunq.pipeline.control import Run
from trunq.pipeline.definition.storage import Stored, is_remote
from trunq.pipeline.errors import StageLost
from trunq.pipeline.sink.directory import StageDirectory, explaining_disk, sync, write_part
from trunq.pipeline.sink.stored import StoredStage

_LIST: Final = "files.json"


class LakeStage(StageDirectory):
    """Where attempts at a table in a directory stage."""

    options: dict[str, str] | None = None

    def __init__(self, pipeline: str, path: str) -> None:
        super().__init__(pipeline, path)
        self._pipeline, self.uri = pipeline, path

    def write_listed(
        self, run: Run, part: str, batches: Iterator[pa.RecordBatch], partition_by: Sequence[str]
    ) -> int:
        """Write the files of a part, and their list; how many rows they have."""
        stem = f"run-{run.number:08d}-{run.attempt}-{part}"
        return write_listed(self.directory(run) / part, stem, batches, partition_by)

    def move_in(self, run: Run, parts: list[str], rows: int) -> list[DataFile]:
        """Move the files of these parts to the table's; raises StageLost when they have fewer rows."""
        return move_in(self.root, self.directory(run), run, parts, rows)

    def remove(self, files: Iterable[DataFile]) -> None:
        """Remove files of the table that no entry of its log will ever name."""
        remove_files(self.root, files)

    def leave(self, files: Iterable[DataFile]) -> None:
        """Files that no entry names: on a disk, none is still on its way."""
        remove_files(self.root, files)

    def sync_log(self, version: int, series: str, number: int) -> None:
        """See to it that the log is on the disk."""
        sync_log(self.root, version, series, number)

    def sync_entries(self, after: int, version: int) -> None:
        """See to it that entries of the log behind one, with their files, are on the disk."""
        log = self.root / "_delta_log"
        for at in range(after + 1, version + 1):
            entry = log / f"{at:020}.json"
            if entry.exists():
                actions = [json.loads(line) for line in entry.read_text().splitlines()]
                made = [self.root / unquote(each["add"]["path"]) for each in actions if "add" in each]
                for path in (*made, *{each.parent for each in made}, entry):
                    if path.exists():
                        sync(path)
        sync(log)

    def delete(self, paths: Iterable[str]) -> None:
        """Delete files of the table."""
        for path in paths:
            (self.root / path).unlink(missing_ok=True)

    def explaining(self) -> AbstractContextManager[None]:
        """Says of a disk that is full, or closed to us, that it is."""
        return explaining_disk(self._pipeline, self.uri)


def lake_stage(pipeline: str, model: Stored) -> LakeStage | StoredStage:
    """The stage of a table."""
    return StoredStage(pipeline, model) if is_remote(model.path) else LakeStage(pipeline, model.path)


def write_listed(
    directory: Path, stem: str, batches: Iterator[pa.RecordBatch], partition_by: Sequence[str]
) -> int:
    """Write the files of a part, to the disk, and their list; how many rows they have."""
    made = write_part(directory, stem, batches, partition_by)
    if made:
        (directory / _LIST).write_text(json.dumps([asdict(file) for file in made]))
    return sum(file.rows for file in made)


def move_in(root: Path, directory: Path, run: Run, parts: list[str], rows: int) -> list[DataFile]:
    """Move the files of these parts to the table's; raises StageLost when they have fewer rows."""
    found: list[tuple[Path, DataFile]] = []
    for part in parts:
        try:
            listed = json.loads((directory / part / _LIST).read_text())
        except FileNotFoundError:
            continue
        found += [(directory / part, DataFile(**each)) for each in listed]
    there = sum(
        file.rows
        for base, file in found
        if (base / file.path).exists() and (base / file.path).stat().st_size == file.size
    )
    if there != rows:
        raise StageLost(
            f"{rows} rows of run {run.number} of pipeline {run.pipeline} were staged in {directory}, and"
            f" {there} are there"
        )
    changed = {root}
    for base, file in found:
        target = root / file.path
        target.parent.mkdir(parents=True, exist_ok=True)
        (base / file.path).rename(target)
        changed.update(each for each in target.parents if each.is_relative_to(root))
    for each in changed:
        sync(each)
    return [file for _, file in found]


def sync_log(root: Path, version: int, series: str, number: int) -> None:
    """See to it that the log is on the disk up to this version, with the files of entry `number` of a series:
    who writes Delta leaves that to the kernel.
    """
    log = root / "_delta_log"
    for at in range(version, -1, -1):
        entry = log / f"{at:020}.json"
        if not entry.exists():
            # A checkpoint stands for it, and it is long ago.
            break
        actions = [json.loads(line) for line in entry.read_text().splitlines()]
        marks = [action["txn"]["version"] for action in actions if _is_of(series, action)]
        if marks and marks[0] < number:
            # From there on it was seen to before.
            break
        files = [root / unquote(action["add"]["path"]) for action in actions if marks and "add" in action]
        for path in (*files, *{each.parent for each in files}):
            # Others may have replaced and removed it since.
            if path.exists():
                sync(path)
        sync(entry)
    sync(log)


def _is_of(series: str, action: dict[str, Any]) -> bool:
    return bool(action.get("txn", {}).get("appId") == series)


def removed(table: DeltaTable, files: Iterable[DataFile] | None) -> Actions:
    """That the files of a table go: all, or those of the partitions that these files are in."""
    columns = table.metadata().partition_columns
    touched = None if files is None else {tuple(file.partition[name] for name in columns) for file in files}
    now = int(time.time() * 1000)
    gone: Actions = []
    for file in pa.table(table.get_add_actions()).to_pylist():
        if touched is None or tuple(_partition(file, columns).values()) in touched:
            gone.append(removed_file(file, columns, now))
    return gone


def removed_file(file: dict[str, Any], columns: Sequence[str], now: int) -> RemoveAction:
    """That a file goes, as the log has it."""
    partition = _partition(file, columns)
    return RemoveAction(unquote(file["path"]), True, now, size=file["size_bytes"], partition_values=partition)


def _partition(file: dict[str, Any], columns: Sequence[str]) -> dict[str, str | None]:
    values: dict[str, Any] = file.get("partition") or {}
    return {name: encode(values.get(name)) for name in columns}
