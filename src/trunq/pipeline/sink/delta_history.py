"""A Delta table with each version of a row, from `valid_from` to `valid_to`: one merge closes the versions
that ended, and adds those that began.

The rows of a run, and those versions of their keys that are open, are in memory.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable
from pyarrow import compute as pc

from trunq.errors import InvalidPipeline
from trunq.pipeline.control import Run
from trunq.pipeline.sink.delta import DeltaSink, is_small, same
from trunq.pipeline.sink.directory import read
from trunq.pipeline.sink.version import CLOSES, TIME, VALID_FROM, VALID_TO, versions


class DeltaHistorySink(DeltaSink):
    """Such a table."""

    def _fitted(self, lake: pa.Schema) -> pa.Schema:
        if own := [name for name in (VALID_FROM, VALID_TO) if name in lake.names]:
            self._refuse(f'rows have a column "{own[0]}", which mode history writes itself')
        newest = self._model.newest
        if newest is not None and not pa.types.is_temporal(lake.field(newest).type):
            self._refuse(
                f'"{newest}" is {lake.field(newest).type}, and says when a version began',
                'cast it: columns = {cast = {... = "timestamp[us, UTC]"}}; or leave newest out',
            )
        return pa.schema([*lake, pa.field(VALID_FROM, TIME), pa.field(VALID_TO, TIME)])

    def _merges(self, run: Run, parts: list[str]) -> bool:  # noqa: ARG002  # as all tables
        return bool(parts)

    def _upsert(self, run: Run, files: list[Path]) -> None:  # noqa: ARG002  # as all tables
        """It keeps what is replaced."""

    def _merge_into(self, table: DeltaTable, run: Run, files: list[Path]) -> None:
        key = self._model.key
        rows = pa.Table.from_batches(read(files))
        current = self._open_versions(table, rows, key)
        try:
            made = versions(rows, current, key, self._model.newest, datetime.now(UTC))
        except ValueError as error:
            raise InvalidPipeline(f"pipeline {self._pipeline.name}: {error}") from error
        if not made.num_rows:
            return
        merging = self._merging(
            table,
            run,
            made.to_reader(),
            f'{same(key)} and t."{VALID_TO}" is null and s."{CLOSES}"',
            streamed=not is_small(files),
        )
        written = {f'"{name}"': f's."{name}"' for name in made.schema.names if name != CLOSES}
        merging.when_matched_update({f'"{VALID_TO}"': f's."{VALID_TO}"'})
        merging.when_not_matched_insert(written, f'not s."{CLOSES}"')
        merging.execute()

    def _open_versions(self, table: DeltaTable, rows: pa.Table, key: list[str]) -> pa.Table:
        """The versions of the keys of rows that are open."""
        schema = pa.schema([*rows.schema, pa.field(VALID_FROM, TIME)])
        dataset = table.to_pyarrow_dataset()
        keys = rows.select(key).group_by(key).aggregate([])
        found = [schema.empty_table()]
        for batch in dataset.scanner(columns=schema.names, filter=pc.field(VALID_TO).is_null()).to_batches():
            some = pa.Table.from_batches([batch])
            numbered = some.select(key).cast(keys.schema)
            numbered = numbered.append_column("trunq row", pa.array(range(some.num_rows), pa.int64()))
            mine = numbered.join(keys, key, join_type="left semi")["trunq row"]
            if len(mine):
                found.append(some.take(mine).cast(schema))
        return pa.concat_tables(found)
