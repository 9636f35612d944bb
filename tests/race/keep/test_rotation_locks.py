"""Rotation holds nobody up: its lock is waited for 5 ms, and given back at once when in vain."""

from __future__ import annotations

from typing import Any

import pytest

from conftest import Connect
from engine import Engine
from waiting import wait_until_blocked

OLD = "3000 days"
EXCLUSIVE = """
    select count(*) from pg_locks
    where pid = %s and mode = 'AccessExclusiveLock' and granted and relation is not null
"""


@pytest.fixture
def work(connect: Connect) -> Engine:
    """A queue whose log could be emptied."""
    work = Engine(connect(), "work").create(retention="2000 days")
    work.publish(3)
    work.drain()
    return work


@pytest.fixture
def rotator(work: Engine, connect: Connect) -> Engine:
    """Far in the future, in a transaction that stays open: whatever it locks would be seen."""
    rotator = work.on(connect())
    rotator.run("select set_config('trunq.clock_offset', %s, false)", OLD)
    rotator.run("begin")
    return rotator


def locked(work: Engine, rotator: Engine) -> Any:
    return work.fetch(EXCLUSIVE, rotator.connection.info.backend_pid)


def test_it_is_installed_to_wait_for_five_milliseconds(work: Engine) -> None:
    settings = work.fetch("select proconfig from pg_proc where oid = 'trunq._truncate'::regproc")
    assert "lock_timeout=5ms" in settings


def test_what_was_emptied_is_locked_to_the_end(work: Engine, rotator: Engine) -> None:
    assert rotator.ask("rotate") == 1
    assert locked(work, rotator) > 0
    rotator.run("commit")
    assert locked(work, rotator) == 0


def test_a_lock_not_got_leaves_nothing_behind(work: Engine, rotator: Engine, connect: Connect) -> None:
    writer = work.on(connect(autocommit=False))
    writer.publish()
    assert rotator.ask("rotate") is None
    assert locked(work, rotator) == 0
    ids = work.publish()
    assert work.drain() == ids


def test_a_lock_got_in_vain_is_given_back_at_once(
    work: Engine, rotator: Engine, connect: Connect, meanwhile: Any
) -> None:
    work.run("alter function trunq._truncate set lock_timeout = '20 s'")
    late = work.on(connect(autocommit=False))
    (id,) = late.publish()
    rotation = meanwhile(rotator.ask, "rotate")
    wait_until_blocked(work.connection, rotator.connection)
    late.connection.commit()
    assert rotation.result(120) is None
    assert locked(work, rotator) == 0
    assert work.drain() == [id]


def test_a_subscription_being_changed_holds_nothing_up(
    work: Engine, rotator: Engine, connect: Connect
) -> None:
    work.ask("subscribe", subscription="lake", mode="exclusive")
    ticks = [work.ask("tick", force=True) for _ in range(2)]
    assert work.ask("advance", subscription="lake", tick_id=ticks[1]) == ticks[1]
    rotator.run("commit")
    changer = connect(autocommit=False)
    changer.execute("select from trunq.subscription for update")
    assert [rotator.ask("rotate") for _ in range(5)] == [1, 1, 1, 1, 0]
    changer.rollback()
    assert work.ask("position", subscription="lake") == ticks[1]


def test_two_who_rotate_do_not_wait_for_each_other(work: Engine, rotator: Engine) -> None:
    assert rotator.ask("rotate") == 1
    with work.clock(OLD):
        assert work.ask("rotate") is None


def test_a_connection_that_subscribes_keeps_rotation_away(
    work: Engine, rotator: Engine, connect: Connect
) -> None:
    subscriber = work.on(connect(autocommit=False))
    subscriber.ask("subscribe", subscription="new", start="earliest")
    assert rotator.ask("rotate") is None
    subscriber.connection.commit()
    assert len(work.drain("new")) == 3
    assert rotator.ask("rotate") == 1
