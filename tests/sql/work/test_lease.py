"""Leasing and extending: functions/work/lease.sql."""

from __future__ import annotations

from datetime import timedelta
from itertools import product
from typing import Any

import psycopg
import pytest
from psycopg import sql

from calling import answer, ask, call, drain, fetch, lease, move_clock, publish, refused, set_policy, state
from conftest import Connect

Connection = psycopg.Connection[Any]


def leases(session: Connection, queue: str) -> int:
    """How many leases are written down, empty ones too."""
    return int(fetch(session, f"select count(*) from trunq_data.{queue}_lease"))


def retries_of_others(session: Connection, queue: str, count: int) -> None:
    """Put messages in the log that are for another subscription alone."""
    other = fetch(session, "select subscription_id from trunq.subscription order by 1 desc limit 1")
    session.execute(
        sql.SQL("insert into {} (subscription_id) select %s from generate_series(1, %s)").format(
            sql.Identifier("trunq_log", queue)
        ),
        (other + 1, count),
    )


def test_looking_in_vain_writes_nothing_down(session: Connection, queue: str) -> None:
    for _ in range(50):
        assert call(session, "lease", queue=queue, subscription="default", worker="w") == []
    # Unless the look took long, as the first one may, or one on a busy machine.
    assert leases(session, queue) < 10


def test_all_messages_of_one_call_are_of_one_lease(session: Connection, queue: str) -> None:
    ids = publish(session, queue, 5)
    held = lease(session, queue, 3)
    assert held.ids == ids[:3]
    assert len({(row.lease_id, row.token, row.expires_at) for row in held.messages}) == 1
    rest = lease(session, queue, 3)
    assert rest.ids == ids[3:]
    assert rest.lease_id > held.lease_id
    assert rest.token != held.token
    assert not lease(session, queue)


def test_a_lease_ends_after_the_subscription_s_time_or_the_given_one(session: Connection, queue: str) -> None:
    publish(session, queue, 3)
    set_policy(session, queue, lease_time=timedelta(seconds=100))
    now = ask(session, "clock")
    assert lease(session, queue).messages[0].expires_at - now >= timedelta(seconds=100)
    given = lease(session, queue, lease_time=timedelta(hours=1)).messages[0].expires_at
    assert timedelta(minutes=59) < given - now < timedelta(minutes=61)


def test_the_default_is_one_message_at_a_time(session: Connection, queue: str) -> None:
    ids = publish(session, queue, 2)
    rows = call(session, "lease", queue=queue, subscription="default", worker="w")
    assert [row.id for row in rows] == ids[:1]


def test_ten_thousand_messages_can_be_leased_at_once(session: Connection, queue: str) -> None:
    ids = publish(session, queue, 10_001)
    assert lease(session, queue, 10_000).ids == ids[:-1]
    assert lease(session, queue, 10_000).ids == ids[-1:]


@pytest.mark.parametrize("size", [1, 2, 7, 50, 51, 1000])
def test_a_backlog_comes_whole_whatever_the_size_of_the_leases(
    session: Connection, queue: str, size: int
) -> None:
    ids = publish(session, queue, 20) + publish(session, queue, 30)
    seen: list[int] = []
    while held := lease(session, queue, size):
        seen += held.ids
        ids += publish(session, queue) if len(ids) < 60 else []
    assert seen == ids


def test_messages_of_one_transaction_keep_their_order_and_transactions_theirs(
    session: Connection, open_session: Connect, queue: str
) -> None:
    first, second = open_session(autocommit=False), open_session(autocommit=False)
    a = publish(first, queue)
    b = publish(second, queue)
    a += publish(first, queue)
    b += publish(second, queue)
    second.commit()
    first.commit()
    # By transaction, in the order in which they took their ids, though the second committed first.
    assert drain(session, queue) == a + b


def test_at_least_one_message_comes_however_large(session: Connection, queue: str) -> None:
    ids = publish(session, queue, 3)
    for max_bytes in (1, 0, -1):
        held = lease(session, queue, 10, max_bytes=max_bytes)
        assert held.ids == [ids.pop(0)]
    assert not lease(session, queue)


