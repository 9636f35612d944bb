"""What show_message and list_messages tell of a message in every state: functions/keep/history.sql."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest

from calling import ask, fetch, new_names, refused
from conftest import Connect
from engine import Engine


@pytest.fixture
def work(session: psycopg.Connection[Any]) -> Engine:
    return Engine(session, next(new_names("history"))).create()


def outcomes(message: Any) -> list[tuple[int, str | None]]:
    return [(attempt["attempt"], attempt["outcome"]) for attempt in message.attempts]


def test_a_message_nobody_leased_is_ready(work: Engine) -> None:
    (id,) = work.publish(kinds=["mail"], keys=["k"], headers=[{"h": 1}])
    told = work.message(id)
    assert (told.subscription, told.state, told.id, told.kind, told.key) == (
        "default",
        "ready",
        id,
        "mail",
        "k",
    )
    assert (told.payload, told.headers, told.attempt, told.attempts) == ({"n": 0}, {"h": 1}, 1, [])
    assert told.published_at is not None
    assert {told.due_at, told.worker, told.leased_at, told.expires_at, told.finished_at, told.error} == {None}
    assert told.result is None


def test_a_delayed_message_is_scheduled_until_it_is_promoted(work: Engine) -> None:
    (id,) = work.publish(delay="1 hour")
    told = work.message(id)
    assert (told.state, told.attempt, told.attempts) == ("scheduled", 1, [])
    assert told.due_at - told.published_at == pytest.approx(timedelta(hours=1), abs=timedelta(seconds=5))
    with work.clock("2 hours"):
        work.ask("promote")
    assert work.state(id) == "ready"
    assert work.message(id).published_at == told.published_at


def test_after_a_clock_that_went_back_the_newest_lease_still_counts(work: Engine) -> None:
    (id,) = work.publish()
    with work.clock("1 hour"):
        work.answer("release", work.lease(worker="anna"))
    held = work.lease(worker="bob")
    assert (work.state(id), work.message(id).worker) == ("leased", "bob")
    work.ack(held)
    assert work.state(id) == "done"
    assert outcomes(work.message(id)) == [(1, "released"), (1, "success")]


def test_a_leased_message_tells_who_holds_it_until_when(work: Engine) -> None:
    (id,) = work.publish()
    held = work.lease(worker="anna")
    told = work.message(id)
    assert (told.state, told.worker, told.attempt) == ("leased", "anna", 1)
    assert told.expires_at == held.messages[0].expires_at
    assert told.expires_at - told.leased_at == timedelta(minutes=1)
    assert told.finished_at is None
    assert outcomes(told) == [(1, None)]


def test_a_done_message_keeps_its_result_where_the_subscription_does(work: Engine) -> None:
    work.ask("subscribe", subscription="brief", keep_results=False)
    (id,) = work.publish()
    for subscription in ("default", "brief"):
        work.ack(work.lease(subscription=subscription), results=[{"sum": 3}], took=[0.5])
    told = work.message(id)
    assert (told.state, told.result, told.error) == ("done", {"sum": 3}, None)
    assert told.finished_at >= told.leased_at
    assert [(attempt["outcome"], attempt["took"]) for attempt in told.attempts] == [("success", 0.5)]
    assert (work.state(id, "brief"), work.message(id, "brief").result) == ("done", None)


def test_a_message_retried_three_times_tells_each_attempt(work: Engine) -> None:
    (id,) = work.publish()
    for attempt in (1, 2, 3):
        work.answer("retry", work.lease(worker=f"w{attempt}"), errors=[f"error {attempt}"], delays=["1 hour"])
        told = work.message(id)
        assert (told.state, told.attempt, told.error) == ("retrying", attempt + 1, f"error {attempt}")
        assert told.due_at - told.finished_at == timedelta(hours=1)
        with work.clock("2 hours"):
            assert work.ask("promote") == 1
        assert (work.state(id), work.message(id).attempt) == ("ready", attempt + 1)
        assert work.message(id).error == f"error {attempt}"
        work.run("delete from trunq.mark")
    work.ack(work.lease(worker="w4"), results=[{"well": 1}])
    told = work.message(id)
    assert (told.state, told.attempt, told.worker, told.result) == ("done", 4, "w4", {"well": 1})
    assert told.error is None, "it has succeeded; what failed before is among the attempts"
    assert outcomes(told) == [(1, "failed"), (2, "failed"), (3, "failed"), (4, "success")]
    assert [attempt["error"] for attempt in told.attempts] == ["error 1", "error 2", "error 3", None]
    assert [attempt["worker"] for attempt in told.attempts] == ["w1", "w2", "w3", "w4"]


def test_a_released_message_is_ready_and_its_attempt_not_counted(work: Engine) -> None:
    (id,) = work.publish()
    work.answer("release", work.lease())
    assert (work.state(id), work.message(id).attempt) == ("ready", 1)
    work.ack(work.lease())
    assert outcomes(work.message(id)) == [(1, "released"), (1, "success")]


def test_a_lease_that_ran_out_is_an_attempt_expired(work: Engine) -> None:
    (id,) = work.publish()
    held = work.lease(worker="gone")
    with work.clock("2 minutes"):
        assert work.state(id) == "leased", "until the reaper comes, its answer is accepted"
        work.ask("reap")
    told = work.message(id)
    assert (told.state, told.attempt) == ("ready", 2)
    assert told.error == f"lease {held.lease_id} of worker gone expired"
    assert outcomes(told) == [(1, "lease_expired")]


def test_a_dead_message_that_is_requeued_starts_anew_and_keeps_its_story(work: Engine) -> None:
    (id,) = work.publish()
    work.answer("reject", work.lease(), errors=["bad"])
    told = work.message(id)
    assert (told.state, told.attempt, told.error) == ("dead", 1, "bad")
    assert told.finished_at is not None
    assert work.ask("requeue") == 1
    told = work.message(id)
    assert (told.state, told.attempt, told.error, told.finished_at) == ("ready", 1, "bad", None)
    work.ack(work.lease())
    assert outcomes(work.message(id)) == [(1, "rejected"), (1, "success")]
    assert work.state(id) == "done"


def test_a_purged_message_is_purged_while_its_row_is_there(work: Engine) -> None:
    (id,) = work.publish()
    work.answer("reject", work.lease())
    assert work.ask("purge") == 1
    assert work.state(id) == "purged"
    assert [row.state for row in work.call("list_messages")] == ["purged"]
    assert [work.listed(state=state) for state in ("done", "dead")] == [[], []]


@pytest.mark.parametrize("outcome", ["cancelled", "rejected", "failed", "lease_expired"])
def test_what_was_requeued_and_is_gone_with_its_segment_is_done(work: Engine, outcome: str) -> None:
    """The row of its first life may be held for longer. What is purged then, without a requeue, is purged."""
    work.ask("subscribe", subscription="default", max_attempts=1)
    ids = work.publish(2)
    if outcome == "cancelled":
        work.call("cancel", ids=ids)
    held = work.lease(2)
    if outcome in ("rejected", "failed"):
        work.answer({"rejected": "reject", "failed": "retry"}[outcome], held)
    elif outcome == "lease_expired":
        for id in ids:  # alone in a lease that runs out
            work.answer("release", held, [id], delays=["0"])
        for _ in ids:
            work.lease()
        with work.clock("1 hour"):
            work.ask("reap")
    assert [row.reason for row in work.call("list_dead")] == [
        {"failed": "max_attempts"}.get(outcome, outcome)
    ] * 2
    work.ask("requeue", ids=ids[:1])
    work.ask("purge", ids=ids[1:])
    work.ack(work.lease())
    newest = "(select max(txid::text::bigint)::text::xid8 from {log} where id = %s)"
    work.rewrite(f"delete from {{log}} where id = %s and txid = {newest}", ids[0], ids[0])
    assert [work.state(id) for id in ids] == ["done", "purged"]
    view = work.run("select state from trunq_queue.{queue}_messages order by id").fetchall()
    assert view == [("done",), ("purged",)]
    work.run("truncate {log}")
    work.ask("forget")
    assert work.fetch("select count(*) from trunq.purged where queue_id = {id}") == 0


def test_the_last_of_too_many_retries_failed_as_those_before(work: Engine) -> None:
    work.ask("subscribe", subscription="default", max_attempts=2)
    (id,) = work.publish()
    story = [(1, "failed"), (2, "failed")]
    for _ in range(2):
        work.answer("retry", work.lease(), delays=["0"])
    assert (work.state(id), outcomes(work.message(id))) == ("dead", story)
    work.ask("requeue")
    assert outcomes(work.message(id)) == story
    for _ in range(2):
        work.answer("retry", work.lease(), delays=["0"])
    work.ask("purge")
    assert (work.state(id), outcomes(work.message(id))) == ("purged", story + story)


def test_a_lease_that_ran_out_unreaped_says_so(work: Engine) -> None:
    (id,) = work.publish()
    held = work.lease(worker="gone")
    with work.clock("2 minutes"):
        told = work.message(id)
        assert (told.state, outcomes(told)) == ("leased", [(1, "overdue")])
        assert told.error == f"lease {held.lease_id} of worker gone ran out, and no leader has reaped it yet"
    assert (work.message(id).error, outcomes(work.message(id))) == (None, [(1, None)])


def test_newest_first_is_by_time_whatever_the_ids(work: Engine, open_session: Connect) -> None:
    """Each session draws ids 32 at a time."""
    other = work.on(open_session())
    ids = [one.publish()[0] for one in (work, other, work, other)]
    assert ids != sorted(ids)
    assert work.listed() == ids[::-1]


def test_a_list_without_a_limit_has_every_message(work: Engine) -> None:
    ids = work.publish(1003)
    assert sorted(work.listed()) == ids
    assert len(work.listed(limit=100)) == 100


def test_each_subscription_has_its_own_story(work: Engine) -> None:
    work.ask("subscribe", subscription="mail")
    (id,) = work.publish()
    work.answer("retry", work.lease(subscription="mail"), errors=["no"], delays=["1 hour"])
    assert (work.state(id), work.state(id, "mail")) == ("ready", "retrying")
    work.drain()
    assert (work.state(id), work.state(id, "mail")) == ("done", "retrying")
    assert work.message(id).attempts[0]["outcome"] == "success"


def test_a_message_from_before_a_subscription_is_not_its_own(work: Engine) -> None:
    (early,) = work.publish()
    work.ask("subscribe", subscription="late")
    (later,) = work.publish()
    assert [row.subscription for row in work.call("show_message", id=early)] == ["default"]
    assert work.listed(subscription="late") == [later]
    assert work.drain("late") == [later]
    assert work.listed(subscription="late") == work.listed(subscription="late", state="done") == [later]
    assert [row.subscription for row in work.call("show_message", id=early)] == ["default"]


def test_exclusive_subscriptions_have_no_history(work: Engine) -> None:
    work.ask("subscribe", subscription="lake", mode="exclusive")
    (id,) = work.publish()
    assert [row.subscription for row in work.call("show_message", id=id)] == ["default"]
    with refused("TQ011", "lake"):
        work.listed(subscription="lake")


def test_an_unknown_message_or_state_is_refused(work: Engine) -> None:
    with refused("TQ013", "has no message 7"):
        work.call("show_message", id=7)
    with refused("TQ005", 'no state "asleep"', "scheduled, ready"):
        work.listed(state="asleep")
    assert work.listed() == []


def test_a_retry_within_the_txids_of_its_lease_is_ready(work: Engine, open_session: Connect) -> None:
    """A handler's transaction that got its xid before messages of the lease were published."""
    (first,) = work.publish()
    handler = work.on(open_session(autocommit=False))
    handler.fetch("select pg_current_xact_id()")
    work.publish()
    held = work.lease(2)
    handler.answer("retry", held, [first], delays=["0"])
    handler.connection.commit()
    told = work.message(first)
    assert (told.state, told.attempt, outcomes(told)) == ("ready", 2, [(1, "failed")])
    assert work.listed(state="ready") == [first]
    assert work.drain() == [first]
    assert outcomes(work.message(first)) == [(1, "failed"), (2, "success")]


