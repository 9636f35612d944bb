"""What the database says of a table: its columns, whether a type fits, which index finds its rows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg import sql

from trunq.errors import InvalidArgument

Connection = psycopg.Connection[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its type as people write it, the type to cast to, and that behind a domain.

    A cast to `varchar(5)` would cut a text in silence; the assignment to the column refuses it.
    """

    name: str
    kind: str
    cast: str
    base: str
    is_nested: bool = False
    """Whether it is an array or a composite, which JSON may be made into."""


def split_name(table: str) -> list[str]:
    """The parts of a name: `table`, or `schema.table`. One that has a dot is in quotes: `shop."a.b"`."""
    if '"' in table and (found := _QUOTED.fullmatch(table)):
        return [part[1:-1].replace('""', '"') if part[0] == '"' else part for part in found.groups() if part]
    return table.split(".")


def write_name(parts: Sequence[str]) -> str:
    """The text that `split_name` reads as these parts."""
    return ".".join(
        '"' + part.replace('"', '""') + '"' if "." in part or '"' in part else part for part in parts
    )


_QUOTED: Final = re.compile(r'(?:("(?:[^"]|"")+"|[^".]+)\.)?("(?:[^"]|"")+"|[^".]+)')


def identifier(table: str) -> sql.Identifier:
    """The table that a text names: `table`, or `schema.table`."""
    parts = split_name(table)
    if len(parts) > 2 or not all(parts):
        raise InvalidArgument(f'"{table}" is not the name of a table', "write table, or schema.table")
    return sql.Identifier(*parts)


def is_there(connection: Connection, table: str) -> bool:
    """Whether there is such a table; the name is in quotes where it needs them."""
    row = connection.execute("select to_regclass(%s) is not null", (table,)).fetchone()
    return bool(row and row[0])


def columns(connection: Connection, table: str) -> dict[str, Column]:
    """The columns that may be written to."""
    query = (
        "select attname, format_type(atttypid, atttypmod), format_type(atttypid, -1),"
        " (with recursive b(oid, of) as (select atttypid, typbasetype union all"
        " select p.oid, p.typbasetype from b join pg_type p on p.oid = b.of)"
        " select format_type(oid, -1) from b where of = 0), typcategory in ('A', 'C')"
        " from pg_attribute join pg_type on pg_type.oid = atttypid where attrelid = %s::regclass"
        " and attnum > 0 and not attisdropped and attgenerated = '' and attidentity <> 'a' order by attnum"
    )
    return {row[0]: Column(*row) for row in connection.execute(query, (table,)).fetchall()}


def generated(connection: Connection, table: str) -> dict[str, str]:
    """The columns that the table alone gives values to: `identity`, or `stored` and `virtual` expressions."""
    query = (
        "select attname, case when attidentity = 'a' then 'identity' when attgenerated = 's' then 'stored'"
        " else 'virtual' end from pg_attribute where attrelid = %s::regclass and attnum > 0"
        " and not attisdropped and (attgenerated <> '' or attidentity = 'a')"
    )
    return dict(connection.execute(query, (table,)).fetchall())


def fits(connection: Connection, given: str, there: str) -> bool:
    """Whether a type is that of the table, or one that Postgres makes it of by itself."""
    if given == there:
        return True
    # Of numeric(9,2) the type; what does not fit its digits fails in the commit.
    plain = {"given": _DIGITS.sub("", given), "there": _DIGITS.sub("", there)}
    plain = {which: _LONG.get(kind, kind) for which, kind in plain.items()}
    row = connection.execute(_FITS, plain).fetchone()
    return bool(row and row[0])


def has_unique_index(connection: Connection, table: str, names: Sequence[str]) -> bool:
    """Whether a unique index that upserts can use, so none deferrable, is over exactly these columns."""
    row = connection.execute(_HAS_INDEX, {"table": table, "key": sorted(names)}).fetchone()
    return row is not None


_HAS_INDEX: Final = """select 1 from pg_index i
where i.indrelid = %(table)s::regclass and i.indisunique and i.indimmediate and i.indisvalid
  and i.indpred is null and i.indexprs is null
  and (select array_agg(a.attname::text order by a.attname::text collate "C")
    from unnest(i.indkey[:i.indnkeyatts - 1]::int2[]) k
    join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k) = %(key)s::text[]"""

_FITS: Final = """select %(given)s::regtype = %(there)s::regtype or exists (
  select from pg_cast
  where castsource = %(given)s::regtype and casttarget = %(there)s::regtype and castcontext = 'i') or exists (
  -- Of an enum its labels; of an array those of its items, and of a domain the type behind it.
  select from pg_type t left join pg_type i on i.oid = t.typelem and t.typcategory = 'A'
  left join pg_type b on b.oid = i.typbasetype
  where t.oid = %(there)s::regtype and (t.typtype = 'e' and %(given)s::regtype = 'text'::regtype
    or i.typtype = 'e' and %(given)s::regtype = 'text[]'::regtype or b.typarray = %(given)s::regtype))"""

_DIGITS: Final = re.compile(r"\(.*?\)")
_LONG: Final = {"timestamp": "timestamp without time zone", "time": "time without time zone"}
