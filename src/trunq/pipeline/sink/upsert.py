"""An upsert into a Delta table that never has the table in memory: a file with rows of which newer ones come
is written anew without them, batch by batch, and the rows of the run are files beside it.

In memory are the keys of the run, those of one file of the table, and a batch. Where another's entry of the
log comes first, what was written stays good for all files of the table that are still there: the next try
reads those alone that are new. So two upserts of one key at the same time leave one row, and a writer that is
busy beside it does not keep it from ever ending.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote
from uuid import uuid4

import pyarrow as pa
from deltalake import DeltaTable
from pyarrow import compute as pc
from pyarrow import parquet

from trunq.arrow.delta import Actions, added, dataset_of, may_partition, types_of
from trunq.arrow.parquet import DataFile
from trunq.arrow.wide import in_columns
from trunq.pipeline.control import Run
from trunq.pipeline.sink.lake import LakeStage, removed_file
from trunq.pipeline.sink.merge import ROW, alike, chosen, is_nan, rows_at, with_places, within
from trunq.pipeline.sink.stored import StoredStage

_AT: Final = "trunq at"
_FEATURES: Final = frozenset({"timestampNtz", "appendOnly", "invariants"})
"""Of tables that files may be written for by whoever knows no more of Delta than we do."""
_ASKS: Final = ("delta.appendOnly", "delta.enableChangeDataFeed", "delta.constraints.")
_OF_DELTA: Final = "delta."
"""How names begin of what a column asks: that its values fulfil a condition, are generated, or lie under
another name. An older protocol lists no features.
"""


@dataclass(slots=True)
class _Met:
    """What becomes of a file of the table."""

    gone: int = 0
    """Rows for which others come; 0: it stays."""
    outdone: list[int] = field(default_factory=list)
    """Places of rows of the run that are older than what it has."""
    files: list[DataFile] = field(default_factory=list)
    """With its other rows."""


class Upsert:
    """The upsert of one run, through all its tries."""

    def __init__(
        self,
        stage: LakeStage | StoredStage,
        run: Run,
        files: list[Path],
        key: list[str],
        newest: str | None,
        numbers: Collection[str] = (),
    ) -> None:
        self._stage, self._run, self._files = stage, run, files
        self._key, self._newest, self._numbers = key, newest, numbers
        self._names = set(parquet.read_schema(files[0]).names)
        self._rows = chosen(files, key, newest, numbers)
        self._shape: tuple[pa.Schema, list[str]] | None = None
        self._met: dict[str, _Met] = {}
        self._given: tuple[list[int], list[DataFile]] | None = None
        """The files with the rows of the run but those that are outdone."""

    @property
    def files(self) -> list[DataFile]:
        """What it has written into the table's directory."""
        given = [] if self._given is None else self._given[1]
        return [*given, *(file for met in self._met.values() for file in met.files)]

    def is_for(self, table: DeltaTable) -> bool:
        """Whether it can do this table: where it has columns of others, their values stay, and other
        features of Delta, deltalake merges.
        """
        protocol, configuration = table.protocol(), table.metadata().configuration
        features = {*(protocol.reader_features or ()), *(protocol.writer_features or ())}
        fields, types = table.schema().fields, types_of(table.schema())
        return (
            set(types) == self._names
            and features <= _FEATURES
            and not any(name.startswith(_ASKS) for name in configuration)
            and not any(str(name).startswith(_OF_DELTA) for each in fields for name in each.metadata)
            and all(may_partition(types[name]) for name in table.metadata().partition_columns)
        )

    def forget(self) -> None:
        """Another way is taken: what it has written goes."""
        self._stage.leave(self.files)
        self._met, self._given = {}, None

    def actions(self, table: DeltaTable) -> Actions:
        """What an entry of the log says that does it on this version of the table."""
        dataset = dataset_of(table)
        partition_by = list(table.metadata().partition_columns)
        self._keep_if_alike(dataset.schema, partition_by)
        there = {unquote(each["path"]): each for each in pa.table(table.get_add_actions()).to_pylist()}
        for path in [path for path in self._met if path not in there]:
            self._stage.leave(self._met.pop(path).files)
        keys = alike(
            self._rows.cast(_with_types(self._rows.schema, dataset.schema)), self._key, numbers=self._numbers
        )
        # Of numbers, the log has the bounds of their texts.
        bounds = _bounds(keys, [name for name in self._key if name not in self._numbers])
        for fragment in dataset.get_fragments():
            # As it is on the disk; the log has it encoded.
            path = fragment.path
            if path not in self._met and _may_meet(there[path], bounds):
                self._met[path] = self._meet(fragment, dataset.schema, partition_by, keys)
        replaced = [path for path, met in self._met.items() if met.gone]
        now = int(time.time() * 1000)
        gone = [removed_file(there[path], partition_by, now) for path in replaced]
        self._give(dataset.schema, partition_by)
        actions: list[Any] = [*added(self.files), *gone]
        return actions

    def _keep_if_alike(self, schema: pa.Schema, partition_by: list[str]) -> None:
        """Begin anew where the table has got other columns, types or partitions."""
        if self._shape is not None and self._shape != (schema, partition_by):
            self.forget()
        self._shape = (schema, partition_by)

    def _meet(self, fragment: Any, schema: pa.Schema, partition_by: list[str], keys: pa.Table) -> _Met:
        columns = [name for name in keys.schema.names if name != ROW]
        there = fragment.to_table(schema=schema, columns=columns)
        numbered = with_places(alike(there.select(self._key), self._key, partition_by, self._numbers))
        places = keys.select([*self._key, ROW]).rename_columns([*self._key, _AT])
        pairs = numbered.join(places, self._key, join_type="inner").select([ROW, _AT])
        outdone: list[int] = []
        if self._newest is not None and pairs.num_rows:
            had = there[self._newest].take(pairs[ROW])
            # Of all rows of the run, those places are not the numbers of their rows.
            comes = keys[self._newest].take(pc.index_in(pairs[_AT], keys[ROW]))
            is_newer = pc.or_kleene(pc.less_equal(had, comes), is_nan(comes))
            takes = pc.or_kleene(pc.is_null(had), pc.fill_null(is_newer, False))
            outdone = pairs[_AT].filter(pc.invert(takes)).unique().to_pylist()
            pairs = pairs.filter(takes)
        if not pairs.num_rows:
            return _Met(outdone=outdone)
        gone = pairs[ROW].unique()
        part = f"kept-{uuid4()}"
        kept = self._stage.write_listed(self._run, part, _without(fragment, schema, gone), partition_by)
        return _Met(len(gone), outdone, self._stage.move_in(self._run, [part], kept))

    def _give(self, schema: pa.Schema, partition_by: list[str]) -> None:
        """Write the rows of the run, but those that are outdone."""
        outdone = sorted({each for met in self._met.values() for each in met.outdone})
        if self._given is not None and self._given[0] == outdone:
            return
        if self._given is not None:
            self._stage.leave(self._given[1])
        places = self._rows[ROW]
        if outdone:
            places = places.filter(pc.invert(pc.is_in(places, pa.array(outdone, pa.int64()))))
        part = f"given-{uuid4()}"
        rows = (in_columns(batch, schema) for batch in rows_at(self._files, places))
        count = self._stage.write_listed(self._run, part, rows, partition_by) if len(places) else 0
        self._given = outdone, self._stage.move_in(self._run, [part], count) if count else []


