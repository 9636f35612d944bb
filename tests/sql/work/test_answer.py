"""Answers: functions/work/answer.sql."""

from __future__ import annotations

from datetime import timedelta
from itertools import product
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from calling import answer, ask, call, drain, fetch, lease, move_clock, publish, refused, set_policy, state

Connection = psycopg.Connection[Any]

VERBS = ("ack", "retry", "reject", "release")


def receipts(session: Connection, queue: str) -> list[tuple[str, list[int]]]:
    """What has been answered: outcome and ids of each receipt, in order."""
    query = f"select outcome::text, ids from trunq_data.{queue}_receipt order by finished_at"
    return session.execute(query.encode()).fetchall()


def everything(session: Connection, queue: str) -> list[Any]:
    """All that an answer could change."""
    tables = (f"trunq_data.{queue}_receipt", f"trunq_data.{queue}_lease", f"trunq_log.{queue}")
    return [
        session.execute(f"select x::text from {table} x order by 1".encode()).fetchall()
        for table in (*tables, "trunq.delayed", "trunq.dead")
    ]


@pytest.fixture(autouse=True)
def retried_at_once(session: Connection, queue: str) -> None:
    """No waiting, unless a test says so."""
    set_policy(session, queue, backoff="constant", backoff_base=timedelta(0), jitter=0.0)


def test_an_acked_message_is_done_with_its_result(session: Connection, queue: str) -> None:
    (id,) = publish(session, queue)
    held = lease(session, queue)
    assert answer(session, "ack", held, results=[Jsonb({"sum": 3})], took=[0.25]) == 1
    row = state(session, queue, id)
    assert (row.state, row.result, row.worker) == ("done", {"sum": 3}, "w")
    assert (row.attempts[0]["outcome"], row.attempts[0]["took"]) == ("success", 0.25)
    assert not lease(session, queue)


def test_results_are_dropped_where_the_subscription_does_not_keep_them(
    session: Connection, queue: str
) -> None:
    set_policy(session, queue, keep_results=False)
    (id,) = publish(session, queue)
    answer(session, "ack", lease(session, queue), results=[Jsonb(1)])
    assert state(session, queue, id).result is None


def test_a_retried_message_comes_again_with_the_next_attempt_and_its_error(
    session: Connection, queue: str
) -> None:
    id = ask(
        session, "publish", queue=queue, payload={"x": 1}, kind="k", key="y", headers={"h": 1}, body=b"b"
    )
    first = lease(session, queue)
    assert answer(session, "retry", first, errors=["it burnt"]) == 1
    (again,) = lease(session, queue).messages
    same = ("id", "kind", "key", "payload", "body", "headers", "created_at", "priority")
    assert [getattr(again, name) for name in same] == [getattr(first.messages[0], name) for name in same]
    assert (again.id, again.attempt) == (id, 2)
    assert [a["error"] for a in state(session, queue, id).attempts] == ["it burnt", None]


def test_a_retry_waits_as_long_as_it_is_told(session: Connection, queue: str) -> None:
    ids = publish(session, queue, 3)
    held = lease(session, queue, 3)
    answer(session, "retry", held, delays=[timedelta(minutes=5), timedelta(0), timedelta(seconds=-3)])
    assert sorted(lease(session, queue, 9).ids) == ids[1:]
    move_clock(session, "4 minutes")
    assert ask(session, "promote", queue=queue) == 0
    assert state(session, queue, ids[0]).state == "retrying"
    move_clock(session, "6 minutes")
    assert ask(session, "promote", queue=queue) == 1
    assert lease(session, queue, 9).ids == ids[:1]


def waits(session: Connection, queue: str, attempts: int) -> list[float]:
    """Seconds a message waits after each of its failed attempts."""
    publish(session, queue)
    found = []
    for _ in range(attempts):
        held = lease(session, queue)
        before = ask(session, "clock")
        answer(session, "retry", held)
        due = fetch(
            session,
            "select d.due_at from trunq.delayed d join trunq.queue q using (queue_id) where q.name = %s",
            queue,
        )
        found.append((due - before).total_seconds())
        move_clock(session, f"{(due - ask(session, 'clock')).total_seconds() + offset(session) + 1} seconds")
        assert ask(session, "promote", queue=queue) == 1
    return found


