"""A table of Postgres: rows are staged by COPY into an unlogged table of the attempt, and taken in one
transaction.

The mark lies in the same database, in trunq_sink.mark. A stage that a crash of Postgres emptied is noticed by
its count. What killed attempts left is dropped when a newer run begins.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import chain
from typing import Any, Final

import psycopg
import pyarrow as pa
from psycopg import sql
from psycopg.errors import LockNotAvailable

from trunq.connection._sync.session import open_lent
from trunq.connection.address import complete
from trunq.errors import InvalidArgument, InvalidPipeline
from trunq.fetch import set_local
from trunq.pipeline.control import Run
from trunq.pipeline.errors import StageLost
from trunq.pipeline.model import Pipeline
from trunq.pipeline.model import TableSink as Model
from trunq.pipeline.setting import WRITING
from trunq.pipeline.sink import Mark, checked
from trunq.pipeline.sink.told import told_by_postgres
from trunq.stage import catalog, mark
from trunq.stage.arrow import for_stage, postgres_type, staged_type
from trunq.stage.copy import copy_adbc, tagged
from trunq.stage.statement import Target, append, history, upsert

Connection = psycopg.Connection[tuple[Any, ...]]

_PART: Final = "trunq part"
_VALID: Final = ("valid_from", "valid_to")


class PostgresSink(ABC):
    """What tables and queues have in common: mark, stage, one transaction."""

    _LOGGED = False

    def __init__(self, pipeline: Pipeline, dsn: str) -> None:
        self._pipeline = pipeline
        self._dsn = complete(getattr(pipeline.sink, "dsn", None) or dsn, f"trunq pipeline {pipeline.name}")
        self._columns: list[tuple[str, str]] = []

    def applied(self, run: Run) -> Mark | None:
        with self._connected() as connection:
            if not catalog.is_there(connection, f"{mark.SCHEMA}.mark"):
                return Mark()
            row = connection.execute(mark.read(run.mark)).fetchone()
        return Mark(*row) if row else Mark()

    def begin(self, run: Run, schema: pa.Schema) -> None:
        with self._connected() as connection:
            mark.make_marks(connection)
            self._columns = self._fit(connection, schema)
            self._drop_old(connection, run)
            body = sql.SQL(", ").join(
                sql.SQL("{} {}").format(sql.Identifier(field.name), sql.SQL(staged_type(field)))
                for field in schema
            )
            connection.execute(
                sql.SQL("create {} table {} ({} text, {}) with (autovacuum_enabled = off)").format(
                    sql.SQL("" if self._LOGGED else "unlogged"), _stage(run), sql.Identifier(_PART), body
                )
            )

    def stage(self, run: Run, part: str, batches: Iterable[pa.RecordBatch]) -> int:
        import adbc_driver_postgresql.dbapi as adbc  # noqa: PLC0415  # slow to import

        found = (for_stage(batch) for batch in checked(batches))
        first = next(found, None)
        if first is None:
            return 0
        schema, rows = tagged(chain([first], found), first.schema, _PART, part)
        with self._told(), adbc.connect(self._dsn) as connection, connection.cursor() as cursor:
            count = copy_adbc(cursor, mark.SCHEMA, _stage_name(run), schema, rows)
            connection.commit()
        return count

    def commit(self, run: Run, parts: list[str], rows: int) -> bool:
        with self._connected() as connection, connection.transaction():
            mark.make_marks(connection)
            if self._lock_mark(connection, run) >= run.number:
                return False
            # The run ends in another database, perhaps, which would remember what a crash took from here.
            if connection.execute("show synchronous_commit").fetchone() == ("off",):
                connection.execute(set_local({"synchronous_commit": "on"}).encode())
            if parts:
                connection.execute(set_local(WRITING).encode())
                self._require_all(connection, run, parts, rows)
                self._apply(connection, run, parts)
                connection.execute(sql.SQL("drop table {}").format(_stage(run)))
            elif run.attempt:
                self._apply_nothing(connection)
            self._set_mark(connection, run, run.attempt)
        return True

    def discard(self, run: Run) -> None:
        with self._connected() as connection:
            # A commit that was cut off may still be at it.
            connection.execute("set lock_timeout = '5s'")
            connection.execute(sql.SQL("drop table if exists {}").format(_stage(run)))

    @abstractmethod
    def _fit(self, connection: Connection, schema: pa.Schema) -> list[tuple[str, str]]:
        """The columns that are written, and their types there."""

    @abstractmethod
    def _apply(self, connection: Connection, run: Run, parts: list[str]) -> None:
        """Take what is staged."""

    @abstractmethod
    def _apply_nothing(self, connection: Connection) -> None:
        """Take a run without rows."""

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
        with self._told(), open_lent(self._dsn) as connection:
            yield connection

    def _lock_mark(self, connection: Connection, run: Run) -> int:
        """Hold the mark to the end of the transaction; the number of the newest run that was taken."""
        connection.execute(mark.begin(run.mark, run.pipeline, 0))
        found = connection.execute(mark.take(run.mark)).fetchone()
        assert found is not None
        number: int = found[0]
        return number

    def _set_mark(self, connection: Connection, run: Run, attempt: int) -> None:
        connection.execute(mark.note(run.mark, run.pipeline, run.number, attempt))

    def _told(self) -> AbstractContextManager[None]:
        sink = self._pipeline.sink
        target = getattr(sink, "table", None) or f"queue {getattr(sink, 'queue', '')}"
        return told_by_postgres(self._pipeline.name, str(target))

    def _require_all(self, connection: Connection, run: Run, parts: list[str], rows: int) -> None:
        query = sql.SQL("select count(*) from {} where {} = any(%s)").format(
            _stage(run), sql.Identifier(_PART)
        )
        row = connection.execute(query, (parts,)).fetchone()
        if row is None or row[0] != rows:
            raise StageLost(
                f"{rows} rows of run {run.number} of pipeline {run.pipeline} were staged, and"
                f" {row and row[0]} are there: the server crashed meanwhile"
            )

    def _drop_old(self, connection: Connection, run: Run) -> None:
        """Stages of runs that are over; one that somebody still writes into waits for the next run."""
        prefix = _prefix(run)
        found = connection.execute(
            "select relname from pg_class where relnamespace = 'trunq_sink'::regnamespace and"
            " relkind = 'r' and starts_with(relname, %s)",
            (prefix,),
        ).fetchall()
        for (name,) in found:
            if int(name.removeprefix(prefix).split("_")[0]) >= run.number:
                continue
            try:
                with connection.transaction():
                    connection.execute("set local lock_timeout = '100ms'")
                    connection.execute(
                        sql.SQL("drop table if exists {}").format(sql.Identifier("trunq_sink", name))
                    )
            except LockNotAvailable:
                continue


class TableSink(PostgresSink):
    """A table."""

    def __init__(self, pipeline: Pipeline, dsn: str) -> None:
        super().__init__(pipeline, dsn)
        assert isinstance(pipeline.sink, Model)
        self._model = pipeline.sink
        with _of_pipeline(pipeline.name):
            table = catalog.identifier(self._model.table)
        self._target = Target(table, tuple(self._model.key), self._model.newest)

    def check(self) -> None:
        with self._connected() as connection:
            if catalog.is_there(connection, self._target.name):
                self._require_index(connection)

    def _apply(self, connection: Connection, run: Run, parts: list[str]) -> None:
        taken = {"upsert": upsert, "history": history}.get(self._model.mode, append)
        if self._model.mode == "replace":
            self._empty(connection)
        connection.execute(taken(self._target, self._columns, _stage(run), _PART), {"parts": parts})

    def _apply_nothing(self, connection: Connection) -> None:
        if self._model.mode == "replace" and catalog.is_there(connection, self._target.name):
            self._empty(connection)

    def _empty(self, connection: Connection) -> None:
        # Not TRUNCATE: it shows an empty table to readers with an older snapshot.
        connection.execute(sql.SQL("lock table {} in share row exclusive mode").format(self._target.table))
        connection.execute(sql.SQL("delete from {}").format(self._target.table))

    def _fit(self, connection: Connection, schema: pa.Schema) -> list[tuple[str, str]]:
        """The columns that are written, with the types of the table; made or added where they are missing."""
        with _of_pipeline(self._pipeline.name):
            incoming = {field.name: postgres_type(field) for field in schema}
        needed = [*self._model.key, *([self._model.newest] if self._model.newest else [])]
        if missing := [name for name in needed if name not in incoming]:
            self._refuse(f'there is no column "{missing[0]}" in the rows; there are {", ".join(incoming)}')
        if self._model.mode == "history" and (own := [name for name in _VALID if name in incoming]):
            self._refuse(f'rows have a column "{own[0]}", which mode history writes itself')
        if not catalog.is_there(connection, self._target.name):
            self._create(connection, incoming)
        self._require_index(connection)
        there = catalog.columns(connection, self._target.name)
        generated = catalog.generated(connection, self._target.name)
        if ids := [name for name in incoming if generated.get(name) == "identity"]:
            self._refuse(
                f'column "{ids[0]}" of {self._target.name} is generated always as identity, and rows have it',
                f'alter table {self._target.name} alter "{ids[0]}" set generated by default',
            )
        # What the table works out by itself is left out.
        incoming = {name: kind for name, kind in incoming.items() if name not in generated}
        for name, kind in incoming.items():
            if name in there:
                if kind is not None and not catalog.fits(connection, kind, there[name].kind):
                    self._refuse(
                        f'column "{name}" of {self._target.name} is {there[name].kind} and comes as {kind}',
                        "change the type in the table, or cast the column in sql or function",
                    )
            elif kind is not None and self._pipeline.evolve == "add":
                query = sql.SQL("alter table {} add column if not exists {} {}")
                connection.execute(query.format(self._target.table, sql.Identifier(name), sql.SQL(kind)))
                there[name] = catalog.Column(name, kind, kind, kind)
            elif kind is not None and self._pipeline.evolve == "refuse":
                self._refuse(
                    f'column "{name}" is new: {self._target.name} has none', 'evolve = "add" adds it'
                )
        # What a history compares is as the table keeps it.
        exact = self._model.mode == "history"
        return [(n, there[n].kind if exact else there[n].cast) for n in incoming if n in there]

    def _create(self, connection: Connection, incoming: dict[str, str | None]) -> None:
        body: list[sql.Composable] = [
            sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(kind))
            for name, kind in incoming.items()
            if kind
        ]
        if missing := [name for name in self._model.key if incoming[name] is None]:
            self._refuse(f'nothing is known of the type of "{missing[0]}": it is null in all rows')
        keys = sql.SQL(", ").join(map(sql.Identifier, self._model.key))
        if self._model.mode == "history":
            body += [sql.SQL("valid_from timestamptz not null"), sql.SQL("valid_to timestamptz")]
            body.append(sql.SQL("primary key ({}, valid_from)").format(keys))
        elif self._model.key:
            body.append(sql.SQL("primary key ({})").format(keys))
        query = sql.SQL("create table if not exists {} ({})")
        connection.execute(query.format(self._target.table, sql.SQL(", ").join(body)))

    def _require_index(self, connection: Connection) -> None:
        if not self._model.key:
            return
        wanted = [*self._model.key, *(["valid_from"] if self._model.mode == "history" else [])]
        if not catalog.has_unique_index(connection, self._target.name, wanted):
            self._refuse(
                f"{self._target.name} has no unique index over {', '.join(wanted)}, by which its"
                f" rows are found",
                f"create unique index on {self._target.name} ({', '.join(wanted)})",
            )

    def _refuse(self, why: str, advice: str | None = None) -> None:
        raise InvalidPipeline(f"pipeline {self._pipeline.name}: {why}", advice)


@contextmanager
def _of_pipeline(name: str) -> Iterator[None]:
    """An argument that a table cannot take is a pipeline that cannot be."""
    try:
        yield
    except InvalidArgument as error:
        raise InvalidPipeline(f"pipeline {name}: {error.message}", error.hint) from None


def _prefix(run: Run) -> str:
    return f"stage_{hashlib.sha256(run.mark.encode()).hexdigest()[:16]}_"


def _stage_name(run: Run) -> str:
    return f"{_prefix(run)}{run.number}_{run.attempt}"


def _stage(run: Run) -> sql.Identifier:
    return stage_of(run, run.attempt)


def stage_of(run: Run, attempt: int) -> sql.Identifier:
    """The stage of an attempt at a run."""
    return sql.Identifier("trunq_sink", f"{_prefix(run)}{run.number}_{attempt}")
