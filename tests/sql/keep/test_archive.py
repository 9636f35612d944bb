"""Every attempt that is over stands in the archive once, and nothing goes before: keep/archive.sql."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from calling import call, come_back, new_names, refused, set_policy
from engine import Engine

OLD = "3000 days"
"""Three spans on, with a retention of 2000 days."""


@pytest.fixture
def work(session: psycopg.Connection[Any]) -> Engine:
    engine = Engine(session, next(new_names("kept"))).create(retention="2000 days")
    assert engine.ask("create_archive") is True
    return engine


def archived(work: Engine, columns: str = "id, attempt, outcome", where: str = "true") -> list[Any]:
    """What stands in the archive after the duty."""
    while work.ask("archive"):
        pass
    return work.run(
        f"select {columns} from trunq_archive.{{queue}} where {where} order by leased_at, id"
    ).fetchall()


def listed(work: Engine) -> list[Any]:
    return [row for row in call(work.connection, "list_archives") if row.queue == work.queue]


def test_an_attempt_is_kept_with_its_message_and_what_became_of_it(work: Engine) -> None:
    (id,) = work.publish(kinds=["mail"], keys=["anna"], headers=[{"trace": "1"}])
    work.ack(work.lease(worker="w7"), results=[{"sent": True}], took=[0.5])
    ((*row,),) = archived(
        work,
        "id, subscription, attempt, outcome, error, result, worker, took, kind, key, payload, headers,"
        " published_at <= leased_at and leased_at <= finished_at",
    )
    assert row == [
        id, "default", 1, "success", None, {"sent": True}, "w7", 0.5,
        "mail", "anna", {"n": 0}, {"trace": "1"}, True,
    ]  # fmt: skip


def test_each_way_an_attempt_ends_has_its_word(work: Engine) -> None:
    ids = work.publish(5)
    held = work.lease(5)
    work.ack(held, ids[:1])
    work.answer("retry", held, ids[1:2], errors=["busy"], delays=["1 day"])
    work.answer("reject", held, ids[2:3], errors=["wrong"])
    work.answer("release", held, ids[3:4])
    with work.clock("1 hour"):
        work.ask("reap")
    assert archived(work, "id, outcome, error") == [
        (ids[0], "success", None),
        (ids[1], "failed", "busy"),
        (ids[2], "rejected", "wrong"),
        (ids[3], "released", None),
        (ids[4], "lease_expired", None),
    ]


def test_what_expired_before_its_turn_is_one_too(work: Engine) -> None:
    (id,) = work.publish(options={"expires_at": "2020-01-01T00:00:00Z"})
    assert not work.lease()
    assert archived(work) == [(id, 1, "expired")]


def test_a_message_that_was_retried_has_a_row_for_each_attempt(work: Engine) -> None:
    (id,) = work.publish()
    work.answer("retry", work.lease(), delays=["0"])
    archived(work)
    work.ack(work.lease())
    assert archived(work) == [(id, 1, "failed"), (id, 2, "success")]
    assert archived(work) == [(id, 1, "failed"), (id, 2, "success")], "nothing twice"


def test_a_long_message_holds_up_neither_those_behind_it_nor_its_own_row(work: Engine) -> None:
    ids = work.publish(3)
    first = work.lease()
    work.drain()
    assert archived(work, "id") == [(ids[1],), (ids[2],)]
    work.ack(first)
    assert sorted(archived(work, "id")) == [(id,) for id in ids]


def test_half_a_lease_waits_for_the_other_half(work: Engine) -> None:
    ids = work.publish(2)
    held = work.lease(2)
    work.ack(held, ids[:1])
    assert archived(work) == []
    work.ack(held, ids[1:])
    assert archived(work, "id") == [(ids[0],), (ids[1],)]


def test_more_than_one_call_takes_is_taken_by_several(work: Engine) -> None:
    work.publish(12_000)
    while held := work.lease(1000):
        work.ack(held)
    assert [work.ask("archive") for _ in range(4)] == [5000, 5000, 2000, 0]
    assert work.fetch("select count(distinct id) from trunq_archive.{queue}") == 12_000


@pytest.mark.parametrize("table", ["log", "lease"])
def test_rotation_waits_for_the_archive(work: Engine, table: str) -> None:
    work.publish(3)
    work.drain()
    if table == "lease":
        # Somebody emptied the log by hand: its leases are still to be archived.
        for segment in range(4):
            work.run(f"truncate trunq_data.{{queue}}_log_{segment}")
    assert work.rotate(OLD) == 0
    assert not work.is_empty("lease")
    assert len(archived(work)) == 3
    assert work.rotate(OLD) > 0
    assert work.is_empty("log")
    assert len(archived(work)) == 3


def test_a_queue_without_one_waits_for_nothing(work: Engine) -> None:
    plain = Engine(work.connection, work.queue + "_plain").create(retention="2000 days")
    plain.publish(3)
    plain.drain()
    assert plain.ask("archive") == 0
    assert plain.rotate(OLD) > 0
    assert plain.is_empty("log")


def test_one_that_is_made_late_begins_with_what_is_still_there(session: psycopg.Connection[Any]) -> None:
    work = Engine(session, next(new_names("late"))).create()
    ids = work.publish(2)
    work.drain()
    work.ask("create_archive")
    assert archived(work, "id") == [(id,) for id in ids]
    assert work.ask("create_archive") is False, "there is one"


def test_lanes_have_one_too(session: psycopg.Connection[Any]) -> None:
    work = Engine(session, next(new_names("laned"))).create(lanes="key")
    work.ask("create_archive")
    ids = work.publish(4, keys=["a", "b", "a", "b"])
    while held := work.lease(2):
        work.ack(held)
    assert sorted(archived(work, "id, key")) == [(id, key) for id, key in zip(ids, "abab", strict=True)]


def test_each_subscription_has_its_own_rows(work: Engine) -> None:
    work.ask("subscribe", subscription="mail")
    (id,) = work.publish()
    work.drain()
    work.drain("mail")
    assert sorted(archived(work, "subscription, id")) == [("default", id), ("mail", id)]


def test_the_reader_of_batches_leaves_no_rows(work: Engine) -> None:
    work.ask("subscribe", subscription="audit", mode="exclusive")
    work.publish(2)
    work.ask("tick", force=True)
    (batch,) = work.call("next_batch", subscription="audit", worker="r")
    work.ask("finish_batch", subscription="audit", batch_id=batch.batch_id, token=batch.token)
    assert archived(work) == []


@pytest.mark.parametrize("end", ["unsubscribe", "reset"])
def test_attempts_of_a_subscription_that_ends_are_kept(work: Engine, end: str) -> None:
    work.ask("subscribe", subscription="mail")
    ids = work.publish(3)
    work.ack(work.lease(subscription="mail"))
    held = work.lease(2, subscription="mail")
    work.ack(held, ids[1:2])
    work.ask(end, subscription="mail")
    assert archived(work, "subscription, id") == [("mail", ids[0]), ("mail", ids[1])]
    marks = "select count(*) from trunq.taker_mark where queue_id = {id}"
    assert work.fetch(marks) == (1 if end == "unsubscribe" else 2), "the former one is forgotten"


def test_dropping_the_queue_keeps_the_archive_and_a_new_one_continues_it(work: Engine) -> None:
    ids = work.publish(3)
    work.ack(work.lease())
    work.ack(work.lease(2), ids[1:2])
    work.ask("drop_queue", force=True)
    kept = "select id, outcome from trunq_archive." + work.queue
    assert work.connection.execute(kept.encode()).fetchall() == [(ids[0], "success"), (ids[1], "success")]
    assert [row.is_filled for row in listed(work)] == [False]
    work.create()
    assert work.ask("create_archive") is True
    (id,) = work.publish()
    work.drain()
    assert sorted(archived(work, "id")) == sorted([(ids[0],), (ids[1],), (id,)])


def test_an_archive_is_dropped_when_somebody_says_so(work: Engine) -> None:
    work.publish()
    work.drain()
    archived(work)
    work.ask("drop_archive")
    assert work.fetch("select to_regclass('trunq_archive.{queue}')") is None
    assert work.ask("archive") == 0
    with refused("TQ005", work.queue, "no archive"):
        work.ask("drop_archive")


def test_that_of_a_queue_that_is_gone_can_be_dropped(work: Engine) -> None:
    work.ask("drop_queue")
    work.ask("drop_archive")
    with refused("TQ001", work.queue):
        work.ask("drop_archive")


def test_emptying_a_queue_keeps_what_was_over(work: Engine) -> None:
    ids = work.publish(3)
    held = work.lease(2)
    work.ack(held, ids[:1])
    work.ask("empty_queue")
    assert archived(work, "id") == [(ids[0],)]
    work.publish()
    work.drain()
    assert len(archived(work)) == 2


def test_columns_of_the_user_come_along(work: Engine) -> None:
    work.run("alter table {log} add column price numeric")
    work.run("insert into {log} (price) values (1.50)")
    work.drain()
    assert archived(work, "extra") == [({"price": 1.50},)]


def test_each_month_is_a_partition_and_old_ones_go(work: Engine) -> None:
    for offset in ("-100 days", "-50 days", "0"):
        with work.clock(offset):
            work.publish()
            work.drain()
    assert len(archived(work)) == 3
    (before,) = listed(work)
    assert before.is_filled
    assert before.first_month < before.last_month
    assert before.bytes > 0
    assert work.ask("create_archive", archive_for="20 days") is False
    assert len(archived(work)) in (1, 2), "a month whose last day is kept stays"
    with work.clock("60 days"):
        assert archived(work) == []


def test_rows_that_come_after_their_month_has_gone_get_it_again(work: Engine) -> None:
    work.ask("create_archive", archive_for="20 days")
    with work.clock("-100 days"):
        work.publish()
        work.drain()
        assert len(archived(work)) == 1
    assert archived(work) == []
    work.publish()
    work.drain()
    assert len(archived(work)) == 1


def test_a_killed_worker_leaves_an_attempt(work: Engine) -> None:
    set_policy(work.connection, work.queue, max_attempts=2)
    (id,) = work.publish()
    for _ in range(2):
        assert work.lease(lease_time="1 second").ids == [id]
        with work.clock("2 seconds"):
            work.ask("reap")
        come_back(work.connection, work.queue)
    assert archived(work) == [(id, 1, "lease_expired"), (id, 2, "lease_expired")]


def test_what_cannot_be_is_refused(work: Engine) -> None:
    with refused("TQ005", work.queue, "not negative"):
        work.ask("create_archive", archive_for="-1 day")
    with refused("TQ001", "nowhere"):
        Engine(work.connection, "nowhere").ask("create_archive")
    with refused("TQ001", "nowhere"):
        Engine(work.connection, "nowhere").ask("archive")


def test_it_is_listed_and_dropped_as_an_archive_alone(work: Engine) -> None:
    work.publish()
    work.drain()
    assert len(archived(work)) == 1
    assert work.call("list_takers") == []
    with refused("TQ005", work.queue, '"(archive)"'):
        work.ask("drop_taker", taker="(archive)")
    with refused("TQ004", "(archive)"):
        work.ask("create_taker", taker="(archive)")
    assert [row.is_filled for row in listed(work)] == [True]
