"""An act as it was asked for, and the question before it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from psycopg import AsyncConnection

from trunq.client._async import AsyncClient
from trunq.display import counted
from trunq.errors import InvalidArgument
from trunq.web.page import Given, text
from trunq.web.pages.dead import filter_of


@dataclass(frozen=True, slots=True)
class Call:
    """An act as it was asked for."""

    client: AsyncClient
    connection: AsyncConnection[Any]
    given: Given
    hidden: frozenset[str]
    started: list[tuple[str, int]] = field(default_factory=list)
    """Queues and ids of sweeps that this process carries on, once the act is committed."""

    def need(self, name: str) -> str:
        """A field that must be there."""
        value = text(self.given, name)
        if value is None:
            raise InvalidArgument(f"{name} is missing")
        return value

    def dead(self) -> dict[str, Any]:
        """Which dead messages: what the preview counted, and none that died since."""
        wanted = filter_of(self.given, self.hidden)
        id = wanted.pop("id", None)
        return {**wanted, **({"ids": [id]} if id is not None else {})}


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked before an act that is not taken back by another."""

    sentence: str
    button: str
    fields: dict[str, Any]
    typed: str | None = None
    is_possible: bool = True


def messages(n: int, what: str = "") -> str:
    """So many messages, in words."""
    return counted(n, f"{what}message")


def parsed(name: str, value: str | None) -> Any:
    """What a field has as JSON. Raises InvalidArgument where it is none."""
    if value is None:
        return None
    try:
        return json.loads(value)
    except ValueError as error:
        raise InvalidArgument(f"the {name} is no JSON: {error}") from None
