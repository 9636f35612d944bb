"""A Delta table that loses rows: what its source deleted (`mode = "apply"`), or has no longer (`missing`).

All of a run is one merge, whose entry of the log has the marks.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable
from pyarrow import compute as pc
from pyarrow import parquet

from trunq.arrow.delta import dataset_of
from trunq.pipeline.control import Run
from trunq.pipeline.definition.change import CHANGED_AT, DELETED_AT, OP, OWN, is_whole, key_of
from trunq.pipeline.definition.pipeline import Pipeline
from trunq.pipeline.figures import SinkColumns
from trunq.pipeline.sink.deleting import require_few_missing, require_op
from trunq.pipeline.sink.delta import DeltaSink, is_small, no_newer, same, written
from trunq.pipeline.sink.directory import read
from trunq.pipeline.sink.merge import alike, one_a_key
from trunq.pipeline.sink.version import TIME

_DELETED = f"s.\"{OP}\" = 'delete'"


class DeletingDeltaSink(DeltaSink):
    """Such a table."""

    def __init__(self, pipeline: Pipeline, dsn: str) -> None:
        super().__init__(pipeline, dsn)
        self._applies = self._model.mode == "apply"
        self._is_soft = self._model.deletes == "soft"
        self._own = OWN if self._applies else ()
        self._noted = (DELETED_AT,) if self._is_soft else ()

    def begin(self, run: Run, schema: pa.Schema) -> SinkColumns:
        if self._applies:
            require_op(self._pipeline, schema, run.slice)
        return super().begin(run, schema)

    def _fitted(self, lake: pa.Schema) -> pa.Schema:
        columns = [field for field in lake if field.name not in self._own]
        return pa.schema([*columns, *(pa.field(name, TIME) for name in self._noted)])

    def _merges(self, run: Run, parts: list[str]) -> bool:
        return bool(run.attempt) and (bool(parts) or (is_whole(run.slice) and self._has_rows()))

    def _upsert(self, run: Run, files: list[Path]) -> None:  # as all tables
        """It deletes, too."""

    def _merge_into(self, table: DeltaTable, run: Run, files: list[Path]) -> None:
        key, newest = key_of(self._pipeline, run.slice), self._model.newest
        there = pa.schema(table.schema().to_arrow())
        if files:
            schema = next(read(files)).schema
            rows = pa.RecordBatchReader.from_batches(schema, one_a_key(files, key, newest, self._numbers))
        else:
            key = [name for name in key if name in there.names] or there.names[:1]
            schema = pa.schema([there.field(name) for name in key])
            rows = pa.RecordBatchReader.from_batches(schema, [])
        drops = is_whole(run.slice)
        if drops and not self._applies:
            self._require_few(table, files, key)
        given = written([name for name in schema.names if name not in OWN])
        alive = {DELETED_AT: "cast(null as timestamp)"} if self._is_soft else {}
        merging = self._merging(
            table, run, rows, same(key, self._numbers), streamed=drops or not is_small(files)
        )
        is_kept = f"not ({_DELETED})" if OP in schema.names else None
        if is_kept is not None:
            if self._is_soft:
                time = f's."{CHANGED_AT}"' if CHANGED_AT in schema.names else _now()
                merging.when_matched_update(
                    {DELETED_AT: f"coalesce({time}, {_now()})"}, f't."{DELETED_AT}" is null and {_DELETED}'
                )
            else:
                merging.when_matched_delete(_DELETED)
        newer = no_newer(newest) if newest else is_kept
        merging.when_matched_update({**given, **alive}, newer)
        if newest and alive:
            # An older row says that it is there all the same.
            merging.when_matched_update(alive, f't."{DELETED_AT}" is not null')
        merging.when_not_matched_insert(given, is_kept)
        if drops and self._is_soft:
            merging.when_not_matched_by_source_update({DELETED_AT: _now()}, f't."{DELETED_AT}" is null')
        elif drops:
            merging.when_not_matched_by_source_delete()
        merging.execute()

    def _require_few(self, table: DeltaTable, files: list[Path], key: list[str]) -> None:
        """Count what would be deleted, by the keys."""
        alive = pc.field(DELETED_AT).is_null() if self._is_soft else None
        found = dataset_of(table).scanner(columns=key, filter=alive)
        there = gone = 0
        staged = None
        if files:
            staged = pa.concat_tables(
                parquet.read_table(path, columns=key, partitioning=None) for path in files
            )
            staged = alike(staged, key, numbers=self._numbers)
        for batch in found.to_batches():
            there += batch.num_rows
            if staged is None:
                gone += batch.num_rows
                continue
            keys = alike(pa.Table.from_batches([batch]).cast(staged.schema), key, numbers=self._numbers)
            gone += keys.join(staged, key, join_type="left anti").num_rows
        require_few_missing(self._pipeline, self._model.max_missing, gone, there)


def _now() -> str:
    return f"cast('{datetime.now(UTC).isoformat()}' as timestamp)"
