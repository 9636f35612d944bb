"""A table of Postgres: the rows that are visible in one snapshot and not in an older one.

The state is a snapshot of the source, taken before it is read. The next slice has what was inserted or
updated by whatever committed in between, in whatever order: a column's maximum would lose what commits late.
Deletes are not seen.

A slice is read in one query, or in shares of the table's blocks, at the same time. Rows stay where they are
unless the table is rewritten; then the shares are cut anew.

The state also lists the tables that hold the rows (leaf.py). One that is new is read whole: its rows may be
older than their table is part of this one, or has its name.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Final

import pyarrow as pa
from psycopg import sql

from trunq.arrow.catalog import identifier
from trunq.arrow.nested import noted
from trunq.arrow.reader import fetch
from trunq.arrow.value import NESTED, OF_POSTGRES, TYPE
from trunq.connection._sync.opening import open_connection
from trunq.connection.address import complete
from trunq.errors import InvalidArgument, InvalidPipeline
from trunq.pipeline.control import Control
from trunq.pipeline.definition.pipeline import Pipeline
from trunq.pipeline.definition.source import TableSource as Model
from trunq.pipeline.errors import SourceChanged
from trunq.pipeline.source import Context, Foreseen, Plan, Size, Source, State, leaf
from trunq.pipeline.source.nesting import Made, made_of
from trunq.pipeline.source.share import Piece, cut
from trunq.pipeline.source.window import Clock, Connection, between
from trunq.pipeline.work.column import require_known

log = logging.getLogger("trunq.pipeline")

# Of a domain the type behind it; then where to look for what an array or a composite is made of.
_COLUMNS: Final = """with recursive d(name, at, oid, modifier, dimensions) as (
  select attname, attnum, atttypid, atttypmod, attndims::integer from pg_attribute
  where attrelid = %s::regclass and attnum > 0 and not attisdropped
  union all select name, at, typbasetype, typtypmod, coalesce(nullif(typndims, 0), dimensions)::integer
  from d join pg_type t on t.oid = d.oid where typtype = 'd')
select name, format_type(d.oid, -1), typnamespace = 'pg_catalog'::regnamespace, format_type(d.oid, modifier),
  case when typcategory in ('A', 'C') then array[d.oid::bigint, modifier, dimensions] end
from d join pg_type t on t.oid = d.oid where typtype <> 'd' order by at"""

# The table itself, where it holds rows, and those below it.
_TABLES: Final = """with recursive below(oid) as (
  select %s::regclass::oid union select i.inhrelid from below b join pg_inherits i on i.inhparent = b.oid)
select c.oid::bigint, c.relkind::text, c.oid::regclass::text from below b join pg_class c on c.oid = b.oid
where c.relkind <> 'p' order by c.oid"""

_SIZES: Final = """select c.oid::bigint, pg_catalog.pg_relation_size(c.oid)
/ current_setting('block_size')::bigint,
coalesce(pg_catalog.pg_relation_filenode(c.oid)::bigint, 0), has_table_privilege(c.oid, 'select') and not
(row_security_active(c.oid) and c.oid <> %(table)s::regclass) and not
(row_security_active(%(table)s::regclass) and c.oid <> %(table)s::regclass)
from pg_class c where c.oid = any(%(oids)s::oid[]) order by c.oid"""

_SIZE: Final = """with recursive below(oid) as (
  select %(table)s::regclass::oid
  union select i.inhrelid from below b join pg_inherits i on i.inhparent = b.oid)
select coalesce(sum(pg_catalog.pg_relation_size(b.oid)), 0)::bigint / current_setting('block_size')::bigint,
  (select relkind::text from pg_class where oid = %(table)s::regclass) from below b"""
_PATIENCE: Final = "1s"
"""For which a look for others waits for a lock."""
_COUNTED_PAGES: Final = 12_800
"""100 MB: about what a look may read."""
_COUNTED_ROWS: Final = 10_000_000

# What was ever written into it and those below it, and their size: both grow with each slice.
_WRITTEN: Final = """(with recursive below(oid) as (
  select {table}::regclass::oid
  union select i.inhrelid from below b join pg_inherits i on i.inhparent = b.oid)
select array[
coalesce(sum(pg_stat_get_tuples_inserted(oid) + pg_stat_get_tuples_updated(oid)), 0)::bigint,
coalesce(sum(pg_table_size(oid)), 0)::bigint] from below)"""

# As the newest ANALYZE or VACUUM counted; a table that none has seen has -1.
_WHOLE: Final = """with recursive below(oid) as (
  select to_regclass(%s)::oid union select i.inhrelid from below b join pg_inherits i on i.inhparent = b.oid)
