"""Writing rows of Spark into a table or a queue, by one of three protocols.

staged     Each task copies its rows into an unlogged table that nobody reads. The driver takes them in one
           transaction, with a mark that says which version (or batch of a stream) they are: all or nothing,
           and a version that is repeated adds nothing. Rows of tasks whose messages did not reach the driver
           (killed, repeated, speculative ones) are in no list of parts and are never taken.
partition  Each task copies straight into the target and leaves a mark of its partition in the same
           transaction: a repeated task adds nothing, if its partition has the same rows again.
direct     Each task copies straight into the target: what Spark repeats is there twice.

A batch without txnAppId is a series of its own, by a random name, so that a commit whose answer was lost is
not made twice. The stage of a job that died is dropped by a later commit, of the same series or after three
days.
"""

from __future__ import annotations

import logging
import random
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final
from urllib.parse import quote

import psycopg
import pyarrow as pa
from psycopg import sql

from trunq.arrow import mark
from trunq.arrow.catalog import is_there
from trunq.arrow.copy import tagged
from trunq.arrow.stage import count, drop
from trunq.arrow.statement import PART, written
from trunq.errors import TrunqError
from trunq.spark.connection import AT_FIRST, LATER, Connection, Database
from trunq.spark.errors import SinkRefused, StageLost
from trunq.spark.sink.commit import choose, refusal, session
from trunq.spark.sink.option import DIRECT, PARTITION, STAGED, SinkOptions
from trunq.spark.sink.queue import QueueTarget
from trunq.spark.sink.stage import clean, make_stage, stage_name
from trunq.spark.sink.target import TableTarget
from trunq.spark.writer import TaskResult

Target = TableTarget | QueueTarget

log: Final = logging.getLogger(__name__)

NOTHING: Final = -1
"""Before version 0."""


@dataclass(frozen=True, slots=True)
class Series:
    """Numbered writes of one application into one target, and which of them this is."""

    app: str
    mark: str
    version: int

    def of_partition(self, number: int) -> Series:
        """A series of each partition."""
        return Series(self.app, f"{self.mark}:{number}", self.version)


@dataclass
class Written(TaskResult):
    """What one task wrote: into which stage, as which part."""

    series: Series
    rows: int = 0
    stage: str | None = None
    part: int = 0


