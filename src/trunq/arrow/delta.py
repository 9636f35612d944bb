"""What writers of Delta tables share: the table, entries of its log, and a disk that takes nothing."""

from __future__ import annotations

import errno
import json
import os
import tempfile
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction
from pyarrow.dataset import ParquetReadOptions

from trunq.arrow.parquet import DataFile
from trunq.connection.backoff import pause_after
from trunq.errors import InvalidArgument

T = TypeVar("T")

Actions = list[AddAction | RemoveAction]

PATIENCE: Final = 900.0
"""Seconds for which an entry of the log is tried while others come first."""
_PARTITIONING: Final = (
    "string",
    "long",
    "integer",
    "short",
    "byte",
    "date",
    "timestamp",
    "timestamp_ntz",
    "boolean",
)
CLOSED: Final = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)
"""How a disk says that it is full, or closed to us."""


def open_table(path: str, options: dict[str, str] | None = None) -> DeltaTable | None:
    """The table at a path; None if there is none yet."""
    try:
        return DeltaTable(path, storage_options=options)
    except TableNotFoundError:
        return None


def dataset_of(table: DeltaTable) -> Any:
    """The files of a table, to be read by Arrow, which else has no times of Spark before 1677 or after
    2262.
    """
    return table.to_pyarrow_dataset(parquet_read_options=ParquetReadOptions(coerce_int96_timestamp_unit="us"))


def create_table(
    path: str,
    schema: pa.Schema,
    partition_by: Sequence[str],
    configuration: dict[str, str] | None = None,
    options: dict[str, str] | None = None,
) -> DeltaTable:
    """A table of no rows; two processes that make it at once get the same one."""
    try:
        return DeltaTable.create(
            path,
            schema,
            mode="error",
            partition_by=list(partition_by),
            configuration=configuration,
            storage_options=options,
        )
    except DeltaError:
        # Only one process can write the first entry of the log; the others find it.
        if (table := open_table(path, options)) is None:
            raise
        return table


def again(work: Callable[[], T], goes_on: Callable[[], object] = bool, patience: float | None = None) -> T:
    """Work on the newest version of a table, again after longer and longer pauses while others' entries of
    the log come first.

    Raises what `goes_on` raises to end it, and CommitFailedError when the patience is over.
    """
    deadline = time.monotonic() + (PATIENCE if patience is None else patience)
    for failures in count(1):
        try:
            return work()
        except CommitFailedError:
            goes_on()
            pause = pause_after(failures)
            if time.monotonic() + pause >= deadline:
                raise
        time.sleep(pause)
    raise AssertionError


def write_entry(
    table: DeltaTable,
    actions: Actions,
    marks: Iterable[Transaction],
    mode: Literal["append", "overwrite"] = "append",
    *,
    alone: bool = False,
) -> None:
    """An entry of the log. It fails where another came after we read that carries one of the marks; one by
    which files go fails where any came: they may be merged into others, which would stay. So does each that
    is to be `alone`.
    """
    retries = 0 if any(isinstance(each, RemoveAction) for each in actions) or alone else None
    table.create_write_transaction(
        actions,
        mode,
        table.schema(),
        partition_by=list(table.metadata().partition_columns),
        commit_properties=CommitProperties(app_transactions=list(marks) or None, max_commit_retries=retries),
    )


def added(files: Iterable[DataFile]) -> Actions:
    """What an entry of the log says of new files."""
    return [
        AddAction(
            file.path, file.size, file.partition, file.modified_at, data_change=True, stats=file.statistics
        )
        for file in files
    ]


def remove_files(path: str | Path, files: Iterable[DataFile]) -> None:
    """Remove files that are in no entry of the log."""
    for file in files:
        (Path(path) / file.path).unlink(missing_ok=True)


def check_partitioning(schema: pa.Schema, partition_by: Sequence[str]) -> None:
    """Raise InvalidArgument unless the columns exist, have a fitting type, and are not all there are."""
    if not partition_by:
        return
    types = types_of(Schema.from_arrow(schema))
    for name in partition_by:
        if name not in types:
            raise InvalidArgument(
                f'the table is to be partitioned by "{name}", which is not a column',
                f"columns: {', '.join(types)}",
            )
        if not may_partition(types[name]):
            raise InvalidArgument(
                f'column "{name}" is {say(types[name])}: a table cannot be partitioned by it',
                f"partition by one of these types: {', '.join(_PARTITIONING)}",
            )
    if len(set(partition_by)) >= len(types):
        raise InvalidArgument("the table is partitioned by every column: nothing would be left to write")


def may_partition(kind: str | Mapping[str, Any]) -> bool:
    """Whether a table may be partitioned by a type: the protocol says how its values are written, and we do
    so.
    """
    return kind in _PARTITIONING


def types_of(schema: Schema) -> dict[str, Any]:
    """The types of columns by name, in words of Delta."""
    return {field["name"]: field["type"] for field in json.loads(schema.to_json())["fields"]}


def say(kind: str | Mapping[str, Any]) -> str:
    """A type as text."""
    return kind if isinstance(kind, str) else json.dumps(kind)


@contextmanager
def explaining_disk(
    path: str, unwritable: Callable[[str], Exception], codes: Container[int] | None = None
) -> Iterator[None]:
    """Raises what `unwritable` makes of the reason for which a disk takes no files; of other errors, those of
    the disk with other codes, and what Delta says of itself, stay.
    """
    try:
        yield
    except OSError as error:
        if codes is not None and error.errno not in codes:
            raise
        raise unwritable(_reason(error)) from error
    except DeltaError as error:
        # deltalake has words of its own for a full disk, so try the disk directly.
        try:
            _try_to_write(path)
        except OSError as reason:
            raise unwritable(_reason(reason)) from error
        raise


def _reason(error: OSError) -> str:
    return os.strerror(error.errno) if error.errno else str(error)


def _try_to_write(path: str) -> None:
    directory = Path(path) / "_delta_log"
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=directory) as file:
        file.write(bytes(1 << 16))
        file.flush()
