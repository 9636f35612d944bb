"""A queue with columns of the user's own, and what readers are told of them."""

from __future__ import annotations

from typing import Any

import psycopg

from calling import ask

Connection = psycopg.Connection[Any]

FORMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "laned": {"lanes": "key"},
    "ranked": {"lanes": "priority,kind"},
    "keyed": {"unique": "replace"},
    "both": {"lanes": "key", "unique": "refuse"},
}
GIVEN = {"customer": "acme", "total": 1.5, "At": "2030-01-31T10:00:00+00:00", "tags": ["a", "b,c"]}
"""What a message has in `wide`."""
TYPES = {"customer": "text", "total": "numeric(12,2)", "At": "timestamptz", "tags": "text[]"}


def widen(session: Connection, queue: str, **defaults: str) -> None:
    for name, type in TYPES.items():
        assert ask(session, "add_column", queue=queue, column=name, type=type, default=defaults.get(name))


def put(session: Connection, queue: str, columns: Any = GIVEN, **more: Any) -> int:
    """Publish a message with these columns."""
    return int(ask(session, "publish", queue=queue, kind="k", options={"columns": columns}, **more))


def told(message: Any) -> dict[str, Any]:
    """The columns of a message that was leased."""
    return (message.options or {}).get("columns", {})  # type: ignore[no-any-return]
