"""Payloads that have a type: a pydantic model, a dataclass, or what else pydantic reads from JSON."""

from __future__ import annotations

import inspect
from typing import Any, Final

SHOWN: Final = 3
"""So many errors of a payload that does not fit are told."""


class Unfit(ValueError):
    """A payload does not fit its type; `__cause__` is pydantic's ValidationError, which has all of it.

    `message` is what came with it, where a listener read it: a `Heard` or a `Notification`.
    """

    def __init__(self, said: str, message: object = None) -> None:
        super().__init__(said)
        self.message = message


class PayloadType:
    """A type, and the reading of JSON as it."""

    def __init__(self, wanted: Any) -> None:
        """Raises TypeError for what pydantic makes nothing of."""
        # Here, not above: most programs need no pydantic.
        from pydantic import TypeAdapter  # noqa: PLC0415
        from pydantic.errors import PydanticUserError  # noqa: PLC0415

        self.name = getattr(wanted, "__name__", None) or str(wanted)
        try:
            self._adapter = TypeAdapter(wanted)
        except PydanticUserError as error:
            why = str(error).partition("\n")[0]
            raise TypeError(f"a payload cannot be checked against {self.name}: {why}") from error

    def read(self, raw: bytes, what: str = "the payload") -> Any:
        """The value of this type that JSON stands for. Raises Unfit."""
        from pydantic import ValidationError  # noqa: PLC0415

        try:
            return self._adapter.validate_json(raw)
        except ValidationError as error:
            raise Unfit(f"{what} does not fit {self.name}: {_first(error)}") from error


def _first(error: Any) -> str:
    errors = error.errors(include_url=False, include_context=False, include_input=False)
    said = [
        ": ".join(part for part in (".".join(map(str, each["loc"])), each["msg"]) if part)
        for each in errors[:SHOWN]
    ]
    more = len(errors) - SHOWN
    return "; ".join(said) + (f"; and {more} more" if more > 0 else "")


def require_plain(function: object, what: str) -> None:
    """Refuse what is no function, or an async one; `what` says what it is for."""
    if not callable(function) or inspect.iscoroutinefunction(function):
        raise TypeError(f"{what}, not {function!r}")
