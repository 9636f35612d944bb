"""What is too large, too long, too late or too much is refused, by a sentence that names it."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from psycopg import errors

from calling import answer, ask, call, lease, publish, refused

Connection = psycopg.Connection[Any]


@pytest.mark.parametrize("column", ["kind", "key"])
def test_a_kind_or_key_is_at_most_1000_bytes_however_it_is_published(
    session: Connection, queue: str, column: str
) -> None:
    fits, over = "é" * 500, "é" * 500 + "x"
    ask(session, "publish", queue=queue, **{column: fits})
    publish(session, queue, 2, **{f"{column}s": [fits]})
    with refused("TQ006", queue, "1001 bytes", "1000"):
        ask(session, "publish", queue=queue, **{column: over})
    with refused("TQ006", queue, "1001 bytes"):
        ask(session, "publish", queue=queue, delay="1 hour", **{column: over})
    with refused("TQ006", queue, "1001 bytes"):
        publish(session, queue, 2, **{f"{column}s": [over]})
    with refused("TQ006", queue, "1001 bytes"):
        publish(session, queue, 2, **{f"{column}s": ["a", over]})
    with pytest.raises(errors.CheckViolation, match=f"{column}_at_most_1000_bytes"):
        session.execute(f"insert into trunq_log.{queue} ({column}) values (%s)".encode(), (over,))
    assert len(lease(session, queue, 10).ids) == 3


def test_many_short_kinds_are_not_one_long_one(session: Connection, queue: str) -> None:
    ids = publish(session, queue, 200, kinds=["a kind of some length"] * 200)
    assert lease(session, queue, 1000).ids == ids


SMALL = {"small": 1}

HEAVY = {
    "payload that is compressed": {"payload": {"text": "x" * 1_000_000}},
    "headers that are compressed": {"headers": {"text": "x" * 1_000_000}},
    "body that is compressed": {"body": b"x" * 1_000_000},
}


@pytest.mark.parametrize("what", HEAVY)
def test_the_bytes_of_a_lease_are_those_a_worker_receives(session: Connection, queue: str, what: str) -> None:
    ids = [ask(session, "publish", queue=queue, **HEAVY[what]) for _ in range(6)]
    held = lease(session, queue, 100, max_bytes=3_100_000)
    assert held.ids == ids[:3]
    assert lease(session, queue, 100, max_bytes=1).ids == ids[3:4]


def test_kind_and_key_count_among_the_bytes_of_a_lease(session: Connection, queue: str) -> None:
    ids = [
        ask(session, "publish", queue=queue, payload=SMALL, kind="k" * 1000, key="k" * 1000) for _ in range(6)
    ]
    assert lease(session, queue, 100, max_bytes=4200).ids == ids[:2]


TOO_LONG = ["1000 years 1 second", "infinity"]


@pytest.fixture(params=TOO_LONG)
def too_long(request: pytest.FixtureRequest, session: Connection) -> str:
    if request.param == "infinity" and session.info.server_version < 170000:
        pytest.skip("infinite intervals came with Postgres 17")
    return str(request.param)


def test_no_length_of_time_leads_beyond_the_year_9999(session: Connection, queue: str, too_long: str) -> None:
    ask(session, "subscribe", queue=queue, subscription="batches", mode="exclusive")
    publish(session, queue)
    ask(session, "tick", queue=queue, force=True)
    batches = {"queue": queue, "subscription": "batches"}
    held = lease(session, queue)
    for function, arguments in [
        ("create_queue", {"queue": "never", "retention": too_long}),
        ("create_queue", {"queue": "never", "tick_max_lag": too_long}),
        ("create_queue", {"queue": "never", "tick_idle_period": too_long}),
        ("subscribe", {"queue": queue, "subscription": "never", "lease_time": too_long}),
        ("subscribe", {"queue": queue, "subscription": "never", "backoff_base": too_long}),
        ("subscribe", {"queue": queue, "subscription": "never", "backoff_cap": too_long}),
        ("publish", {"queue": queue, "delay": too_long}),
        ("publish_many", {"queue": queue, "payloads": [SMALL], "delay": too_long}),
        ("lease", {"queue": queue, "subscription": "default", "worker": "w", "lease_time": too_long}),
        ("extend", {**held.named, "lease_time": too_long}),
        ("retry", {**held.named, "ids": held.ids, "delays": [too_long]}),
        ("next_batch", {**batches, "worker": "w", "lease_time": too_long}),
    ]:
        with refused("TQ005", "1000 years"):
            call(session, function, **arguments)
    assert answer(session, "retry", held, delays=["1000 years"]) == 1


@pytest.mark.parametrize("due_at", ["infinity", "-infinity", "10000-01-01 00:00:00+00", "20000-01-01"])
def test_no_message_is_due_beyond_the_year_9999(session: Connection, queue: str, due_at: str) -> None:
    with refused("TQ005", "year 10000"):
        ask(session, "publish", queue=queue, due_at=due_at)
    with refused("TQ005", "year 10000"):
        ask(session, "publish_many", queue=queue, payloads=[SMALL], due_at=due_at)
    assert ask(session, "publish", queue=queue, due_at="9999-12-31 23:59:59+00")


@pytest.mark.parametrize("lease_time", ["-1 second", "0"])
def test_a_batch_is_leased_for_a_positive_time(session: Connection, queue: str, lease_time: str) -> None:
    ask(session, "subscribe", queue=queue, subscription="batches", mode="exclusive")
    with refused("TQ005", "positive"):
        call(session, "next_batch", queue=queue, subscription="batches", worker="w", lease_time=lease_time)


@pytest.mark.parametrize("limit", [-1, 0, 100_001, 2**31 - 1])
@pytest.mark.parametrize("function", ["list_messages", "list_dead"])
def test_a_list_has_1_to_100000_rows(session: Connection, queue: str, function: str, limit: int) -> None:
    with refused("TQ005", "1 to 100000 rows"):
        call(session, function, queue=queue, limit=limit)
    assert call(session, function, queue=queue, limit=100_000) == []
