"""What fell due, before what waits: functions/work/due.sql."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from calling import refused
from engine import Engine

Connection = psycopg.Connection[Any]


@pytest.fixture
def engine(session: Connection, queue: str) -> Engine:
    work = Engine(session, queue)
    work.ask("subscribe", subscription="default", due_first=True)
    return work


def publish_due(work: Engine, count: int = 1, **options: Any) -> list[int]:
    """Messages that were delayed, and are due."""
    ids = [work.ask("publish", payload={}, delay="1 microsecond", **options) for _ in range(count)]
    work.ask("promote")
    return ids


def test_what_fell_due_comes_before_what_waits(engine: Engine) -> None:
    waiting = engine.publish(5)
    first, second = publish_due(engine, 2)
    assert engine.lease(3).ids == [first, second]
    assert engine.lease(3).ids == waiting[:3]
    (third,) = publish_due(engine)
    assert engine.lease(3).ids == [third]
    assert engine.drain() == waiting[3:]