select case when min(c.reltuples) filter (where c.relkind <> 'p') >= 0
then (sum(c.reltuples) filter (where c.relkind <> 'p'))::bigint end, sum(pg_table_size(c.oid))::bigint
from below b join pg_class c on c.oid = b.oid where c.relkind in ('r', 'p', 'm')"""

_KINDS: Final = {
    "v": "a view",
    "m": "a materialized view",
    "f": "a foreign table",
    "S": "a sequence",
    "i": "an index",
}


class TableSource(Source):
    """A table."""

    def __init__(self, pipeline: Pipeline, dsn: str, control: Control | None) -> None:  # noqa: ARG002
        assert isinstance(pipeline.source, Model)
        self._name = pipeline.name
        self._model = pipeline.source
        self._chosen = pipeline.columns
        self._dsn = complete(self._model.dsn or dsn, f"trunq pipeline {pipeline.name}")
        self._clock = Clock(pipeline.name, is_elsewhere=self._model.dsn not in (None, dsn))
        try:
            self._table = identifier(self._model.table)
        except InvalidArgument as error:
            raise InvalidPipeline(error.message, error.hint) from None

    def plan(self, state: State) -> Plan:
        with self._connected() as connection:
            return self._plan(connection, state)

    def has_new(self, state: State) -> bool:
        """As `plan`; whoever asks does so for other pipelines, too, and waits for no lock of the table."""
        with self._connected() as connection, connection.transaction():
            connection.execute(sql.SQL("set local lock_timeout = {}").format(sql.Literal(_PATIENCE)))
            return self._plan(connection, state).slice is not None

    def _plan(self, connection: Connection, state: State) -> Plan:
        self._check_table(connection)
        if self._model.changes == "all":
            return Plan({"all": True}, {})
        after = self._clock.take(connection, state)
        slice = {"lo": state.get("snapshot"), "hi": after["snapshot"]}
        tables, is_one = self._tables(connection)
        leaf.tell(connection, tables, state, slice, after)
        is_known = leaf.alone(slice) if is_one else True
        if not is_known:
            log.warning(
                "pipeline %s: %s is another table than the last run read, and is read whole",
                self._name,
                self._model.table,
            )
        self._look_back(connection, state if is_known else {}, slice, after)
        query = sql.SQL("select exists (select from {} where {}), {}").format(
            self._table, self._where(slice), sql.SQL(_WRITTEN).format(table=sql.Literal(self._quoted))
        )
        row = connection.execute(query).fetchone()
        assert row is not None
        has_some, after["written"] = row
        if is_known and "snapshot" in state and "written" in state:
            grown = [now - before for now, before in zip(row[1], state["written"], strict=True)]
            # Statistics that were reset, and a table that was vacuumed, tell nothing.
            slice["size"] = [each if each >= 0 else None for each in grown]
        return Plan(slice if has_some else None, after)

    def foresee(self, state: State) -> Foreseen:
        slice = self.plan(state).slice
        return Foreseen(None, 0, is_exact=True) if slice is None else self.estimate(slice)

    def estimate(self, slice: dict[str, Any]) -> Foreseen:
        """How many rows a slice has: counted, in a sample of a large table."""
        with self._connected() as connection:
            found = connection.execute(_SIZE, {"table": self._quoted}).fetchone()
            pages, kind = found or (0, "v")
            if kind in "vf":
                # What it costs to count it, nobody knows.
                guess = sql.SQL("explain (format json) select from {} where {}")
                plan = connection.execute(guess.format(self._table, self._where(slice))).fetchone()
                return Foreseen(slice, None if plan is None else plan[0][0]["Plan"]["Plan Rows"])
            sample: sql.Composable = sql.SQL("")
            if pages > _COUNTED_PAGES:
                # Of a table by blocks; those that are not looked at cost nothing.
                share = sql.Literal(100.0 * _COUNTED_PAGES / pages)
                sample = sql.SQL("tablesample system ({})").format(share)
            query = sql.SQL("select count(*) from (select from {} {} where {} limit {}) s").format(
                self._table, sample, self._where(slice), sql.Literal(_COUNTED_ROWS)
            )
            row = connection.execute(query).fetchone()
        assert row is not None
        if pages > _COUNTED_PAGES:
            return Foreseen(slice, round(row[0] * pages / _COUNTED_PAGES))
        return Foreseen(slice, row[0], is_exact=row[0] < _COUNTED_ROWS)

    def plan_range(self, range: dict[str, Any]) -> dict[str, Any]:
        if set(range) != {"column", "from", "to"} or not all(
            isinstance(each, str) for each in range.values()
        ):
            raise InvalidPipeline(
                f"pipeline {self._name}: a range of a table has column, from and to (which is not"
                f" in it), as text",
                '{"column": "day", "from": "2030-01-01", "to": "2030-02-01"}',
            )
        with self._connected() as connection:
            self._check_table(connection)
            names = [name for name, *_ in connection.execute(_COLUMNS, (self._quoted,)).fetchall()]
        if range["column"] not in names:
            raise InvalidPipeline(
                f'pipeline {self._name}: {self._model.table} has no column "{range["column"]}"'
            )
        return {"range": range}

    def schema(self, slice: dict[str, Any]) -> pa.Schema:  # noqa: ARG002  # as all sources
        """That of the batches which `read` gives now."""
        with self._connected() as connection:
            return self._columns(connection)[1]

    def size(self, slice: dict[str, Any]) -> Size:
        """Of a window what was written into the table since the last one, as Postgres counts it, and by how
        much it grew; of all of it, what the planner knows. Of a range or a look-back, only reading tells.
        """
        if "size" in slice and "from" not in slice:
            return Size(*slice["size"])
        if "range" in slice or slice.get("lo") is not None:
            return Size()
        with self._connected() as connection:
            row = connection.execute(_WHOLE, (self._quoted,)).fetchone()
        return Size(*row) if row else Size()

    def shares(self, slice: dict[str, Any], at_most: int) -> list[dict[str, Any]]:
        """Parts of a slice, which `read` takes in its place; each row is in one of them.

        Only a window is cut: what is told by an index, or is to be as of one moment, is one query.
        """
        if at_most <= 1 or "hi" not in slice or "from" in slice:
            return [slice]
        with self._connected() as connection:
            self._check_table(connection)
            found = _TABLES if "tables" in slice else "select %s::regclass::oid::bigint"
            oids = [row[0] for row in connection.execute(found.encode(), (self._quoted,)).fetchall()]
            if "tables" in slice:
                oids = [oid for oid in oids if oid in leaf.all_of(slice)]
            sizes = connection.execute(_SIZES, {"table": self._quoted, "oids": oids}).fetchall()
        if not all(may_read for *_, may_read in sizes):
            return [slice]
        shares = cut([(oid, blocks, file) for oid, blocks, file, _ in sizes], at_most)
        return [{**slice, "pieces": pieces} for pieces in shares] if len(shares) > 1 else [slice]

    def read(self, slice: dict[str, Any], context: Context) -> Iterator[pa.RecordBatch]:
        """The rows of a slice, or of a share of one.

        Raises SourceChanged when the table was rewritten after it was cut into shares.
        """
        with self._connected() as connection:
            if "hi" in slice:
                self._clock.check(connection, slice)
            columns, schema = self._columns(connection)
            pieces = [Piece(*each) for each in slice.get("pieces", [])]
            if pieces:
                selects = list(self._selects(connection, slice, pieces, columns))
            else:
                where = self._where(slice)
                selects = [sql.SQL("select {} from {} where {}").format(columns, self._table, where)]
            query = sql.SQL(" union all ").join(selects).as_string(connection)

        def verify(cursor: Any) -> None:
            if "hi" in slice:
                self._clock.verify(cursor)
            for piece in pieces:
                cursor.execute(f"select pg_relation_filenode({piece.table})::bigint")
                if cursor.fetchone() != (piece.file,):
                    raise self._changed()

        yield from fetch(self._dsn, query, schema, verify=verify, check=context.check)

    def release(self, state: State) -> None:
        """Nothing is kept for a reader of snapshots."""

    @property
    def _quoted(self) -> str:
        return self._table.as_string(None)

    def _connected(self) -> Connection:
        return open_connection(self._dsn)

    def _changed(self) -> SourceChanged:
        return SourceChanged(
            f"pipeline {self._name}: {self._model.table} was rewritten or dropped while it was read",
            "the run is tried again, with shares of what is there then",
        )

    def _check_table(self, connection: Connection) -> None:
        row = connection.execute(
            "select relkind::text from pg_class where oid = to_regclass(%s)", (self._quoted,)
        ).fetchone()
        if row is None:
            raise InvalidPipeline(
                f"pipeline {self._name}: there is no table {self._model.table} in its source"
            )
        if row[0] not in ("r", "p") and not (self._model.changes == "all" and row[0] in ("v", "m", "f")):
            self._refuse_kind(self._model.table, row[0])

    def _refuse_kind(self, table: str, kind: str) -> None:
        raise InvalidPipeline(
            f"pipeline {self._name}: {table} is {_KINDS.get(kind, 'no table')}, whose rows do not say when"
            " they were written",
            'changes = "all" reads all of it each time',
        )

    def _tables(self, connection: Connection) -> tuple[list[int], bool]:
        """The tables that hold the rows; whether the table itself is the only one."""
        found = connection.execute(_TABLES, (self._quoted,)).fetchall()
        for _, kind, name in found:
            if kind != "r":
                self._refuse_kind(name, kind)
        query = "select relhassubclass or relkind = 'p' from pg_class where oid = %s::regclass"
        row = connection.execute(query, (self._quoted,)).fetchone()
        return [oid for oid, *_ in found], not (row and row[0])

    def _look_back(self, connection: Connection, state: State, slice: dict[str, Any], after: State) -> None:
        """With a cursor: from where the last run saw it on."""
        if (cursor := self._model.cursor) is None:
            return
        if "cursor" in state:
            slice["from"] = state["cursor"]
        # One of a time to come would keep all rows out until then.
        query = sql.SQL("select least(max({})::timestamptz, statement_timestamp())::text from {}").format(
            sql.Identifier(cursor), self._table
        )
        row = connection.execute(query).fetchone()
        newest = row and row[0]
        if newest is not None or "cursor" in state:
            after["cursor"] = newest if newest is not None else state["cursor"]

    def _selects(
        self, connection: Connection, slice: dict[str, Any], pieces: list[Piece], columns: sql.Composed
    ) -> Iterator[sql.Composed]:
        for piece in pieces:
            row = connection.execute(
                "select n.nspname, c.relname from pg_class c join pg_namespace n on n.oid = c.relnamespace"
                " where c.oid = %s",
                (piece.table,),
            ).fetchone()
            if row is None:
                raise self._changed()
            lo = leaf.start(slice, piece.table)
            where = sql.SQL("{} and {}").format(sql.SQL(piece.condition), between(lo, slice["hi"]))
            yield sql.SQL("select {} from only {} where {}").format(columns, sql.Identifier(*row), where)

    def _where(self, slice: dict[str, Any]) -> sql.Composable:
        if "range" in slice:
            column = sql.Identifier(slice["range"]["column"])
            return sql.SQL("{0} >= {1} and {0} < {2}").format(
                column, sql.Literal(slice["range"]["from"]), sql.Literal(slice["range"]["to"])
            )
        if slice.get("all"):
            return sql.SQL("true")
        where: sql.Composable = between(slice.get("lo"), slice["hi"])
        if "from" in slice:
            lag = self._model.lag or timedelta(0)
            where = sql.SQL("({0} >= {1}::timestamptz - {2}::interval or {0} is null) and {3}").format(
                sql.Identifier(self._model.cursor or ""), sql.Literal(slice["from"]),
                sql.Literal(f"{lag.total_seconds()} seconds"), where,
            )  # fmt: skip
        return leaf.condition(slice, where) if "tables" in slice else where

    def _columns(self, connection: Connection) -> tuple[sql.Composed, pa.Schema]:
        selected: list[sql.Composable] = []
        fields: list[pa.Field] = []
        found = self._found_columns(connection)
        if self._chosen is not None:
            require_known(self._name, self._chosen, [name for name, *_ in found])
            # What is not taken never leaves the database.
            found = [each for each in found if self._chosen.takes(each[0])]
        for name, kind, is_builtin, full, of in found:
            column = sql.Identifier(name)
            if of is not None and (made := made_of(connection, *of)) is not None:
                selected.append(sql.SQL(_JSON if made.is_json else _TEXT).format(column))
                fields.append(pa.field(name, pa.string(), metadata=_noted(made)))
            elif is_builtin and kind in OF_POSTGRES:
                selected.append(sql.SQL("{0}::{1} as {0}").format(column, sql.SQL(kind)))
                fields.append(pa.field(name, OF_POSTGRES[kind]))
            else:
                selected.append(sql.SQL(_TEXT).format(column))
                # Of a type that only this database has, the text.
                metadata = {TYPE: full.encode()} if is_builtin else None
                fields.append(pa.field(name, pa.string(), metadata=metadata))
        return sql.SQL(", ").join(selected), pa.schema(fields)

    def _found_columns(self, connection: Connection) -> list[Any]:
        """Those of the table: name, type, whether it is one of Postgres' own, and its whole name."""
        return connection.execute(_COLUMNS, (self._quoted,)).fetchall()


_TEXT: Final = "{0}::text as {0}"
_JSON: Final = "to_json({0})::text as {0}"


def _noted(made: Made) -> dict[bytes, bytes]:
    known = {} if made.known is None else {TYPE: made.known.encode()}
    return {NESTED: noted(made.kind), **known}
