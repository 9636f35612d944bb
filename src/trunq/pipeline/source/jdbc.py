"""A table, or a query, of a database that Spark reads by JDBC: all of it each time, or what is behind a
cursor.

No snapshot says what is new there. A cursor column does, as far as it can: a slice goes from its largest
value in the last run to the largest one now. A row that is committed later with a smaller value is in no
slice; with `lag` each slice begins so much earlier. Tasks read their shares over connections of their own:
what is written meanwhile is in some of them.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Iterator
from decimal import Decimal
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from trunq.errors import InvalidPipeline
from trunq.pipeline.control import Control
from trunq.pipeline.definition.jdbc import JdbcSource as Model
from trunq.pipeline.definition.jdbc import place_of
from trunq.pipeline.definition.pipeline import Pipeline
from trunq.pipeline.jdbc.database import Naming, parts_of
from trunq.pipeline.jdbc.driver import (
    Connection,
    class_of,
    connected,
    properties_of,
    running_session,
    telling,
    url_of,
)
from trunq.pipeline.jdbc.span import FLOATS, Kind, kind_of, literal, shared, value_of
from trunq.pipeline.source import Context, Foreseen, Plan, Source, State

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger("trunq.pipeline")

_FETCH: Final = "10000"
"""Rows that a driver asks for at once; some would fetch all."""

_LIMITED: Final = ("postgresql", "mariadb", "mysql")

_ROWS: Final = {
    "postgresql": "select reltuples::bigint from pg_class where oid = to_regclass(?) and reltuples >= 0",
    "mysql": "select table_rows from information_schema.tables where table_schema = ? and table_name = ?",
}

_warned: Final[set[tuple[str, str]]] = set()


class JdbcSource(Source):
    """A table or a query."""

    def __init__(self, pipeline: Pipeline, dsn: str, control: Control | None) -> None:  # noqa: ARG002
        assert isinstance(pipeline.source, Model)
        self._pipeline, self._model = pipeline.name, pipeline.source
        self._naming = Naming(self._model.kind)
        self._table = parts_of(pipeline.name, self._model.table) if self._model.table else None
        self._schema: pa.Schema | None = None

    @property
    def _query(self) -> str:
        return f"select * from {self._naming.named(self._table)}" if self._table else self._model.query

    def plan(self, state: State) -> Plan:
        with connected(self._pipeline, self._model) as connection:
            if self._model.cursor is None:
                return Plan({"all": True, **self._bounds(connection)}, {})
            plan = self._plan_cursor(connection, self._model.cursor, state)
            for sentence in self._costs(connection):
                if (self._pipeline, sentence) not in _warned:
                    _warned.add((self._pipeline, sentence))
                    log.warning("pipeline %s: %s", self._pipeline, sentence)
        return plan

    def foresee(self, state: State) -> Foreseen:
        slice = self.plan(state).slice
        return Foreseen(None, 0, is_exact=True) if slice is None else self.estimate(slice)

    def estimate(self, slice: dict[str, Any]) -> Foreseen:
        """How many rows a slice has: counted, but for a whole table."""
        with connected(self._pipeline, self._model) as connection:
            if slice.get("all"):
                return Foreseen(slice, self._rows(connection))
            count = connection.one(f"select count(*) from ({self._query}) trunq_q{self._where(slice)}")
        return Foreseen(slice, int(count or 0), is_exact=True)

    def notes(self) -> list[str]:
        """What is to be known of it before it is read."""
        if self._model.cursor is None:
            return []
        with connected(self._pipeline, self._model) as connection:
            found = self._costs(connection)
        if self._model.lag is None:
            found.append(
                f"what is committed after a run, with a {self._model.cursor} that is not larger than all"
                " which that run has seen, is never read: lag, with mode = 'upsert', reads it"
            )
        return found

    def plan_range(self, range: dict[str, Any]) -> dict[str, Any]:
        if set(range) != {"column", "from", "to"} or not all(
            isinstance(each, str) for each in range.values()
        ):
            raise InvalidPipeline(
                f"pipeline {self._pipeline}: a range of format = 'jdbc' has column, from and to (which is not"
                " in it), as text",
                '{"column": "day", "from": "2030-01-01", "to": "2030-02-01"}',
            )
        with connected(self._pipeline, self._model) as connection:
            self._kind(connection, range["column"])
        for end in ("from", "to"):
            value_of(self._pipeline, range[end])
        return {"range": range}

    def schema(self, slice: dict[str, Any]) -> pa.Schema:  # noqa: ARG002  # as all sources
        """The columns, as Spark reads them."""
        if self._schema is None:
            from trunq.pipeline.work.schema import sink_schema  # noqa: PLC0415  # needs pyspark

            with connected(self._pipeline, self._model) as connection:
                # Asked by Spark alone, a table that is not there would be told in words of Spark.
                connection.kinds(self._query)
            with telling(self._pipeline, place_of(self._model)):
                frame = self.frame(running_session(), {}, 1)
            self._schema = sink_schema(self._pipeline, frame.schema)
        return self._schema

    def read(self, slice: dict[str, Any], context: Context) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        raise AssertionError("Spark reads it")

    def frame(self, session: SparkSession, slice: dict[str, Any], at_most: int) -> DataFrame:
        """A slice as a frame, read in shares."""
        condition = self._where(slice, "")
        shares = [
            " and ".join(filter(None, (condition, share))) or "1 = 1"
            for share in self._shares(slice, self._model.shares or at_most)
        ]
        options = {"driver": class_of(self._model), "fetchsize": _FETCH, "preferTimestampNTZ": "true"}
        return session.read.jdbc(
            url_of(self._model),
            f"({self._query}) trunq_q",
            predicates=shares,
            properties={**options, **properties_of(self._model)},
        )

    def _shares(self, slice: dict[str, Any], at_most: int) -> list[str]:
        if "share_by" not in slice or at_most < 2:
            return [""]
        name, kind = self._naming.quote(slice["share_by"]), Kind(slice["kind"])
        marks = [
            literal(self._model.kind, kind, each) for each in shared(slice["least"], slice["most"], at_most)
        ]
        if not marks:
            return [""]
        inner = [f"{name} >= {low} and {name} < {high}" for low, high in pairwise(marks)]
        # Of rows without a value, the first share.
        return [f"({name} < {marks[0]} or {name} is null)", *inner, f"{name} >= {marks[-1]}"]

    def _where(self, slice: dict[str, Any], before: str = " where ") -> str:
        parts = []
        if (range := slice.get("range")) is not None:
            parts = [
                f"{self._naming.quote(range['column'])} {sign} {self._literal(range[end])}"
                for sign, end in ((">=", "from"), ("<", "to"))
            ]
        elif "to" in slice:
            name = self._naming.quote(str(self._model.cursor))
            if slice["from"] is not None:
                parts.append(f"{name} {'>=' if slice['again'] else '>'} {self._literal(slice['from'])}")
            parts.append(f"{name} <= {self._literal(slice['to'])}")
        return before + " and ".join(parts) if parts else ""

    def _literal(self, text: str) -> str:
        """A value of a slice as SQL: it is a number or a time."""
        value = value_of(self._pipeline, text)
        kind = Kind.NUMBER if isinstance(value, Decimal) else Kind.DAY if len(text) == 10 else Kind.TIME
        return literal(self._model.kind, kind, text)

    def _plan_cursor(self, connection: Connection, cursor: str, state: State) -> Plan:
        kind = self._kind(connection, cursor)
        self._require_exact(connection, cursor)
        self._require_lag(kind)
        name, query = self._naming.quote(cursor), f"from ({self._query}) trunq_q"
        limit = " limit 1" if self._model.kind in _LIMITED else ""
        what = "1" if limit else "count(*)"
        if connection.one(f"select {what} {query} where {name} is null{limit}") not in (None, "0"):
            raise InvalidPipeline(
                f'pipeline {self._pipeline}: "{cursor}" is null in a row, which a cursor never finds',
                f"query = 'select ... where {cursor} is not null' says that such rows are not wanted",
            )
        before = state.get("cursor")
        low = before if before is None or self._model.lag is None else self._earlier(before, kind)
        again = self._model.lag is not None
        sign = ">=" if again else ">"
        behind = "" if low is None else f" where {name} {sign} {self._literal(low)}"
        most = connection.one(f"select max({name}) {query}{behind}")
        if most is None:
            return Plan(None, state)
        newest = value_of(self._pipeline, most)
        if before is not None and value_of(self._pipeline, before) > newest:
            # The rows that had it are gone.
            most = before
        slice = {"from": low, "to": most, "again": again}
        least = low or connection.one(f"select min({name}) {query}")
        share = self._model.share_by
        bounds = (
            self._range(connection, share, self._where(slice))
            if share
            else {"share_by": cursor, "kind": kind.value, "least": least, "most": most}
        )
        return Plan({**slice, **bounds}, {"cursor": most})

    def _require_exact(self, connection: Connection, cursor: str) -> None:
        """Refuse a cursor whose text may be another value than its own."""
        if dict(connection.kinds(self._query))[cursor] in FLOATS:
            raise InvalidPipeline(
                f'pipeline {self._pipeline}: "{cursor}" of {self._model.table or "the query"} holds floats,'
                " which databases write rounded: a cursor would read rows again, or miss them",
                "take a column of whole numbers, decimals or times, or a query that makes it one: query ="
                f" 'select t.*, cast({cursor} as decimal(30,10)) as place from ... t', cursor = 'place'",
            )

    def _require_lag(self, kind: Kind) -> None:
        lag, is_number = self._model.lag, kind is Kind.NUMBER
        if lag is not None and isinstance(lag, dt.timedelta) == is_number:
            given, there = ("a length of time", "numbers") if is_number else ("a number", "times")
            raise InvalidPipeline(
                f"pipeline {self._pipeline}: lag is {given}, and {self._model.cursor} is a column of {there}",
                "write the lag as the column has it: lag = 1000, or lag = '1 hour'",
            )

    def _earlier(self, text: str, kind: Kind) -> str:
        lag, value = self._model.lag, value_of(self._pipeline, text)
        if isinstance(value, Decimal):
            return str(value - Decimal(str(lag)))
        assert isinstance(lag, dt.timedelta)
        # A day that has begun is one.
        return str((value - lag).date() if kind is Kind.DAY else value - lag)

    def _kind(self, connection: Connection, column: str) -> Kind:
        kinds = dict(connection.kinds(self._query))
        what = self._model.table or "the query"
        if column not in kinds:
            raise InvalidPipeline(
                f'pipeline {self._pipeline}: {what} has no column "{column}"; it has {", ".join(kinds)}'
            )
        if (kind := kind_of(kinds[column])) is None:
            raise InvalidPipeline(
                f'pipeline {self._pipeline}: "{column}" of {what} holds no numbers, days or times',
                "take a column that does, or a query that casts it",
            )
        return kind

    def _bounds(self, connection: Connection) -> dict[str, Any]:
        """By which column a whole table is shared, from where to where; {}: it is not."""
        column = self._model.share_by
        if column is None:
            key = connection.primary_key(self._table) if self._table else []
            kinds = dict(connection.kinds(self._query)) if len(key) == 1 else {}
            if not kinds or kind_of(kinds.get(key[0], 0)) is not Kind.NUMBER:
                # That there is such a table is asked here, where nothing else has.
                connection.kinds(self._query)
                return {}
            column = key[0]
        return self._range(connection, column, "")

    def _range(self, connection: Connection, column: str, where: str) -> dict[str, Any]:
        kind, name = self._kind(connection, column), self._naming.quote(column)
        ((least, most),) = connection.rows(
            f"select min({name}), max({name}) from ({self._query}) trunq_q{where}"
        )
        if least is None:
            return {}
        return {"share_by": column, "kind": kind.value, "least": least, "most": most}

    def _costs(self, connection: Connection) -> list[str]:
        """What reading behind the cursor costs where it costs much."""
        cursor = self._model.cursor
        if self._table is None or cursor is None:
            return []
        if any(index[:1] == [cursor] for index in connection.indexed(self._table)):
            return []
        rows = self._rows(connection)
        many = "all its rows" if rows is None else f"all its rows, about {rows:,},"
        name = self._model.table
        return [
            f"no index of {name} begins with {cursor}: each run reads {many} to find the new ones; create"
            f" index on {name} ({cursor}) where that is much"
        ]

    def _rows(self, connection: Connection) -> int | None:
        """About how many rows the table has, as its database knows without counting."""
        if self._table is None or self._model.kind not in _LIMITED:
            return None
        if self._model.kind == "postgresql":
            found = connection.one(_ROWS["postgresql"], self._naming.named(self._table))
        else:
            schema, table = self._table
            query = _ROWS["mysql"] if schema else _ROWS["mysql"].replace("= ?", "= database()", 1)
            given = (schema, table) if schema else (table,)
            found = connection.one(
                query if schema else query.replace("coalesce(?, database())", "database()"), *given
            )
        return None if found is None else int(found)
