"""JSON: payloads, headers and results on their way to the database and back.

What `json` itself writes (dict, list, tuple, str, int, float, bool, None) is written by it. All else is
turned into those by pydantic-core, which knows datetime, Decimal, UUID, Enum, dataclasses, pydantic models
and more: docs/log/payloads.md says what each becomes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from trunq.errors import InvalidArgument, MessageTooLarge

_HOPELESS: Final = 64 * 1024 * 1024
"""JSON text of this size is over the limit of 16 MB in any form; the database knows the limit itself."""

_ELSEWHERE: Final = "keep large content elsewhere and publish where it is"

_DEEPEST: Final = 150


@dataclass(frozen=True, slots=True)
class RawJson:
    """A payload, headers or a result that is JSON text already, to be sent as it is."""

    text: str | bytes

    def __post_init__(self) -> None:
        if not isinstance(self.text, str | bytes):
            raise InvalidArgument(
                f"RawJson is JSON text, not {type(self.text).__name__}", "give the value as it is, without it"
            )


def json_text(name: str, value: Any) -> str | None:
    """JSON text of a value; None stays None. The error says where in the value the trouble is."""
    if value is None:
        return None
    if type(value) is RawJson:
        return _raw(name, value, None).decode()
    text = _written(name, value, None)
    if not text.isascii():
        _encoded(name, text, value, None)
    elif len(text) > _HOPELESS:
        raise _too_large(name, len(text))
    return text


def json_bytes(name: str, value: Any, position: int | None = None) -> bytes | None:
    """As `json_text`, in UTF-8; the value is the one at `position` of a list, where there is one."""
    if value is None:
        return None
    if type(value) is RawJson:
        return _raw(name, value, position)
    return _encoded(name, _written(name, value, position), value, position)


def headers_text(value: Any) -> str | None:
    """Headers as JSON text: an object, for all that reads them asks for one by its name."""
    text = json_text("headers", value)
    if text is not None and text.lstrip()[:1] != "{":
        raise _no_object("headers", value)
    return text


def headers_bytes(name: str, value: Any, position: int | None = None) -> bytes | None:
    """As `headers_text`, in UTF-8; `position` as for `json_bytes`."""
    raw = json_bytes(name, value, position)
    if raw is not None and raw.lstrip()[:1] != b"{":
        raise _no_object(_where(name, position), value)
    return raw


def _no_object(where: str, value: Any) -> InvalidArgument:
    return InvalidArgument(
        f"{where} is an object, not {type(value).__name__}", "give a dict: headers={'name': 'value'}"
    )


def _raw(name: str, value: RawJson, position: int | None) -> bytes:
    """The text of RawJson in UTF-8; whether it is JSON is for the database to say."""
    try:
        if isinstance(value.text, str):
            return value.text.encode()
        value.text.decode()
    except UnicodeError as error:
        raise InvalidArgument(f"{_where(name, position)} is RawJson that is not UTF-8: {error}") from error
    return value.text


def decode_jsonb(raw: bytes) -> Any:
    """Decode a jsonb value in Postgres' binary form: one byte of version, then the text."""
    # json.loads guesses the encoding of bytes and looks for blanks; Postgres leaves nothing to guess.
    return _read(raw[1:].decode())[0]


_read: Final = json.JSONDecoder().raw_decode


def _written(name: str, value: Any, position: int | None) -> str:
    try:
        text = _encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        where = _where(name, position)
        raise InvalidArgument(_trouble(where, value) or f"{where} is not JSON: {error}") from error
    if "\\u0000" in text and (trouble := _trouble(_where(name, position), value)):
        raise InvalidArgument(trouble)
    return text


def _encoded(name: str, text: str, value: Any, position: int | None) -> bytes:
    try:
        raw = text.encode()
    except UnicodeEncodeError as error:
        where = _where(name, position)
        raise InvalidArgument(_trouble(where, value) or f"{where} is not JSON: {error}") from error
    if len(raw) > _HOPELESS:
        raise _too_large(_where(name, position), len(raw))
    return raw


def _too_large(where: str, size: int) -> MessageTooLarge:
    return MessageTooLarge(f"{where} is too large: {size} bytes of JSON, at most 16777216", _ELSEWHERE)


def _where(name: str, position: int | None) -> str:
    return name if position is None else f"{name}[{position}]"


def _simpler(value: Any) -> Any:
    """A value `json` does not know, made of those it knows. Raises TypeError when there is no such form."""
    if isinstance(value, RawJson):
        raise TypeError("RawJson inside a value is not sent as it is: it stands for a whole payload")
    if isinstance(value, bytes | bytearray | memoryview):
        raise TypeError(f"a {type(value).__name__} is not JSON")
    # Here, not above: it takes as long to import as the rest of the client, and plain values need it not.
    from pydantic_core import PydanticSerializationError, to_jsonable_python  # noqa: PLC0415

    try:
        return to_jsonable_python(value, bytes_mode="base64", inf_nan_mode="constants")
    except (PydanticSerializationError, ValueError) as error:
        raise TypeError(str(error)) from error


_encode: Final = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_simpler
).encode


def _trouble(where: str, value: Any, depth: int = 0) -> str | None:
    """Say which part of a value cannot be sent as jsonb, and why; None when each could."""
    if depth > _DEEPEST:
        return f"{where[:60]}... is nested too deeply, or contains itself"
    if value is None or isinstance(value, bool | int):
        return None
    if isinstance(value, str):
        return _text_trouble(where, value)
    if isinstance(value, float):
        return None if value - value == 0 else f"{where} is {value}, which is not JSON"
    if isinstance(value, dict):
        return _first(_pair_trouble(where, key, part, depth) for key, part in value.items())
    if isinstance(value, list | tuple):
        return _first(_trouble(f"{where}[{i}]", part, depth + 1) for i, part in enumerate(value))
    return _object_trouble(where, value, depth)


def _object_trouble(where: str, value: Any, depth: int) -> str | None:
    try:
        return _trouble(where, _simpler(value), depth + 1)
    except TypeError as error:
        if isinstance(value, bytes | bytearray | memoryview):
            return f"{where} is a {type(value).__name__}, which is not JSON; send bytes as body="
        within = "" if type(value).__name__ in str(error) else f" ({error})"
        return f"{where} is a {type(value).__name__}, which is not JSON{within}"


def _text_trouble(where: str, text: str) -> str | None:
    if "\0" in text:
        return f"{where} has a NUL character, which jsonb cannot hold"
    if any("\ud800" <= character <= "\udfff" for character in text):
        return f"{where} has half a surrogate pair, which is not a character"
    return None


def _pair_trouble(where: str, key: Any, part: Any, depth: int) -> str | None:
    if not isinstance(key, str | int | float | bool | None):
        return f"{where} has a key that is a {type(key).__name__}; keys of JSON objects are strings"
    return _trouble(f"{where}[{key!r}]", key, depth + 1) or _trouble(f"{where}[{key!r}]", part, depth + 1)


def _first(troubles: Iterable[str | None]) -> str | None:
    return next((trouble for trouble in troubles if trouble), None)