def test_every_state_is_listed_newest_first(work: Engine) -> None:
    ids = work.publish(14)
    held = work.lease(10)
    work.ack(held, ids[:3])
    work.answer("retry", held, ids[3:5], delays=["1 hour"] * 2)
    work.answer("reject", held, ids[5:7])
    work.answer("release", held, ids[7:8])
    scheduled = work.publish(2, delay="1 hour")
    expected = {
        "done": ids[:3],
        "retrying": ids[3:5],
        "dead": ids[5:7],
        "leased": ids[8:10],
        "ready": ids[7:8] + ids[10:],
        "scheduled": scheduled,
    }
    for state, those in expected.items():
        assert work.listed(state=state) == those[::-1]
        assert {row.state for row in work.call("list_messages", state=state)} == {state}
    assert work.listed() == (ids + scheduled)[::-1]
    told = {row.id: row.state for row in work.call("list_messages")}
    assert told == {id: state for state, those in expected.items() for id in those}


@pytest.mark.parametrize("state", [None, "done", "ready", "dead", "retrying"])
def test_pages_hold_every_message_once(work: Engine, state: str | None) -> None:
    ids = work.publish(60)
    if verb := {"done": "ack", "dead": "reject", "retrying": "retry"}.get(state or ""):
        while held := work.lease(7):
            work.answer(verb, held)
    else:
        # Old ids among the newest rows: a page goes by ids, not by rows.
        for _ in range(4):
            work.answer("release", work.lease(60))
    pages = [work.listed(state=state, limit=25)]
    while pages[-1]:
        pages.append(work.listed(state=state, limit=25, before=pages[-1][-1]))
    assert [len(page) for page in pages] == [25, 25, 10, 0]
    assert [id for page in pages for id in page] == ids[::-1]