def test_a_lease_holds_no_more_bytes_than_asked(session: Connection, queue: str) -> None:
    sizes = (4000, 4000, 4000, 100, 9000, 100)
    ids = [ask(session, "publish", queue=queue, body=bytes(size)) for size in sizes]
    taken = []
    while held := lease(session, queue, 10, max_bytes=8500):
        taken.append(held.ids)
    assert taken == [ids[:2], ids[2:4], [ids[4]], [ids[5]]]


def test_sixteen_megabytes_are_the_default(session: Connection, queue: str) -> None:
    bodies = [bytes(6 * 1024 * 1024)] * 3
    ids = ask(session, "publish_many", queue=queue, payloads=None, bodies=bodies)
    assert lease(session, queue, 10, max_bytes=None).ids == ids[:2]
    assert lease(session, queue, 10).ids == ids[2:]


def test_other_readers_retries_are_passed_over(session: Connection, queue: str) -> None:
    first = publish(session, queue, 2)
    retries_of_others(session, queue, 300)
    second = publish(session, queue, 2)
    assert lease(session, queue, 10).ids == first + second


def test_a_look_that_walked_far_moves_the_position(session: Connection, queue: str) -> None:
    publish(session, queue)
    drain(session, queue)
    before = leases(session, queue)
    retries_of_others(session, queue, 120_000)
    last = publish(session, queue)
    # Bounded walks, each going on where the one before ended, in one call or several.
    found = next(held for _ in range(5) if (held := lease(session, queue, 10)))
    assert found.ids == last
    assert leases(session, queue) > before
    retries_of_others(session, queue, 60_000)
    assert not lease(session, queue)
    moved = leases(session, queue)
    assert moved > before
    assert not lease(session, queue)
    # The second look had nothing to walk: none is written, unless each of five took 3 ms.
    for _ in range(4):
        assert not lease(session, queue)
    assert leases(session, queue) < moved + 5


def test_a_row_far_behind_others_retries_is_found_in_the_same_call(session: Connection, queue: str) -> None:
    retries_of_others(session, queue, 70_000)
    ids = publish(session, queue, 3)
    assert lease(session, queue, 10).ids == ids


def test_rows_on_the_edge_of_a_walk_are_neither_lost_nor_doubled(session: Connection, queue: str) -> None:
    retries_of_others(session, queue, 49_999)
    # Such a lease may hold less than was asked for, as any may.
    ids = publish(session, queue, 4)
    assert drain(session, queue) == ids
    for count in (50_000, 50_001, 49_998):
        retries_of_others(session, queue, count)
        ids = publish(session, queue, 2)
        assert drain(session, queue) == ids


def test_impossible_numbers_and_times_are_refused(session: Connection, queue: str) -> None:
    publish(session, queue)
    for count in (0, -1, 10_001, None):
        with refused("TQ005", "1 to 10000"):
            call(session, "lease", queue=queue, subscription="default", worker="w", max_messages=count)
    for time in (timedelta(0), timedelta(seconds=-1)):
        with refused("TQ005", "must be positive"):
            lease(session, queue, lease_time=time)
    assert leases(session, queue) == 0


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_leasing_and_extending_need_read_committed(session: Connection, queue: str, level: str) -> None:
    publish(session, queue, 2)
    held = lease(session, queue)
    for attempt in (lambda: lease(session, queue), lambda: ask(session, "extend", **held.named)):
        with refused("TQ007", level.upper(), "READ COMMITTED"), session.transaction():
            session.execute(f"set transaction isolation level {level}".encode())
            attempt()
    assert leases(session, queue) == 1


def test_a_database_with_another_default_level_works_for_who_asks_for_read_committed(
    database: str, connection: Connection, connect: Connect
) -> None:
    connection.execute(
        f"alter database {connection.info.dbname} set default_transaction_isolation = 'repeatable read'"
    )
    user = connect()
    ask(user, "create_queue", queue="q")
    ids = publish(user, "q", 2)
    with refused("TQ007", "REPEATABLE READ"):
        lease(user, "q")
    user.execute("set session characteristics as transaction isolation level read committed")
    assert drain(user, "q") == ids


