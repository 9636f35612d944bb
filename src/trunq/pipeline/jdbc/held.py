"""The columns of a table of another database, as Arrow has them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import pyarrow as pa

from trunq.arrow.value import OF_POSTGRES, TYPE
from trunq.pipeline.jdbc.database import Column, Database

_IN_POSTGRES: Final = {
    # Of MariaDB and MySQL. A moment has no zone there, so only the database knows what fits.
    "smallint": "smallint",
    "int": "integer",
    "bigint": "bigint",
    "float": "real",
    "double": "double precision",
    "decimal": "numeric",
    "date": "date",
    "varchar": "character varying",
    "char": "character",
    "text": "text",
    "mediumtext": "text",
    "longtext": "text",
    "longblob": "bytea",
}
_WITH_DIGITS: Final = ("numeric", "character varying", "character")
_PLAIN: Final = {**OF_POSTGRES, "numeric": pa.string(), "character": pa.string()}
_KIND: Final = re.compile(r"([a-z ]+?) ?(\([\d,]+\))?( with(?:out)? time zone)?")


def held(database: Database, columns: Mapping[str, Column]) -> pa.Schema:
    """The columns of a table that is there. The type null: the database alone knows what fits."""
    return pa.schema([_field(name, column.kind, database) for name, column in columns.items()])


def _field(name: str, kind: str, database: Database) -> pa.Field:
    found = _KIND.fullmatch(kind)
    if found is None:
        return pa.field(name, pa.null())
    base, digits = found[1] + (found[3] or ""), found[2] or ""
    if not database.is_postgres:
        base = _IN_POSTGRES.get(base, "")
    known = base + (digits if base in _WITH_DIGITS else "")
    return pa.field(name, _PLAIN.get(base, pa.null()), metadata={TYPE: known.encode()})
