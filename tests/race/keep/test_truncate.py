"""A segment is emptied only when nothing in it is needed, whoever comes in between.

The clock of the session that rotates is moved: what everybody writes now is old to it at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg import sql

from calling import answer, ask, call, drain, fetch, lease, move_clock, publish, refused
from conftest import Connect
from waiting import wait_until_blocked

Connection = psycopg.Connection[Any]

OLD = "1500 days"
"""Three spans on, with a retention of a thousand days."""

QUEUE = "q"


@pytest.fixture
def session(connect: Connect) -> Connection:
    """A session in a database of its own, where rotation waits for its locks and can be watched."""
    session = connect()
    ask(session, "create_queue", queue=QUEUE, retention="1000 days")
    session.execute("alter function trunq._truncate set lock_timeout = '20 s'")
    return session


@pytest.fixture
def rotator(connect: Connect) -> Connection:
    """The leader's session, far in the future."""
    session = connect()
    move_clock(session, OLD)
    return session


@pytest.fixture
def impatient(session: Connection) -> None:
    """As it is installed: a lock is waited for 5 ms."""
    session.execute("alter function trunq._truncate set lock_timeout = '5 ms'")


def rotate(rotator: Connection) -> int | None:
    """One step."""
    done: int | None = ask(rotator, "rotate", queue=QUEUE)
    return done


def carry_cursors(rotator: Connection) -> Any:
    """Carry every cursor out of the segment that is written to now."""
    return fetch(
        rotator,
        "select trunq._carry_cursors(q, trunq._segment_at(q, clock_timestamp()),"
        " array(select s.subscription_id from trunq.subscription s)) from trunq.queue q",
    )


def rows(session: Connection, table: str) -> int:
    """Rows of the queue's log, lease or receipt table."""
    name = f"trunq_log.{QUEUE}" if table == "log" else f"trunq_data.{QUEUE}_{table}"
    return int(fetch(session, f"select count(*) from {name}"))


def test_an_insert_that_commits_between_check_and_lock_is_kept(
    session: Connection, rotator: Connection, connect: Connect, meanwhile: Any
) -> None:
    publish(session, QUEUE, 3)
    drain(session, QUEUE)
    late = connect(autocommit=False)
    (id,) = publish(late, QUEUE)
    rotation = meanwhile(rotate, rotator)
    wait_until_blocked(session, rotator)
    late.commit()
    assert rotation.result(120) is None
    assert drain(session, QUEUE) == [id]
    while rotate(rotator):
        pass
    assert rows(session, "log") == 0


def test_an_insert_that_rolls_back_in_between_holds_nothing(
    session: Connection, rotator: Connection, connect: Connect, meanwhile: Any
) -> None:
    publish(session, QUEUE, 3)
    drain(session, QUEUE)
    late = connect(autocommit=False)
    publish(late, QUEUE)
    rotation = meanwhile(rotate, rotator)
    wait_until_blocked(session, rotator)
    late.rollback()
    assert rotation.result(120) == 1
    assert rows(session, "log") == 0


def test_an_insert_that_waits_for_the_truncate_lands_in_the_emptied_segment(
    session: Connection, rotator: Connection, connect: Connect, meanwhile: Any
) -> None:
    publish(session, QUEUE, 3)
    drain(session, QUEUE)
    publisher = connect()
    with rotator.transaction():
        assert rotate(rotator) == 1
        late = meanwhile(publish, publisher, QUEUE, 2)
        wait_until_blocked(session, publisher)
    ids = late.result(120)
    assert drain(session, QUEUE) == ids


