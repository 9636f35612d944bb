"""A call in words that every driver takes, and rows read as psycopg reads them for us.

Drivers differ in what they make of a value of Python, and of one of Postgres. So every value travels as text,
cast to the type of its parameter in the statement; and what drivers read in ways of their own is turned into
text or a number before it comes back.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from functools import cache, lru_cache
from importlib import resources
from typing import Any, Final, NamedTuple
from uuid import UUID

from trunq.wire.array import Array, literal
from trunq.wire.call import Call
from trunq.wire.scalar import decode_timestamp

Load = Callable[[Any], Any]


class Statement(NamedTuple):
    """What is executed, and how each column of its rows is read; None: as it comes."""

    sql: str
    loads: tuple[Load | None, ...]


def written(call: Call, mark: Callable[[str], str]) -> Statement:
    """The statement of a call; `mark` says how its driver writes a bound parameter of this name."""
    return _written(call.function, call.name, call.arguments, call.columns, call.is_raw, mark)


def parameters(call: Call) -> list[str]:
    """The values of a call as text."""
    return [_text(value) for value in call.values]


def read(statement: Statement, rows: Iterable[Sequence[Any]]) -> list[tuple[Any, ...]]:
    """Rows as psycopg would have read them."""
    return [
        tuple(
            value if load is None or value is None else load(value)
            for load, value in zip(statement.loads, row, strict=True)
        )
        for row in rows
    ]


@lru_cache(maxsize=1024)
def _written(
    function: str,
    name: str,
    arguments: tuple[str, ...],
    columns: tuple[str, ...],
    is_raw: bool,
    mark: Callable[[str], str],
) -> Statement:
    signature = _signatures()[function]
    takes, returns = signature["takes"], signature["returns"]
    # Some drivers ask the server for the type of a parameter: it is text for all of them.
    given = ", ".join(
        f"p_{argument} => cast(cast({mark(argument)} as text) as {takes[argument]})" for argument in arguments
    )
    loads = _RAW if is_raw else _LOADS
    reads = [loads.get(returns[column], _AS_IT_COMES) for column in columns or ("",)]
    if columns:
        wanted = ", ".join(form.format(column) for column, (form, _) in zip(columns, reads, strict=True))
        sql = f"select {wanted} from {name}({given})"
    else:
        sql = f"select {reads[0][0].format(f'{name}({given})')}"
    return Statement(sql, tuple(load for _, load in reads))


@cache
def _signatures() -> dict[str, dict[str, dict[str, str]]]:
    text = resources.files("trunq.connection.bridge").joinpath("signature.json").read_text()
    return json.loads(text)  # type: ignore[no-any-return]


_AS_IT_COMES: Final[tuple[str, Load | None]] = ("{}", None)
_TEXT: Final = "cast({} as text)"
_SINCE_2000: Final = "cast(extract(epoch from {}) * 1000000 - 946684800000000 as bigint)"
"""The microseconds of a binary timestamptz."""

_OTHERS: Final[dict[str, tuple[str, Load | None]]] = {
    "bytea": ("{}", bytes),
    "pg_snapshot": (_TEXT, None),
    "void": (_TEXT, None),
}
_LOADS: Final[dict[str, tuple[str, Load | None]]] = {
    **_OTHERS,
    "jsonb": (_TEXT, json.loads),
    "timestamptz": (_SINCE_2000, decode_timestamp),
}
_RAW: Final[dict[str, tuple[str, Load | None]]] = {
    **_OTHERS,
    "jsonb": (_TEXT, lambda text: b"\1" + text.encode()),
    "timestamptz": (_SINCE_2000, None),
}
"""As they are sent in binary form, for `Message` to decode when asked."""


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, Array):
        return literal(value)
    if isinstance(value, list):
        # Of times, which need no more quotes than these.
        return "{" + ",".join(f'"{_text(each)}"' for each in value) + "}"
    if isinstance(value, bytes):
        return "\\x" + value.hex()
    if isinstance(value, timedelta):
        # Each with its sign, which it needs where intervals are written as SQL has it.
        return f"{value.days:+d} day {value.seconds:+d} second {value.microseconds:+d} microsecond"
    if isinstance(value, datetime):
        return value.isoformat()
    assert isinstance(value, bool | UUID), type(value)
    return str(value)