def offset(session: Connection) -> float:
    """Seconds the clock is ahead."""
    return float(fetch(session, "select extract(epoch from trunq.clock() - clock_timestamp())"))


@pytest.mark.parametrize(
    ("backoff", "expected"),
    [("constant", [2, 2, 2, 2]), ("linear", [2, 4, 6, 7]), ("exponential", [2, 4, 7, 7])],
)
def test_without_a_delay_the_policy_tells_how_long(
    session: Connection, queue: str, backoff: str, expected: list[float]
) -> None:
    set_policy(
        session, queue, backoff=backoff, backoff_base=timedelta(seconds=2), backoff_cap=timedelta(seconds=7)
    )
    assert waits(session, queue, 4) == pytest.approx(expected, abs=0.5)


def test_jitter_takes_off_a_random_share(session: Connection) -> None:
    low, high, different = session.execute(
        "select min(w), max(w), count(distinct w) from generate_series(1, 500) n, lateral ("
        "select extract(epoch from trunq._backoff('constant', '100 s', '1 hour', 0.4::real, n)) w) x"
    ).fetchone() or (0, 0, 0)
    assert 60 <= low < 65
    assert 95 < high <= 100
    assert different > 400


def test_no_policy_makes_the_wait_overflow(session: Connection) -> None:
    least, most, count = (
        session.execute(
            "select min(w), max(w), count(w) from unnest(array['constant', 'linear', 'exponential']) backoff,"
            " unnest(array['0', '1 ms', '3 hours', '30 days', '1 year']::interval[]) base,"
            " unnest(array[1, 2, 31, 32767]) attempt,"
            " lateral (select trunq._backoff(backoff, base, '100 days', 0, attempt) w offset 0) x"
        ).fetchone()
        or (None,) * 3
    )
    assert (least, most, count) == (timedelta(0), timedelta(days=100), 3 * 5 * 4)


def test_the_last_attempt_makes_it_dead_with_every_error(session: Connection, queue: str) -> None:
    set_policy(session, queue, max_attempts=3)
    id = ask(session, "publish", queue=queue, payload={"p": 1}, kind="k")
    for n in (1, 2, 3):
        held = lease(session, queue, worker=f"w{n}")
        assert held.messages[0].max_attempts == 3
        answer(session, "retry", held, errors=[f"error {n}"])
    assert not lease(session, queue)
    (dead,) = call(session, "list_dead", queue=queue)
    assert (dead.id, dead.reason, dead.attempts, dead.kind, dead.payload) == (
        id,
        "max_attempts",
        3,
        "k",
        {"p": 1},
    )
    assert [(e["attempt"], e["worker"], e["error"]) for e in dead.errors] == [
        (n, f"w{n}", f"error {n}") for n in (1, 2, 3)
    ]
    assert state(session, queue, id).state == "dead"


def test_a_rejected_message_is_dead_at_once(session: Connection, queue: str) -> None:
    (id,) = publish(session, queue)
    assert answer(session, "reject", lease(session, queue), errors=["never"]) == 1
    (dead,) = call(session, "list_dead", queue=queue)
    assert (dead.id, dead.reason, dead.attempts, dead.errors[0]["error"]) == (id, "rejected", 1, "never")
    assert not lease(session, queue)


def test_a_released_message_comes_again_without_counting(session: Connection, queue: str) -> None:
    set_policy(session, queue, max_attempts=1)
    (id,) = publish(session, queue)
    for _ in range(3):
        held = lease(session, queue)
        assert (held.ids, held.messages[0].attempt) == ([id], 1)
        assert answer(session, "release", held) == 1
    assert [e["outcome"] for e in state(session, queue, id).attempts] == ["released"] * 3
    assert drain(session, queue) == [id]


def test_messages_of_one_lease_are_answered_each_in_its_own_way(session: Connection, queue: str) -> None:
    ids = publish(session, queue, 6)
    held = lease(session, queue, 6)
    assert answer(session, "ack", held, ids[:2]) == 2
    assert answer(session, "retry", held, ids[2:3], delays=[timedelta(hours=1)]) == 1
    assert answer(session, "reject", held, ids[3:4]) == 1
    assert answer(session, "release", held, ids[4:5]) == 1
    states = [state(session, queue, id).state for id in ids]
    assert states == ["done", "done", "retrying", "dead", "ready", "leased"]


