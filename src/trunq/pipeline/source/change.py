"""What became of rows, from the messages of a capture.

Neither ids nor transaction ids of messages say in which order transactions committed, and a slice needs no
order. Each change leads a row from its image before to its image after, so the changes of one key are a way
from image to image, from where the row was when the slice began to where it is at its end. On that way every
image is entered as often as it is left, but for the two ends: the last is entered once more, the first left
once more. So the images after, less the images before, leave the row as it is now (if it is), and the row as
it was. That holds in whatever order statements, their triggers and transactions wrote their messages, and for
keys that change places in one statement.

TRUNCATE leaves no image of the rows it removed, and a column that got another type, name or default changes
images without a change: a slice with these reads the table anew (capture.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from psycopg import sql

UPSERT: Final = "upsert"
DELETE: Final = "delete"
UNCLEAR: Final = "unclear"
"""Of a key whose changes do not follow from one another."""

_AT_ONCE: Final = 50
"""Pairs of a call: a function has 100 arguments at most."""

_TIME: Final = (
    "coalesce((payload->>'at')::timestamptz, to_timestamp((payload->>'ts_ms')::double precision / 1000))"
)
_TABLE: Final = (
    "coalesce(payload->>'table', concat_ws('.', payload#>>'{source,schema}', payload#>>'{source,table}'))"
)
_OPS: Final = """case payload->>'op' when 'c' then 'insert' when 'u' then 'update' when 'd' then 'delete'
when 't' then 'truncate' else payload->>'op' end"""


def messages(queue: str, conditions: Sequence[str], tables: Sequence[str]) -> sql.Composed:
    """The changes of a table, by whatever names it had, from the queue that it is captured into."""
    one = sql.SQL(
        "(select txid, id, payload from {} where subscription_id is null and {} and {} = any({}::text[]))"
    )
    log, names = sql.Identifier("trunq_log", queue), sql.Literal(list(tables))
    selects = [one.format(log, sql.SQL(each), sql.SQL(_TABLE), names) for each in conditions]
    return sql.SQL(" union all ").join(selects)


def some(messages: sql.Composed) -> sql.Composed:
    """Whether there are changes."""
    return sql.SQL("select exists (select from ({}) m)").format(messages)


def counted(messages: sql.Composed) -> sql.Composed:
    """How many there are."""
    return sql.SQL("select count(*) from ({}) m").format(messages)


def truncates(messages: sql.Composed) -> sql.Composed:
    """Whether one of them is TRUNCATE."""
    return sql.SQL("select exists (select from ({}) m where {} = 'truncate')").format(messages, sql.SQL(_OPS))


Kinds = Sequence[tuple[str, str]]
"""Columns of a table with the types that their values in an image are read as."""


def net(messages: sql.Composed, kinds: Kinds, key: Sequence[str], columns: sql.Composable) -> sql.Composed:
    """What became of each key: _op, _changed_at, and the columns of the row, as it is or as it last was.

    `kinds` are the columns of the table, of which `columns` selects.
    """
    return sql.SQL(
        """with m as (select payload->'before' as before, payload->'after' as after, {time} as "trunq at"
  from ({messages}) l),
e as (select before as "trunq given", -1 as "trunq sign", "trunq at" from m
    where jsonb_typeof(before) = 'object'
  union all select after, 1, "trunq at" from m where jsonb_typeof(after) = 'object' offset 0),
s as (select {shape} as "trunq row", "trunq sign", "trunq at" from e offset 0),
g as (select "trunq row", sum("trunq sign") as "trunq sum", max("trunq at") as "trunq at" from s group by 1),
k as (select g.*, {key} as "trunq key" from g offset 0),
w as (select k.*, max("trunq at") over per as "trunq changed",
    count(*) filter (where "trunq sum" > 0) over per as "trunq ends",
    count(*) filter (where "trunq sum" < 0) over per as "trunq begins" from k
  window per as (partition by "trunq key"))
select case when "trunq ends" > 1 or "trunq begins" > 1 or abs("trunq sum") > 1 then {unclear}
    when "trunq sum" > 0 then {upsert} else {delete} end as _op, "trunq changed" as _changed_at, {columns}
from w cross join lateral {row} r({kinds})
where "trunq sum" > 0 or "trunq sum" < 0 and "trunq ends" = 0"""
    ).format(
        time=sql.SQL(_TIME),
        messages=messages,
        shape=_shape([name for name, _ in kinds]),
        key=_key(key, '"trunq row"'),
        unclear=sql.Literal(UNCLEAR),
        upsert=sql.Literal(UPSERT),
        delete=sql.Literal(DELETE),
        columns=columns,
        row=sql.SQL(_ROW),
        kinds=_kinds(kinds),
    )


def each(messages: sql.Composed, kinds: Kinds, key: Sequence[str], columns: sql.Composable) -> sql.Composed:
    """Each change, in the order of transactions, and in each of these in that of its messages: _op,
    _changed_at and the row after it, or before a delete. A change of the key is a delete and an insert.
    """
    moved: sql.Composable = sql.SQL("false")
    if key:
        moved = sql.SQL("{} <> {}").format(_key(key, "before"), _key(key, "after"))
    return sql.SQL(
        """with m as (select txid, id, {op} as op, {time} as "trunq at",
    nullif(payload->'before', 'null') as before, nullif(payload->'after', 'null') as after
  from ({messages}) l offset 0),
p as (select m.*, op = 'update' and {moved} as has_moved from m),
o as (select txid as "trunq txid", id as "trunq id", 1 as "trunq part", "trunq at",
    case when has_moved then 'insert' else op end as "trunq op",
    case op when 'delete' then before else after end as "trunq row" from p
  union all select txid, id, 0, "trunq at", 'delete', before from p where has_moved)
select "trunq op" as _op, "trunq at" as _changed_at, {columns}
from o left join lateral {row} r({kinds}) on true
order by "trunq txid", "trunq id", "trunq part" """
    ).format(
        op=sql.SQL(_OPS),
        time=sql.SQL(_TIME),
        messages=messages,
        moved=moved,
        columns=columns,
        row=sql.SQL(_ROW),
        kinds=_kinds(kinds),
    )


_ROW: Final = 'jsonb_to_record("trunq row") as'


def _kinds(kinds: Kinds) -> sql.Composed:
    return sql.SQL(", ").join(
        sql.SQL(" ").join((sql.Identifier(name), sql.SQL(kind))) for name, kind in kinds
    )


def _shape(names: Sequence[str]) -> sql.Composed:
    """An image of the columns that there are now, whatever it was made of."""

    def pairs() -> Iterator[sql.Composed]:
        for at in range(0, len(names), _AT_ONCE):
            some = (
                sql.SQL('{0}, "trunq given" -> {0}').format(sql.Literal(name))
                for name in names[at : at + _AT_ONCE]
            )
            yield sql.SQL("jsonb_build_object({})").format(sql.SQL(", ").join(some))

    return sql.SQL(" || ").join(pairs())


def _key(key: Sequence[str], row: str) -> sql.Composed:
    values = (sql.SQL("{} -> {}").format(sql.SQL(row), sql.Literal(name)) for name in key)
    return sql.SQL("jsonb_build_array({})").format(sql.SQL(", ").join(values))
