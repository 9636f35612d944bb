"""A Delta table: one entry of its log takes the rows and the mark, two application transactions.

Delta refuses one of two commits at once that carry the same application id; the second then reads the mark.
Commits that replace partitions have a third one in common, a counter: two at once would else both add to a
partition in which neither found a file. A run whose counter has moved since it began to read may hold older
rows than those that are there, and reads again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import count
from pathlib import Path
from time import monotonic
from typing import Final, TypeVar

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError
from deltalake.table import TableMerger

from trunq.arrow.batch import for_lake
from trunq.arrow.delta import (
    added,
    again,
    check_partitioning,
    create_table,
    open_table,
    write_entry,
)
from trunq.arrow.parquet import DataFile
from trunq.arrow.value import TYPE
from trunq.arrow.wide import in_columns, with_names
from trunq.errors import InvalidArgument, InvalidPipeline
from trunq.pipeline.control import Run
from trunq.pipeline.definition.change import key_of
from trunq.pipeline.definition.pipeline import Pipeline
from trunq.pipeline.definition.sink import DeltaSink as Model
from trunq.pipeline.errors import Outrun
from trunq.pipeline.figures import SinkColumns
from trunq.pipeline.sink import Mark, checked
from trunq.pipeline.sink.contract import agreed
from trunq.pipeline.sink.directory import read
from trunq.pipeline.sink.key import with_keys
from trunq.pipeline.sink.lake import lake_stage, removed
from trunq.pipeline.sink.merge import number_of, one_a_key
from trunq.pipeline.sink.rewrite import require_alike, require_columns, require_values, rewrite
from trunq.pipeline.sink.upsert import Upsert

T = TypeVar("T")

_BLANK: Final = pa.schema([("trunq_blank", pa.bool_())])
_REPLACED: Final = "trunq:partitions"
_IN_MEMORY: Final = 64 << 20
"""Bytes of Parquet: of so few rows Delta looks which files of the table they can meet."""


class DeltaSink:
    """A Delta table."""

    _own: Sequence[str] = ()
    """Columns of the rows that are staged, and are none of the table."""
    _noted: Sequence[str] = ()
    """Columns of the table that the sink writes itself."""

    def __init__(self, pipeline: Pipeline, dsn: str) -> None:  # noqa: ARG002  # as all sinks
        assert isinstance(pipeline.sink, Model)
        self._pipeline = pipeline
        self._model = pipeline.sink
        self._stage = lake_stage(pipeline.name, pipeline.sink)
        self._replaced: int | None = None
        self._numbers: frozenset[str] = frozenset()
        """Columns of the key that are exact numbers, and texts in the table: 1.0 and 1.00 are one key."""
        self._written: frozenset[str] = frozenset()
        """Columns of the rows that the table had when the attempt began."""

    def check(self) -> None:
        """The table is made when it is not there."""

    def applied(self, run: Run) -> Mark:
        with self._stage.explaining():
            table = self._open()
        # Looked at before the source is read.
        self._replaced = (table and table.transaction_version(_REPLACED)) or 0
        mark = Mark() if table is None else _mark(table, run)
        if table is not None and mark.number == run.number:
            # The run ends by it.
            self._stage.sync_log(table.version(), _of(run), run.number)
        return mark

    def columns(self) -> pa.Schema | None:
        with self._stage.explaining():
            table = self._open()
        if table is None or is_blank(table):
            return None
        return pa.schema(table.schema().to_arrow())

    def begin(self, run: Run, schema: pa.Schema) -> SinkColumns:
        lake = for_lake(pa.RecordBatch.from_pylist([], schema)).schema
        needed = [*key_of(self._pipeline, run.slice), *([self._model.newest] if self._model.newest else [])]
        if missing := [name for name in needed if name not in lake.names]:
            self._refuse(f'there is no column "{missing[0]}" in the rows; there are {", ".join(lake.names)}')
        try:
            check_partitioning(lake, self._model.partition_by)
        except InvalidArgument as error:
            self._refuse(error.message, error.hint)
        with self._stage.explaining():
            self._again(run, lambda: self._make(self._fitted(lake)))
            self._stage.begin(run)
            there = pa.schema(self._there().schema().to_arrow())
        self._numbers = frozenset(
            name for name in needed if _is_number(schema.field(name), there.field(name))
        )
        if self._model.newest in self._numbers:
            self._refuse(
                f'"{self._model.newest}" is numeric without digits, which is a text in a lake, and "10" comes'
                ' before "9" there',
                f'cast it: columns = {{cast = {{{self._model.newest} = "decimal(38,10)"}}}}',
            )
        had = {field.name: str(field.type) for field in there if field.name in lake.names}
        self._written = frozenset(had)
        return had | self._pipeline.evolve.gone(there.names)

    def stage(self, run: Run, part: str, batches: Iterable[pa.RecordBatch]) -> int:
        with self._stage.explaining():
            table = self._there()
        there = pa.schema(table.schema().to_arrow())
        # No row of the table would match a key of null, so each run would insert it again.
        keyed = with_keys(self._pipeline, key_of(self._pipeline, run.slice), map(for_lake, checked(batches)))

        def fitting() -> Iterator[pa.RecordBatch]:
            for batch in keyed:
                own = [field for field in batch.schema if field.name in self._own]
                made = in_columns(batch, pa.schema([*there, *own]))
                require_values(self._pipeline.name, self._model.path, there, made)
                yield made

        with self._stage.explaining():
            if self._model.mode in ("upsert", "history", "apply"):
                return self._stage.write(run, part, fitting())
            partition_by = list(table.metadata().partition_columns)
            return self._stage.write_listed(run, part, fitting(), partition_by)

    def commit(self, run: Run, parts: list[str], rows: int) -> bool:
        with self._stage.explaining():
            table = self._open()
            if table is not None and _mark(table, run).number >= run.number:
                self._stage.discard(run)
                return False
            is_merged = self._merges(run, parts)
            is_taken = self._merge(run, parts, rows) if is_merged else self._add(run, parts, rows)
            self._stage.discard(run)
        return is_taken

    def discard(self, run: Run) -> None:
        self._stage.discard(run)

    def clear(self, run: Run) -> bool:
        with self._stage.explaining():
            return self._stage.clear(run)

    def _open(self) -> DeltaTable | None:
        """The table; None if there is none yet."""
        return open_table(self._stage.uri, self._stage.options)

    def _has_rows(self) -> bool:
        """Whether a run with rows has written there."""
        table = self._open()
        return table is not None and not is_blank(table)

    def _there(self) -> DeltaTable:
        table = self._open()
        assert table is not None
        return table

    def _fitted(self, lake: pa.Schema) -> pa.Schema:
        """The columns that the table is to have for rows with these."""
        return lake

    def _merges(self, run: Run, parts: list[str]) -> bool:  # noqa: ARG002  # as all tables
        """Whether rows meet those of the table, rather than being added."""
        return self._model.mode == "upsert" and bool(parts)

    def _add(self, run: Run, parts: list[str], rows: int) -> bool:
        """The files that are staged become the table's, and others go."""
        if self._open() is None:
            create_table(self._stage.uri, _BLANK, [], options=self._stage.options)
        files = self._stage.move_in(run, parts, rows)
        mode = self._model.mode if run.attempt else "append"
        if mode == "replace_partitions" and run.backfill:
            self._require_whole(run, files)

        def write(table: DeltaTable) -> None:
            require_alike(self._model.path, table, files)
            actions = added(files)
            if mode != "append":
                actions += removed(table, None if mode == "replace" else files)
            write_entry(table, actions, self._marks(run, table))

        return self._try_with(run, write, lambda: files)

    def _try_with(
        self, run: Run, write: Callable[[DeltaTable], None], files: Callable[[], list[DataFile]]
    ) -> bool:
        """As `_try`; where the entry is none of ours, our files go."""
        try:
            is_taken = self._try(run, write)
        except BaseException:
            # What was written before the error was told is in the log.
            table = self._open()
            if table is not None and _mark(table, run) != Mark(run.number, run.attempt):
                self._stage.leave(files())
            raise
        if not is_taken:
            self._stage.remove(files())
        return is_taken

    def _require_whole(self, run: Run, files: list[DataFile]) -> None:
        """Of a range: an empty text is in the partition of null, which no range has."""
        column = run.slice.get("range", {}).get("column")
        if any(file.partition.get(column) is None for file in files):
            self._stage.remove(files)
            self._refuse(
                f'the range of "{column}" has empty texts, which Delta keeps in one partition with null',
                "begin the range behind them",
            )

    def _merge(self, run: Run, parts: list[str], rows: int) -> bool:
        files = self._stage.keep_only(run, parts, rows)
        if not files and not self._merges(run, []):
            return self._add(run, [], 0)

        upsert = self._upsert(run, files)

        def write(table: DeltaTable) -> None:
            if upsert is not None and upsert.is_for(table):
                actions = upsert.actions(table)
                require_alike(self._model.path, table, upsert.files)
                # Others may have written a row of the same key.
                write_entry(table, actions, self._marks(run, table), alone=True)
                return
            if upsert is not None:
                upsert.forget()
            read = table.version()
            self._merge_into(table, run, files)
            if table.version() == read:
                # Nothing was to be written, and deltalake writes no entry then, nor the mark.
                write_entry(table, [], self._marks(run, table))

        return self._try_with(run, write, lambda: [] if upsert is None else upsert.files)

    def _upsert(self, run: Run, files: list[Path]) -> Upsert | None:
        """What merges these rows without deltalake; None: nothing does."""
        return Upsert(self._stage, run, files, self._model.key, self._model.newest, self._numbers)

    def _merge_into(self, table: DeltaTable, run: Run, files: list[Path]) -> None:
        """Merge the rows of files, with the marks, in one entry, or none where nothing is to be written."""
        newest, key = self._model.newest, self._model.key
        schema = next(read(files)).schema
        rows = pa.RecordBatchReader.from_batches(schema, one_a_key(files, key, newest, self._numbers))
        newer = None if newest is None else no_newer(newest)
        merging = self._merging(table, run, rows, same(key, self._numbers), streamed=not is_small(files))
        given = written(schema.names)
        merging.when_matched_update(given, newer).when_not_matched_insert(given).execute()

    def _merging(
        self, table: DeltaTable, run: Run, rows: pa.RecordBatchReader, predicate: str, *, streamed: bool
    ) -> TableMerger:
        """A merge of rows, s, into the table, t."""
        return table.merge(
            rows,
            predicate,
            source_alias="s",
            target_alias="t",
            streamed_exec=streamed,
            commit_properties=CommitProperties(app_transactions=self._marks(run, table)),
        )

    def _try(self, run: Run, write: Callable[[DeltaTable], None]) -> bool:
        """Until an entry of the log is ours, or another attempt's."""

        def once() -> bool:
            table = self._there()
            if (mark := _mark(table, run)).number >= run.number:
                # Of a commit that failed, the entry may be there all the same.
                return mark == Mark(run.number, run.attempt)
            self._require_newest(run, table)
            if run.attempt:
                require_columns(self._model.path, table, self._written)
            write(table)
            return True

        return self._again(run, once)

    def _again(self, run: Run, work: Callable[[], T]) -> T:
        """Work until no other's entry of the log comes first, for as long as the run is ours."""
        tries = count(1)
        begun = monotonic()

        def once() -> T:
            next(tries)
            return work()

        try:
            return again(once, run.goes_on)
        except CommitFailedError as error:
            raise Outrun(
                f"others wrote to {self._model.path} first at each of {next(tries) - 1} tries of pipeline"
                f" {run.pipeline} in {monotonic() - begun:.0f} s: nothing of run {run.number} is in it",
                "the run is tried again; let other writers of the table pause, or write less often. What the"
                " tries left in its directory, vacuum deletes",
            ) from error

    def _require_newest(self, run: Run, table: DeltaTable) -> None:
        replaced = table.transaction_version(_REPLACED) or 0
        if (
            run.attempt
            and self._model.mode == "replace_partitions"
            and self._replaced is not None
            and replaced != self._replaced
        ):
            raise Outrun(
                f"partitions of {self._model.path} were replaced after run {run.number} of pipeline"
                f" {run.pipeline} began to read: it may hold older rows",
                "the run is tried again",
            )

    def _marks(self, run: Run, table: DeltaTable) -> list[Transaction]:
        marks = [Transaction(_of(run), run.number), Transaction(_by(run), run.attempt)]
        if self._model.mode == "replace_partitions" and run.attempt:
            marks.append(Transaction(_REPLACED, (table.transaction_version(_REPLACED) or 0) + 1))
        return marks

    def _make(self, lake: pa.Schema) -> None:
        """See to it that the table is there and has the columns of the rows, or refuse them."""
        path, partition_by = self._model.path, self._model.partition_by
        table = self._open() or create_table(self._stage.uri, lake, partition_by, options=self._stage.options)
        if is_blank(table):
            write_deltalake(
                table,
                lake.empty_table(),
                mode="overwrite",
                schema_mode="overwrite",
                partition_by=partition_by or None,
            )
            table = self._there()
        there = pa.schema(table.schema().to_arrow())
        renamed = self._pipeline.evolve.renamed(there.names, lake.names)
        there = with_names(there, renamed)
        parts = [renamed.get(name, name) for name in table.metadata().partition_columns]
        becomes = partition_by or parts
        if becomes != parts and self._pipeline.evolve.partitions == "refuse":
            self._refuse(
                f"{path} is partitioned by ({', '.join(parts)}), and partition_by is"
                f" ({', '.join(partition_by)})",
                'evolve = { partitions = "rewrite" } has a run write the whole table anew, or write to'
                " another path",
            )
        if self._model.mode == "replace_partitions" and not becomes:
            self._refuse(f"{path} has no partitions to be replaced", "give partition_by")
        wanted = agreed(self._pipeline, path, there, lake, self._noted)
        wider = {
            each.name: each.type
            for each in wanted
            if each.name in there.names and there.field(each.name).type != each.type
        }
        if becomes != parts or wider or renamed:
            rewrite(self._stage, table, becomes, wider, renamed)
            table = self._there()
        if missing := [each for each in wanted if each.name not in there.names]:
            table.alter.add_columns(Schema.from_arrow(pa.schema(missing)).fields)

    def _refuse(self, why: str, advice: str | None = None) -> None:
        raise InvalidPipeline(f"pipeline {self._pipeline.name}: {why}", advice)