def test_a_truncate_that_is_rolled_back_has_not_been(
    session: Connection, rotator: Connection, connect: Connect
) -> None:
    ids = publish(session, QUEUE, 3)
    drain(session, QUEUE)
    with rotator.transaction(force_rollback=True):
        assert rotate(rotator) == 1
    assert rows(session, "log") == 3
    assert [row.state for row in call(session, "list_messages", queue=QUEUE)] == ["done"] * 3
    assert drain(session, QUEUE) == []
    assert publish(session, QUEUE) > ids


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("how", ["open", "prepared"])
def test_a_writer_that_does_not_end_holds_up_neither_rotation_nor_anybody(
    session: Connection, rotator: Connection, connect: Connect, how: str
) -> None:
    ids = publish(session, QUEUE, 3)
    drain(session, QUEUE)
    writer = connect()
    writer.execute("set trunq.notify = off")
    writer.execute("begin")
    (late,) = publish(writer, QUEUE)
    if how == "prepared":
        writer.execute("prepare transaction 'a_writer'")
    before = time.monotonic()
    assert rotate(rotator) is None
    assert time.monotonic() - before < 60
    assert rows(session, "log") == len(ids)
    more = publish(session, QUEUE)
    assert drain(session, QUEUE) == more
    writer.execute("commit prepared 'a_writer'" if how == "prepared" else "commit")
    assert rotate(rotator) == 0
    assert drain(session, QUEUE) == [late]
    while rotate(rotator):
        pass
    assert rows(session, "log") == 0


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_a_truncator_with_an_old_snapshot_is_refused(
    session: Connection, rotator: Connection, level: str
) -> None:
    publish(session, QUEUE)
    drain(session, QUEUE)
    with refused("TQ007", level.upper()), rotator.transaction():
        rotator.execute(f"set transaction isolation level {level}".encode())
        fetch(rotator, "select 1")
        (id,) = publish(session, QUEUE)
        rotate(rotator)
    assert drain(session, QUEUE) == [id]


def test_a_lease_that_is_open_or_not_committed_keeps_its_messages(
    session: Connection, rotator: Connection, connect: Connect, meanwhile: Any
) -> None:
    ids = publish(session, QUEUE, 3)
    worker = connect(autocommit=False)
    held = lease(worker, QUEUE, 9)
    assert rotate(rotator) == 0
    worker.commit()
    assert rotate(rotator) == 0
    # Handed back, the messages are new rows, and again nobody has answered them.
    answer(session, "release", held)
    assert rotate(rotator) == 0
    held = lease(session, QUEUE, 9)
    assert held.ids == ids
    assert answer(worker, "ack", held) == 3
    assert rotate(rotator) == 0, "the answer is not committed"
    worker.rollback()
    assert rotate(rotator) == 0
    assert answer(session, "reject", held) == 3
    while rotate(rotator):
        pass
    assert rows(session, "log") == 0
    assert [row.id for row in call(session, "list_dead", queue=QUEUE)] == ids[::-1]


def empty_the_log(session: Connection, rotator: Connection) -> list[int]:
    """Bring the queue to where its leases are what goes next."""
    ids = publish(session, QUEUE, 5)
    assert drain(session, QUEUE) == ids
    assert rotate(rotator) == 1
    assert rows(session, "log") == 0
    assert rows(session, "lease") > 0
    return ids


def test_a_lease_taken_while_positions_are_carried_forward_waits_and_goes_on_from_there(
    session: Connection, rotator: Connection, connect: Connect, meanwhile: Any
) -> None:
    old = empty_the_log(session, rotator)
    new = publish(session, QUEUE, 4)
    worker = connect()
    # Its segment is the rotator's own time; what it reads from is not.
    with rotator.transaction():
        assert carry_cursors(rotator) == 1
        late = meanwhile(lease, worker, QUEUE, 2)
        wait_until_blocked(session, worker)
    first = late.result(120).ids
    assert first == new[:2]
    assert drain(session, QUEUE) == new[2:]
    assert not set(first) & set(old)


def test_positions_are_not_carried_forward_over_a_lease_in_flight(
    session: Connection, rotator: Connection, connect: Connect, meanwhile: Any
) -> None:
    empty_the_log(session, rotator)
    new = publish(session, QUEUE, 4)
    worker = connect(autocommit=False)
    taken = lease(worker, QUEUE, 2)
    assert taken.ids == new[:2]
    assert rotate(rotator) == 0
    worker.commit()
    assert rotate(rotator) == 0
    again = connect(autocommit=False)
    held = lease(again, QUEUE)
    assert carry_cursors(rotator) is None
    again.commit()
    assert held.ids + drain(session, QUEUE) == new[2:]


