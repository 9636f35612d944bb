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

from trunq.arrow.delta import dataset_of
from trunq.errors import InvalidPipeline
from trunq.pipeline.control import Run
from trunq.pipeline.definition.change import is_whole
from trunq.pipeline.sink.deleting import require_few_missing
from trunq.pipeline.sink.delta import DeltaSink, is_small, same, written
from trunq.pipeline.sink.directory import read
from trunq.pipeline.sink.merge import alike
from trunq.pipeline.sink.version import CLOSES, TIME, VALID_FROM, VALID_TO, closing, versions


class DeltaHistorySink(DeltaSink):
    """Such a table."""

    _noted = (VALID_FROM, VALID_TO)

    def _fitted(self, lake: pa.Schema) -> pa.Schema:
        newest = self._model.newest
        if newest is not None and not pa.types.is_temporal(lake.field(newest).type):
            self._refuse(
                f'"{newest}" is {lake.field(newest).type}, and says when a version began',
                'cast it: columns = {cast = {... = "timestamp[us, UTC]"}}; or leave newest out',
            )
        return pa.schema([*lake, *(pa.field(name, TIME) for name in self._noted)])

    def _merges(self, run: Run, parts: list[str]) -> bool:
        return bool(parts) or (bool(run.attempt) and self._ends_missing(run) and self._has_rows())

    def _ends_missing(self, run: Run) -> bool:
        """Whether versions end of what the run does not have."""
        return self._model.missing == "delete" and is_whole(run.slice)

    def _upsert(self, run: Run, files: list[Path]) -> None:  # as all tables
        """It keeps what is replaced."""

    def _merge_into(self, table: DeltaTable, run: Run, files: list[Path]) -> None:
        key, now = self._model.key, datetime.now(UTC)
        there = pa.schema(table.schema().to_arrow())
        own = [field for field in there if field.name not in (VALID_FROM, VALID_TO)]
        given = pa.Table.from_batches(read(files)) if files else pa.schema(own).empty_table()
        rows = alike(given, key, numbers=self._numbers)
        current = self._open_versions(table, rows, key)
        ended = self._ended(table, rows, key) if self._model.missing == "delete" else None
        try:
            made = versions(rows, current, key, self._model.newest, now, ended)
        except ValueError as error:
            raise InvalidPipeline(f"pipeline {self._pipeline.name}: {error}") from error
        if self._ends_missing(run):
            gone, open_ones = self._gone(table, rows, key)
            require_few_missing(self._pipeline, self._model.max_missing, gone.num_rows, open_ones)
            made = pa.concat_tables([made, closing(gone, made.schema, now)])
        if not made.num_rows:
            return
        merging = self._merging(
            table,
            run,
            made.to_reader(),
            f'{same(key, self._numbers)} and t."{VALID_TO}" is null and s."{CLOSES}"',
            streamed=not is_small(files),
        )
        columns = written([name for name in made.schema.names if name != CLOSES])
        merging.when_matched_update({f'"{VALID_TO}"': f's."{VALID_TO}"'})
        merging.when_not_matched_insert(columns, f'not s."{CLOSES}"')
        merging.execute()

    def _open_versions(self, table: DeltaTable, rows: pa.Table, key: list[str]) -> pa.Table:
        """The versions of the keys of rows that are open."""
        schema = pa.schema([*rows.schema, pa.field(VALID_FROM, TIME)])
        return self._found(table, rows, key, schema, pc.field(VALID_TO).is_null())

    def _ended(self, table: DeltaTable, rows: pa.Table, key: list[str]) -> pa.Table:
        """When the last version ended of those keys of rows of which none is open."""
        schema = pa.schema([*rows.select(key).schema, pa.field(VALID_TO, TIME)])
        found = self._found(table, rows, key, schema, None)
        is_open = pc.is_null(found[VALID_TO])
        closed = found.filter(pc.invert(is_open)).group_by(key).aggregate([(VALID_TO, "max")])
        closed = closed.rename_columns([*key, VALID_TO])
        return closed.join(found.filter(is_open).select(key), key, join_type="left anti")

    def _gone(self, table: DeltaTable, rows: pa.Table, key: list[str]) -> tuple[pa.Table, int]:
        """The open versions of keys that no row has, and how many are open in all."""
        schema = pa.schema([*rows.select(key).schema, pa.field(VALID_FROM, TIME)])
        is_open = pc.field(VALID_TO).is_null()
        gone = self._found(table, rows, key, schema, is_open, join="left anti")
        return gone, dataset_of(table).count_rows(filter=is_open)

    def _found(
        self,
        table: DeltaTable,
        rows: pa.Table,
        key: list[str],
        schema: pa.Schema,
        condition: pc.Expression | None,
        join: str = "left semi",
    ) -> pa.Table:
        """Versions with the keys of rows, or with others, in the columns of a schema."""
        keys = rows.select(key).group_by(key).aggregate([])
        found = [schema.empty_table()]
        scanner = dataset_of(table).scanner(columns=schema.names, filter=condition)
        for batch in scanner.to_batches():
            some = alike(pa.Table.from_batches([batch]), key, numbers=self._numbers)
            numbered = some.select(key).cast(keys.schema)
            numbered = numbered.append_column("trunq row", pa.array(range(some.num_rows), pa.int64()))
            mine = numbered.join(keys, key, join_type=join)["trunq row"]
            if len(mine):
                found.append(some.take(mine).cast(schema))
        return pa.concat_tables(found)
