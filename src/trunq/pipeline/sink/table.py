"""A table of Postgres: rows are staged by COPY into an unlogged table of the attempt, and taken in one
transaction.

The mark lies in the same database, in trunq_sink.mark. A stage that a crash of Postgres emptied is noticed by
its count. What killed attempts left is dropped when a newer run begins.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import chain
from typing import Final

import pyarrow as pa
from psycopg import sql

from trunq.arrow import catalog, mark, stage, table
from trunq.arrow.adbc import connect
from trunq.arrow.catalog import Connection, identifier, is_there
from trunq.arrow.copy import copy_adbc, tagged
from trunq.arrow.reader import set_local
from trunq.arrow.statement import PART, Composed, Target, empty, take
from trunq.arrow.value import OfJson, for_stage, staged_type, table_type
from trunq.connection._sync.opening import open_lent
from trunq.connection.address import complete
from trunq.errors import InvalidArgument, InvalidPipeline
from trunq.pipeline.control import Run
from trunq.pipeline.definition.pipeline import Pipeline
from trunq.pipeline.definition.sink import TableSink as Model
from trunq.pipeline.definition.stamp import STAMPS
from trunq.pipeline.errors import StageLost
from trunq.pipeline.figures import SinkColumns
from trunq.pipeline.sink import Mark, checked
from trunq.pipeline.sink.held import held
from trunq.pipeline.sink.key import with_keys
from trunq.pipeline.sink.unwritable import named_by_postgres
from trunq.pipeline.sink.widening import rename, widen

_WRITING: Final = {"intervalstyle": "postgres", "lc_monetary": "C"}
"""Settings under which text is cast that was read under `reader.READING`; on the others of these it does not
depend, and defaults and triggers of the table may.
"""


class PostgresSink:
    """What tables and queues have in common: mark, stage, one transaction."""

    _LOGGED = False

    def __init__(self, pipeline: Pipeline, dsn: str) -> None:
        self._pipeline = pipeline
        self._dsn = complete(getattr(pipeline.sink, "dsn", None) or dsn, f"trunq pipeline {pipeline.name}")

    def applied(self, run: Run) -> Mark:
        with self._connected() as connection:
            if not is_there(connection, f"{mark.SCHEMA}.mark"):
                return Mark()
            row = connection.execute(mark.read(run.mark)).fetchone()
        return Mark(*row) if row else Mark()

    def columns(self) -> pa.Schema | None:
        return None

    def begin(self, run: Run, schema: pa.Schema) -> SinkColumns | None:
        with self._connected() as connection:
            mark.make_marks(connection)
            fitted = self._fit(connection, schema)
            _drop_old(connection, run)
            columns = [(field.name, staged_type(field)) for field in schema]
            connection.execute(stage.make(stage_of(run), columns, "text", logged=self._LOGGED))
        return fitted

    def stage(self, run: Run, part: str, batches: Iterable[pa.RecordBatch]) -> int:
        found = (for_stage(batch) for batch in checked(batches))
        first = next(found, None)
        if first is None:
            return 0
        schema, rows = tagged(chain([first], found), first.schema, PART, part)
        with (
            self._translating(),
            connect(self._dsn, "trunq pipeline") as connection,
            connection.cursor() as cursor,
        ):
            count = copy_adbc(cursor, mark.SCHEMA, _name(run), schema, rows)
            connection.commit()
        return count

    def commit(self, run: Run, parts: list[str], rows: int) -> bool:
        with self._connected() as connection, connection.transaction():
            mark.make_marks(connection)
            if self._lock_mark(connection, run) >= run.number:
                return False
            if parts:
                connection.execute(set_local(_WRITING).encode())
                self._require_all(connection, run, parts, rows)
                self._apply(connection, run, parts)
                connection.execute(sql.SQL("drop table {}").format(stage_of(run)))
            elif run.attempt:
                self._apply_nothing(connection, run)
            self._set_mark(connection, run, run.attempt)
        return True

    def discard(self, run: Run) -> None:
        with self._connected() as connection:
            # A commit that was cut off may still be at it.
            stage.drop(connection, mark.SCHEMA, _name(run), "5s")

    def clear(self, run: Run) -> bool:
        with self._connected() as connection:
            return _drop_old(connection, run)

    def _fit(self, connection: Connection, schema: pa.Schema) -> SinkColumns | None:
        """Make ready for these columns, or refuse them; those of a table, as it has them."""

    def _apply(self, connection: Connection, run: Run, parts: list[str]) -> None:
        """Take what is staged."""

    def _apply_nothing(self, connection: Connection, run: Run) -> None:
        """Take a run without rows."""

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
        with self._translating(), open_lent(self._dsn) as connection:
            yield connection

    def _lock_mark(self, connection: Connection, run: Run) -> int:
        """Hold the mark to the end of the transaction; the number of the newest run that was taken."""
        return mark.hold(connection, run.mark, run.pipeline, 0)

    def _set_mark(self, connection: Connection, run: Run, attempt: int) -> None:
        connection.execute(mark.note(run.mark, run.pipeline, run.number, attempt))

    def _translating(self) -> AbstractContextManager[None]:
        sink = self._pipeline.sink
        target = getattr(sink, "table", None) or f"queue {getattr(sink, 'queue', '')}"
        return named_by_postgres(self._pipeline.name, str(target))

    def _require_all(self, connection: Connection, run: Run, parts: list[str], rows: int) -> None:
        there = stage.count(connection, mark.SCHEMA, _name(run), parts)
        if there != rows:
            raise StageLost(
                f"{rows} rows of run {run.number} of pipeline {run.pipeline} were staged, and"
                f" {there} are there: the server crashed meanwhile"
            )


class TableSink(PostgresSink):
    """A table."""

    def __init__(self, pipeline: Pipeline, dsn: str) -> None:
        super().__init__(pipeline, dsn)
        assert isinstance(pipeline.sink, Model)
        model = pipeline.sink
        stamps = STAMPS if pipeline.stamp else ()
        self._target = Target(model.table, model.mode, tuple(model.key), model.newest, stamps)
        with self._refused():
            identifier(model.table)

    def check(self) -> None:
        with self._connected() as connection, self._refused():
            # An index over a column gets its new name with it.
            is_renamed = bool({*self._pipeline.evolve.rename.values()} & {*self._target.key})
            if not is_renamed and is_there(connection, self._target.quoted):
                table.require_index(connection, self._target)

    def columns(self) -> pa.Schema | None:
        with self._connected() as connection:
            is_made = is_there(connection, self._target.quoted)
            return held(connection, self._target.quoted) if is_made else None

    def stage(self, run: Run, part: str, batches: Iterable[pa.RecordBatch]) -> int:
        return super().stage(run, part, with_keys(self._pipeline, self._target.key, batches))

    def _apply(self, connection: Connection, run: Run, parts: list[str]) -> None:
        if self._target.mode == "replace":
            connection.execute(empty(self._target.table))
        connection.execute(take(self._target, self._columns, stage_of(run)), {"parts": parts})

    def _apply_nothing(self, connection: Connection, run: Run) -> None:  # noqa: ARG002  # as all tables
        if self._target.mode == "replace" and is_there(connection, self._target.quoted):
            connection.execute(empty(self._target.table))

    def _fit(self, connection: Connection, schema: pa.Schema) -> SinkColumns:
        """The columns that are written, with the types of the table; made or added where they are missing."""
        with self._refused():
            kinds = table.incoming(self._target, schema, table_type)
            if not is_there(connection, self._target.quoted):
                table.make(connection, self._target, kinds)
            rename(connection, self._target, kinds, self._pipeline.evolve)
            table.require_index(connection, self._target)
            widen(connection, self._target, kinds, self._pipeline.evolve)
            evolve = self._pipeline.evolve.columns
            found = table.fit(connection, self._target, kinds, evolve=evolve)
            gone = self._pipeline.evolve.gone(catalog.columns(connection, self._target.quoted))
        # What a history compares is as the table keeps it.
        exact = self._target.mode == "history"
        self._columns = [
            (name, _read_as(kinds[name], each, each.kind if exact else each.cast))
            for name, each in found.items()
        ]
        return {name: each.kind for name, each in found.items()} | gone

    @contextmanager
    def _refused(self) -> Iterator[None]:
        """What a table cannot take is a pipeline that cannot be."""
        try:
            yield
        except InvalidArgument as error:
            message = f"pipeline {self._pipeline.name}: {error.message}"
            raise InvalidPipeline(message, error.hint) from None


def _read_as(kind: str | None, there: catalog.Column, cast: str) -> str:
    """What the commit makes of a staged column."""
    is_made = isinstance(kind, OfJson) and (there.is_nested or kind == there.cast != "jsonb")
    return Composed(cast) if is_made else cast


def _drop_old(connection: Connection, run: Run) -> bool:
    """Drop stages of runs that are over; False: somebody still writes into one, which waits for the next."""
    prefix = _prefix(run)

    def old() -> list[str]:
        found = connection.execute(
            "select relname from pg_class where relnamespace = to_regnamespace('trunq_sink') and"
            " relkind = 'r' and starts_with(relname, %s)",
            (prefix,),
        ).fetchall()
        return [name for (name,) in found if int(name.removeprefix(prefix).split("_")[0]) < run.number]

    for name in (there := old()):
        stage.drop(connection, mark.SCHEMA, name)
    return not there or not old()


def _prefix(run: Run) -> str:
    return f"stage_{hashlib.sha256(run.mark.encode()).hexdigest()[:16]}_"


def _name(run: Run, attempt: int | None = None) -> str:
    return f"{_prefix(run)}{run.number}_{run.attempt if attempt is None else attempt}"


def stage_of(run: Run, attempt: int | None = None) -> sql.Identifier:
    """The stage of this attempt at a run, or of another."""
    return sql.Identifier(mark.SCHEMA, _name(run, attempt))
