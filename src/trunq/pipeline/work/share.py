"""How tasks read: each makes the source anew and reads its share of the slice."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyarrow import ipc

from trunq import Client
from trunq.arrow.batch import batches_of, like, unified
from trunq.arrow.value import from_endless_texts
from trunq.errors import InvalidPipeline
from trunq.pipeline import source as sources
from trunq.pipeline.control import Control, Run
from trunq.pipeline.definition.pipeline import Pipeline
from trunq.pipeline.figures import Figures, timed_each
from trunq.pipeline.redact import redacted
from trunq.pipeline.source import Context, Plan, Source, State
from trunq.pipeline.work.again import again, alike
from trunq.pipeline.work.column import Refuse, Steps
from trunq.pipeline.work.schema import for_frame

_FILE_ROWS: Final = 100_000


@dataclass(slots=True)
class Refusal:
    """Keeps rows in the quarantine under a part, over a connection that is opened at the first of them."""

    dsn: str
    run: Run
    part: str = field(default_factory=lambda: str(uuid.uuid4()))
    count: int = 0
    _client: Client | None = None

    def __call__(self, rows: list[Any], reasons: list[list[str]]) -> None:
        if rows:
            self._client = self._client or Client(self.dsn, max_connections=1)
            Control(self._client).quarantine(self.run, reasons, rows, self.part)
            self.count += len(rows)

    def close(self) -> None:
        """Close the connection."""
        if self._client is not None:
            self._client.close()


@contextmanager
def refusing(dsn: str, run: Run) -> Iterator[Refusal]:
    """A Refusal that is closed at the end."""
    refusal = Refusal(dsn, run)
    try:
        yield refusal
    finally:
        refusal.close()


@dataclass(frozen=True, slots=True)
class Read:
    """What became of a share: rows, bytes, those kept out, under a part, and how long reading took."""

    rows: int
    bytes: int
    bad: int
    part: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Reading:
    """All that a task needs to read one of the shares."""

    pipeline: Pipeline
    dsn: str
    run: Run
    shares: list[dict[str, Any]]
    schema: pa.Schema
    """The columns as Spark has them."""
    lookup: str | None = None
    """Its name, where it is no source: what cannot be read of it fails the run."""
    steps: Steps | None = None
    """What becomes of the columns of the source."""

    def read(self, number: int, seen: Callable[[int, Read], None] | None = None) -> Iterator[pa.RecordBatch]:
        """The rows of a share; `seen` is told when it was read to its end."""
        run = self.run
        with redacted(self.pipeline, self.dsn), refusing(self.dsn, run) as refusal:
            refuse = self._refuse if self.lookup else refusal
            context = Context(run.pipeline, run.number, message=run.message, refuse=refuse)
            rows = size = 0
            figures = Figures()
            with self._source(self.shares[number]) as source:
                for batch in timed_each(source.read(self.shares[number], context), figures.read):
                    rows += batch.num_rows
                    size += batch.nbytes
                    given = self._again(batch)
                    if self.steps is not None:
                        given = self.steps.step(given, refuse)
                    yield like(self._framed(given, refuse), self.schema)
                if isinstance(source, Quarantined):
                    rows += source.lost
            if seen is not None:
                seen(number, Read(rows, size, refusal.count, refusal.part, figures.source))

    @contextmanager
    def _source(self, share: dict[str, Any]) -> Iterator[Source]:
        if "landed" in share:
            yield Landed([])
            return
        client = Client(self.dsn, max_connections=1)
        try:
            control = Control(client)
            if "quarantine" in share:
                yield Quarantined(self.pipeline, control, None, self.schema.names)
            else:
                yield sources.make(self.pipeline, self.dsn, control)
        finally:
            client.close()

    def _framed(self, batch: pa.RecordBatch, refuse: Refuse) -> pa.RecordBatch:
        """Rows in types that Spark has, which may be fewer by those that it has no value for."""
        try:
            return for_frame(batch)
        except InvalidPipeline:
            if self.lookup or not self.pipeline.evolve.sorts:
                raise
            from trunq.pipeline.work.fitting import framed  # noqa: PLC0415  # for few rows

            return for_frame(framed(self.pipeline, batch, refuse))

    def _again(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Rows of the quarantine have what sql added, and bytes as text; others are what they are."""
        if "quarantine" not in self.shares[0]:
            return batch
        return as_before(batch, self.schema, set() if self.steps is None else self.steps.cast)

    def _refuse(self, rows: list[Any], reasons: list[list[str]]) -> None:
        if rows:
            raise InvalidPipeline(
                f"pipeline {self.pipeline.name}: lookup {self.lookup} has a row that cannot be read"
                f" ({reasons[0][0]}): {str(rows[0])[:200]}"
            )


