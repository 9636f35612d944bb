"""Rows of staged files for an upsert: one a key, in batches.

Keys, and the column that says which row is newest, are all that is in memory of all rows.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from trunq.pipeline.sink.directory import read

ROW: Final = "trunq row"
"""The place of a row: in all files, or in one."""
_NAN: Final = "trunq nan"


def one_a_key(
    files: list[Path], key: list[str], newest: str | None, numbers: Collection[str] = ()
) -> Iterator[pa.RecordBatch]:
    """The newest row of each key; of several, or without `newest`, the last one."""
    return rows_at(files, chosen(files, key, newest, numbers)[ROW])


def chosen(files: list[Path], key: list[str], newest: str | None, numbers: Collection[str] = ()) -> pa.Table:
    """The same as keys, with `newest` and their places, in the order of these."""
    columns = [*key, *([newest] if newest is not None and newest not in key else [])]
    known = pa.concat_tables(parquet.read_table(path, columns=columns, partitioning=None) for path in files)
    numbered = with_places(alike(known, key, numbers=numbers))
    ordered, by = numbered, [(ROW, "descending")]
    if newest is not None:
        ordered = numbered.append_column(_NAN, is_nan(numbered[newest]))
        by = [(_NAN, "descending"), (newest, "descending"), *by]
    grouped = ordered.sort_by(by).group_by(key, use_threads=False)
    taken = grouped.aggregate([(ROW, "first")])[f"{ROW}_first"]
    return numbered if len(taken) == known.num_rows else numbered.take(pc.take(taken, pc.sort_indices(taken)))


def alike(
    rows: pa.Table, key: list[str], partition_by: Sequence[str] = (), numbers: Collection[str] = ()
) -> pa.Table:
    """Rows whose keys are the same where they are equal: 0 and -0, each NaN, and 1.0 and 1.00 of `numbers`,
    which are texts. Where a table is partitioned by a text, an empty one is in the partition of null.
    """
    for name in key:
        column = rows[name]
        if pa.types.is_floating(column.type):
            zero, nan = pa.scalar(0, column.type), pa.scalar(math.nan, column.type)
            column = pc.if_else(pc.is_nan(column), nan, pc.add(column, zero))
        elif name in numbers:
            for pattern, kept in _NOUGHTS:
                column = pc.replace_substring_regex(column, pattern, kept)
        elif pa.types.is_string(column.type) and name in partition_by:
            column = pc.fill_null(column, "")
        rows = rows.set_column(rows.schema.get_field_index(name), rows.schema.field(name), column)
    return rows


_NOUGHTS: Final = ((r"([.][0-9]*?)0+$", r"\1"), ("[.]$", ""))
"""What of the text of an exact number says nothing of its value."""


def number_of(column: str) -> str:
    """The same as a condition of Delta has it."""
    for pattern, kept in _NOUGHTS:
        kept_by_delta = kept.replace(r"\1", "${1}")
        column = f"regexp_replace({column}, '{pattern}', '{kept_by_delta}')"
    return column


def is_nan(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Which of some values is NaN, which is above every number, as databases have it; null of null."""
    if pa.types.is_floating(values.type):
        return pc.is_nan(values)
    return pc.if_else(pc.is_valid(values), False, pa.scalar(None, pa.bool_()))


def with_places(rows: pa.Table) -> pa.Table:
    """Rows with their places."""
    return rows.append_column(ROW, pa.array(range(rows.num_rows), pa.int64()))


def rows_at(files: list[Path], places: pa.ChunkedArray) -> Iterator[pa.RecordBatch]:
    """Rows of files at these places, which are in their order."""
    if len(places) == sum(parquet.read_metadata(path).num_rows for path in files):
        yield from read(files)
        return
    wanted = places.combine_chunks()
    start = 0
    for batch in read(files):
        mine = within(wanted, start, batch.num_rows)
        start += batch.num_rows
        if len(mine):
            yield batch.take(mine)


def within(places: pa.Array, start: int, count: int) -> pa.Array:
    """Those of some places that are among so many rows from one on, counted from that."""
    end = start + count
    mine = places.filter(pc.and_(pc.greater_equal(places, start), pc.less(places, end)))
    return pc.subtract(mine, start)
