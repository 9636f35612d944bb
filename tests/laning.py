"""Queues with lanes, for tests."""

from __future__ import annotations

from typing import Any

import psycopg

from calling import Lease, new_names
from engine import Engine

LATER = "9 days 12 hours"
"""When the segment that is written to now is old, and no other."""


def make(session: psycopg.Connection[Any], lanes: str = "key", **options: Any) -> Engine:
    """A queue that nobody else has."""
    return Engine(session, next(new_names("laned"))).create(lanes=lanes, **options)


EVERY_QUEUE = ["plain", "lanes", "limited lanes"]
"""What behaves alike, for whoever looks at a subscription as a whole."""


def make_any(session: psycopg.Connection[Any], sort: str) -> Engine:
    """A queue of one of these sorts; the limits of its lanes are reached by nobody."""
    if sort == "plain":
        return Engine(session, next(new_names("plain"))).create()
    laned = make(session)
    if sort == "limited lanes":
        laned.ask("set_lanes", max_running=1000, rate=1_000_000, burst=1_000_000)
    return laned


def keys(held: Lease) -> list[str]:
    """Of the messages of a lease."""
    return [message.key for message in held.messages]


def priorities(held: Lease) -> list[int]:
    """Of the messages of a lease."""
    return [message.priority for message in held.messages]


def key_of(laned: Engine, id: int) -> str:
    """Of a message that is in the log once."""
    return str(laned.fetch("select key from {log} where id = %s", id))
