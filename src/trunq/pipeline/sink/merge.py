"""Rows of staged files for an upsert: one a key, in batches.

Keys, and the column that says which row is newest, are all that is in memory of all rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from trunq.pipeline.sink.directory import read


def one_a_key(files: list[Path], key: list[str], newest: str | None) -> Iterator[pa.RecordBatch]:
    """The newest row of each key; of several, or without `newest`, the last one."""
    columns = [*key, *([newest] if newest is not None and newest not in key else [])]
    known = pa.concat_tables(parquet.read_table(path, columns=columns, partitioning=None) for path in files)
    numbered = known.append_column("trunq row", pa.array(range(known.num_rows), pa.int64()))
    by = [*([(newest, "descending")] if newest is not None else []), ("trunq row", "descending")]
    grouped = numbered.sort_by(by).group_by(key, use_threads=False)
    taken = grouped.aggregate([("trunq row", "first")])["trunq row_first"]
    if len(taken) == known.num_rows:
        yield from read(files)
        return
    wanted = pc.take(taken, pc.sort_indices(taken)).combine_chunks()
    start = 0
    for batch in read(files):
        end = start + batch.num_rows
        mine = wanted.filter(pc.and_(pc.greater_equal(wanted, start), pc.less(wanted, end)))
        if len(mine):
            yield batch.take(pc.subtract(mine, start))
        start = end
