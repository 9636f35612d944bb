"""Who works and what they hold, and freeing what one holds: functions/work/worker.sql."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from calling import answer, ask, call, come_back, drain, lease, publish, refused
from conftest import Connect

FORMS: dict[str, dict[str, Any]] = {"laned": {"lanes": "key"}, "plain": {}, "unique": {"unique": "refuse"}}


@pytest.fixture
def session(connect: Connect) -> psycopg.Connection[Any]:
    """A database with queues of each form, and with messages in them."""
    opened = connect()
    for queue, options in FORMS.items():
        ask(opened, "create_queue", queue=queue, **options)
        publish(opened, queue, 5)
    return opened


def test_workers_are_listed_with_what_they_told_and_what_they_hold(session: psycopg.Connection[Any]) -> None:
    ask(session, "_attend", worker="idle", queues=["plain"], subscription="default", slots=7)
    ask(session, "_attend", worker="busy", queues=["plain", "laned"], subscription="default", slots=3)
    for _ in range(2):
        held = lease(session, "plain", 2, worker="busy")
    answer(session, "ack", held, held.ids[:1])
    lease(session, "unique", 1, worker="gone")
    listed = call(session, "list_workers")
    assert [
        (row.worker, row.queue, row.slots, row.leases, row.held, row.seen_at is None) for row in listed
    ] == [
        ("busy", "laned", 3, 0, 0, False),
        ("busy", "plain", 3, 2, 3, False),
        ("gone", "unique", None, 1, 1, True),
        ("idle", "plain", 7, 0, 0, False),
    ]
    assert all((row.since is None, row.until is None) == (row.held == 0,) * 2 for row in listed)
    assert {row.queue for row in call(session, "list_workers", queue="plain")} == {"plain"}
    with refused("TQ001", "nowhere"):
        call(session, "list_workers", queue="nowhere")


def test_what_a_worker_holds_is_freed_in_all_queues_and_its_answers_are_refused(
    session: psycopg.Connection[Any],
) -> None:
    held = {queue: lease(session, queue, 2, worker="gone") for queue in FORMS}
    other = lease(session, "plain", 1, worker="other")
    ask(session, "_attend", worker="gone", queues=["plain"], subscription="default", slots=7)
    assert ask(session, "free_worker", worker="gone") == 3
    assert ask(session, "free_worker", worker="gone") == 0
    assert [row.worker for row in call(session, "list_workers")] == ["other"]
    for queue, mine in held.items():
        with refused("TQ003"):
            answer(session, "ack", mine)
        drain(session, queue)
        come_back(session, queue)
        again = [lease(session, queue, 1, worker="next") for _ in mine.ids]
        assert sorted((each.ids[0], each.messages[0].attempt) for each in again) == [
            (id, 2) for id in mine.ids
        ]
    assert answer(session, "ack", other) == 1


def test_a_call_ends_a_hundred_leases_at_most(session: psycopg.Connection[Any]) -> None:
    for queue in ("laned", "plain"):
        publish(session, queue, 60)
        for _ in range(60):
            lease(session, queue, 1, worker="gone")
    assert [ask(session, "free_worker", worker="gone") for _ in range(3)] == [100, 20, 0]


def test_a_lease_whose_answer_is_under_way_is_left_out(
    session: psycopg.Connection[Any], connect: Connect
) -> None:
    held = lease(session, "plain", 2, worker="gone")
    with connect(autocommit=False) as answering:
        answer(answering, "ack", held)
        assert ask(session, "free_worker", worker="gone") == 0
        answering.commit()
    assert call(session, "list_workers") == []


def test_a_worker_without_a_name_is_refused(session: psycopg.Connection[Any]) -> None:
    with refused("TQ005", "by its name"):
        ask(session, "free_worker", worker="")