@dataclass
class Sink:
    """A target and how it is written to; made on the driver, copied to the tasks."""

    options: SinkOptions
    target: Target
    replaces: bool
    job: str = field(default_factory=lambda: uuid.uuid4().hex)
    began: int = field(default_factory=lambda: int(time.time()))

    @classmethod
    def plan(cls, options: SinkOptions, columns: pa.Schema, *, replaces: bool) -> Sink:
        """Asks the database whether rows of these columns can be written, and makes what is missing."""

        def ask(connection: Connection) -> Target:
            if options.queue is not None:
                target: Target = QueueTarget(options, columns, connection)
            else:
                target = table = TableTarget(options, columns, connection)
                if table.is_new and _has_marks(connection, options.stage_schema):
                    # Marks of a table of that name that was dropped.
                    connection.execute(
                        sql.SQL("delete from {} where starts_with(mark, {})").format(
                            sql.Identifier(options.stage_schema, "mark"),
                            sql.Literal(f"spark:{target.identity}:"),
                        )
                    )
            if options.protocol != DIRECT:
                _make_marks(connection, options.stage_schema)
            return target

        what = f'queue "{options.queue}"' if options.queue else f"table {options.table}"
        return cls(options, _run(options, what, ask, AT_FIRST), replaces)

    def series(self, app: str | None = None, version: int = 0) -> Series:
        """That of an application, unless options name another; None: of this job alone."""
        app, version = self.options.app_id or app, self.options.version or version
        if app is None:
            return Series(f"job {self.job}", f"spark:{self.target.identity}:job:{self.job}", version)
        # Quoted, so that no name of an application is that of a partition of another.
        return Series(app, f"spark:{self.target.identity}:app:{quote(app, safe='')}", version)

    def write(self, batches: Iterable[pa.RecordBatch], series: Series, partition: int) -> Written:
        """Writes the rows of one task."""
        found = (self.target.convert(batch) for batch in batches if batch.num_rows)
        first = next(found, None)
        if first is None:
            return Written(series, 0)
        rows = chain([first], found)
        if self.options.protocol == STAGED:
            return self._stage(rows, first.schema, series)
        return self._copy(rows, first.schema, series.of_partition(partition))

    def commit(self, written: Sequence[Written], series: Series) -> bool:
        """Takes what was staged, and its mark; False if that version was taken before."""
        if self.options.protocol != STAGED:
            self._forget(series)
            return True
        parts: dict[str, list[Written]] = {}
        for each in written:
            if each.stage is not None:
                parts.setdefault(each.stage, []).append(each)
        taken: bool = _run(
            self.options, self.target.what, lambda connection: self._take(connection, parts, series), LATER
        )
        self.clean(series, list(parts))
        return taken

    def clean(self, series: Series, stages: Sequence[str]) -> None:
        """Drops stages that are of no more use; what cannot be dropped now is left to the next commit."""
        schema = self.options.stage_schema

        def work(connection: Connection) -> None:
            for name in stages:
                drop(connection, schema, name)
            clean(connection, schema, series.mark, series.version)

        try:
            _run(self.options, self.target.what, work, AT_FIRST)
        except TrunqError as error:
            log.info("stages are left to the next commit: %s", error.message)

    def abort(self, written: Sequence[Written]) -> None:
        """Drops what the tasks of a job that failed had staged."""
        if written and self.options.protocol == STAGED:
            self.clean(written[0].series, list({each.stage for each in written if each.stage}))

    def _take(self, connection: Connection, parts: dict[str, list[Written]], series: Series) -> bool:
        schema = self.options.stage_schema
        if mark.hold(connection, series.mark, series.app, NOTHING, schema) >= series.version:
            return False
        for stage, messages in parts.items():
            self._require_all(connection, stage, messages)
        if self.replaces:
            self.target.empty(connection)
        for stage, messages in parts.items():
            numbers = [each.part for each in messages]
            taken = self.target.take(connection, written(schema, stage), numbers)
            left = sum(each.rows for each in messages) - taken
            if left and self.options.queue is not None:
                log.warning(
                    "%s: %s messages were left out: others hold their unique keys", self.target.what, left
                )
        connection.execute(mark.note(series.mark, series.app, series.version, schema=schema))
        return True

    def _require_all(self, connection: Connection, stage: str, messages: Sequence[Written]) -> None:
        rows = sum(each.rows for each in messages)
        there = count(connection, self.options.stage_schema, stage, [each.part for each in messages])
        if there != rows:
            raise StageLost(
                f"{rows} rows for {self.target.what} were staged, and {there} are there:"
                " the server crashed meanwhile",
                "nothing was written; start the job again. A stream repeats the batch by itself",
            )

    def _stage(self, rows: Iterator[pa.RecordBatch], columns: pa.Schema, series: Series) -> Written:
        stage = stage_name(series.mark, series.version, self.began, self.job)
        part = random.getrandbits(62)
        engine, rows = choose(self.options.engine, rows, is_exact=True)
        try:
            with self._session(engine) as own:
                number = make_stage(
                    own, self.options.stage_schema, stage, self.target.stage_columns, series.mark
                )
                if number is not None and number >= series.version:
                    _drain(rows)
                    return Written(series, 0)
                with_part, found = tagged(rows, columns, PART, part)
                copied = own.copy(self.options.stage_schema, stage, with_part, found)
        except SinkRefused:
            # Another job with the same version may have been first, and dropped our stage.
            with self._session("psycopg") as own:
                known = own.execute(mark.read(series.mark, self.options.stage_schema))
            if known is None or known[0] < series.version:
                raise
            _drain(rows)
            return Written(series, 0)
        return Written(series, copied, stage, part)

    def _copy(self, rows: Iterator[pa.RecordBatch], columns: pa.Schema, series: Series) -> Written:
        schema = self.options.stage_schema
        engine, rows = choose(self.options.engine, rows, is_exact=self.target.is_exact)
        with self._session(engine) as own:
            own.execute(mark.LASTING)
            if self.options.protocol == PARTITION:
                own.execute(mark.begin(series.mark, series.app, NOTHING, schema))
                found = own.execute(mark.take(series.mark, schema))
                if found is not None and found[0] >= series.version:
                    _drain(rows)
                    return Written(series, 0)
            copied = own.copy(self.target.schema, self.target.table, columns, rows)
            if self.options.protocol == PARTITION:
                own.execute(mark.note(series.mark, series.app, series.version, schema=schema))
        return Written(series, copied)

    def _forget(self, series: Series) -> None:
        """The marks of a batch that is over and has no name to be repeated by."""
        if self.options.protocol == PARTITION and ":job:" in series.mark:
            self.clean(series, [])

    def _session(self, engine: str) -> Any:
        return session(self.options.address(), engine, self.target.what)


def _drain(rows: Iterator[Any]) -> None:
    for _ in rows:
        pass


def _run(options: SinkOptions, what: str, work: Any, patience: float) -> Any:
    """Runs work of the driver in a transaction; what Postgres refuses is a `SinkRefused`."""
    address = options.address()
    database = Database(lambda: address, patience)
    try:
        return database.run(work)
    except psycopg.Error as error:
        raise refusal(error, what, address) or error from None
    finally:
        database.close()


def _has_marks(connection: Connection, schema: str) -> bool:
    return is_there(connection, sql.Identifier(schema, "mark").as_string(None))


def _make_marks(connection: Connection, schema: str) -> None:
    """The schema and the table of marks, and the rights that staging needs."""
    try:
        with connection.transaction():
            mark.make_marks(connection, schema)
    except psycopg.errors.InsufficientPrivilege as error:
        raise _no_stage(schema, str(error.diag.message_primary)) from None
    row = connection.execute(
        "select has_schema_privilege(%(s)s, 'create') and has_schema_privilege(%(s)s, 'usage'),"
        " has_table_privilege(%(t)s, 'select,insert') and has_table_privilege(%(t)s, 'update')"
        " and has_table_privilege(%(t)s, 'delete')",
        {"s": schema, "t": sql.Identifier(schema, "mark").as_string(None)},
    ).fetchone()
    if row is None or not all(row):
        raise _no_stage(schema, "its rights are not enough")


def _no_stage(schema: str, why: str) -> SinkRefused:
    return SinkRefused(
        f"this role cannot stage rows and keep marks in schema {schema}: {why}",
        "let the owner of the database make a schema of its own for the role, create schema etl authorization"
        " <role>, and name it by stageSchema; or choose commitProtocol direct, which needs none",
    )