def test_leasing_from_a_batch_reader_s_subscription_says_how_to_read_it(
    session: Connection, queue: str
) -> None:
    ask(session, "subscribe", queue=queue, subscription="stream", mode="exclusive")
    with refused("TQ011", "is exclusive, not shared", "next_batch"):
        lease(session, queue, subscription="stream")


def test_unknown_subscriptions_and_queues_are_refused(session: Connection, queue: str) -> None:
    publish(session, queue)
    held = lease(session, queue).named
    for name in ("nobody", "", None):
        with refused("TQ002", "subscribe"):
            call(session, "lease", queue=queue, subscription=name, worker="w")
        with refused("TQ002", "subscribe"):
            ask(session, "extend", **{**held, "subscription": name})
        with refused("TQ001", "create_queue"):
            call(session, "lease", queue=name, subscription="default", worker="w")
        with refused("TQ001", "create_queue"):
            ask(session, "extend", **{**held, "queue": name})


class TestExtend:
    """A lease that is extended."""

    def test_it_ends_so_long_from_now(self, session: Connection, queue: str) -> None:
        (id,) = publish(session, queue)
        held = lease(session, queue)
        move_clock(session, "50 seconds")
        end = ask(session, "extend", **held.named)
        assert end - held.messages[0].expires_at > timedelta(seconds=49)
        assert state(session, queue, id).expires_at == end
        end = ask(session, "extend", **held.named, lease_time=timedelta(hours=2))
        assert end - ask(session, "clock") > timedelta(minutes=119)

    def test_it_is_not_reaped_before_its_new_end(self, session: Connection, queue: str) -> None:
        publish(session, queue)
        held = lease(session, queue)
        ask(session, "extend", **held.named, lease_time=timedelta(minutes=10))
        move_clock(session, "9 minutes")
        assert ask(session, "reap", queue=queue) == 0
        move_clock(session, "11 minutes")
        assert ask(session, "reap", queue=queue) == 1

    def test_it_may_be_made_shorter_and_is_reaped_then(self, session: Connection, queue: str) -> None:
        publish(session, queue)
        held = lease(session, queue, lease_time=timedelta(hours=1))
        move_clock(session, "10 minutes")
        assert ask(session, "reap", queue=queue) == 0
        end = ask(session, "extend", **held.named, lease_time=timedelta(0))
        assert end < held.messages[0].expires_at
        move_clock(session, "11 minutes")
        assert ask(session, "reap", queue=queue) == 1
        with refused("TQ003"):
            answer(session, "ack", held)

    def test_it_may_be_extended_after_its_time_but_not_after_the_reaper(
        self, session: Connection, queue: str
    ) -> None:
        publish(session, queue)
        held = lease(session, queue)
        move_clock(session, "1 hour")
        ask(session, "extend", **held.named)
        assert ask(session, "reap", queue=queue) == 0
        move_clock(session, "2 hours")
        assert ask(session, "reap", queue=queue) == 1
        with refused("TQ003", "has ended"):
            ask(session, "extend", **held.named)
        assert lease(session, queue)

    def test_only_by_who_holds_it(self, session: Connection, queue: str) -> None:
        (id,) = publish(session, queue)
        held = lease(session, queue)
        for lease_id, token in product((held.lease_id, 99, None), (held.token, 5, None)):
            if (lease_id, token) != (held.lease_id, held.token):
                with refused("TQ003", "has ended"):
                    wrong = {**held.named, "lease_id": lease_id, "token": token}
                    ask(session, "extend", **wrong, lease_time=timedelta(hours=1))
        assert state(session, queue, id).expires_at == held.messages[0].expires_at

    def test_not_into_the_past(self, session: Connection, queue: str) -> None:
        (id,) = publish(session, queue)
        held = lease(session, queue)
        with refused("TQ005", "negative"):
            ask(session, "extend", **held.named, lease_time=timedelta(seconds=-1))
        assert state(session, queue, id).expires_at == held.messages[0].expires_at

    def test_under_the_name_of_another_subscription_it_is_unknown(
        self, session: Connection, queue: str
    ) -> None:
        ask(session, "subscribe", queue=queue, subscription="other")
        publish(session, queue)
        held = lease(session, queue)
        with refused("TQ003"):
            ask(session, "extend", **{**held.named, "subscription": "other"})

    def test_a_batch_can_be_extended_until_another_worker_has_it(
        self, session: Connection, queue: str
    ) -> None:
        ask(session, "subscribe", queue=queue, subscription="stream", mode="exclusive")
        ask(session, "tick", queue=queue, force=True)
        one = {"queue": queue, "subscription": "stream"}
        (first,) = call(session, "next_batch", **one, worker="a")
        end = ask(
            session,
            "extend",
            **one,
            lease_id=first.batch_id,
            token=first.token,
            lease_time=timedelta(hours=1),
        )
        assert end > first.expires_at
        move_clock(session, "30 minutes")
        assert call(session, "next_batch", **one, worker="b") == []
        move_clock(session, "2 hours")
        (second,) = call(session, "next_batch", **one, worker="b")
        assert second.batch_id != first.batch_id
        with refused("TQ003", "has ended"):
            ask(session, "extend", **one, lease_id=first.batch_id, token=first.token)
        ask(session, "finish_batch", **one, batch_id=second.batch_id, token=second.token)
        with refused("TQ003", "has ended"):
            ask(session, "extend", **one, lease_id=second.batch_id, token=second.token)