def _without(fragment: Any, schema: pa.Schema, gone: pa.Array) -> Iterator[pa.RecordBatch]:
    """The rows of a file but those at some places."""
    start = 0
    for batch in fragment.scanner(schema=schema, batch_readahead=1).to_batches():
        mine = within(gone, start, batch.num_rows)
        start += batch.num_rows
        kept = batch
        if len(mine):
            kept = batch.filter(pc.invert(pc.is_in(pa.array(range(batch.num_rows), pa.int64()), mine)))
        if kept.num_rows:
            yield kept


def _with_types(given: pa.Schema, there: pa.Schema) -> pa.Schema:
    """A schema with the types that a table has for its columns."""
    return pa.schema(
        [each if each.name == ROW else each.with_type(there.field(each.name).type) for each in given]
    )


def _bounds(keys: pa.Table, key: list[str]) -> dict[str, tuple[Any, Any]]:
    """The least and the greatest value of columns of the key."""
    found = {}
    for name in key:
        kind = keys.schema.field(name).type
        # Spark writes bounds of times without their microseconds.
        if not (pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_date(kind)):
            continue
        ends = pc.min_max(keys[name])
        if ends["min"].is_valid:
            found[name] = ends["min"].as_py(), ends["max"].as_py()
    return found


def _may_meet(file: Mapping[str, Any], bounds: Mapping[str, tuple[Any, Any]]) -> bool:
    """Whether a file may have any of the keys. Where the log says no bounds of a column, deltalake's own
    condition is that no value is in it: a file may lack those of a long text, or of its last columns.
    """
    least, most, partition = (file.get(name) or {} for name in ("min", "max", "partition"))
    for name, (first, last) in bounds.items():
        # In the partition of null are empty texts, too.
        low, high = (partition[name],) * 2 if name in partition else (least.get(name), most.get(name))
        if low is not None and high is not None and (high < first or last < low):
            return False
    return True
