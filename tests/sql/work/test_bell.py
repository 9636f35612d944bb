"""Waking sleepers: functions/work/bell.sql."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg import sql

from calling import ask, fetch, publish, refused
from conftest import Connect
from waiting import wait_until

Connection = psycopg.Connection[Any]


@pytest.fixture
def sleeper(open_session: Connect) -> Connection:
    """A session that may sleep."""
    return open_session()


@pytest.fixture
def heard(session: Connection, open_session: Connect, queue: str) -> Callable[[], list[str]]:
    """What has been said on the queue's channel since one asked last."""
    ear, said = open_session(), list[str]()
    ear.add_notify_handler(lambda notify: said.append(notify.payload))
    ear.execute(f"listen {ask(session, 'queue_channel', queue=queue)}".encode())

    def listen() -> list[str]:
        # What others have committed comes at the latest with the next answer.
        ear.execute("select 1")
        said_now = said.copy()
        said.clear()
        return said_now

    return listen


def is_free(sleeper: Connection, queue: str) -> bool:
    """Whether nobody holds the bell."""
    if ask(sleeper, "take_bell", queue=queue) == "held":
        return bool(ask(sleeper, "give_bell", queue=queue))
    return False


def test_the_channel_is_the_queue_s_number(session: Connection, queue: str) -> None:
    queue_id = fetch(session, "select queue_id from trunq.queue where name = %s", queue)
    assert ask(session, "queue_channel", queue=queue) == f"trunq_{queue_id}"


def test_nobody_is_told_while_nobody_sleeps(session: Connection, queue: str, heard: Any) -> None:
    publish(session, queue, 3)
    assert heard() == []


def test_a_sleeper_is_told_of_every_transaction(
    session: Connection, sleeper: Connection, queue: str, heard: Any
) -> None:
    assert ask(sleeper, "take_bell", queue=queue) == "held"
    publish(session, queue, 3)
    assert heard() == ["m"]
    with session.transaction():
        publish(session, queue)
        ask(session, "publish", queue=queue)
        assert heard() == []
    assert heard() == ["m"]
    table = sql.Identifier("trunq_log", queue)
    session.execute(sql.SQL("insert into {} default values").format(table))
    assert heard() == ["m"]
    with session.cursor() as cursor, cursor.copy(sql.SQL("copy {} (kind) from stdin").format(table)) as copy:
        copy.write_row(("k",))
    assert heard() == ["m"]


def test_giving_the_bell_tells_the_other_sleepers(sleeper: Connection, queue: str, heard: Any) -> None:
    assert ask(sleeper, "take_bell", queue=queue) == "held"
    assert ask(sleeper, "give_bell", queue=queue) is True
    assert heard() == ["bell"]
    assert is_free(sleeper, queue)


def test_who_does_not_hold_it_has_nothing_to_give(
    session: Connection, sleeper: Connection, queue: str, heard: Any
) -> None:
    assert ask(sleeper, "take_bell", queue=queue) == "held"
    assert ask(session, "give_bell", queue=queue) is False
    assert ask(session, "take_bell", queue=queue) == "sleeper"
    assert heard() == []


def test_taken_twice_it_is_to_be_given_twice(session: Connection, sleeper: Connection, queue: str) -> None:
    assert [ask(sleeper, "take_bell", queue=queue) for _ in range(2)] == ["held"] * 2
    assert ask(sleeper, "give_bell", queue=queue) is True
    assert not is_free(session, queue)
    assert ask(sleeper, "give_bell", queue=queue) is True
    assert is_free(session, queue)


def test_an_open_publisher_is_told_from_another_sleeper(
    sleeper: Connection, open_session: Connect, queue: str
) -> None:
    publisher, other = open_session(autocommit=False), open_session()
    publish(publisher, queue)
    assert ask(sleeper, "take_bell", queue=queue) == "publisher"
    publisher.commit()
    assert ask(sleeper, "take_bell", queue=queue) == "held"
    assert ask(other, "take_bell", queue=queue) == "sleeper"


def test_asking_in_vain_leaves_nothing_locked(
    session: Connection, sleeper: Connection, open_session: Connect, queue: str
) -> None:
    publisher = open_session(autocommit=False)
    publish(publisher, queue)
    for _ in range(3):
        assert ask(session, "take_bell", queue=queue) == "publisher"
    publisher.commit()
    assert ask(sleeper, "take_bell", queue=queue) == "held"
    for _ in range(3):
        assert ask(session, "take_bell", queue=queue) == "sleeper"
    assert ask(sleeper, "give_bell", queue=queue) is True
    assert is_free(session, queue)


@pytest.mark.parametrize("whole", [True, False])
def test_a_publisher_that_rolls_back_frees_the_bell_and_the_next_insert_tries_again(
    sleeper: Connection, open_session: Connect, queue: str, heard: Any, whole: bool
) -> None:
    publisher = open_session()
    publisher.execute("begin")
    if not whole:
        publisher.execute("savepoint s")
    publish(publisher, queue)
    assert ask(sleeper, "take_bell", queue=queue) == "publisher"
    publisher.execute("rollback" if whole else "rollback to s")
    assert ask(sleeper, "take_bell", queue=queue) == "held"
    publish(publisher, queue)
    publisher.execute("commit" if not whole else "select 1")
    assert heard() == ["m"]


def test_the_bell_goes_with_its_session(session: Connection, sleeper: Connection, queue: str) -> None:
    assert ask(sleeper, "take_bell", queue=queue) == "held"
    sleeper.close()
    wait_until(lambda: ask(session, "take_bell", queue=queue) == "held")


def test_queues_have_bells_of_their_own(
    session: Connection, sleeper: Connection, queue: str, heard: Any
) -> None:
    ask(session, "create_queue", queue=f"{queue}_next")
    assert ask(sleeper, "take_bell", queue=f"{queue}_next") == "held"
    publish(session, queue)
    assert heard() == []
    assert ask(session, "take_bell", queue=queue) == "held"


def test_told_not_to_notify_a_publisher_neither_does_nor_locks(
    session: Connection, sleeper: Connection, queue: str, heard: Any
) -> None:
    session.execute("set trunq.notify = off")
    assert ask(sleeper, "take_bell", queue=queue) == "held"
    publish(session, queue)
    assert heard() == []
    ask(sleeper, "give_bell", queue=queue)
    with session.transaction():
        publish(session, queue)
        assert ask(sleeper, "take_bell", queue=queue) == "held"


def test_bells_of_unknown_queues_are_refused(session: Connection) -> None:
    for name in ("nowhere", "", None):
        for function in ("take_bell", "give_bell", "queue_channel"):
            with refused("TQ001", "create_queue"):
                ask(session, function, queue=name)
