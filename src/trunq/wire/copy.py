"""Many messages, given column by column: as arrays for the function publish_many, or as lines of COPY."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import count, repeat
from typing import Any, Final, NamedTuple

from trunq.wire.array import Array, bytea_array, elements, jsonb_array, text_array
from trunq.wire.json import json_bytes

PART: Final = 500
"""Messages sent at a time: with 5,000 the server takes half as long again for each, out of its caches."""

COLUMNS: Final = ("kind", "key", "payload", "headers", "body")
"""The columns `line` fills."""


class Columns:
    """Columns of messages. What is one, or a list of one, stands for all."""

    def __init__(
        self,
        payloads: Sequence[Any],
        kinds: Sequence[str | None] | str | None,
        keys: Sequence[str | None] | str | None,
        headers: Sequence[Any] | Mapping[str, Any] | None,
        bodies: Sequence[bytes | None] | None,
        priorities: Sequence[int] | int | None = None,
    ) -> None:
        given: dict[str, Any] = {
            "payloads": payloads,
            "kinds": [kinds] if isinstance(kinds, str) else kinds,
            "keys": [keys] if isinstance(keys, str) else keys,
            "headers": [headers] if isinstance(headers, Mapping) else headers,
            "bodies": bodies,
            "priorities": [priorities] if isinstance(priorities, int) else priorities,
        }
        self._given = {name: values for name, values in given.items() if values is not None}
        for name, values in self._given.items():
            if isinstance(values, str | bytes):
                raise TypeError(f"{name} is a list of values, not {type(values).__name__}")
        lengths = {1, *map(len, self._given.values())}
        self.count = max(lengths)
        """How many messages there are."""
        self.fit = lengths <= {1, self.count}
        """Whether the columns agree about that."""

    def arrays(self) -> list[Callable[[], dict[str, Array | str | None]]]:
        """What makes the arguments of publish_many, for some of the messages each."""
        # Lengths that differ are for the database to refuse.
        step = PART if self.fit else self.count
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


class _Column(NamedTuple):
    column: str
    array: Callable[[str, Any, int], Array | str | None]
    encode: Callable[[str, Sequence[Any], int], Iterable[bytes | None]]


def _documents(name: str, values: Sequence[Any], first: int) -> Iterator[bytes | None]:
    return map(json_bytes, repeat(name), values, count(first))


def _texts(name: str, values: Sequence[Any], first: int) -> Iterator[bytes | None]:
    return elements(name, values, str, str.encode, first)


def _numbers(name: str, values: Sequence[Any], first: int) -> Iterator[bytes | None]:
    return elements(name, values, int, _digits, first)


def _digits(number: int) -> bytes:
    return str(number).encode()


def _number_array(name: str, values: Any, first: int) -> str | None:
    digits = (b"NULL" if raw is None else raw for raw in _numbers(name, values, first))
    return f"{{{b','.join(digits).decode()}}}"


def _contents(name: str, values: Sequence[Any], first: int) -> Iterator[bytes | None]:
    return elements(name, values, bytes, _hex, first)


_COLUMNS: Final = {
    "payloads": _Column("payload", jsonb_array, _documents),
    "kinds": _Column("kind", text_array, _texts),
    "keys": _Column("key", text_array, _texts),
    "headers": _Column("headers", jsonb_array, _documents),
    "bodies": _Column("body", bytea_array, _contents),
    "priorities": _Column("priority", _number_array, _numbers),
}


def line(payload: Any, kind: str | None, key: str | None, headers: Any, body: bytes | None) -> bytes:
    """One message as a line of COPY's text format."""
    return b"%b\t%b\t%b\t%b\t%b\n" % (
        _kind(kind),
        b"\\N" if key is None else _field(key.encode()),
        _field(json_bytes("payload", payload)),
        b"\\N" if headers is None else _field(json_bytes("headers", headers)),
        b"\\N" if body is None else _field(_hex(body)),
    )


@lru_cache(maxsize=256)
def _kind(kind: str | None) -> bytes:
    return _field(None if kind is None else kind.encode())


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