def test_a_retry_is_for_its_own_subscription_alone(session: Connection, queue: str) -> None:
    ask(session, "subscribe", queue=queue, subscription="other")
    (id,) = publish(session, queue)
    assert drain(session, queue, "other") == [id]
    answer(session, "retry", lease(session, queue))
    assert not lease(session, queue, subscription="other")
    assert lease(session, queue).ids == [id]


class TestAgain:
    """A lease answered more than once."""

    def test_the_first_answer_stands(self, session: Connection, queue: str) -> None:
        for first in VERBS:
            publish(session, queue, 2)
            held = lease(session, queue, 2)
            assert answer(session, first, held) == 2
            before = everything(session, queue)
            for second in VERBS:
                assert answer(session, second, held) == 0
            assert everything(session, queue) == before
            drain(session, queue)

    def test_only_what_is_new_is_counted(self, session: Connection, queue: str) -> None:
        ids = publish(session, queue, 4)
        held = lease(session, queue, 4)
        assert answer(session, "ack", held, ids[:2]) == 2
        assert (
            answer(session, "retry", held, [ids[1], ids[2]], errors=["a", "b"], delays=[None, timedelta(0)])
            == 1
        )
        assert (
            answer(session, "reject", held, ids, errors=["1", "2", "3", "4"], took=[0.1, 0.2, 0.3, 0.4]) == 1
        )
        assert receipts(session, queue) == [("a", ids[:2]), ("r", [ids[2]]), ("j", [ids[3]])]
        (dead,) = call(session, "list_dead", queue=queue)
        assert (dead.id, dead.errors[0]["error"]) == (ids[3], "4")
        assert state(session, queue, ids[3]).attempts[0]["took"] == pytest.approx(0.4)
        assert state(session, queue, ids[2]).attempts[0]["error"] == "b"

    @pytest.mark.parametrize("verb", VERBS)
    def test_an_id_named_twice_is_answered_once(self, session: Connection, queue: str, verb: str) -> None:
        ids = publish(session, queue, 2)
        held = lease(session, queue, 2)
        assert answer(session, verb, held, [ids[1], ids[1]]) == 1
        assert answer(session, verb, held, [ids[0], ids[1], ids[0]]) == 1
        again = lease(session, queue, 9)
        assert again.ids == ([ids[1], ids[0]] if verb in ("retry", "release") else [])

    def test_ids_may_come_in_any_order(self, session: Connection, queue: str) -> None:
        ids = publish(session, queue, 3)
        held = lease(session, queue, 3)
        results = [Jsonb(id) for id in reversed(ids)]
        assert answer(session, "ack", held, ids[::-1], results=results) == 3
        assert [state(session, queue, id).result for id in ids] == ids