def test_done_messages_are_found_behind_others(work: Engine) -> None:
    done = work.publish(30)
    work.drain()
    work.publish(400)
    while held := work.lease(100):
        work.answer("reject", held)
    ready = work.publish(400)
    assert work.listed(state="done", limit=10) == done[:-11:-1]
    assert work.listed(state="ready", limit=3) == ready[:-4:-1]
    assert work.listed(state="done", limit=1000) == done[::-1]


def test_a_message_dead_or_put_off_is_listed_when_its_row_is_gone(work: Engine) -> None:
    ids = work.publish(3)
    held = work.lease(3)
    work.answer("reject", held, ids[:1])
    work.answer("retry", held, ids[1:], delays=["1 hour"] * 2)
    work.run("truncate {log}")
    assert work.listed() == ids[::-1]
    assert [work.state(id) for id in ids] == ["dead", "retrying", "retrying"]


def test_a_message_whose_lease_is_gone_is_done(work: Engine) -> None:
    ids = work.publish(3)
    work.drain()
    # What rotation would leave: the cursor.
    work.run("update {lease} set size = null, ids = null, txids = null, min_txid = null, max_txid = null")
    assert work.listed(state="done") == ids[::-1]
    assert {work.state(id) for id in ids} == {"done"}


def test_what_was_done_before_a_rebase_stays_done(connection: psycopg.Connection[Any]) -> None:
    work = Engine(connection, "work").create()
    done, ready = work.publish(2)
    work.ack(work.lease())
    assert ask(work.connection, "rebase") == 1
    assert (work.state(done), work.state(ready)) == ("done", "ready")
    assert work.drain() == [ready]
    assert work.listed(state="done") == [ready, done]


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"kind": "b"}, [1]),
        ({"key": "l"}, [2]),
        ({"error": "NO ROUTE"}, [0, 1, 2]),
        ({"error": "n_ route"}, []),
        ({"kind": "b", "older_than": "30 minutes"}, [1]),
        ({"kind": "b", "older_than": "2 hours"}, []),
        ({"kind": "b", "newer_than": "30 minutes"}, []),
        ({"kind": "b", "newer_than": "2 hours"}, [1]),
        ({"kind": "a", "error": "no route", "state": "dead"}, [0, 2]),
        ({"kind": "a", "limit": 2}, [4, 3]),
        ({"kind": "a", "state": "ready"}, [4, 3]),
    ],
)
def test_messages_are_chosen_by_kind_key_error_and_age(
    work: Engine, given: dict[str, Any], found: list[int]
) -> None:
    ids = work.publish(5, kinds=["a", "b", "a", "a", "a"], keys=["k", "k", "l", "k", "k"])
    work.answer("reject", work.lease(3), errors=["no route to b"] * 3)
    with work.clock("1 hour"):
        assert sorted(row.id for row in work.call("list_messages", **given)) == sorted(
            ids[at] for at in found
        )


