"""A table of Postgres, MariaDB or MySQL that Spark writes by JDBC: tasks write into a stage, a table of the
attempt in the same database, each under a part of its own; one transaction takes the parts that the run names
and its mark.

A task that was killed, or done twice, leaves rows of a part that nobody names. MariaDB commits before and
after each statement that makes or drops a table, so these come before the transaction, and after it. What
killed attempts left is dropped when a newer run begins.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from trunq.arrow import mark
from trunq.arrow.value import TYPE
from trunq.errors import InvalidPipeline
from trunq.pipeline.control import Run
from trunq.pipeline.definition.jdbc import NO_WIDENING, WIDEN_YOURSELF
from trunq.pipeline.definition.jdbc import JdbcSink as Model
from trunq.pipeline.definition.pipeline import Pipeline
from trunq.pipeline.errors import DatabaseFailed, StageLost
from trunq.pipeline.figures import SinkColumns
from trunq.pipeline.jdbc.database import MARK, PART, ROW, Column, database_of, parts_of
from trunq.pipeline.jdbc.driver import Connection, class_of, connected, properties_of, url_of
from trunq.pipeline.jdbc.held import held
from trunq.pipeline.sink import Mark
from trunq.pipeline.sink.widening import wider
from trunq.pipeline.work.schema import for_frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_PATIENCE: Final = 5
"""Seconds: a commit that was cut off may still be at the stage."""


_LONG: Final = {"bigint": "long", "int": "integer", "smallint": "short", "tinyint": "byte"}


class Foreseen(NamedTuple):
    """What becomes of the columns of a table."""

    there: dict[str, str]
    """With the names that they will have."""
    coming: dict[str, str]
    renamed: dict[str, str]
    wider: dict[str, str]


class JdbcSink:
    """A table."""

    def __init__(self, pipeline: Pipeline, dsn: str) -> None:  # noqa: ARG002  # as all sinks
        assert isinstance(pipeline.sink, Model)
        self._pipeline, self._model = pipeline, pipeline.sink
        self._database = database_of(pipeline.sink)
        self._table = parts_of(pipeline.name, pipeline.sink.table)
        self._mark = (self._table[0], MARK)
        self._columns: dict[str, Column] = {}
        """Those that are written, as the table has them."""

    def check(self) -> None:
        self._require_widening()
        with self._connected() as connection:
            columns = self._database.columns(connection, self._table)
            # An index over a column gets its new name with it.
            is_renamed = bool({*self._pipeline.evolve.rename.values()} & {*self._model.key})
            if columns and not is_renamed:
                self._require_fit(connection, columns)

    def applied(self, run: Run) -> Mark:
        with self._connected() as connection:
            if not self._database.columns(connection, self._mark):
                return Mark()
            rows = connection.rows(
                f"select number, attempt from {self._database.named(self._mark)} where name = ?", run.mark
            )
        return Mark(*(int(each or 0) for each in rows[0])) if rows else Mark()

    def columns(self) -> pa.Schema | None:
        with self._connected() as connection:
            there = self._database.columns(connection, self._table)
        return held(self._database, there) if there else None

    def begin(self, run: Run, schema: pa.Schema) -> SinkColumns | None:
        kinds = self.kinds(schema)
        with self._connected() as connection:
            self._make_marks(connection)
            there = self._database.columns(connection, self._table)
            if not there:
                self._require_number_keys(schema)
                self._make(connection, kinds)
                there = self._database.columns(connection, self._table)
            there = self._altered(connection, there, kinds)
            self._require_fit(connection, there, list(kinds))
            if new := {name: kind for name, kind in kinds.items() if name not in there}:
                there = self._evolved(connection, there, new)
            self._columns = {name: there[name] for name in kinds if name in there}
            self._drop_old(connection, run)
            self._make_stage(connection, run, self._staged(schema))
        return {name: column.kind for name, column in self._columns.items()}

    def stage(self, run: Run, part: str, batches: Iterable[pa.RecordBatch]) -> int:  # noqa: ARG002
        raise AssertionError("Spark writes it")

    def write(self, run: Run, frame: DataFrame) -> None:
        """Write rows with their parts into the stage, in Spark's tasks."""
        options = {"driver": class_of(self._model), "batchsize": "10000", "isolationLevel": "READ_COMMITTED"}
        frame.write.jdbc(
            url_of(self._model),
            self._database.named(self._stage(run)),
            mode="append",
            properties={**options, **properties_of(self._model)},
        )

    def commit(self, run: Run, parts: list[str], rows: int) -> bool:
        database = self._database
        with self._connected() as connection:
            # A cancelled run has made nothing ready.
            self._make_marks(connection)
            connection.execute(database.hold_mark(self._mark), run.mark, run.pipeline)
            with connection.transaction():
                # One that is frozen, or cut off, is not to keep the mark from others.
                connection.execute(database.limit(mark.PATIENCE))
                if self._lock_mark(connection, run) >= run.number:
                    return False
                if parts:
                    self._require_all(connection, run, parts, rows)
                    self._take(connection, run, parts)
                self._set_mark(connection, run)
            # From here on nobody needs it: whatever keeps it from being dropped, the next run drops it.
            self._drop(connection, [self._stage(run)[1]])
        return True

    def discard(self, run: Run) -> None:
        with self._connected() as connection:
            connection.execute(self._database.patience(_PATIENCE))
            connection.execute(f"drop table if exists {self._database.named(self._stage(run))}")

    def clear(self, run: Run) -> bool:
        with self._connected() as connection:
            return self._drop_old(connection, run)

    def kinds(self, schema: pa.Schema) -> dict[str, str]:
        """The types that columns of a schema have in a table that is made. Raises InvalidPipeline."""
        kinds = {}
        for field, given in zip(
            for_frame(pa.RecordBatch.from_pylist([], schema)).schema, schema, strict=True
        ):
            named = _spark_name(field.type)
            was = (given.metadata or {}).get(TYPE, b"").decode()
            in_key = field.name in self._model.key
            kind = self._database.made_as(named, was, in_key=in_key)
            if kind is None:
                raise InvalidPipeline(
                    f'pipeline {self._pipeline.name}: column "{field.name}" is {named}, which format ='
                    " 'jdbc' does not write",
                    f"sql = ['select ..., to_json({field.name}) as {field.name} from input'] makes it a text",
                )
            kinds[field.name] = kind
        needed = [*self._model.key, *([self._model.newest] if self._model.newest else [])]
        if missing := next((name for name in needed if name not in kinds), None):
            raise InvalidPipeline(
                f'pipeline {self._pipeline.name}: there is no column "{missing}" in the rows; there are'
                f" {', '.join(kinds)}"
            )
        return kinds

    def _require_number_keys(self, schema: pa.Schema) -> None:
        """Refuse to make a table whose key is a text that was a number. Raises InvalidPipeline."""
        for field in schema if not self._database.is_postgres else ():
            was = (field.metadata or {}).get(TYPE, b"").decode()
            if field.name in self._model.key and was == "numeric":
                raise InvalidPipeline(
                    f'pipeline {self._pipeline.name}: "{field.name}" of the key is numeric without digits,'
                    " which would be a text there, and 1.0 and 1.00 two keys",
                    f'cast it: columns = {{cast = {{{field.name} = "decimal(38,10)"}}}}; or make the table',
                )

    def _staged(self, schema: pa.Schema) -> dict[str, str]:
        """The types that columns have in a stage: as Spark gives them; it is the table that refuses."""
        made = {}
        for field in for_frame(pa.RecordBatch.from_pylist([], schema)).schema:
            named = _spark_name(field.type)
            made[field.name] = str(self._database.made_as(named))
        return made

    def foresee(self, schema: pa.Schema | None) -> Foreseen:
        """The columns of the table, if it is there, those that come, and what is altered for them."""
        self._require_widening()
        with self._connected() as connection:
            there = self._database.columns(connection, self._table)
            coming = {} if schema is None else self.kinds(schema)
            renamed = self._pipeline.evolve.renamed(there, coming)
            if there and not {*renamed.values()} & {*self._model.key}:
                self._require_fit(connection, there, list(coming) or None)
        if not there and schema is not None:
            self._require_number_keys(schema)
        named = {renamed.get(name, name): column for name, column in there.items()}
        kinds = {name: column.kind for name, column in named.items()}
        return Foreseen(kinds, coming, renamed, self._widened(named, coming))

    def _altered(
        self, connection: Connection, there: dict[str, Column], kinds: dict[str, str]
    ) -> dict[str, Column]:
        """The columns of the table, once they have the names and types that the pipeline asks for."""
        database, evolve = self._database, self._pipeline.evolve
        if not evolve.renamed(there, kinds) and not self._widened(there, kinds):
            return there
        table = database.named(self._table)
        connection.execute(database.patience(_PATIENCE))
        with connection.transaction():
            connection.execute(database.limit(mark.PATIENCE))
            if database.is_postgres:
                # Two pipelines that widen one column would else leave it with the narrower type.
                connection.execute(f"lock table {table} in access exclusive mode")
                there = database.columns(connection, self._table)
            for old, new in evolve.renamed(there, kinds).items():
                names = f"{database.quote(old)} to {database.quote(new)}"
                connection.execute(f"alter table {table} rename column {names}")
            there = database.columns(connection, self._table)
            for name, kind in self._widened(there, kinds).items():
                connection.execute(f"alter table {table} alter column {database.quote(name)} type {kind}")
        return database.columns(connection, self._table)

    def _widened(self, there: dict[str, Column], kinds: dict[str, str]) -> dict[str, str]:
        """Columns that get wider types, with these."""
        return {
            name: to
            for name, kind in kinds.items()
            if name in there
            and self._pipeline.evolve.of_type(name) == "widen"
            and (to := wider(there[name].kind, kind)) is not None
        }

    def _require_widening(self) -> None:
        """Refuse it where a column would lose what it is besides. The URL may be known only by now."""
        if self._pipeline.evolve.widens and not self._database.is_postgres:
            raise InvalidPipeline(f"pipeline {self._pipeline.name}: {NO_WIDENING}", WIDEN_YOURSELF)

    def _connected(self) -> Any:
        return connected(self._pipeline.name, self._model)

    def _make_marks(self, connection: Connection) -> None:
        """The table of marks is there afterwards: a role that may not make it may use one that was made."""
        if self._database.columns(connection, self._mark):
            return
        try:
            connection.execute(self._database.make_mark(self._mark))
        except DatabaseFailed:
            # Two who make a table at the same time may fail both but one.
            if not self._database.columns(connection, self._mark):
                raise

    def _make(self, connection: Connection, kinds: dict[str, str]) -> None:
        quote, key = self._database.quote, self._model.key
        body = [f"{quote(name)} {kind}{' not null' if name in key else ''}" for name, kind in kinds.items()]
        if key:
            body.append(f"primary key ({self._database.listed(key)})")
        connection.execute(
            f"create table if not exists {self._database.named(self._table)} ({', '.join(body)})"
            f"{self._database.suffix}"
        )

    def _evolved(
        self, connection: Connection, there: dict[str, Column], new: dict[str, str]
    ) -> dict[str, Column]:
        evolve, table = self._pipeline.evolve.columns, self._model.table
        if evolve == "refuse":
            raise InvalidPipeline(
                f'pipeline {self._pipeline.name}: column "{next(iter(new))}" is new: {table} has none',
                'evolve = "add" adds it',
            )
        if evolve == "ignore":
            return there
        for name, kind in new.items():
            added = f"{self._database.quote(name)} {kind}"
            connection.execute(f"alter table {self._database.named(self._table)} add column {added}")
        return self._database.columns(connection, self._table)

    def _require_fit(
        self, connection: Connection, there: dict[str, Column], written: list[str] | None = None
    ) -> None:
        """Refuse a table that does not keep transactions, or does not find rows by the key alone."""
        name, table, key = self._pipeline.name, self._model.table, self._model.key
        if (engine := self._database.lacks_transactions(connection, self._table)) is not None:
            raise InvalidPipeline(
                f"pipeline {name}: {table} is kept by {engine}, which has no transactions, so rows and mark"
                " would not come in one step",
                f"alter table {table} engine = InnoDB",
            )
        if not key:
            return
        if (index := self._database.prefix_index(connection, self._table)) is not None:
            raise InvalidPipeline(
                f"pipeline {name}: the unique index {index} of {table} is over the beginning of a text, by"
                " which its database would take rows for the same that are not",
                "make the column a varchar, and the index over all of it",
            )
        unique = connection.indexed(self._table, unique=True)
        if sorted(key) not in [sorted(index) for index in unique]:
            raise InvalidPipeline(
                f"pipeline {name}: no unique index of {table} is over ({', '.join(key)}), by which mode ="
                " 'upsert' finds a row",
                f"create unique index on it: create unique index {table.split('.')[-1]}_key on {table}"
                f" ({', '.join(key)})",
            )
        others = [
            each for each in unique if sorted(each) != sorted(key) and set(each) & set(written or there)
        ]
        if others and not self._database.is_postgres and written is not None:
            raise InvalidPipeline(
                f"pipeline {name}: {table} has another unique index, over ({', '.join(others[0])}), by which"
                " its database would find rows to change as well",
                "drop it, or take it as key",
            )

    def _make_stage(self, connection: Connection, run: Run, kinds: dict[str, str]) -> None:
        database = self._database
        postgres = database.is_postgres
        columns = [f"{database.quote(name)} {kind}" for name, kind in kinds.items()]
        row = "bigint generated always as identity" if postgres else "bigint auto_increment primary key"
        connection.execute(
            f"create {'unlogged ' if postgres else ''}table {database.named(self._stage(run))}"
            f" ({', '.join(columns)}, {database.quote(PART)} varchar(36) not null,"
            f" {database.quote(ROW)} {row})"
            f"{database.suffix}"
        )

    def _lock_mark(self, connection: Connection, run: Run) -> int:
        """Hold the mark to the end of the transaction; the number of the newest run that was taken."""
        query = f"select number from {self._database.named(self._mark)} where name = ? for update"
        return int(connection.one(query, run.mark) or 0)

    def _require_all(self, connection: Connection, run: Run, parts: list[str], rows: int) -> None:
        there = connection.one(
            f"select count(*) from {self._database.named(self._stage(run))} where"
            f" {self._database.quote(PART)} in ({', '.join('?' * len(parts))})",
            *parts,
        )
        if int(there or 0) != rows:
            raise StageLost(
                f"{rows} rows of run {run.number} of pipeline {run.pipeline} were staged, and {there} are"
                " there: the server crashed meanwhile"
            )

    def _take(self, connection: Connection, run: Run, parts: list[str]) -> None:
        statement = self._database.take(
            self._table,
            self._columns,
            self._stage(run),
            len(parts),
            self._model.key,
            self._model.newest,
        )
        connection.execute(statement, *parts)

    def _set_mark(self, connection: Connection, run: Run) -> None:
        changed = connection.execute(
            f"update {self._database.named(self._mark)} set pipeline = ?, number = ?, attempt = ?"
            " where name = ?",
            run.pipeline,
            run.number,
            run.attempt,
            run.mark,
        )
        if changed != 1:
            raise DatabaseFailed(
                f"pipeline {run.pipeline}: {changed} rows of {self._database.named(self._mark)} were changed"
                f" to note run {run.number}, and one was to be: nothing of it is in {self._model.table}",
                f"see what deletes rows of {MARK}, or keeps them as they are; the run is tried again",
            )

    def _drop_old(self, connection: Connection, run: Run) -> bool:
        """Drop stages of runs that are over; False: somebody still writes into one, which waits."""
        prefix = _prefix(run)
        old = [
            name
            for name in self._database.tables(connection, self._table[0], prefix)
            if int(name.removeprefix(prefix).split("_")[0]) < run.number
        ]
        return self._drop(connection, old)

    def _drop(self, connection: Connection, names: list[str]) -> bool:
        if not names:
            return True
        connection.execute(self._database.patience(1))
        for name in names:
            try:
                connection.execute(f"drop table if exists {self._database.named((self._table[0], name))}")
            except DatabaseFailed:
                return False
        return True

    def _stage(self, run: Run) -> tuple[str | None, str]:
        return self._table[0], f"{_prefix(run)}{run.number}_{run.attempt}"


def _spark_name(kind: pa.DataType) -> str:
    """What Spark calls a type."""
    from pyspark.sql.pandas.types import from_arrow_type  # noqa: PLC0415

    named = from_arrow_type(kind, prefer_timestamp_ntz=True).simpleString()
    return _LONG.get(named, named)


def _prefix(run: Run) -> str:
    return f"trunq_stage_{hashlib.sha256(run.mark.encode()).hexdigest()[:16]}_"
