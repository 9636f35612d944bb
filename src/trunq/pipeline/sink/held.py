"""The columns of a table of Postgres, as Arrow has them."""

from __future__ import annotations

import re
from typing import Final

import pyarrow as pa

from trunq.arrow import catalog
from trunq.arrow.catalog import Connection
from trunq.arrow.value import OF_POSTGRES, TYPE

_PLAIN: Final = {**OF_POSTGRES, "numeric": pa.string(), "character": pa.string()}
_DIGITS: Final = re.compile(r"\(.*?\)")


def held(connection: Connection, table: str) -> pa.Schema:
    """The columns of a table that is there, those that it works out too. The type null: Postgres alone knows
    what fits, as of a uuid or an array.
    """
    fields = []
    for column in catalog.columns(connection, table).values():
        # Of a domain the type behind it.
        kind = column.kind if _DIGITS.sub("", column.kind) == column.base else column.base
        made = _PLAIN.get(column.base, pa.null())
        fields.append(pa.field(column.name, made, metadata={TYPE: kind.encode()}))
    fields += [pa.field(name, pa.null()) for name in catalog.generated(connection, table)]
    return pa.schema(fields)