def test_two_sessions_lease_different_messages(
    session: Connection, open_session: Connect, queue: str
) -> None:
    ids = publish(session, queue, 6)
    other = open_session()
    taken = [lease(each, queue).ids[0] for each in (session, other) * 3]
    assert taken == ids


@pytest.mark.parametrize("lanes", [None, "key"])
@pytest.mark.parametrize("setting", ["expired", "cancelled", "replaced"])
def test_what_a_worker_sets_decides_no_message(
    connection: Connection, lanes: str | None, setting: str
) -> None:
    ask(connection, "create_queue", queue="work", lanes=lanes, unique="replace")
    ids = publish(connection, "work", 3, keys=["a"])
    ask(connection, "cancel", queue="work", ids=[publish(connection, "work")[0]])
    forged = f"{ids[0]}:{ids[1]}" if setting == "replaced" else str(ids[0])
    with connection.transaction():
        connection.execute("select set_config(%s, %s, true)", (f"trunq.{setting}", forged))
        held = lease(connection, "work", 10)
    assert held.ids == ids
    assert answer(connection, "ack", held) == 3
    assert fetch(connection, "select count(*) from trunq.dead where id = any (%s)", ids) == 0


@pytest.mark.parametrize("lanes", [None, "key", "priority"])
@pytest.mark.parametrize("count", [1, 4, 100])
def test_a_lease_hands_out_what_is_left_between_messages_that_are_over(
    connection: Connection, lanes: str | None, count: int
) -> None:
    """By whichever way each is over, and in its order."""
    ask(connection, "create_queue", queue="work", lanes=lanes, unique="replace")
    live, over = [], {}
    for n in range(3):
        live.append(ask(connection, "publish", queue="work"))
        for why in ("replaced", "live"):
            (row,) = call(connection, "publish_unique", queue="work", payload="1", unique_key=f"k{n}")
            live.append(row.id) if why == "live" else over.update({row.id: "replaced"})
        over[ask(connection, "publish", queue="work", max_age="1 microsecond")] = "expired"
        cancelled = ask(connection, "publish", queue="work")
        call(connection, "cancel", queue="work", ids=[cancelled])
        over[cancelled] = "cancelled"
    found: list[int] = []
    while held := lease(connection, "work", count):
        assert len(held.ids) <= count
        found += held.ids
        assert answer(connection, "ack", held) == len(held.ids)
    assert found == live
    dead = connection.execute("select id, reason from trunq.dead").fetchall()
    replaced = connection.execute(
        "select unnest(ids), 'replaced' from trunq_data.work_receipt where outcome = 'p'"
    ).fetchall()
    assert dict(dead) | dict(replaced) == over
    assert fetch(connection, "select sum(size) from trunq_data.work_receipt") == len(live) + len(over)
