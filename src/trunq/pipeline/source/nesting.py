"""What arrays and composites of a table are made of, as Arrow has it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from trunq.arrow.nested import has_struct
from trunq.arrow.value import OF_POSTGRES, TYPE, postgres_type
from trunq.pipeline.source.window import Connection

_TYPE: Final = """select typtype::text, typbasetype::bigint, typtypmod, typndims, typrelid::bigint,
  (select e.oid::bigint from pg_type e where e.typarray = t.oid and e.typdelim = ','),
  format_type(t.oid, -1), format_type(t.oid, %s), typnamespace = 'pg_catalog'::regnamespace
from pg_type t where t.oid = %s"""

_PARTS: Final = """select attname, atttypid::bigint, atttypmod, attndims from pg_attribute
where attrelid = %s::oid and attnum > 0 and not attisdropped order by attnum"""

_DIGITS: Final = re.compile(r"numeric\((\d+),(\d+)\)")
_MOST_DIGITS: Final = 38
_DEEPEST: Final = 20


@dataclass(frozen=True, slots=True)
class Made:
    """Of what a column is made, and its type in any database, where it has one there."""

    kind: pa.DataType
    known: str | None

    @property
    def is_json(self) -> bool:
        """Whether it is read as JSON."""
        return has_struct(self.kind)


def made_of(connection: Connection, oid: int, modifier: int, dimensions: int) -> Made | None:
    """Of what values of a type are made; None: it is no array and no composite."""
    field, known = _field(connection, oid, modifier, dimensions, 0)
    return Made(field.type, known) if pa.types.is_nested(field.type) else None


def _field(
    connection: Connection, oid: int, modifier: int, dimensions: int, depth: int
) -> tuple[pa.Field, str | None]:
    row = connection.execute(_TYPE, (modifier, oid)).fetchone()
    if row is None or depth > _DEEPEST:
        return pa.field("", pa.string()), None
    kind, base, base_modifier, base_dimensions, relation, item, plain, full, is_builtin = row
    if kind == "d":
        return _field(connection, base, base_modifier, base_dimensions or dimensions, depth + 1)
    if item is not None:
        of, known = _field(connection, item, modifier, 0, depth + 1)
        made = of.type
        for _ in range(max(dimensions, 1)):
            made = pa.list_(pa.field("item", made, metadata=of.metadata))
            of = pa.field("", made)
        return of, None if known is None else known + "[]" * max(dimensions, 1)
    if relation:
        parts = connection.execute(_PARTS, (relation,)).fetchall()
        fields = [
            _field(connection, part, part_modifier, part_dimensions, depth + 1)[0].with_name(name)
            for name, part, part_modifier, part_dimensions in parts
        ]
        return pa.field("", pa.struct(fields)), None
    made = pa.field("", _plain(plain, full), metadata={TYPE: plain.encode()})
    if is_builtin and plain in OF_POSTGRES:
        return made, postgres_type(pa.field("", made.type))
    # Values of a type of this database alone are texts elsewhere.
    return made, full if is_builtin else "text"


def _plain(plain: str, full: str) -> pa.DataType:
    digits = _DIGITS.fullmatch(full)
    if digits is not None and int(digits[1]) <= _MOST_DIGITS and int(digits[2]) <= _MOST_DIGITS:
        return pa.decimal128(max(int(digits[1]), int(digits[2])), int(digits[2]))
    return OF_POSTGRES.get(plain, pa.string())