def same(key: Sequence[str], numbers: Collection[str]) -> str:
    """That a row of the table has the key of one that is merged."""

    def named(of: str, name: str) -> str:
        column = f"{of}.{quoted(name)}"
        return number_of(column) if name in numbers else column

    return " and ".join(f"{named('t', name)} = {named('s', name)}" for name in key)


def _is_number(given: pa.Field, there: pa.Field) -> bool:
    """Whether a column of exact numbers is a text in the table."""
    was: bytes = (given.metadata or {}).get(TYPE, b"")
    return was.startswith(b"numeric") and bool(pa.types.is_string(there.type))


def no_newer(newest: str) -> str:
    """That a row of the table is no newer than one that is merged."""
    name = quoted(newest)
    return f"t.{name} is null or t.{name} <= s.{name}"


def written(names: Sequence[str]) -> dict[str, str]:
    """Columns with what a merge writes into them. (All of them, as deltalake writes that, may not have a ` in
    their names.)
    """
    return {quoted(name): f"s.{quoted(name)}" for name in names}


def quoted(name: str) -> str:
    """A column as a condition of a merge has it."""
    return '"' + name.replace('"', '""') + '"'


def is_small(files: list[Path]) -> bool:
    """Whether Delta may look in memory which files of the table these rows can meet."""
    return sum(path.stat().st_size for path in files) <= _IN_MEMORY


def is_blank(table: DeltaTable) -> bool:
    """Whether it was made by a run without rows, and has no columns yet."""
    return [str(field.name) for field in table.schema().fields] == list(_BLANK.names)


def _of(run: Run) -> str:
    return f"trunq:{run.mark}"


def _by(run: Run) -> str:
    return f"trunq:{run.mark}:attempt"


def _mark(table: DeltaTable, run: Run) -> Mark:
    return Mark(table.transaction_version(_of(run)) or 0, table.transaction_version(_by(run)) or 0)
