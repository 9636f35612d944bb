"""Many messages, given column by column: as arrays for the function publish_many, or as lines of COPY."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from functools import lru_cache, partial
from itertools import count, repeat
from typing import Any, Final, NamedTuple

from trunq.errors import InvalidArgument
from trunq.wire.array import (
    Array,
    bytea_array,
    contents,
    headers_array,
    jsonb_array,
    label_array,
    labels,
)
from trunq.wire.json import headers_bytes, json_bytes
from trunq.wire.scalar import Label, content, label, moment

PART: Final = 500
"""Messages sent at a time: with 5,000 the server takes half as long again for each, out of its caches."""

COLUMNS: Final = ("kind", "key", "payload", "headers", "body", "priority", "options", "due_at")
"""The columns `line` fills."""


class Columns:
    """Columns of messages. A list of one stands for all; `kind` and `key` for those that have none."""

    def __init__(
        self,
        payloads: Sequence[Any],
        kinds: Iterable[Label | None] | None = None,
        keys: Iterable[Label | None] | None = None,
        headers: Any = None,
        bodies: Iterable[bytes | None] | None = None,
        kind: Label | None = None,
        key: Label | None = None,
        priorities: Sequence[int] | int | None = None,
        unique_keys: Iterable[Label | None] | None = None,
    ) -> None:
        given = {
            "payloads": payloads,
            "kinds": _or_all("kinds", kinds, "kind", kind),
            "keys": _or_all("keys", keys, "key", key),
            "headers": headers if headers is None or isinstance(headers, list | tuple) else [headers],
            "bodies": None if bodies is None else _listed("bodies", bodies),
            "priorities": [priorities] if isinstance(priorities, int) else priorities,
            "unique_keys": None if unique_keys is None else _listed("unique_keys", unique_keys),
        }
        self._given = {name: values for name, values in given.items() if values is not None}
        lengths = {1, *map(len, self._given.values())}
        self.count = max(lengths)
        """How many messages there are."""
        self.fit = lengths <= {1, self.count}
        """Whether the columns agree about that."""

    def arrays(self, size: int | None = None) -> list[Callable[[], dict[str, Array | str | None]]]:
        """What makes the arguments of publish_many, for `size` of the messages each; None: for all."""
        # Lengths that differ are for the database to refuse.
        step = size if size is not None and self.fit else self.count
        return [partial(self._part, first, step) for first in range(0, self.count, step)]

    def _part(self, first: int, step: int) -> dict[str, Array | str | None]:
        return {
            name: _COLUMNS[name].array(
                name, values if len(values) == 1 else values[first : first + step], first
            )
            for name, values in self._given.items()
        }

    @property
    def names(self) -> list[str]:
        """The columns `lines` fills."""
        return ["id", *(_COLUMNS[name].column for name in self._given)]

    def lines(self, ids: Sequence[int]) -> Iterator[bytes]:
        """The messages with these ids, as lines of COPY's text format, some at a time."""
        alone = {name for name, values in self._given.items() if len(values) == 1}
        for first in range(0, self.count, PART):
            chosen = ids[first : first + PART]
            columns: list[Iterable[bytes]] = [
                repeat(self._fields(name, 0, 1)[0])
                if name in alone
                else self._fields(name, first, first + PART)
                for name in self._given
            ]
            # The quickest way to many small numbers is the text of their list.
            numbers = repr(chosen)[1:-1].encode().split(b", ")
            yield b"\n".join([*map(b"\t".join, zip(numbers, *columns, strict=False)), b""])

    def _fields(self, name: str, first: int, last: int) -> list[bytes]:
        return _fields(list(_COLUMNS[name].encode(name, self._given[name][first:last], first)))


def _or_all(
    name: str, values: Iterable[Label | None] | None, one: str, for_all: Label | None
) -> Sequence[Label | None] | None:
    """What each message has of its own, else what is for all."""
    if values is None:
        return None if for_all is None else [for_all]
    values = _listed(name, values, f"{one}= is one for all")
    if for_all is None:
        return values
    return [for_all if value is None else value for value in values]