def test_leases_emptied_while_workers_wait_lose_no_position(
    session: Connection, rotator: Connection, connect: Connect, meanwhile: Any
) -> None:
    empty_the_log(session, rotator)
    assert rotate(rotator) == 1, "the position is carried"
    worker = connect()
    with rotator.transaction():
        assert rotate(rotator) == 1
        assert rows(rotator, "lease") == 1
        waiting = meanwhile(lease, worker, QUEUE, 9)
        wait_until_blocked(session, worker)
    assert not waiting.result(120)
    ids = publish(session, QUEUE, 3)
    assert drain(session, QUEUE) == ids


def test_an_answer_that_commits_between_check_and_lock_keeps_its_receipt(
    session: Connection, rotator: Connection, connect: Connect, meanwhile: Any
) -> None:
    """Without it, its lease would look open, and be reaped."""
    empty_the_log(session, rotator)
    assert [rotate(rotator), rotate(rotator)] == [1, 1], "the position is carried, and the leases go"
    worker = connect(autocommit=False)
    # As one who has answered something before.
    worker.execute(f"lock table trunq_data.{QUEUE}_receipt in row exclusive mode".encode())
    rotation = meanwhile(rotate, rotator)
    wait_until_blocked(session, rotator)
    (id,) = publish(session, QUEUE)
    held = lease(worker, QUEUE)
    assert held.ids == [id]
    assert answer(worker, "ack", held) == 1
    worker.commit()
    assert rotation.result(120) is None
    assert [row.state for row in call(session, "list_messages", queue=QUEUE) if row.id == id] == ["done"]


def test_a_batch_in_flight_keeps_the_position_it_goes_from(
    session: Connection, rotator: Connection, connect: Connect
) -> None:
    one = {"queue": QUEUE, "subscription": "stream"}
    ask(session, "subscribe", **one, mode="exclusive")
    ids = publish(session, QUEUE, 3)
    drain(session, QUEUE)
    ask(session, "tick", queue=QUEUE, force=True)
    reader = connect(autocommit=False)
    (batch,) = call(reader, "next_batch", **one, worker="w")
    assert rotate(rotator) == 0
    reader.commit()
    assert rotate(rotator) == 0
    assert [row.id for row in call(session, "read_batch", **one, batch_id=batch.batch_id)] == ids
    ask(reader, "finish_batch", **one, batch_id=batch.batch_id, token=batch.token)
    assert rotate(rotator) == 0
    reader.rollback()
    assert rotate(rotator) == 0
    assert ask(session, "finish_batch", **one, batch_id=batch.batch_id, token=batch.token) is True
    assert rotate(rotator) == 0, "a reader elsewhere may repeat it"
    tick = ask(session, "tick", queue=QUEUE, force=True)
    assert ask(session, "advance", **one, tick_id=tick) == tick
    while rotate(rotator):
        pass
    assert rows(session, "log") == 0
    assert ask(session, "position", **one) == tick


def test_a_reader_older_than_the_truncate_is_told_by_nobody_but_itself(
    session: Connection, rotator: Connection, connect: Connect
) -> None:
    """TRUNCATE knows no snapshots: who reads at REPEATABLE READ touches all segments first, to keep them."""
    publish(session, QUEUE, 3)
    drain(session, QUEUE)
    session.execute("alter function trunq._truncate set lock_timeout = '5 ms'")
    careless, careful = connect(autocommit=False), connect(autocommit=False)
    for reader in (careless, careful):
        reader.execute("set transaction isolation level repeatable read")
        fetch(reader, "select 1")
    assert fetch(careful, f"select count(*) from trunq_log.{QUEUE}") == 3
    assert rotate(rotator) is None
    careful.commit()
    assert rotate(rotator) == 1
    assert fetch(careless, f"select count(*) from trunq_log.{QUEUE}") == 0


