"""A crash of the server: all processes killed, what was not on the disk gone."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import psycopg
import pytest

from calling import (
    answer,
    ask,
    burn,
    call,
    drain,
    fetch,
    lease,
    move_clock,
    named,
    new_names,
    publish,
    refused,
    state,
)
from trunq import install
from trunq.arrow import history
from trunq.embedded import Embedded

Connection = psycopg.Connection[Any]
Open = Callable[[], Connection]


@pytest.fixture
def open_one(spare: Embedded) -> Iterator[Open]:
    """Open sessions in a database of the spare server, with a queue `q`; they die with it."""
    name = next(new_names("crash"))
    with psycopg.connect(spare.dsn, autocommit=True) as connection:
        connection.execute(f"create database {name}".encode())
    opened: list[Connection] = []

    def open_session() -> Connection:
        opened.append(psycopg.connect(named(spare.dsn, name), autocommit=True))
        return opened[-1]

    install.install(named(spare.dsn, name))
    ask(open_session(), "create_queue", queue="q")
    yield open_session
    for connection in opened:
        connection.close()


def write_no_more(session: Connection) -> None:
    """Nothing reaches the disk any more: commits do not wait for it, and the process that writes is held."""
    session.execute("set synchronous_commit = off")
    os.kill(
        fetch(session, "select pid from pg_stat_activity where backend_type = 'walwriter'"), signal.SIGSTOP
    )


def crash(spare: Embedded) -> None:
    """Kill every process of the server and start it again."""
    spare.kill()
    spare.restart()


def test_a_lease_id_that_comes_again_with_the_same_messages_is_not_the_same_lease(
    spare: Embedded, open_one: Open
) -> None:
    session = open_one()
    ids = publish(session, "q", 60)
    # A sequence is logged 32 ahead: after so many, the next lease begins a new stretch.
    for _ in range(33):
        answer(session, "ack", lease(session, "q"))
    write_no_more(session)
    stale = [lease(session, "q") for _ in range(5)]
    crash(spare)
    session = open_one()
    again = [lease(session, "q") for _ in range(5)]
    assert [each.lease_id for each in again] == [each.lease_id for each in stale]
    assert [each.ids for each in again] == [each.ids for each in stale]
    assert not {each.token for each in again} & {each.token for each in stale}
    for each in stale:
        for verb in ("ack", "retry", "reject", "release"):
            with refused("TQ003"):
                answer(session, verb, each)
        with refused("TQ003"):
            ask(session, "extend", **each.named)
    assert [state(session, "q", each.ids[0]).state for each in again] == ["leased"] * 5
    assert [answer(session, "ack", each) for each in again] == [1] * 5
    assert drain(session, "q") == ids[38:]


def test_a_handler_s_transaction_under_a_lost_lease_does_not_commit(spare: Embedded, open_one: Open) -> None:
    session = open_one()
    (id,) = publish(session, "q")
    session.execute("create table effect (message bigint)")
    write_no_more(session)
    stale = lease(session, "q")
    crash(spare)
    session = open_one()
    with refused("TQ003"), session.transaction():
        session.execute("insert into effect values (%s)", (id,))
        answer(session, "ack", stale)
    with session.transaction():
        session.execute("insert into effect values (%s)", (id,))
        answer(session, "ack", lease(session, "q"))
    assert session.execute("select message from effect").fetchall() == [(id,)]


def test_what_was_committed_is_there_and_nothing_is_lost_or_doubled(spare: Embedded, open_one: Open) -> None:
    session = open_one()
    one = {"queue": "q", "subscription": "stream"}
    ask(session, "subscribe", **one, mode="exclusive")
    ids = publish(session, "q", 12)
    done, held, left = (lease(session, "q", 2) for _ in range(3))
    answer(session, "ack", done)
    tick = ask(session, "tick", queue="q", force=True)
    (batch,) = call(session, "next_batch", **one, worker="w")
    open_publisher = open_one()
    open_publisher.execute("begin")
    publish(open_publisher, "q", 3)
    # On the disk up to here.
    publish(session, "q")
    write_no_more(session)
    not_on_disk = publish(session, "q")
    lost = lease(session, "q", 2)
    crash(spare)
    session = open_one()
    assert state(session, "q", done.ids[0]).state == "done"
    assert answer(session, "ack", held) == 2
    assert answer(session, "ack", done) == 0
    with refused("TQ003"):
        answer(session, "ack", lost)
    rest = drain(session, "q")
    assert rest[: len(ids) - 6] == ids[6:]
    assert not set(rest) & {*done.ids, *held.ids, *left.ids}
    assert not_on_disk
    assert ask(session, "position", **one) < tick
    (again,) = call(session, "next_batch", **one, worker="w")
    # The token is a new one: the reader that asked last has the batch.
    assert again.batch_id == batch.batch_id
    assert [row.id for row in call(session, "read_batch", **one, batch_id=batch.batch_id)] == ids


def test_a_prepared_transaction_survives_with_its_locks_and_messages(spare: Embedded, open_one: Open) -> None:
    session = open_one()
    (first,) = publish(session, "q")
    held = lease(session, "q")
    user = open_one()
    user.execute("set trunq.notify = off")
    user.execute("begin")
    (second,) = publish(user, "q")
    answer(user, "ack", held)
    user.execute("prepare transaction 'survivor'")
    crash(spare)
    session = open_one()
    burn(session, 3)
    assert drain(session, "q") == []
    move_clock(session, "1 hour")
    assert ask(session, "reap", queue="q") == 0
    session.execute("commit prepared 'survivor'")
    assert ask(session, "reap", queue="q") == 0
    assert state(session, "q", first).state == "done"
    assert drain(session, "q") == [second]


def test_a_clean_restart_keeps_leases_that_did_not_wait_for_the_disk(spare: Embedded, open_one: Open) -> None:
    session = open_one()
    ids = publish(session, "q", 2)
    session.execute("set synchronous_commit = off")
    held = lease(session, "q")
    spare.restart()
    session = open_one()
    assert answer(session, "ack", held) == 1
    assert drain(session, "q") == ids[1:]
    assert fetch(session, "select trunq.version()") == install.newest()


def test_what_a_taker_saw_a_crash_does_not_take_back(spare: Embedded, open_one: Open) -> None:
    session = open_one()
    publish(session, "q", 3)
    write_no_more(session)
    answer(session, "ack", lease(session, "q", 3))
    slice, _ = history.plan(lambda: nullcontext(session), "q", "lake", {}, 100)
    assert slice is not None
    crash(spare)
    again = open_one()
    found = history.read(lambda: nullcontext(again), "q", slice)
    assert [batch.num_rows for batch in found] == [3]