def _listed(name: str, values: Iterable[Any], hint: str | None = None) -> Sequence[Any]:
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise InvalidArgument(
            f"{name} is a list with one value for each message, not {type(values).__name__}", hint
        )
    return values if isinstance(values, Sequence) else list(values)


class _Column(NamedTuple):
    column: str
    array: Callable[[str, Any, int], Array | str | None]
    encode: Callable[[str, Sequence[Any], int], Iterable[bytes | None]]


def _documents(name: str, values: Sequence[Any], first: int) -> Iterator[bytes | None]:
    return map(json_bytes, repeat(name), values, count(first))


def _headers(name: str, values: Sequence[Any], first: int) -> Iterator[bytes | None]:
    return map(headers_bytes, repeat(name), values, count(first))


def _hexes(name: str, values: Sequence[Any], first: int) -> Iterator[bytes | None]:
    return (None if value is None else _hex(value) for value in contents(name, values, first))


def _numbers(name: str, values: Sequence[Any], first: int) -> Iterator[bytes | None]:
    for position, value in enumerate(values, first):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise InvalidArgument(f"{name}[{position}] is an int or None, not {type(value).__name__}")
        yield None if value is None else str(int(value)).encode()


def _number_array(name: str, values: Any, first: int) -> str | None:
    digits = (b"NULL" if raw is None else raw for raw in _numbers(name, values, first))
    return f"{{{b','.join(digits).decode()}}}"


_COLUMNS: Final = {
    "payloads": _Column("payload", jsonb_array, _documents),
    "kinds": _Column("kind", label_array, labels),
    "keys": _Column("key", label_array, labels),
    "headers": _Column("headers", headers_array, _headers),
    "bodies": _Column("body", bytea_array, _hexes),
    "priorities": _Column("priority", _number_array, _numbers),
    "unique_keys": _Column("unique_key", label_array, labels),
}


def line(
    payload: Any,
    kind: Label | None,
    key: Label | None,
    headers: Any,
    body: bytes | None,
    more: bytes,
) -> bytes:
    """One message as a line of COPY's text format; `more` is what `rest` gives, or NO_REST."""
    return b"%b\t%b\t%b\t%b\t%b\t%b\n" % (
        _kind(kind),
        _label("key", key),
        _field(json_bytes("payload", payload)),
        b"\\N" if headers is None else _field(headers_bytes("headers", headers)),
        b"\\N" if body is None else _field(_hex(content("body", body) or b"")),
        more,
    )


NO_REST: Final = b"0\t\\N\t\\N"


def rest(priority: int | None, options: Any, due_at: datetime | None) -> bytes:
    """The columns that few messages have."""
    (number,) = _numbers("priority", [priority or 0], 0)
    due = moment("due_at", due_at)
    return b"%b\t%b\t%b" % (
        number or b"0",
        _field(json_bytes("options", options)),
        b"\\N" if due is None else due.isoformat().encode(),
    )


def _kind(kind: Label | None) -> bytes:
    return _known_kind(kind) if kind is None or type(kind) is str else _label("kind", kind)


@lru_cache(maxsize=256)
def _known_kind(kind: str | None) -> bytes:
    return _label("kind", kind)


def _label(name: str, value: Label | None) -> bytes:
    said = label(name, value)
    return _field(None if said is None else said.encode())


def _hex(content: bytes) -> bytes:
    return b"\\x" + content.hex().encode()


def _fields(raws: Sequence[bytes | None]) -> list[bytes]:
    """Values as COPY reads them."""
    present = [raw for raw in raws if raw is not None]
    if len(present) == len(raws) and not _has_special(b"".join(present)):
        return present
    return list(map(_field, raws))


def _field(raw: bytes | None) -> bytes:
    if raw is None:
        return b"\\N"
    return _escaped(raw) if _has_special(raw) else raw


def _has_special(raw: bytes) -> bool:
    return b"\\" in raw or b"\n" in raw or b"\t" in raw or b"\r" in raw


def _escaped(raw: bytes) -> bytes:
    raw = raw.replace(b"\\", b"\\\\")
    return raw.replace(b"\n", b"\\n").replace(b"\t", b"\\t").replace(b"\r", b"\\r")
