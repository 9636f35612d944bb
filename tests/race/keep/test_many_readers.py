"""Rotation beside many subscriptions, busy and idle: it gets its turn, and nothing is lost or doubled."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import psycopg
import pytest

from calling import Lease, answer, lease
from conftest import Connect
from copying import copied_server
from engine import Engine
from trunq import embedded

BUSY, IDLE = 30, 15
CALLS = 120
"""A segment stays old for a span: even in one of two minutes, a call a second makes as many."""


@pytest.fixture
def work(server: embedded.Embedded) -> Any:
    """A queue with a hundred messages that everybody has read, all of it in the segment that is old."""
    with (
        copied_server(server.major, {"fsync": "off"}) as own,
        psycopg.connect(own.dsn, autocommit=True) as connection,
    ):
        work = Engine(connection, "work").create(retention="2000 days")
        for number in range(BUSY + IDLE):
            work.ask("subscribe", subscription=f"s{number}")
        work.ask("unsubscribe", subscription="default")
        work.publish(100)
        for number in range(BUSY + IDLE):
            work.drain(f"s{number}")
        for table in ("{log}", "{lease}", "{receipt}"):
            work.rewrite(f"update {table} set segment = mod(segment + 1, 4)")
        yield work, lambda: psycopg.connect(own.dsn, autocommit=True)


def lease_and_answer(
    session: psycopg.Connection[Any], queue: str, subscription: str, ended: Event
) -> list[int]:
    """Without a pause, and until nothing is left."""
    seen: list[int] = []
    with session:
        while True:
            is_over = ended.is_set()
            held: Lease = lease(session, queue, 3, subscription=subscription)
            if held:
                answer(session, "ack", held)
                seen += held.ids
            elif is_over:
                return seen


def test_among_thirty_busy_sessions_every_table_is_emptied_while_its_segment_is_old(
    work: tuple[Engine, Connect],
) -> None:
    queue, connect = work
    old = queue.fetch("select min(segment) from {log}")
    ended = Event()
    published: list[int] = []
    results: list[int | None] = []
    with ThreadPoolExecutor(BUSY) as pool:
        readers = [
            pool.submit(lease_and_answer, connect(), queue.queue, f"s{number}", ended)
            for number in range(BUSY)
        ]
        try:
            while results[-1:] != [0]:
                published += queue.publish(2)
                results.append(queue.ask("rotate"))
                assert len(results) < CALLS
        finally:
            ended.set()
    sizes = [
        queue.fetch(f"select pg_relation_size('trunq_data.work_{table}_{old}')")
        for table in ("log", "lease", "receipt")
    ]
    assert sizes == [0, 0, 0]
    assert [sorted(reader.result()) for reader in readers] == [published] * BUSY
    for number in range(BUSY, BUSY + IDLE):
        assert queue.drain(f"s{number}") == published
