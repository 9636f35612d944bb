"""What a message says and a definition names: `message = { customer = "text" }`, and `${message.customer}`.

A value is checked before it goes anywhere: a message whose values do not fit is dead, with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

from trunq.pipeline.definition.part import Part
from trunq.pipeline.errors import MessageRefused

PLAIN: Final = "[a-z0-9][a-z0-9_-]{0,62}"
"""The pattern of a text that has no other."""

INSTANCE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
"""What the value of `per` is, whatever its pattern: it is part of a name."""

_MOST: Final = 255
"""Characters of a value."""
_MOST_NUMBER: Final = 2**63
_PATH: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")


class MessageField(Part):
    """A field of the message: `text` that is as `pattern` (RE2) says, or a whole number, `integer`."""

    type: Literal["text", "integer"] = "text"
    pattern: str | None = None

    @field_validator("pattern")
    @classmethod
    def _readable(cls, value: str | None) -> str | None:
        if value is not None:
            _matches(value, "")
        return value

    @model_validator(mode="after")
    def _possible(self) -> MessageField:
        if self.pattern is not None and self.type == "integer":
            raise ValueError("a pattern is for text")
        return self

    @model_serializer(mode="wrap")
    def _short(self, handler: SerializerFunctionWrapHandler) -> Any:
        return self.type if self.pattern is None else handler(self)

    def mistake(self, value: Any) -> str | None:
        """Why a value is not one of this field."""
        if value is None or value == "":
            return "is missing" if value is None else "is empty"
        if self.type == "integer":
            is_one = isinstance(value, int) and not isinstance(value, bool) and abs(value) < _MOST_NUMBER
            return None if is_one else f"is {_shown(value)}, not a whole number"
        if not isinstance(value, str):
            return f"is {_shown(value)}, not text"
        if len(value) > _MOST:
            return f"has {len(value)} characters, and {_MOST} at most may be"
        if re.search(r"[\x00-\x1f\x7f]", value):
            return f"is {_shown(value)}, with characters that are none of a text"
        if not _matches(self.pattern or PLAIN, value):
            return f"is {_shown(value)}, which is not as {self.pattern or PLAIN} says"
        return None


def _short_field(value: Any) -> Any:
    return {"type": value} if isinstance(value, str) else value


def _paths(given: dict[str, MessageField]) -> dict[str, MessageField]:
    for name in given:
        if not _PATH.fullmatch(name):
            raise ValueError(
                f"{name!r:.60} is no field: names of letters, digits and underscores, with dots between"
            )
        if other := next((each for each in given if each.startswith(f"{name}.")), None):
            raise ValueError(f"{name} is a value, and has a field in {other}")
    return given


Message = Annotated[
    dict[str, Annotated[MessageField, BeforeValidator(_short_field)]],
    Field(default={}),
    AfterValidator(_paths),
]
"""Fields by their paths in the payload."""


def read_message(pipeline: str, fields: Mapping[str, MessageField], payload: Any) -> dict[str, Any]:
    """What a payload says of the fields, and nothing else. Raises MessageRefused."""
    found: dict[str, Any] = {}
    for path, field in fields.items():
        value = payload
        for name in path.split("."):
            value = value.get(name) if isinstance(value, Mapping) else None
        if mistake := field.mistake(value):
            raise MessageRefused(f"pipeline {pipeline}: {path} of the message {mistake}")
        inner = found
        *above, last = path.split(".")
        for name in above:
            inner = inner.setdefault(name, {})
        inner[last] = value
    return found


def flat(message: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Values by their paths, as texts."""
    found: dict[str, str] = {}
    for name, value in message.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = str(value)
    return found


def _matches(pattern: str, value: str) -> bool:
    if pattern == PLAIN:
        return re.fullmatch(PLAIN, value) is not None
    import pyarrow as pa  # noqa: PLC0415  # slow to import
    import pyarrow.compute as pc  # noqa: PLC0415

    try:
        return bool(pc.match_substring_regex(pa.array([value]), f"^(?:{pattern})$")[0].as_py())
    except pa.ArrowInvalid as error:
        said = str(error).removeprefix("Invalid regular expression: ")
        raise ValueError(f"{pattern[:60]!r} is no pattern: {said}") from None


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list):
        return "a list"
    return repr(value) if len(repr(value)) <= 40 else f"{repr(value)[:40]}..."
