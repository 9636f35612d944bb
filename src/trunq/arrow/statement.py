"""The statements by which a table takes rows from a stage."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from psycopg import sql

from trunq.arrow.catalog import identifier

Columns = Sequence[tuple[str, str]]
"""Names and types. Of a stage's: those that its values are cast to."""

Mode = Literal["append", "upsert", "history", "replace", "apply"]

PART: Final = "trunq part"
"""The column of a stage that says which task wrote a row."""


class Composed(str):
    """A type, an array or a composite, that values of the stage are made into which are JSON."""

    __slots__ = ()


@dataclass(frozen=True)
class Target:
    """A table, how it takes rows, by which columns they are found, and which of them says what is newer."""

    name: str
    """As people write it."""
    mode: Mode = "append"
    key: tuple[str, ...] = ()
    newest: str | None = None
    stamps: tuple[str, ...] = ()
    """Columns that say nothing of what a row is: with other values it is no other version."""
    reopens: bool = False
    """Whether a row whose last version has ended is there again: it begins another, whatever it is."""

    @property
    def table(self) -> sql.Identifier:
        """The table as statements without parameters have it."""
        return identifier(self.name)

    @property
    def written(self) -> sql.Identifier:
        """The table as statements with parameters have it."""
        return written(*self.table._obj)

    @property
    def quoted(self) -> str:
        """The name in quotes, as Postgres reads it."""
        return self.table.as_string(None)


def written(*names: str) -> sql.Identifier:
    """A name as statements with parameters have it."""
    return sql.Identifier(*map(_doubled, names))


def _list(items: Iterable[sql.Composable]) -> sql.Composed:
    return sql.SQL(", ").join(items)


def _names(names: Iterable[str], of: str | None = None) -> sql.Composed:
    return _list(sql.Identifier(*([of] if of else []), _doubled(name)) for name in names)


def _identifier(name: str) -> sql.Identifier:
    return sql.Identifier(_doubled(name))


def _doubled(text: str) -> str:
    """In a statement with parameters, a percent sign is written twice."""
    return text.replace("%", "%%")


_ROW: Final = sql.SQL('array_position(%(parts)s, {}) as "trunq share", ctid as "trunq row"').format(
    sql.Identifier(PART)
)
"""By these a row is the last of several: shares come in the order of their source, and rows in that of their
share.
"""


def _cast(columns: Columns) -> sql.Composed:
    return _list(cast_as(name, kind, _doubled) for name, kind in columns)


def cast_as(name: str, kind: str, text: Callable[[str], str] = str) -> sql.Composed:
    """A column of a stage as one of a type; `text`: how the statement has names and types."""
    return sql.SQL(_OF_JSON if isinstance(kind, Composed) else "{0}::{1} as {0}").format(
        sql.Identifier(text(name)), sql.SQL(text(kind)), sql.SQL(text(_READ_AS.get(kind, kind)))
    )


_OF_JSON: Final = (
    "(select v::{1} from json_to_record(json_build_object('v', {0}::json)) as of_json(v {2})) as {0}"
)
_READ_AS: Final = {"json[]": "text[]", "jsonb[]": "text[]"}
"""Texts of JSON in a list are its items, and no strings of JSON."""


def create(
    table: sql.Identifier, columns: Columns, *more: sql.Composable, kind: str = "table"
) -> sql.Composed:
    """The table of these columns, and of what else is given."""
    body = (sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(kind)) for name, kind in columns)
    return sql.SQL("create {} {} ({})").format(sql.SQL(kind), table, _list([*body, *more]))


def empty(table: sql.Identifier) -> sql.Composed:
    """The table loses all rows.

    Not by TRUNCATE: it blocks readers, and shows an empty table to those with an older snapshot.
    """
    return sql.SQL("lock table {0} in share row exclusive mode; delete from {0}").format(table)


def take(target: Target, columns: Columns, stage: sql.Identifier) -> sql.Composed:
    """The rows of the stage whose part is in `parts`, in the mode of the target."""
    return {"upsert": upsert, "history": history}.get(target.mode, append)(target, columns, stage)


def append(target: Target, columns: Columns, stage: sql.Identifier) -> sql.Composed:
    """All rows are added."""
    return sql.SQL("insert into {} ({}) select {} from {} where {} = any(%(parts)s)").format(
        target.written, _names(name for name, _ in columns), _cast(columns), stage, sql.Identifier(PART)
    )


def upsert(target: Target, columns: Columns, stage: sql.Identifier) -> sql.Composed:
    """One row a key: the newest of those staged, the last of several, unless a newer one is there."""
    names, key, newest = [name for name, _ in columns], target.key, target.newest
    rest = [name for name in names if name not in key]
    order = sql.SQL(", {} desc nulls last").format(_identifier(newest)) if newest else sql.SQL("")
    changes: sql.Composable = sql.SQL("do nothing")
    if rest:
        sets = (sql.SQL("{0} = excluded.{0}").format(_identifier(name)) for name in rest)
        changes = sql.SQL("do update set {}").format(_list(sets))
        if newest:
            changes += sql.SQL(" where t.{0} is null or t.{0} <= excluded.{0}").format(_identifier(newest))
    return sql.SQL(
        "insert into {table} as t ({names}) select {names} from (select distinct on ({key}) * from"
        " (select {cast}, {row} from {stage} where {part} = any(%(parts)s)) c"
        ' order by {key}{order}, "trunq share" desc, "trunq row" desc) s'
        " on conflict ({key}) {changes}"
    ).format(
        table=target.written,
        names=_names(names),
        key=_names(key),
        cast=_cast(columns),
        stage=stage,
        part=sql.Identifier(PART),
        row=_ROW,
        order=order,
        changes=changes,
    )


