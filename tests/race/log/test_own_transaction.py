"""A transaction that writes, reads a position and then publishes: what it publishes is delivered.

Postgres leaves the caller's own transaction out of its snapshots. With others committing in between, such a
transaction's rows would lie below the position it took itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from calling import answer, ask, burn, call, drain, fetch, lease, new_names, publish
from conftest import Connect

Connection = psycopg.Connection[Any]


@pytest.fixture
def user(open_session: Connect) -> Connection:
    """The session whose transaction does it all."""
    return open_session(autocommit=False)


@pytest.fixture
def others(session: Connection, queue: str) -> Callable[[], list[int]]:
    """Others publish, and use transaction ids for other things, all committed."""

    def commit_something() -> list[int]:
        burn(session, 3)
        return publish(session, queue)

    return commit_something


def write(user: Connection) -> None:
    """Give the transaction its id."""
    user.execute("create temporary table if not exists written (n integer) on commit drop")


def test_write_lease_publish(session: Connection, user: Connection, queue: str, others: Any) -> None:
    write(user)
    theirs = others()
    held = lease(user, queue, 9)
    assert held.ids == theirs
    mine = publish(user, queue, 2)
    others()
    assert not set(lease(user, queue, 9).ids) & set(mine)
    user.commit()
    assert sorted(drain(session, queue)) == sorted(mine)


def test_lease_lease_publish(session: Connection, user: Connection, queue: str, others: Any) -> None:
    theirs = others() + others()
    assert lease(user, queue).ids == theirs[:1]
    others()
    assert lease(user, queue).ids == theirs[1:]
    others()
    assert lease(user, queue)
    mine = publish(user, queue, 2)
    user.commit()
    assert set(drain(session, queue)) >= set(mine)


def test_publish_lease_publish(session: Connection, user: Connection, queue: str, others: Any) -> None:
    mine = publish(user, queue)
    theirs = others()
    assert lease(user, queue, 9).ids == theirs, (
        "what is not committed is nobody's yet, not even its publisher's"
    )
    mine += publish(user, queue)
    theirs = others()
    user.commit()
    assert sorted(drain(session, queue)) == sorted(mine + theirs)


@pytest.mark.parametrize("start", ["latest", "earliest"])
def test_write_subscribe_publish(
    session: Connection, user: Connection, queue: str, others: Any, start: str
) -> None:
    write(user)
    before = others()
    ask(user, "subscribe", queue=queue, subscription="new", start=start)
    after = others()
    mine = publish(user, queue, 2)
    user.commit()
    assert sorted(drain(session, queue, "new")) == sorted(
        (before if start == "earliest" else []) + after + mine
    )


def test_publish_subscribe_publish_sees_also_what_came_before(
    session: Connection, user: Connection, queue: str, others: Any
) -> None:
    mine = publish(user, queue)
    others()
    ask(user, "subscribe", queue=queue, subscription="new")
    mine += publish(user, queue)
    user.commit()
    assert sorted(drain(session, queue, "new")) == mine


def test_create_queue_and_publish(session: Connection, user: Connection, queue: str, others: Any) -> None:
    name = next(new_names("made"))
    write(user)
    others()
    ask(user, "create_queue", queue=name)
    others()
    ask(user, "subscribe", queue=name, subscription="second")
    mine = publish(user, name)
    assert not lease(user, name)
    others()
    mine += publish(user, name)
    user.commit()
    assert drain(session, name) == drain(session, name, "second") == mine


def batches(session: Connection, queue: str, subscription: str) -> list[int]:
    """Ids in the batches of an exclusive subscription up to the newest tick."""
    found: list[int] = []
    one = {"queue": queue, "subscription": subscription}
    while rows := call(session, "next_batch", **one, worker="w"):
        found += [row.id for row in call(session, "read_batch", **one, batch_id=rows[0].batch_id)]
        ask(session, "finish_batch", **one, batch_id=rows[0].batch_id, token=rows[0].token)
    return found


def test_write_subscribe_to_batches_publish(
    session: Connection, user: Connection, queue: str, others: Any
) -> None:
    write(user)
    others()
    ask(user, "subscribe", queue=queue, subscription="stream", mode="exclusive")
    after = others()
    mine = publish(user, queue, 2)
    user.commit()
    ask(session, "tick", queue=queue, force=True)
    assert sorted(batches(session, queue, "stream")) == sorted(after + mine)


def test_a_forced_tick_in_a_publishing_transaction(
    session: Connection, user: Connection, queue: str, others: Any
) -> None:
    ask(session, "subscribe", queue=queue, subscription="stream", mode="exclusive")
    mine = publish(user, queue)
    theirs = others()
    ask(user, "tick", queue=queue, force=True)
    mine += publish(user, queue)
    one = {"queue": queue, "subscription": "stream"}
    (inside,) = call(user, "next_batch", **one, worker="w")
    read_inside = [row.id for row in call(user, "read_batch", **one, batch_id=inside.batch_id)]
    assert read_inside == theirs
    user.commit()
    # The same batch has the same rows, whoever reads it and when.
    assert [row.id for row in call(session, "read_batch", **one, batch_id=inside.batch_id)] == theirs
    ask(session, "finish_batch", **one, batch_id=inside.batch_id, token=inside.token)
    ask(session, "tick", queue=queue, force=True)
    assert batches(session, queue, "stream") == mine


def test_an_answer_that_publishes_again_in_the_same_transaction(
    session: Connection, user: Connection, queue: str, others: Any
) -> None:
    theirs = others()
    write(user)
    held = lease(user, queue, 9)
    others()
    assert answer(user, "release", held) == 1
    mine = publish(user, queue)
    user.commit()
    assert set(drain(session, queue)) >= set(theirs + mine)


@contextmanager
def old_transactions(open_session: Connect, count: int) -> Iterator[list[Connection]]:
    """Transactions that stay open and have an id each."""
    opened = [open_session(autocommit=False) for _ in range(count)]
    for each in opened:
        fetch(each, "select pg_current_xact_id()::text")
    yield opened
    for each in opened:
        each.commit()


def test_between_many_open_writers(
    session: Connection, user: Connection, queue: str, others: Any, open_session: Connect
) -> None:
    mine: list[int] = []
    with old_transactions(open_session, 4) as older:
        write(user)
        with old_transactions(open_session, 4) as newer:
            theirs = others()
            assert lease(user, queue, 9).ids == theirs
            mine += publish(user, queue)
            mine += [id for each in (*older, *newer) for id in publish(each, queue)]
    user.commit()
    assert sorted(drain(session, queue)) == sorted(mine)
