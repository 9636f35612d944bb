"""Replies to messages that were published as awaited: functions/work/reply.sql."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from calling import move_clock, new_names, refused
from conftest import Connect
from engine import Engine

AWAITED = {"awaited": True}


@pytest.fixture
def work(session: psycopg.Connection[Any]) -> Engine:
    return Engine(session, next(new_names("reply"))).create()


def says(*results: str) -> list[Jsonb]:
    return [Jsonb(result) for result in results]


def replies(work: Engine, ids: list[int], **more: Any) -> list[tuple[Any, ...]]:
    return [
        (row.id, row.outcome, row.result, row.error) for row in work.call("list_replies", ids=ids, **more)
    ]


@pytest.mark.parametrize("lanes", [None, "key", "priority,key"])
@pytest.mark.parametrize("count", [1, 3])
def test_an_ack_writes_the_results_of_awaited_messages_and_of_no_others(
    session: psycopg.Connection[Any], lanes: str | None, count: int
) -> None:
    work = Engine(session, next(new_names("reply"))).create(lanes=lanes)
    awaited = work.publish(count, options=AWAITED)
    others = work.publish(2)
    held = work.lease(count)
    assert replies(work, awaited) == []
    work.answer("ack", held, results=[{"n": n} for n in range(count)])
    work.answer("ack", work.lease(2))
    assert replies(work, awaited) == [(id, "success", {"n": n}, None) for n, id in enumerate(awaited)]
    assert replies(work, awaited + others, check=False) == replies(work, awaited)


def test_of_a_lease_answered_in_parts_each_part_has_its_replies(work: Engine) -> None:
    first, second, third = work.publish(3, options=AWAITED)
    held = work.lease(3)
    work.answer("ack", held, [second], results=says("two"))
    assert replies(work, [first, second, third]) == [(second, "success", "two", None)]
    work.answer("ack", held, results=says("one", "again", "three"))
    assert replies(work, [first, second, third]) == [
        (first, "success", "one", None),
        (second, "success", "two", None),
        (third, "success", "three", None),
    ]


def test_a_result_is_replied_where_the_subscription_keeps_none(work: Engine) -> None:
    work.ask("subscribe", subscription="default", keep_results=False)
    ids = work.publish(1, options=AWAITED)
    work.answer("ack", work.lease(), results=says("here"))
    assert replies(work, ids) == [(ids[0], "success", "here", None)]
    assert work.message(ids[0]).result is None


def test_a_message_without_a_result_has_an_empty_reply(work: Engine) -> None:
    ids = work.publish(1, options=AWAITED)
    work.answer("ack", work.lease())
    assert replies(work, ids) == [(ids[0], "success", None, None)]


def test_a_result_that_is_too_large_is_left_out_with_a_sentence(work: Engine) -> None:
    large, small = work.publish(2, options=AWAITED)
    noise = "".join(chr(0x4E00 + n % 20000) for n in range(500_000))
    work.answer("ack", work.lease(2), results=says(noise, "small"))
    (first, second) = work.call("list_replies", ids=[large, small])
    assert (first.outcome, first.result) == ("success", None)
    assert "at most 1048576" in first.error
    assert second.result == "small"


def test_every_way_to_die_writes_a_reply(work: Engine) -> None:
    work.ask("subscribe", subscription="default", max_attempts=1)
    ended: dict[str, int] = {}

    def next_one(**options: Any) -> Any:
        (id,) = work.publish(1, options={**AWAITED, **options})
        return id

    ended["rejected"] = next_one()
    work.answer("reject", work.lease(), errors=["no such order\nsee the page"])
    ended["failed"] = next_one()
    work.answer(
        "retry", work.lease(), errors=["ValueError: bad\n  shop.py:3 in handle\nreference 0000000000"]
    )
    ended["timed_out"] = next_one()
    work.answer("time_out", work.lease(), errors=["TimeoutError: 3 s"])
    ended["cancelled"] = next_one()
    work.ask("cancel", ids=[ended["cancelled"]])
    assert not work.lease()
    ended["expired"] = next_one(expires_at="2020-01-01T00:00:00Z")
    assert not work.lease()
    ended["lease_expired"] = next_one()
    work.lease(lease_time="1 second")
    with work.clock("2 seconds"):
        assert work.ask("reap") == 1
        found = {row.id: row for row in work.call("list_replies", ids=list(ended.values()))}
    assert {outcome: found[id].outcome for outcome, id in ended.items()} == {name: name for name in ended}
    assert found[ended["rejected"]].error == "no such order\nsee the page"
    assert (found[ended["failed"]].error, found[ended["failed"]].reference) == (
        "ValueError: bad",
        "0000000000",
    )
    assert found[ended["timed_out"]].error == "TimeoutError: 3 s"
    assert found[ended["cancelled"]].error is None
    assert "expired" in found[ended["lease_expired"]].error


def test_what_is_cancelled_before_its_time_has_a_reply(work: Engine) -> None:
    (id,) = work.publish(1, options=AWAITED, delay="1 hour")
    assert replies(work, [id]) == []
    work.ask("cancel", ids=[id])
    assert replies(work, [id]) == [(id, "cancelled", None, None)]


def test_a_retry_is_no_reply_and_the_next_attempt_is_one(work: Engine) -> None:
    (id,) = work.publish(1, options=AWAITED)
    work.answer("retry", work.lease(), errors=["not yet"], delays=["0"])
    assert replies(work, [id]) == []
    work.answer("release", work.lease())
    work.lease()
    with work.clock("1 day"):
        assert work.ask("reap") == 1
        assert replies(work, [id]) == []
        held = work.lease()
        work.answer("ack", held, results=says("done"))
        assert replies(work, [id]) == [(id, "success", "done", None)]


def test_what_was_replaced_says_by_which_message(session: psycopg.Connection[Any]) -> None:
    work = Engine(session, next(new_names("reply"))).create(unique="replace")
    first, second = (
        work.call("publish_unique", payload={}, unique_key="k", options=AWAITED)[0].id for _ in range(2)
    )
    held = work.lease()
    assert held.ids == [second]
    assert replies(work, [first, second]) == [(first, "replaced", None, f"replaced by message {second}")]


def test_a_message_that_is_requeued_has_its_newest_reply(work: Engine) -> None:
    (id,) = work.publish(1, options=AWAITED)
    work.answer("reject", work.lease(), errors=["bad"])
    assert replies(work, [id]) == [(id, "rejected", None, "bad")]
    work.ask("requeue")
    work.answer("ack", work.lease(), results=says("good"))
    assert replies(work, [id]) == [(id, "success", "good", None)]


def test_each_subscription_replies_for_itself(work: Engine) -> None:
    work.ask("subscribe", subscription="mail")
    (id,) = work.publish(1, options=AWAITED)
    work.answer("ack", work.lease(subscription="mail"), results=says("sent"))
    assert replies(work, [id]) == []
    assert replies(work, [id], subscription="mail") == [(id, "success", "sent", None)]
    work.answer("ack", work.lease(), results=says("kept"))
    assert replies(work, [id]) == [(id, "success", "kept", None)]


def test_a_reply_is_kept_for_an_hour_or_as_long_as_the_message_says(work: Engine) -> None:
    (short,) = work.publish(1, options=AWAITED)
    (long,) = work.publish(1, options={"awaited": 7200.5})
    work.answer("ack", work.lease(2))
    rows = work.call("list_replies", ids=[short, long])
    assert [row.expires_at - row.replied_at for row in rows] == [
        timedelta(hours=1),
        timedelta(seconds=7200.5),
    ]
    with work.clock("61 minutes"):
        assert [row[0] for row in replies(work, [short, long], check=False)] == [long]
        with refused("TQ013", "gone", "done"):
            replies(work, [short])
        assert work.ask("forget") == 1
    with work.clock("121 minutes"):
        assert work.ask("forget") == 1


def test_what_will_never_have_a_reply_is_refused(work: Engine) -> None:
    (plain,) = work.publish(1)
    with refused("TQ005", "not published as awaited", "option"):
        replies(work, [plain])
    with refused("TQ013", f"no message {plain + 1000}", "committed"):
        replies(work, [plain + 1000])
    work.ask("subscribe", subscription="stream", mode="exclusive")
    with refused("TQ011"):
        replies(work, [plain], subscription="stream")
    with refused("TQ002"):
        replies(work, [plain], subscription="nobody")
    with refused("TQ005", "null"):
        work.call("list_replies", ids=None)
    with refused("TQ005", "10001"):
        replies(work, list(range(10_001)))


@pytest.mark.parametrize("more", [{}, {"delay": "1 hour"}])
def test_nobody_waits_for_a_message_of_the_same_transaction(
    open_session: Connect, work: Engine, more: dict[str, Any]
) -> None:
    other = work.on(open_session())
    with refused("TQ005", "commit first"), work.connection.transaction():
        (id,) = work.publish(1, options=AWAITED, **more)
        with refused("TQ013"):
            replies(other, [id])
        replies(work, [id])
    with work.connection.transaction():
        with work.connection.transaction():
            (id,) = work.publish(1, options=AWAITED, **more)
        with refused("TQ005", "commit first"), work.connection.transaction():
            replies(work, [id])
    assert replies(work, [id]) == replies(other, [id]) == []


@pytest.mark.parametrize("value", [True, 1, 0.5, 9999999, "true", None])
def test_awaited_is_true_or_a_number_of_seconds(work: Engine, value: Any) -> None:
    assert work.publish(1, options={"awaited": value})


@pytest.mark.parametrize("value", [False, 0, -1, "yes", [], 12345678])
def test_no_other_option_awaits(work: Engine, value: Any) -> None:
    with refused("TQ005", "awaited"):
        work.publish(1, options={"awaited": value})


def test_a_reply_is_notified_when_it_commits(open_session: Connect, work: Engine) -> None:
    listener = open_session()
    channel = work.ask("reply_channel")
    listener.execute(f"listen {channel}".encode())
    first, second, third = work.publish(3, options=AWAITED)
    held = work.lease(3)
    work.answer("ack", held, [first, second])
    work.answer("reject", held, [third])
    assert [n.payload for n in listener.notifies(timeout=120, stop_after=2)] == [
        f"{first} {second}",
        str(third),
    ]
    work.connection.execute("set trunq.notify = off")
    work.publish(1, options=AWAITED)
    work.answer("ack", work.lease())
    work.connection.execute("reset trunq.notify")
    many = work.publish(101, options=AWAITED)
    work.answer("ack", work.lease(101))
    assert [n.payload for n in listener.notifies(timeout=120, stop_after=1)] == [""]
    assert len(replies(work, many)) == 101


def test_an_ack_that_is_rolled_back_leaves_no_reply(work: Engine) -> None:
    (id,) = work.publish(1, options=AWAITED)
    held = work.lease()
    with work.connection.transaction(force_rollback=True):
        work.answer("ack", held, results=says("never"))
    assert replies(work, [id]) == []
    work.answer("ack", held, results=says("once"))
    assert replies(work, [id]) == [(id, "success", "once", None)]


def test_replies_go_with_their_subscription_and_their_queue(session: psycopg.Connection[Any]) -> None:
    work = Engine(session, next(new_names("reply"))).create()
    work.ask("subscribe", subscription="mail")
    work.publish(1, options=AWAITED)
    for subscription in ("default", "mail"):
        work.answer("ack", work.lease(subscription=subscription))
    count = "select count(*) from trunq.reply where queue_id = {id}"
    assert work.fetch(count) == 2
    work.ask("unsubscribe", subscription="mail")
    assert work.fetch(count) == 1
    queue_id = work.queue_id
    work.ask("drop_queue", force=True)
    left = session.execute("select count(*) from trunq.reply where queue_id = %s", (queue_id,)).fetchone()
    assert left == (0,)


def test_leases_without_awaited_messages_note_nothing(work: Engine) -> None:
    work.publish(5)
    work.publish(1, options={"max_attempts": 3})
    work.answer("ack", work.lease(6))
    assert work.fetch("select count(*) from {lease} where awaited is not null") == 0
    move_clock(work.connection, "0")


def test_one_that_is_requeued_and_timed_out_but_not_dead_keeps_the_reply_it_had(work: Engine) -> None:
    work.ask("subscribe", subscription="default", max_attempts=1)
    ids = work.publish(1, options=AWAITED)
    work.answer("retry", work.lease(), errors=["no luck"])
    work.ask("requeue")
    work.ask("subscribe", subscription="default", max_attempts=5)
    work.answer("time_out", work.lease(), errors=["slow"])
    assert work.state(ids[0]) == "retrying"
    assert replies(work, ids) == [(ids[0], "failed", None, "no luck")]
