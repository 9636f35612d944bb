"""The statements by which a table loses rows: those that a stage says are deleted, and those that it lacks.

Soft deletes keep the row, and note the time in a column.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from psycopg import sql

from trunq.arrow.statement import PART, Columns, Target, cast_as

_NOW = sql.SQL("statement_timestamp()")


@dataclass(frozen=True)
class Apply:
    """What is staged of a target: rows, under parts, of which `op` says whether they are deleted."""

    target: Target
    columns: Columns
    """Of the rows, with the types that they are cast to."""
    stage: sql.Identifier
    parts: Sequence[str]
    op: str | None = None
    """The column of the stage that says so; None: none is."""
    at: str | None = None
    """The column that says when, if there is one."""
    deleted_at: str | None = None
    """The column of the target that notes when a row was deleted; None: it is removed."""
    valid_to: str | None = None
    """The column of a history that notes when a version ended; None: it is none."""
    deleted: str = field(default="delete", repr=False)

    def delete(self) -> sql.Composed:
        """Rows go that are deleted."""
        time = sql.SQL("coalesce({}, {})").format(_of("c", self.at), _NOW) if self.at else _NOW
        return sql.SQL("{what} {last} where {same} and c.{op} = {deleted}{alive}").format(
            what=self._losing(time, "using" if self.deleted_at is None else "from"),
            last=self._last(),
            same=self._same("c"),
            op=sql.Identifier(self.op or ""),
            deleted=sql.Literal(self.deleted),
            alive=self._alive(),
        )

    def write(self) -> sql.Composed:
        """Other rows are written, over those of their keys, which live again."""
        names = [name for name, _ in self.columns]
        rest = [name for name in names if name not in self.target.key]
        sets = [sql.SQL("{0} = excluded.{0}").format(sql.Identifier(name)) for name in rest]
        if self.deleted_at is not None:
            sets.append(sql.SQL("{} = null").format(sql.Identifier(self.deleted_at)))
        changes = sql.SQL("do update set {}").format(_list(sets)) if sets else sql.SQL("do nothing")
        return sql.SQL(
            "insert into {table} ({names}) select {names} from {last} where c.{op} <> {deleted}"
            " on conflict ({key}) {changes}"
        ).format(
            table=self.target.table,
            names=_list(map(sql.Identifier, names)),
            last=self._last(),
            op=sql.Identifier(self.op or ""),
            deleted=sql.Literal(self.deleted),
            key=_list(map(sql.Identifier, self.target.key)),
            changes=changes,
        )

    def revive(self) -> sql.Composed:
        """Rows whose keys are staged live again."""
        assert self.deleted_at is not None
        return sql.SQL("update {} t set {} = null where t.{} is not null and exists ({})").format(
            self.target.table,
            sql.Identifier(self.deleted_at),
            sql.Identifier(self.deleted_at),
            self._staged(),
        )

    def drop_missing(self) -> sql.Composed:
        """Rows go whose keys are not staged; without parts, all."""
        missing = sql.SQL("not exists ({})").format(self._staged()) if self.parts else sql.SQL("true")
        return sql.SQL("{} where {}{}").format(self._losing(_NOW, ""), missing, self._alive())

    def count(self) -> sql.Composed:
        """How many rows there are that are not deleted."""
        return sql.SQL("select count(*) from {} t where true{}").format(self.target.table, self._alive())

    def _losing(self, time: sql.Composable, more: str) -> sql.Composed:
        if self.valid_to is not None:
            # A version that is to begin yet ends as it begins.
            return sql.SQL("update {} t set {} = greatest(t.valid_from, {}) {}").format(
                self.target.table, sql.Identifier(self.valid_to), time, sql.SQL(more)
            )
        if self.deleted_at is None:
            return sql.SQL("delete from {} t {}").format(self.target.table, sql.SQL(more))
        return sql.SQL("update {} t set {} = {} {}").format(
            self.target.table, sql.Identifier(self.deleted_at), time, sql.SQL(more)
        )

    def _alive(self) -> sql.Composable:
        if (ends := self.valid_to or self.deleted_at) is None:
            return sql.SQL("")
        return sql.SQL(" and t.{} is null").format(sql.Identifier(ends))

    def _last(self) -> sql.Composed:
        """The last row of each key."""
        own = [name for name in (self.op, self.at) if name is not None]
        casts = [cast_as(name, kind) for name, kind in self.columns]
        return sql.SQL(
            '(select distinct on ({key}) * from (select {columns}, ctid as "trunq row" from {stage}'
            ' where {part} = any({parts})) d order by {key}, "trunq row" desc) c'
        ).format(
            key=_list(map(sql.Identifier, self.target.key)),
            columns=_list([*casts, *map(sql.Identifier, own)]),
            stage=self.stage,
            part=sql.Identifier(PART),
            parts=sql.Literal(list(self.parts)),
        )

    def _staged(self) -> sql.Composed:
        kinds = dict(self.columns)
        same = sql.SQL(" and ").join(
            sql.SQL("s.{0}::{1} = t.{0}").format(sql.Identifier(name), sql.SQL(kinds[name]))
            for name in self.target.key
        )
        return sql.SQL("select from {} s where s.{} = any({}) and {}").format(
            self.stage, sql.Identifier(PART), sql.Literal(list(self.parts)), same
        )

    def _same(self, of: str) -> sql.Composed:
        return sql.SQL(" and ").join(
            sql.SQL("{} = {}").format(_of("t", name), _of(of, name)) for name in self.target.key
        )


def _of(table: str, column: str) -> sql.Identifier:
    return sql.Identifier(table, column)


def _list(items: Iterable[sql.Composable]) -> sql.Composed:
    return sql.SQL(", ").join(items)