class TestRefused:
    """Answers that are refused change nothing."""

    @pytest.fixture(params=VERBS)
    def verb(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)

    def test_without_the_token(self, session: Connection, queue: str, verb: str) -> None:
        publish(session, queue)
        held = lease(session, queue)
        before = everything(session, queue)
        for lease_id, token in product((held.lease_id, 99, None), (held.token, 5, None)):
            if (lease_id, token) != (held.lease_id, held.token):
                with refused("TQ003", "has ended"):
                    ask(session, verb, **{**held.named, "lease_id": lease_id, "token": token}, ids=held.ids)
        assert everything(session, queue) == before

    def test_after_the_reaper(self, session: Connection, queue: str, verb: str) -> None:
        publish(session, queue)
        held = lease(session, queue)
        move_clock(session, "1 hour")
        assert ask(session, "reap", queue=queue) == 1
        before = everything(session, queue)
        with refused("TQ003", "has ended", "nothing was changed"):
            answer(session, verb, held)
        assert everything(session, queue) == before

    def test_for_messages_of_another_lease(self, session: Connection, queue: str, verb: str) -> None:
        publish(session, queue, 2)
        mine, other = lease(session, queue), lease(session, queue)
        before = everything(session, queue)
        for ids in (other.ids, mine.ids + other.ids, [*mine.ids, -1], [999]):
            with refused("TQ013", "belong to lease", "nothing was changed"):
                answer(session, verb, mine, ids)
        assert everything(session, queue) == before

    def test_by_another_subscription_s_name(self, session: Connection, queue: str, verb: str) -> None:
        ask(session, "subscribe", queue=queue, subscription="other")
        publish(session, queue)
        held = lease(session, queue)
        with refused("TQ003"):
            ask(session, verb, **{**held.named, "subscription": "other"}, ids=held.ids)

    def test_of_what_is_not_there(self, session: Connection, queue: str, verb: str) -> None:
        publish(session, queue)
        held = lease(session, queue)
        for name in ("nobody", "", None):
            with refused("TQ002", "subscribe"):
                ask(session, verb, **{**held.named, "subscription": name}, ids=held.ids)
            with refused("TQ001", "create_queue"):
                ask(session, verb, **{**held.named, "queue": name}, ids=held.ids)

    def test_to_batches(self, session: Connection, queue: str, verb: str) -> None:
        ask(session, "subscribe", queue=queue, subscription="stream", mode="exclusive")
        with refused("TQ011", "is exclusive"):
            ask(session, verb, queue=queue, subscription="stream", lease_id=1, token=1, ids=[1])

    def test_for_no_message_in_particular(self, session: Connection, queue: str, verb: str) -> None:
        publish(session, queue)
        held = lease(session, queue)
        with refused("TQ005", "not null"):
            answer(session, verb, held, [None])

    def test_with_arrays_of_another_length(self, session: Connection, queue: str, verb: str) -> None:
        values = {"errors": "e", "delays": timedelta(0), "results": Jsonb(1), "took": 0.1}
        takes = {
            "ack": ("results", "took"),
            "retry": ("errors", "delays", "took"),
            "reject": ("errors", "took"),
        }
        publish(session, queue, 2)
        held = lease(session, queue, 2)
        before = everything(session, queue)
        for array, count in product(takes.get(verb, ()), (0, 1, 3)):
            with refused("TQ005", "another length"):
                answer(session, verb, held, **{array: [values[array]] * count})
        assert everything(session, queue) == before


def test_no_ids_are_no_answer(session: Connection, queue: str) -> None:
    publish(session, queue)
    held = lease(session, queue)
    for verb in VERBS:
        assert answer(session, verb, held, []) == 0
        assert ask(session, verb, **held.named, ids=None) == 0
    assert receipts(session, queue) == []


def test_a_late_answer_is_accepted_until_the_reaper_has_been(session: Connection, queue: str) -> None:
    (id,) = publish(session, queue)
    held = lease(session, queue)
    move_clock(session, "1 hour")
    assert answer(session, "ack", held) == 1
    assert ask(session, "reap", queue=queue) == 0
    assert state(session, queue, id).state == "done"


def test_what_was_answered_before_the_reaper_stays_answered(session: Connection, queue: str) -> None:
    ids = publish(session, queue, 2)
    held = lease(session, queue, 2)
    answer(session, "ack", held, ids[:1])
    move_clock(session, "1 hour")
    ask(session, "reap", queue=queue)
    assert answer(session, "ack", held, ids[:1]) == 0, "no error: it may be the same call again"
    with refused("TQ003"):
        answer(session, "ack", held, ids)
    assert lease(session, queue, 9).ids == ids[1:]


def test_an_answer_joins_the_transaction_it_is_in(session: Connection, queue: str) -> None:
    (id,) = publish(session, queue)
    held = lease(session, queue)
    with session.transaction(force_rollback=True):
        assert answer(session, "ack", held) == 1
    assert state(session, queue, id).state == "leased"
    with session.transaction():
        publish(session, queue)
        answer(session, "ack", held)
    assert state(session, queue, id).state == "done"
    assert len(drain(session, queue)) == 1


def test_a_long_error_is_kept_to_eight_thousand_characters(session: Connection, queue: str) -> None:
    publish(session, queue)
    answer(session, "reject", lease(session, queue), errors=["x" * 50_000])
    (dead,) = call(session, "list_dead", queue=queue)
    assert len(dead.errors[0]["error"]) == 8000


def test_of_a_hundred_and_more_errors_the_newest_are_kept(session: Connection, queue: str) -> None:
    errors = Jsonb([{"attempt": n} for n in range(1, 101)])
    kept = fetch(session, "select trunq._add_error(%s, 101, now(), 'w', 'last')", errors)
    assert [error["attempt"] for error in kept] == list(range(2, 102))
    assert kept[-1]["error"] == "last"
