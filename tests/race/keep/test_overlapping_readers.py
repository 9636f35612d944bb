"""Long readers do not stop rotation: readers of batches, in transactions that overlap, keep no locks."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from calling import fetch, move_clock, new_names, refused
from conftest import Connect
from engine import Engine
from streaming import LAKE, ids, named, put_batches, read, take
from waiting import wait_until_blocked

OLD = "3000 days"
LARGE = "select string_agg(md5(n::text), '') from generate_series(1, 500) n"
SEGMENTS_HELD = """
    select count(*) from pg_locks l join pg_class c on c.oid = l.relation
    where l.pid = %s and c.relnamespace = 'trunq_data'::regnamespace and c.relkind = 'r'
"""


@pytest.fixture
def work(session: psycopg.Connection[Any]) -> Engine:
    """A queue with a stream, and nobody else who reads."""
    work = Engine(session, next(new_names("overlap"))).create(
        retention="2000 days", default_subscription=False
    )
    work.ask("subscribe", **LAKE, mode="exclusive", lease_time="9000 days")
    return work


@pytest.fixture
def reader(work: Engine, open_session: Connect) -> Engine:
    """The same queue in a session whose transactions stay open."""
    return work.on(open_session(autocommit=False))


def publish_large(work: Engine) -> None:
    """A message whose payload lies outside of its row."""
    work.run(f"insert into {{log}} (payload) select to_jsonb(({LARGE}))")


def segments_held(work: Engine, reader: Engine) -> int:
    return int(work.fetch(SEGMENTS_HELD, reader.connection.info.backend_pid))


@pytest.mark.parametrize("limit", [None, 2000, 3])
def test_a_batch_read_in_an_open_transaction_keeps_no_segment(
    work: Engine, reader: Engine, limit: int | None
) -> None:
    published = work.publish(700)
    batch = take(work)
    assert ids(read(reader, batch, limit=limit)) == published[:limit]
    assert segments_held(work, reader) == 0
    assert reader.ask("finish_batch", **named(batch)) is True
    reader.connection.commit()
    assert take(work) is None


def test_a_large_message_keeps_its_own_segment_alone(work: Engine, reader: Engine) -> None:
    publish_large(work)
    batch = take(work)
    (row,) = read(reader, batch)
    assert len(row.payload) == 16000
    assert segments_held(work, reader) == 1
    with work.clock("1200 days"):
        work.publish()
    assert segments_held(work, reader) == 1


def test_a_reader_at_repeatable_read_keeps_all_that_it_has_still_to_read(
    work: Engine, reader: Engine
) -> None:
    work.publish(3)
    batch = take(work)
    reader.connection.execute("set transaction isolation level repeatable read")
    assert len(read(reader, batch)) == 3
    assert segments_held(work, reader) > 0


def test_four_members_whose_transactions_overlap_let_every_segment_go(
    session: psycopg.Connection[Any], open_session: Connect
) -> None:
    # By the real clock, which alone says where a message goes: a ring of four seconds.
    work = Engine(session, next(new_names("ring"))).create(retention="1 second", default_subscription=False)
    work.ask("create_group", group="crew", start="earliest")
    members = [work.on(open_session(autocommit=False)) for _ in range(4)]
    in_hand: list[Any] = [None] * 4
    published: list[int] = []
    done: list[int] = []
    emptied = 0
    end = time.monotonic() + 60
    while emptied < 12:
        assert time.monotonic() < end, f"emptied {emptied} times"
        for number, member in enumerate(members):
            published += work.publish(2)
            if in_hand[number] is not None:
                batch, found = in_hand[number]
                member.ask("finish_batch", subscription="crew", batch_id=batch.batch_id, token=batch.token)
                done += found
            member.connection.commit()
            (batch,) = member.call("next_batch", subscription="crew", worker=f"m{number}", max_ticks=100)
            member.connection.commit()
            rows = member.call("read_batch", subscription="crew", batch_id=batch.batch_id)
            in_hand[number] = (batch, ids(rows))
            # The other three have read, and their transactions are open.
            emptied += work.ask("rotate") or 0
    assert sorted(done) == published[: len(done)]


def test_a_sleeping_reader_keeps_nothing_that_the_queue_holds_no_more(work: Engine, reader: Engine) -> None:
    work.ask("set_queue", hold_at_most="2000 days")
    published = work.publish(4)
    batch = take(work)
    assert ids(read(reader, batch)) == published
    with work.clock(OLD):
        assert work.ask("rotate") == 1
    assert work.is_empty("log")
    with refused("TQ003", "has ended"):
        reader.ask("finish_batch", **named(batch))


def test_who_reads_on_after_the_rest_was_emptied_is_told(work: Engine, reader: Engine) -> None:
    work.ask("set_queue", hold_at_most="2000 days")
    work.publish(4)
    batch = take(work)
    first = read(reader, batch, limit=2)
    with work.clock(OLD):
        assert work.ask("rotate") == 1
    with refused("TQ026"):
        read(reader, batch, after_txid=first[-1].txid, after_id=first[-1].id, limit=2)


def dump(other: Engine) -> None:
    """What pg_dump does first, and then for hours."""
    other.connection.rollback()
    other.connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    other.connection.read_only = True
    other.run("lock table {log} in access share mode")


def look(other: Engine) -> None:
    """A long SELECT: its locks stay until its transaction ends."""
    other.fetch("select count(*) from {log}")


def publish(other: Engine) -> None:
    other.publish()


@pytest.mark.parametrize("hold", [dump, look, publish])
def test_rotation_waits_longer_each_time_and_says_for_whom(
    work: Engine, reader: Engine, hold: Callable[[Engine], None]
) -> None:
    put_batches(work, 2)
    tick = work.ask("tick", force=True)
    work.ask("tick", force=True)
    work.ask("advance", **LAKE, tick_id=tick + 1)
    reader.run("set application_name = 'the dump'")
    reader.connection.commit()
    hold(reader)
    pid = reader.connection.info.backend_pid
    waited = []
    for second in range(0, 60, 5):
        with work.clock(f"{OLD} {second} seconds"):
            assert work.ask("rotate") is None
            waited.append(work.fetch("select max(waited) from trunq.refusal where queue_id = {id}"))
            told = [row for row in work.call("list_warnings") if row.warning.startswith("rotation")]
            assert bool(told) == (second >= 10)
    assert waited == [5, 10, 20, 40, *[80] * 8]
    (row,) = told
    assert f"trunq_data.{work.queue}_log_" in row.warning
    assert f"process {pid} of role postgres" in row.warning
    assert 'application "the dump"' in row.warning
    assert "in a transaction since" in row.warning
    command = row.hint.partition("; ")[2].removesuffix(" ends it")
    assert command.startswith(f"select trunq.end_session({pid}, '")
    with work.clock(f"{OLD} 60 seconds"):
        work.run(command)
    with work.clock(f"{OLD} 70 seconds"):
        while work.ask("rotate") != 0:
            pass
        assert work.is_empty("log")
        assert not [row for row in work.call("list_warnings") if row.warning.startswith("rotation")]
    assert work.fetch("select count(*) from trunq.refusal where queue_id = {id}") == 0


def test_a_refusal_that_is_waited_for_ends_with_the_lock(
    work: Engine, reader: Engine, open_session: Connect, meanwhile: Any
) -> None:
    work.publish(2)
    tick = work.ask("tick", force=True)
    work.ask("tick", force=True)
    work.ask("advance", **LAKE, tick_id=tick + 1)
    look(reader)
    rotator = work.on(open_session())
    rotator.run("alter function trunq._truncate set lock_timeout = '20 s'")
    try:
        move_clock(rotator.connection, OLD)
        rotation = meanwhile(rotator.ask, "rotate")
        wait_until_blocked(work.connection, rotator.connection)
        reader.connection.commit()
        assert rotation.result(120) == 1
    finally:
        rotator.run("alter function trunq._truncate set lock_timeout = '5 ms'")
    assert fetch(work.connection, "select count(*) from trunq.refusal") == 0


def test_the_lock_of_a_queue_that_somebody_keeps_is_named(work: Engine, open_session: Connect) -> None:
    stranger = open_session()
    stranger.execute("set application_name = 'prankster'")
    stranger.execute("select pg_advisory_lock(trunq._lock_class('queue'), %s)", (work.queue_id,))
    try:
        for second in (0, 5, 10):
            with work.clock(f"{second} seconds"):
                assert work.ask("rotate") is None
        with work.clock("11 seconds"):
            warnings = [row.warning for row in work.call("list_warnings")]
    finally:
        stranger.execute("select pg_advisory_unlock_all()")
    assert any('holds the lock of queue "' in each and '"prankster"' in each for each in warnings)
    assert any("has not got the lock of the queue" in each and '"prankster"' in each for each in warnings)
    assert work.ask("rotate") == 0
    assert work.call("list_warnings") == []
