"""Forwarding against whatever else may become of a message: each is in one queue, and found there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from calling import Lease, answer, ask, call, fetch, lease, new_names, publish, refused
from conftest import Connect
from granting import granting, make_shop
from waiting import wait_until_blocked

Connection = psycopg.Connection[Any]


@pytest.fixture
def other(open_session: Connect) -> Connection:
    """A second session, in transactions."""
    return open_session(autocommit=False)


@pytest.fixture
def work(session: Connection) -> str:
    name = next(new_names("beyond"))
    ask(session, "create_queue", queue=name)
    return name


def forward(session: Connection, held: Lease, into: str) -> list[int]:
    return ask(session, "forward", **held.named, ids=held.ids, into=into)  # type: ignore[no-any-return]


def states(session: Connection, queue: str, id: int) -> dict[str, str]:
    return {row.subscription: row.state for row in call(session, "show_message", queue=queue, id=id)}


def test_the_lease_ends_and_the_copy_appears_in_one_commit(
    session: Connection, other: Connection, queue: str, work: str
) -> None:
    (id,) = publish(session, queue)
    held = lease(session, queue)
    forward(other, held, work)
    assert (states(session, queue, id), bool(lease(session, work))) == ({"default": "leased"}, False)
    other.rollback()
    assert states(session, queue, id) == {"default": "leased"}
    assert (
        fetch(
            session,
            "select count(*) from trunq.forwarded f join trunq.queue q using (queue_id) where q.name = %s",
            queue,
        )
        == 0
    )
    (there,) = forward(other, held, work)
    other.commit()
    assert states(session, queue, id) == {f"{work}/default": "ready"}
    # Whoever crashed after the commit, and does not know, changes nothing.
    assert forward(session, held, work) == [None]
    assert lease(session, work).ids == [there]


def test_an_ack_and_a_forward_at_once_one_has_the_message(
    session: Connection, other: Connection, queue: str, work: str, meanwhile: Any, open_session: Connect
) -> None:
    publish(session, queue)
    held = lease(session, queue)
    assert answer(other, "ack", held) == 1
    second = open_session()
    late = meanwhile(forward, second, held, work)
    wait_until_blocked(session, second)
    other.commit()
    assert late.result(120) == [None]
    assert not lease(session, work)


def test_a_lease_that_ran_out_while_it_waited_is_refused(
    session: Connection, other: Connection, queue: str, work: str, meanwhile: Any, open_session: Connect
) -> None:
    (id,) = publish(session, queue)
    held = lease(session, queue, lease_time="1 microsecond")
    assert ask(other, "reap", queue=queue) == 1
    second = open_session()
    late = meanwhile(forward, second, held, work)
    wait_until_blocked(session, second)
    other.commit()
    with refused("TQ003"):
        late.result(120)
    assert states(session, queue, id)["default"] in ("ready", "retrying")


def test_a_cancel_that_comes_first_is_seen(
    session: Connection, other: Connection, queue: str, work: str, meanwhile: Any, open_session: Connect
) -> None:
    (id,) = publish(session, queue)
    held = lease(session, queue)
    call(other, "cancel", queue=queue, ids=[id])
    second = open_session()
    late = meanwhile(forward, second, held, work)
    wait_until_blocked(session, second)
    other.commit()
    assert late.result(120) == [None]
    assert states(session, queue, id) == {"default": "dead"}


def test_a_cancel_that_comes_second_finds_it_where_it_went(
    session: Connection, other: Connection, queue: str, work: str, meanwhile: Any, open_session: Connect
) -> None:
    (id,) = publish(session, queue)
    forward(other, lease(session, queue), work)
    second = open_session()
    late = meanwhile(call, second, "cancel", queue=queue, ids=[id])
    wait_until_blocked(session, second)
    other.commit()
    assert [row[:3] for row in late.result(120)][-1] == (f"{work}/default", id, "ready")
    assert not lease(session, work)
    assert states(session, queue, id) == {f"{work}/default": "dead"}


def test_of_two_who_take_retries_each_has_its_own(
    session: Connection, other: Connection, queue: str, work: str, meanwhile: Any, open_session: Connect
) -> None:
    publish(session, queue, 3)
    answer(session, "retry", lease(session, queue, 3), delays=["1 minute"] * 3)
    given = {"queue": queue, "subscription": "default", "into": work}
    assert ask(other, "forward_retries", **given, max=2) == 2
    second = open_session()
    late = meanwhile(ask, second, "forward_retries", **given)
    wait_until_blocked(session, second)
    other.commit()
    assert late.result(120) == 1


@pytest.fixture
def grant(connection: Connection, connect: Connect) -> Iterator[Callable[..., Connection]]:
    with granting(make_shop(connection), connect) as give:
        yield give


def test_who_forwards_works_on_both_queues(connection: Connection, grant: Callable[..., Connection]) -> None:
    worker = grant("worker")
    held = lease(worker, "mine")
    with refused("42501"):
        forward(worker, held, "other")
    # The second step takes nothing that the first did not give in its transaction.
    taken = ask(
        worker,
        "_forward_in",
        queue="mine",
        **{"from": "mine"},
        subscription="default",
        ids=[1],
        asked=[1],
        delay=None,
    )
    assert taken == [None]
    ask(connection, "grant_role", queue="other", role="worker", grantee=fetch(worker, "select current_user"))
    (there,) = forward(worker, held, "other")
    assert there is not None
