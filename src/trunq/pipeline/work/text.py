"""Values as texts: what is hashed, compared with another row's, and looked up in a table."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from trunq.arrow.value import TYPE, WIDER, endless_texts, to_json

_KEY_BYTES: Final = 16


def texts(column: pa.Array) -> pa.Array:
    """Texts, as Postgres has them but for times: numbers in decimal digits, times in ISO 8601 with a blank
    and six decimals, bytes in hexadecimal digits, what is nested in JSON. Zero has no sign.
    """
    kind = column.type
    if pa.types.is_dictionary(kind):
        return texts(column.dictionary_decode())
    if pa.types.is_nested(kind):
        values = column.to_pylist(maps_as_pydicts="lossy")
        return pa.array([None if value is None else to_json(value) for value in values], pa.string())
    if kind in (pa.binary(), pa.large_binary()):
        return pa.array(
            [None if each is None else f"\\x{each.hex()}" for each in column.to_pylist()], pa.string()
        )
    if kind == pa.float16():
        column = column.cast(pa.float32())
    if pa.types.is_floating(column.type):
        return pc.add(column, pa.scalar(0.0, column.type)).cast(pa.string())
    if pa.types.is_decimal(kind):
        return pa.array([None if each is None else f"{each:f}" for each in column.to_pylist()], pa.string())
    if pa.types.is_timestamp(kind):
        column = column.cast(pa.timestamp("us", "UTC" if kind.tz else None), safe=False)
    elif WIDER.get(kind) == pa.date32():
        column = column.cast(pa.date32())
    return endless_texts(column, column.cast(pa.string()))


def hashed(column: pa.Array, salt: str) -> pa.Array:
    """HMAC-SHA256 of each text in hexadecimal digits, of bytes that of the bytes; null stays null."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    is_bytes = column.type in (pa.binary(), pa.large_binary())
    encoded = (column if is_bytes else texts(column)).dictionary_encode()
    key = salt.encode()
    digests = [
        hmac.digest(key, each if is_bytes else each.encode(), "sha256").hex()
        for each in encoded.dictionary.to_pylist()
    ]
    return pa.array(digests, pa.string()).take(encoded.indices)


def keys(columns: Sequence[pa.Array], fields: Sequence[pa.Field]) -> list[bytes | None]:
    """A digest of each row's values, the same for the same values; None where one is null."""
    rows = zip(
        *(
            _comparable(texts(column), field).to_pylist()
            for column, field in zip(columns, fields, strict=True)
        ),
        strict=True,
    )
    return [None if None in row else _digest(row) for row in rows]


def _comparable(found: pa.Array, field: pa.Field) -> pa.Array:
    """1.50 is 1.5, of exact numbers."""
    is_numeric = (field.metadata or {}).get(TYPE, b"").startswith(b"numeric")
    if not is_numeric and not pa.types.is_decimal(field.type):
        return found
    return pc.replace_substring_regex(
        pc.replace_substring_regex(found, r"(\.\d*[1-9])0+$", r"\1"), r"\.0*$", ""
    )


def _digest(row: tuple[str, ...]) -> bytes:
    made = blake2b(digest_size=_KEY_BYTES)
    for each in row:
        encoded = each.encode()
        made.update(len(encoded).to_bytes(8, "big"))
        made.update(encoded)
    return made.digest()
