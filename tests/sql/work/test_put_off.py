"""Messages that a worker cannot start, because it has no handler for their kind: put off, and never lost."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest

from calling import call, fetch, new_names
from engine import Engine

WHY = "no handler for kind letter at worker w"


@pytest.fixture
def work(session: psycopg.Connection[Any]) -> Engine:
    return Engine(session, next(new_names("put_off"))).create()


def put_off(work: Engine, error: str = WHY, count: int = 100) -> float:
    """Lease what is there, give it back with an error and go to the time when it is due: the longest wait."""
    held = work.lease(count)
    assert held
    work.answer("release", held, errors=[error] * len(held.ids))
    waits = [fate.wait for fate in work.call("list_fates", subscription="default", ids=held.ids)]
    assert len(waits) == len(held.ids)
    come(work, max(waits))
    return float(max(waits).total_seconds())


def come(work: Engine, wait: timedelta) -> None:
    offset = work.fetch("select trunq.clock() - clock_timestamp()") + wait + timedelta(seconds=1)
    work.fetch("select set_config('trunq.clock_offset', %s, false)", str(offset))
    work.ask("promote")


def test_by_default_the_last_attempt_comes_a_day_or_more_after_the_first(work: Engine) -> None:
    (policy,) = work.call("list_subscriptions")
    assert policy.max_attempts == 20
    (shortest,) = work.run(
        "select sum(trunq._backoff(%s, %s, %s, 0, n)) from generate_series(1, %s - 1) n",
        policy.backoff,
        policy.backoff_base,
        policy.backoff_cap,
        policy.max_attempts,
    ).fetchone() or (timedelta(),)
    assert shortest * (1 - policy.jitter) > timedelta(days=1), "though every delay is as short as it can be"


def test_the_delay_of_what_is_put_off_grows_to_a_few_minutes(work: Engine) -> None:
    work.publish()
    waits = [put_off(work) for _ in range(12)]
    for wait, most in zip(waits, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300], strict=True):
        assert 0.75 * most < wait <= most


def test_what_was_put_off_runs_in_its_first_attempt(work: Engine) -> None:
    work.ask("subscribe", subscription="default", max_attempts=1)
    (id,) = work.publish(kinds=["letter"])
    for _ in range(3):
        put_off(work)
    held = work.lease()
    assert (held.ids, held.messages[0].attempt, held.messages[0].kind) == ([id], 1, "letter")
    work.ack(held)
    assert work.state(id) == "done"


def test_the_history_of_a_message_tells_each_time_and_its_errors_only_how_often(work: Engine) -> None:
    (id,) = work.publish()
    held = work.lease()
    work.answer("retry", held, errors=["burnt"], delays=[timedelta(0)])
    for _ in range(3):
        put_off(work)
    work.answer("release", work.lease(), errors=[WHY])
    told = work.message(id)
    assert (told.state, told.attempt, told.error) == ("retrying", 2, WHY)
    assert [(each["outcome"], each["error"]) for each in told.attempts] == [
        ("failed", "burnt"),
        *[("released", WHY)] * 4,
    ]
    (errors,) = work.run("select errors from trunq.delayed where queue_id = {id}").fetchone() or ([],)
    assert [(each["error"], each.get("times"), each["worker"]) for each in errors] == [
        ("burnt", None, "w"),
        (WHY, 4, "w"),
    ]


def test_after_an_attempt_the_delay_starts_small_again(work: Engine) -> None:
    work.publish()
    for _ in range(4):
        put_off(work)
    work.answer("retry", work.lease(), errors=["burnt"], delays=[timedelta(0)])
    assert put_off(work) <= 1


def test_a_message_that_was_put_off_and_died_is_found_dead(work: Engine) -> None:
    (id,) = work.publish()
    put_off(work)
    work.answer("reject", work.lease(), errors=["never"])
    assert (work.state(id), work.listed(state="dead")) == ("dead", [id])
    (fate,) = work.call("list_fates", subscription="default", ids=[id, id + 1])
    assert (fate.id, fate.wait, fate.reason) == (id, None, "rejected")


def test_the_fate_of_what_is_retried_is_its_delay(work: Engine) -> None:
    now, later = work.publish(2)
    held = work.lease(2)
    work.answer("retry", held, delays=[timedelta(0), timedelta(hours=1)])
    (fate,) = work.call("list_fates", subscription="default", ids=[now, later])
    assert fate.id == later
    assert timedelta(minutes=59) < fate.wait <= timedelta(hours=1)


def test_warnings_name_each_kind_that_nobody_handles(work: Engine) -> None:
    work.publish(3, kinds=["letter"])
    work.publish(2, kinds=["parcel"])
    work.publish(1)
    held = work.lease(9)
    work.answer("release", held, errors=[WHY] * 6)
    warned = [(row.subscription, row.warning, row.hint) for row in work.call("list_warnings")]
    where = f'in subscription "default" of queue "{work.queue}"'
    way = "start a worker with a handler for that, or one with --unknown-kinds reject"
    assert sorted(warned) == [
        ("default", f"no handler for kind letter {where}", f"3 messages wait; {way}"),
        ("default", f"no handler for kind parcel {where}", f"2 messages wait; {way}"),
        ("default", f"no handler for messages without a kind {where}", f"1 message waits; {way}"),
    ]
    come(work, timedelta(seconds=2))
    work.drain()
    assert work.call("list_warnings") == []


@pytest.mark.parametrize("lanes", [None, "key"])
def test_they_are_named_as_long_as_they_wait_whether_they_are_due_or_not(
    session: psycopg.Connection[Any], lanes: str | None
) -> None:
    work = Engine(session, next(new_names("unhandled"))).create(lanes=lanes)
    work.publish(4, kinds=["letter"], keys=["a", "b", "c", "d"])
    held = work.lease(9)
    first, last = timedelta(seconds=2), timedelta(hours=1)
    work.answer("release", held, held.ids[:3], errors=[WHY] * 3)
    work.answer("release", held, held.ids[3:], errors=[WHY], delays=[timedelta(minutes=30)])
    for come_by in (timedelta(0), first, last):
        come(work, come_by)
        (row,) = (row for row in work.call("list_warnings") if "nobody has read" not in row.warning)
        assert "no handler for kind letter" in row.warning
        assert row.hint.startswith("4 messages wait;")
    work.ask("forget")
    again = work.lease(3)
    assert len(again.ids) == 3
    (row,) = work.call("list_warnings")
    assert row.hint.startswith("1 message waits;")
    work.drain()
    assert work.call("list_warnings") == []
    work.ask("forget")
    assert work.fetch("select count(*) from trunq.unhandled where queue_id = {id}") == 0


def test_retries_of_kinds_that_are_handled_are_no_warning(work: Engine) -> None:
    work.publish(kinds=["letter"])
    work.answer("retry", work.lease(), errors=["burnt"], delays=[timedelta(hours=1)])
    assert work.call("list_warnings") == []


def test_of_many_that_nobody_handles_a_warning_says_more_than_a_thousand(work: Engine) -> None:
    work.publish(1002, kinds=["letter"])
    held = work.lease(2000)
    work.answer("release", held, errors=[WHY] * 1002)
    (row,) = call(work.connection, "list_warnings", queue=work.queue)
    assert row.hint.startswith("more than 1,000 messages wait;")
    assert fetch(work.connection, "select count(*) from trunq._unhandled(%s)", subscription_id(work)) == 1


def subscription_id(work: Engine) -> int:
    (row,) = work.call("list_subscriptions")
    return int(row.subscription_id)