def test_a_filter_finds_what_lies_behind_many_others(work: Engine) -> None:
    (needle,) = work.publish(1, kinds=["rare"])
    work.publish(2500)
    assert [row.id for row in work.call("list_messages", kind="rare", limit=1)] == [needle]


def test_a_filter_does_not_look_without_end_and_says_so(
    work: Engine, session: psycopg.Connection[Any]
) -> None:
    (needle,) = work.publish(1, kinds=["rare"])
    work.publish(2500)
    told: list[str] = []
    session.add_notice_handler(lambda notice: told.append(f"{notice.message_primary}: {notice.message_hint}"))
    with session.transaction(force_rollback=True):
        session.execute(
            "create or replace function trunq._limit(p_what text) returns integer language sql immutable"
            " as $$ select 1000 $$"
        )
        assert work.call("list_messages", kind="rare") == []
        assert "the list ends after a look at 1000 messages: ask for the rest with p_before => " in told[0]
        # Programs read a fact, not a sentence.
        where = fetch(session, "select current_setting('trunq.looked_to')")
        assert where == told[0].rpartition(" ")[2]
        work.call("list_messages", kind="rare", before=int(where))
        (found,) = work.call("list_messages", kind="rare", before=int(told[1].rpartition(" ")[2]))
        assert fetch(session, "select current_setting('trunq.looked_to')") == ""
    assert (found.id, len(told)) == (needle, 2)