def _reopening(key: Sequence[str], *, reopens: bool, is_timed: bool) -> dict[str, sql.Composable]:
    """What `history` has of a row whose last version has ended, and of one that begins now though the clock
    has gone back since the last one (not `is_timed`).
    """
    begins = """greatest(c."trunq at", o."trunq last" + interval '1 microsecond')"""
    if not reopens:
        return {
            "begun": sql.SQL('c."trunq at"' if is_timed else begins),
            "each": sql.SQL("c"),
            "later": sql.SQL(
                'o."trunq last" is null or c."trunq at" > o."trunq last"' if is_timed else "true"
            ),
            "before": sql.SQL('n."trunq current"'),
        }
    # Of several that are no later than that end, the newest is the one that is there.
    return {
        "begun": sql.SQL(
            # A version that ended as it began, in a time to come, has that as its own.
            'case when c."trunq at" <= o."trunq ended" then greatest(statement_timestamp(),'
            """ o."trunq ended" + interval '1 microsecond')"""
            + ("" if is_timed else f' when o."trunq ended" is null then {begins}')
            + ' else c."trunq at" end'
        ),
        "each": sql.SQL(
            '(select c.*, max("trunq at") over (partition by {}) as "trunq newest" from c)'
        ).format(_names(key)),
        "later": sql.SQL(
            "true"
            if not is_timed
            else 'o."trunq last" is null or (o."trunq ended" is null and c."trunq at" > o."trunq last")'
            ' or c."trunq at" > o."trunq ended" or (o."trunq ended" is not null and c."trunq at" ='
            ' c."trunq newest")'
        ),
        "before": sql.SQL('case when n."trunq ended" is null then n."trunq current" end'),
    }


def history(target: Target, columns: Columns, stage: sql.Identifier) -> sql.Composed:
    """Each version of a key with the time from which and to which it was valid.

    With `newest`, a time, versions begin then, and one that is older than the newest one there is left out;
    without, they begin now, one a key. A row that changes nothing makes no version. One that is there again
    after its last version ended begins now, if it does not say later.
    """
    names, key, newest = [name for name, _ in columns], target.key, target.newest
    values = [name for name in names if name not in (*key, newest, *target.stamps)]
    begins = (
        sql.SQL("{}::timestamptz").format(_identifier(newest)) if newest else sql.SQL("statement_timestamp()")
    )
    same_key = sql.SQL(" and ").join(sql.SQL("t.{0} = c.{0}").format(_identifier(name)) for name in key)

    def row(of: str) -> sql.Composed:
        return sql.SQL("(select to_jsonb(x) from (select {}) x)").format(_names(values, of))

    return sql.SQL(
        """with c as (
  select distinct on ({key}, "trunq at") * from (
    select {begins} as "trunq at", d.* from (
    select {cast}, {row} from {stage} where {part} = any(%(parts)s)) d) e
  order by {key}, "trunq at", "trunq share" desc, "trunq row" desc
), n as (
  select c.*, {row_c} as "trunq was", o."trunq last", o."trunq current", o."trunq ended",
    {begun} as "trunq begins"
  from {each} c left join lateral (
    select t.valid_from as "trunq last", {row_t} as "trunq current", t.valid_to as "trunq ended"
    from {table} t where {same_key} order by t.valid_from desc limit 1) o on true
  where {later}
), v as (
  select n.*, coalesce(lag(n."trunq was") over w, {before}) as "trunq before"
  from n window w as (partition by {key_n} order by n."trunq begins")
), w as (
  select v.*, lead(v."trunq begins") over (partition by {key_v} order by v."trunq begins") as "trunq ends",
    min(v."trunq begins") over (partition by {key_v}) as "trunq first"
  from v where v."trunq before" is distinct from v."trunq was"
), closed as (
  update {table} t set valid_to = c."trunq first" from w c
  where {same_key} and t.valid_to is null and c."trunq begins" = c."trunq first"
)
insert into {table} ({names}, valid_from, valid_to)
select {names_w}, w."trunq begins", w."trunq ends" from w"""
    ).format(
        **_reopening(key, reopens=target.reopens, is_timed=newest is not None),
        key=_names(key),
        key_n=_names(key, "n"),
        key_v=_names(key, "v"),
        begins=begins,
        cast=_cast(columns),
        stage=stage,
        part=sql.Identifier(PART),
        row=_ROW,
        row_c=row("c"),
        row_t=row("t"),
        table=target.written,
        same_key=same_key,
        names=_names(names),
        names_w=_names(names, "w"),
    )
