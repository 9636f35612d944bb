"""Groups, where members meet each other, or rotation."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from calling import move_clock, new_names, refused
from conftest import Connect
from engine import Engine
from streaming import LAKE, ids, named, put_batches, read, stream, take
from waiting import wait_until_blocked

OLD = "3000 days"


@pytest.fixture
def work(session: psycopg.Connection[Any]) -> Engine:
    """A queue that one group reads."""
    work = Engine(session, next(new_names("groups")))
    work.create(retention="2000 days", default_subscription=False)
    work.ask("create_group", group="lake")
    return work


@pytest.fixture
def other(work: Engine, open_session: Connect) -> Engine:
    """The same queue in a session whose transactions stay open."""
    return work.on(open_session(autocommit=False))


def test_two_members_that_ask_at_once_get_two_batches(work: Engine, other: Engine, meanwhile: Any) -> None:
    published = put_batches(work, 2)
    first = take(other, worker="bob", cut=False)
    second = meanwhile(lambda _: take(work, cut=False), work.connection)
    wait_until_blocked(other.connection, work.connection)
    other.connection.commit()
    assert [ids(read(work, each)) for each in (first, second.result())] == published


def test_of_two_members_that_take_an_older_window_over_one_gets_it(
    work: Engine, other: Engine, meanwhile: Any
) -> None:
    published = put_batches(work, 3)
    take(work, cut=False)
    bob = take(work, worker="bob", lease_time="1 day", cut=False)
    for each in (work, other):
        move_clock(each.connection, "1 h")
    cat = take(other, worker="cat", cut=False)
    dan = meanwhile(lambda _: take(work, worker="dan", cut=False), work.connection)
    wait_until_blocked(other.connection, work.connection)
    other.connection.commit()
    assert [ids(read(work, each)) for each in (cat, bob, dan.result())] == published
    assert take(work, worker="eve", cut=False) is None


def test_a_finish_before_a_takeover_leaves_nothing_to_take(
    work: Engine, other: Engine, meanwhile: Any
) -> None:
    published = put_batches(work, 2)
    ada = take(work, cut=False)
    other.ask("finish_batch", **named(ada))
    move_clock(work.connection, "1 h")
    bob = meanwhile(lambda _: take(work, worker="bob", cut=False), work.connection)
    wait_until_blocked(other.connection, work.connection)
    other.connection.commit()
    assert ids(read(work, bob.result())) == published[1]


def test_a_finish_behind_a_takeover_is_refused(work: Engine, other: Engine, meanwhile: Any) -> None:
    published = put_batches(work, 2)
    ada = take(work, cut=False)
    move_clock(other.connection, "1 h")
    bob = take(other, worker="bob", cut=False)
    finish = meanwhile(lambda _: work.ask("finish_batch", **named(ada)), work.connection)
    wait_until_blocked(other.connection, work.connection)
    other.connection.commit()
    with refused("TQ003"):
        finish.result()
    assert ids(read(other, bob)) == published[0]


def test_a_member_that_leaves_meets_one_that_takes_its_batch(
    work: Engine, other: Engine, meanwhile: Any
) -> None:
    published = put_batches(work, 1)
    take(work, cut=False)
    other.ask("leave_group", group="lake", member="ada", batch="give_back")
    bob = meanwhile(lambda _: take(work, worker="bob", cut=False), work.connection)
    wait_until_blocked(other.connection, work.connection)
    other.connection.commit()
    assert ids(read(work, bob.result())) == published[0]


def test_of_two_that_join_under_one_name_one_does(work: Engine, other: Engine, meanwhile: Any) -> None:
    other.ask("join_group", group="lake", member="ada")
    second = meanwhile(lambda _: work.ask("join_group", group="lake", member="ada"), work.connection)
    wait_until_blocked(other.connection, work.connection)
    other.connection.commit()
    with refused("TQ027"):
        second.result()


def test_rotation_beside_a_takeover_of_an_older_window_keeps_it(work: Engine, other: Engine) -> None:
    published = put_batches(work, 2)
    take(work, cut=False)
    assert work.ask("finish_batch", **named(take(work, worker="bob", cut=False)))
    move_clock(other.connection, "1 h")
    cat = take(other, worker="cat", lease_time="9000 days", cut=False)
    assert work.rotate(OLD) == 0
    other.connection.commit()
    work.rotate(OLD)
    with work.clock(OLD):
        assert ids(read(work, cat)) == published[0]
        later = put_batches(work, 1)
        dan = take(work, worker="dan", cut=False)
        assert [ids(read(work, dan))] == later, "the frontier is where it was"
        assert work.ask("finish_batch", **named(cat))
        assert work.ask("finish_batch", **named(dan))
    assert stream(work).pending == 0
    assert work.ask("position", **LAKE) == dan.to_tick_id


@pytest.mark.parametrize(
    ("function", "given"),
    [
        ("next_batch", {"subscription": "lake", "worker": "bob"}),
        ("join_group", {"group": "lake", "member": "bob"}),
    ],
)
def test_a_member_that_comes_while_its_group_is_dropped_hears_of_it(
    work: Engine, other: Engine, meanwhile: Any, function: str, given: dict[str, str]
) -> None:
    other.ask("drop_group", group="lake")
    asked = meanwhile(lambda _: work.ask(function, **given), work.connection)
    wait_until_blocked(other.connection, work.connection)
    other.connection.commit()
    with refused("TQ002"):
        asked.result()


def test_a_group_that_is_made_while_its_queue_is_dropped_is_refused(
    work: Engine, other: Engine, meanwhile: Any
) -> None:
    other.ask("drop_queue", force=True)
    made = meanwhile(lambda _: work.ask("create_group", group="late"), work.connection)
    wait_until_blocked(other.connection, work.connection)
    other.connection.commit()
    with refused("TQ001"):
        made.result()
