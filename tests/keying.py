"""Queues with unique keys in tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg

from engine import Engine

Connection = psycopg.Connection[Any]


def take(engine: Engine, unique_key: str | None = "k", /, **options: Any) -> tuple[int, bool]:
    ((id, is_new),) = engine.call("publish_unique", **{"payload": {}, "unique_key": unique_key, **options})
    return id, is_new


def is_free(engine: Engine, key: str = "k") -> bool:
    """Whether a message could take the key; it takes it for nothing."""
    with engine.connection.transaction(force_rollback=True):
        return take(engine, key, on_conflict="refuse")[1]


def made(session: Connection, unique: str, lanes: str | None) -> Iterator[Engine]:
    engine = Engine(session, "keyed").create(unique=unique, lanes=lanes)
    engine.ask("subscribe", subscription="default", backoff_base="0", max_attempts=3)
    yield engine
    engine.ask("drop_queue", force=True)
