"""Rotation beside a synchronous standby, whose reader holds up every commit that waits for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from calling import answer, ask, drain, fetch, lease, move_clock, publish
from conftest import Connect, opening
from standby import Pair, primary_and_standby
from trunq.embedded import Embedded
from waiting import wait_until

Connection = psycopg.Connection[Any]

IS_HELD_UP = """
    select count(*) > 0 from pg_stat_activity where backend_type = 'startup' and wait_event_type = 'Lock'
"""
WAITS_FOR_STANDBY = "select count(*) from pg_stat_activity where pid = %s and wait_event = 'SyncRep'"
LOCKED = "select count(*) from pg_locks where mode = 'AccessExclusiveLock' and relation is not null"


@pytest.fixture
def pair(server: Embedded) -> Iterator[Pair]:
    """Readers of the standby are never cancelled: what they lock is not replayed."""
    settings = {"max_standby_streaming_delay": "-1"}
    with primary_and_standby(server.major, retention="2000 days", standby_settings=settings) as pair:
        yield pair


@pytest.fixture
def connect(pair: Pair) -> Iterator[Connect]:
    """Connections to the primary, whose commits wait for the standby."""
    with opening(pair.primary.dsn) as connect:
        yield lambda **more: connect(options="-c synchronous_commit=remote_apply", **more)


def test_a_segment_is_emptied_and_its_lock_given_back_while_a_reader_holds_up_the_standby(
    pair: Pair, connect: Connect, meanwhile: Any
) -> None:
    watcher, rotator, publisher, worker = (connect() for _ in range(4))
    publish(watcher, "q", 3)
    drain(watcher, "q")
    move_clock(rotator, "3000 days")
    pair.synchronize()
    pair.caught_up()
    with (
        psycopg.connect(pair.standby.dsn) as reader,
        psycopg.connect(pair.standby.dsn, autocommit=True) as eye,
    ):
        assert fetch(reader, "select count(*) from trunq_log.q") == 3
        rotation = meanwhile(ask, rotator, "rotate", queue="q")
        wait_until(lambda: fetch(eye, IS_HELD_UP), 120, "the standby waits for its reader")
        assert rotation.result(120) == 1
        assert fetch(watcher, LOCKED) == 0
        # What waits for the standby has done its work by then: nobody stood in its way.
        published = meanwhile(publish, publisher, "q")
        pid = publisher.info.backend_pid
        wait_until(lambda: fetch(watcher, WAITS_FOR_STANDBY, pid), 120, "a publisher waits for the standby")
        # And what does not goes on.
        worker.execute("set synchronous_commit = local")
        ids = publish(worker, "q", 2)
        held = lease(worker, "q", 9)
        assert held.ids == ids
        assert answer(worker, "ack", held) == 2
        assert fetch(eye, IS_HELD_UP)
        assert not published.done()
        reader.rollback()
    late = published.result(120)
    assert lease(worker, "q", 9).ids == late
    pair.caught_up()
    with psycopg.connect(pair.standby.dsn) as reader:
        assert fetch(reader, "select array_agg(id order by id) from trunq_log.q") == sorted(ids + late)