def as_before(batch: pa.RecordBatch, schema: pa.Schema, cast: Collection[str] = ()) -> pa.RecordBatch:
    """Rows of the quarantine, of the columns that they had: bytes are texts there, and times without end
    words, unless these are what could not be cast.
    """
    names = [name for name in batch.schema.names if name in schema.names]
    columns = [_decoded(batch.column(name), schema.field(name).type, name in cast) for name in names]
    return pa.RecordBatch.from_arrays(columns, names=names)


def _decoded(column: pa.Array, kind: pa.DataType, is_cast: bool) -> pa.Array:
    if not pa.types.is_string(column.type):
        return column
    if kind != pa.binary():
        return column if is_cast else from_endless_texts(column, kind)
    return pa.array([None if each is None else base64.b64decode(each) for each in column.to_pylist()], kind)


def unsliced(run: Run) -> Run:
    """A run as tasks need it: of the slice, which may name many files, the key alone goes there."""
    key = {name: run.slice[name] for name in ("key",) if name in run.slice}
    return replace(run, payload=run.message, slice=key, progress={}, figures=Figures())


class _Once(Source):
    """A source that is no pipeline's: it has a slice, and no next one."""

    def plan(self, state: State) -> Plan:
        return Plan(None, state)

    def plan_range(self, range: dict[str, Any]) -> dict[str, Any]:
        return range

    def release(self, state: State) -> None:
        """It keeps nothing."""


class Quarantined(_Once):
    """Rows of the quarantine, as rows of the source that they came from."""

    def __init__(
        self, pipeline: Pipeline, control: Control, source: Source | None, columns: Collection[str] = ()
    ) -> None:
        self._pipeline, self._control, self._source = pipeline, control, source
        self._columns = columns
        self.lost = 0
        """How many rows that were read it has not given, since what they were is not known."""

    def shares(self, slice: dict[str, Any], at_most: int) -> list[dict[str, Any]]:
        ids = slice["quarantine"]
        return [{"quarantine": some} for some in dealt(ids, at_most if len(ids) > 1000 else 1)]

    def schema(self, slice: dict[str, Any]) -> pa.Schema | None:
        if self._source is not None and (known := self._source.schema(slice)) is not None:
            return known
        rows = self._control.read_quarantine(self._pipeline.name, slice["quarantine"])
        found = [batch.schema for batch in batches_of(alike(rows), "the quarantine")]
        return unified(self._pipeline.name, found)

    def read(self, slice: dict[str, Any], context: Context) -> Iterator[pa.RecordBatch]:
        return again(
            self._pipeline, self._control, slice["quarantine"], context.refuse, self._lose, self._columns
        )

    def _lose(self, count: int) -> None:
        self.lost += count


class Landed(_Once):
    """Rows that one process has read into files; `schemas` are theirs."""

    def __init__(self, schemas: list[pa.Schema]) -> None:
        self.schemas = schemas

    def shares(self, slice: dict[str, Any], at_most: int) -> list[dict[str, Any]]:
        return [{"landed": some} for some in dealt(slice["landed"], at_most)]

    def schema(self, slice: dict[str, Any]) -> pa.Schema | None:
        return unified(slice["pipeline"], self.schemas)

    def read(self, slice: dict[str, Any], context: Context) -> Iterator[pa.RecordBatch]:
        for path in slice["landed"]:
            with pa.memory_map(path) as file, ipc.open_stream(file) as reader:
                for batch in reader:
                    context.check()
                    yield batch


def land(pipeline: str, batches: Iterator[pa.RecordBatch], directory: Path) -> tuple[Landed, dict[str, Any]]:
    """Write rows into files of a directory: a source, and its slice."""
    paths: list[str] = []
    schemas: list[pa.Schema] = []
    writer: ipc.RecordBatchStreamWriter | None = None
    rows = 0
    try:
        for batch in batches:
            if writer is None or rows >= _FILE_ROWS or not batch.schema.equals(schemas[-1]):
                if writer is not None:
                    writer.close()
                paths.append(str(directory / f"{len(paths)}.arrows"))
                schemas.append(batch.schema)
                writer, rows = ipc.new_stream(paths[-1], batch.schema), 0
            writer.write_batch(batch)
            rows += batch.num_rows
    finally:
        if writer is not None:
            writer.close()
    return Landed(schemas), {"landed": paths, "pipeline": pipeline}


def dealt(items: list[Any], at_most: int) -> list[list[Any]]:
    """Items in lists of about the same length, in their order."""
    count = max(1, min(at_most, len(items)))
    each, more = divmod(len(items), count)
    lists, at = [], 0
    for number in range(count):
        end = at + each + (number < more)
        lists.append(items[at:end])
        at = end
    return [some for some in lists if some]
