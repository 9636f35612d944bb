"""Parquet files in hive directories (`month=2013-01/part-0.parquet`), and their Delta statistics.

A `FileSet` writes the rows of one task: a file for each combination of partition values. It collects rows
in memory until there are enough for a row group; all files together buffer at most `BUFFER_BYTES`.
"""

from __future__ import annotations

import datetime as dt
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

ROW_GROUP_BYTES = 64 << 20
BUFFER_BYTES = 128 << 20
STATISTIC_CHARACTERS = 64
# The characters that Spark escapes in directory names. It reads escaped characters beyond ASCII wrongly.
ESCAPED = {chr(code) for code in range(0x20)} | set("\"#%'*/:=?\\\x7f{[]^")
NULL_DIRECTORY = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True, slots=True)
class DataFile:
    """A finished file: `path` is relative to the table, `partition` encoded as in the Delta protocol."""

    path: str
    size: int
    rows: int
    partition: Mapping[str, str | None]
    statistics: str
    modified_at: int
    types: Mapping[str, str] = field(default_factory=dict)
    """Of the columns whose type may become a wider one."""


class FileSet:
    """The files that one task writes below `directory`; `stem` must be different for each attempt."""

    def __init__(self, directory: Path, stem: str, schema: pa.Schema, partition_by: Sequence[str]) -> None:
        self._directory = directory
        self._stem = stem
        self._schema = schema
        self._partition_by = list(partition_by)
        self._files: dict[tuple[str | None, ...], _OpenFile] = {}
        self._buffered = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Adds rows; the batch has the columns of the schema given, partition columns included."""
        for values, rows in split(batch.cast(self._schema), self._partition_by):
            file = self._files.get(values) or self._open(values)
            self._buffered += file.add(rows.drop_columns(self._partition_by) if values else rows)
            if file.buffered >= ROW_GROUP_BYTES:
                self._buffered -= file.flush()
        if self._buffered > BUFFER_BYTES:
            for file in self._files.values():
                self._buffered -= file.flush()

    def close(self) -> list[DataFile]:
        """Closes the files and returns their descriptions."""
        return [file.close() for file in self._files.values()]

    def discard(self) -> None:
        """Removes the files of a task that failed."""
        for file in self._files.values():
            file.discard()

    def _open(self, values: tuple[str | None, ...]) -> _OpenFile:
        partition = dict(zip(self._partition_by, values, strict=True))
        relative = Path(*(_directory_name(*pair) for pair in partition.items()), f"{self._stem}.parquet")
        file = self._files[values] = _OpenFile(self._directory, relative.as_posix(), partition)
        return file


def write_files(
    directory: Path,
    stem: str,
    schema: pa.Schema,
    batches: Iterable[pa.RecordBatch],
    partition_by: Sequence[str] = (),
) -> list[DataFile]:
    """Write the rows of one task; when it fails, nothing of them is left."""
    files = FileSet(directory, stem, schema, partition_by)
    try:
        for batch in batches:
            files.write(batch)
        return files.close()
    except BaseException:
        files.discard()
        raise


@dataclass(slots=True)
class _OpenFile:
    root: Path
    path: str
    partition: Mapping[str, str | None]
    buffered: int = 0
    _waiting: list[pa.RecordBatch] = field(default_factory=list)
    _writer: Any = None
    _metadata: list[Any] = field(default_factory=list)
    _with_nan: set[str] = field(default_factory=set)

    def add(self, rows: pa.RecordBatch) -> int:
        size: int = rows.nbytes
        self._waiting.append(rows)
        self._with_nan.update(_columns_with_nan(rows))
        self.buffered += size
        return size

    def flush(self) -> int:
        """Writes the buffered rows as one row group; returns how many bytes that freed."""
        if not self._waiting:
            return 0
        table = pa.Table.from_batches(self._waiting)
        if self._writer is None:
            target = self.root / self.path
            target.parent.mkdir(parents=True, exist_ok=True)
            self._writer = pq.ParquetWriter(
                target, table.schema, compression="zstd", metadata_collector=self._metadata
            )
        self._writer.write_table(table, row_group_size=table.num_rows)
        written, self.buffered = self.buffered, 0
        self._waiting.clear()
        return written

    def close(self) -> DataFile:
        self.flush()
        self._writer.close()
        metadata = self._metadata[0]
        status = os.stat(self.root / self.path)
        return DataFile(
            path=self.path,
            size=status.st_size,
            rows=metadata.num_rows,
            partition=self.partition,
            statistics=json.dumps(describe(metadata, self._with_nan), ensure_ascii=False),
            modified_at=int(status.st_mtime * 1000),
            types={each.name: str(each.type) for each in self._writer.schema if _may_widen(each.type)},
        )

    def discard(self) -> None:
        if self._writer is not None:
            # On a full disk, closing fails as well: it writes the end of the file.
            with suppress(Exception):
                self._writer.close()
            # It would try once more when it is collected.
            self._writer.is_open = False
        (self.root / self.path).unlink(missing_ok=True)


def _may_widen(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_decimal(kind)
                or pa.types.is_floating(kind) or pa.types.is_date(kind))  # fmt: skip


def split(
    batch: pa.RecordBatch, columns: Sequence[str]
) -> Iterator[tuple[tuple[str | None, ...], pa.RecordBatch]]:
    """Groups the rows of a batch by their encoded values in some columns."""
    if batch.num_rows == 0:
        return
    if not columns:
        yield (), batch
        return
    # Number the combinations of values.
    codes = pa.repeat(pa.scalar(0, pa.int64()), batch.num_rows)
    for name in columns:
        encoded = _with_null_for_empty(batch.column(name)).dictionary_encode(null_encoding="encode")
        codes = pc.add(pc.multiply(codes, len(encoded.dictionary)), encoded.indices.cast(pa.int64()))
    order = pc.sort_indices(codes)
    runs = pc.run_end_encode(codes.take(order), run_end_type=pa.int64())
    batch = batch.take(order)
    start = 0
    for end in runs.run_ends.to_pylist():
        rows = batch.slice(start, end - start)
        yield tuple(encode(rows.column(name)[0].as_py()) for name in columns), rows
        start = end


def encode(value: object) -> str | None:
    """A partition value as the Delta protocol writes it, where an empty string equals null."""
    match value:
        case None | "":
            return None
        case bool():
            return "true" if value else "false"
        case dt.datetime():
            return value.strftime("%Y-%m-%d %H:%M:%S.%f")
        case dt.date():
            return value.isoformat()
        case _:
            return str(value)


def describe(metadata: Any, with_nan: set[str]) -> dict[str, Any]:
    """The Delta statistics of a file, from its Parquet metadata: rows, and bounds and nulls of plain columns.

    Readers skip files by these bounds, so a bound that cannot be stated exactly is left out.
    """
    lowest: dict[str, Any] = {}
    highest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    for index in range(metadata.num_columns):
        chunks = [group.column(index) for group in groups]
        name = chunks[0].path_in_schema
        statistics = [chunk.statistics for chunk in chunks]
        # A dotted path lies inside a struct, list or map.
        if "." in name or any(s is None for s in statistics):
            continue
        if all(s.has_null_count for s in statistics):
            nulls[name] = sum(s.null_count for s in statistics)
        known = [s for s in statistics if s.has_min_max]
        all_null = [s for s in statistics if not s.has_min_max and s.num_values == 0]
        if not known or len(known) + len(all_null) < len(statistics) or name in with_nan:
            continue
        try:
            low = _lower_bound(min(s.min for s in known))
            high = _upper_bound(max(s.max for s in known))
        except (OverflowError, ValueError):
            # A time before the year 1, or after 9999, which Python has not.
            continue
        if low is not None and high is not None:
            lowest[name], highest[name] = low, high
    return {"numRecords": metadata.num_rows, "minValues": lowest, "maxValues": highest, "nullCount": nulls}


def _lower_bound(value: object) -> Any:
    return value[:STATISTIC_CHARACTERS] if isinstance(value, str) else _plain(value)


def _upper_bound(value: object) -> Any:
    if not isinstance(value, str) or len(value) <= STATISTIC_CHARACTERS:
        return _plain(value)
    # This bound is above every text with the same head, unless the next character is the largest there is.
    head = value[:STATISTIC_CHARACTERS]
    return None if value[STATISTIC_CHARACTERS] == "\U0010ffff" else head + "\U0010ffff"


def _plain(value: object) -> Any:
    match value:
        case bool() | bytes():
            return None
        case float() if not math.isfinite(value):
            # JSON has no infinity, and no reader would open the table again.
            return None
        case int() | float() | str():
            return value
        case dt.datetime():
            return value.strftime("%Y-%m-%dT%H:%M:%S.%f") + ("Z" if value.tzinfo else "")
        case dt.date():
            return value.isoformat()
        case _:
            return None


def _columns_with_nan(rows: pa.RecordBatch) -> Iterator[str]:
    """Parquet's bounds ignore NaN, which readers of a lake sort above every number."""
    for column in rows.schema:
        if pa.types.is_floating(column.type) and pc.any(pc.is_nan(rows.column(column.name))).as_py():
            yield column.name


def _with_null_for_empty(column: pa.Array) -> pa.Array:
    if not pa.types.is_string(column.type):
        return column
    return pc.if_else(pc.equal(column, ""), pa.scalar(None, column.type), column)


def _directory_name(column: str, value: str | None) -> str:
    return f"{_escape(column)}={NULL_DIRECTORY if value is None else _escape(value)}"


def _escape(text: str) -> str:
    return "".join(f"%{ord(char):02X}" if char in ESCAPED else char for char in text)