def publish_in_every_way(session: Connection, queue: str, seconds: float, number: int) -> list[int]:
    """Publish for so long, in transactions short and longer than the ring, rolled back in part or whole."""
    kept: list[int] = []
    table = sql.Identifier("trunq_log", queue)
    session.execute("set trunq.notify = off")
    end = time.monotonic() + seconds
    turn = 0
    while time.monotonic() < end:
        turn += 1
        wait = "select pg_sleep(%s)"
        ids: list[int] = []
        session.execute("begin")
        ids += publish(session, queue, 2)
        session.execute("savepoint s")
        lost = publish(session, queue)
        session.execute("rollback to s" if turn % 2 else "release s")
        ids += [] if turn % 2 else lost
        # One of them stays open for more than the whole ring, the others for less and less.
        session.execute(wait, ((4.5 if turn == 1 and number == 0 else 0.7 / (turn + number)),))
        ids += [
            session.execute(sql.SQL("insert into {} default values returning id").format(table)).fetchone()[0]
        ]  # type: ignore[index]
        if turn % 5 == 3:
            session.execute("rollback")
            continue
        if turn % 5 == 4:
            session.execute(f"prepare transaction 'ring_{number}_{turn}'".encode())
            session.execute(wait, (0.05,))
            session.execute(f"commit prepared 'ring_{number}_{turn}'".encode())
        else:
            session.execute("commit")
        kept += ids
    return kept


def read_until(session: Connection, queue: str, subscription: str, done: Callable[[], bool]) -> list[int]:
    """Lease, and answer every second time, until publishers are done and nothing is left."""
    seen: list[int] = []
    while True:
        finished = done()
        held = lease(session, queue, 20, subscription=subscription)
        if held:
            answer(session, "ack", held)
            seen += held.ids
        elif finished:
            return seen
        else:
            session.execute("select pg_sleep(0.01)")


def test_a_ring_of_four_seconds_under_load_loses_and_doubles_nothing(
    session: Connection, connect: Connect, meanwhile: Any
) -> None:
    ask(session, "create_queue", queue="ring", retention="1 second")
    session.execute("alter function trunq._truncate set lock_timeout = '5 ms'")
    ask(session, "subscribe", queue="ring", subscription="second", start="earliest")
    publishers = [meanwhile(publish_in_every_way, connect(), "ring", 6.0, number) for number in range(3)]

    def done() -> bool:
        return all(future.done() for future in publishers)

    readers = [
        meanwhile(read_until, connect(), "ring", name, done) for name in ("default", "default", "second")
    ]
    emptied = 0
    while not all(reader.done() for reader in readers):
        emptied += ask(session, "rotate", queue="ring") or 0
        ask(session, "reap", queue="ring")
        session.execute("select pg_sleep(0.02)")
    published = sorted(id for publisher in publishers for id in publisher.result(1))
    assert sorted(readers[0].result(1) + readers[1].result(1)) == published
    assert sorted(readers[2].result(1)) == published
    assert emptied > 0


def test_a_writer_that_asked_whether_the_queue_is_full_locks_its_own_segment_alone(
    session: Connection, connect: Connect
) -> None:
    publish(session, QUEUE, 3)
    drain(session, QUEUE)
    ask(session, "set_publishing", queue=QUEUE, max_waiting=10)
    writer = connect()
    writer.execute("begin")
    (late,) = publish(writer, QUEUE)
    locked = fetch(
        session,
        "select count(*) from pg_locks l join pg_class c on c.oid = l.relation"
        " where l.pid = %s and c.relnamespace = 'trunq_data'::regnamespace and c.relkind = 'r'",
        writer.info.backend_pid,
    )
    writer.execute("commit")
    assert locked == 1, "rotation would wait for it"
    assert drain(session, QUEUE) == [late]
