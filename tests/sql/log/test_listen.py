"""Reading on from a place without a subscription, and notifying: functions/log/listen.sql."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from calling import ask, call, fetch, move_clock, new_names, refused
from conftest import Connect
from engine import Engine
from granting import granting, make_shop

Connection = psycopg.Connection[Any]


@pytest.fixture
def work(connection: Connection) -> Engine:
    return Engine(connection, next(new_names("read"))).create()


def read(work: Engine, place: str, limit: int = 1000, **more: Any) -> tuple[list[int], str]:
    """Ids, and where to read on."""
    ids = []
    for row in work.call("read_on", place=place, limit=limit, **more):
        place = row.place
        ids += [row.id] * (row.id is not None)
    return ids, place


def test_it_reads_on_page_by_page_and_says_where_it_stands(work: Engine) -> None:
    before = work.publish(2)
    ((place, at),) = work.call("find_place")
    ((earliest, _),) = work.call("find_place", start="earliest")
    assert work.call("read_on", place=place) == []
    ids = work.publish(5)
    first, place = read(work, place, 2)
    second, place = read(work, place, 2)
    third, place = read(work, place, 2)
    assert (first, second, third) == (ids[:2], ids[2:4], ids[4:])
    assert work.call("read_on", place=place) == []
    assert read(work, earliest)[0] == before + ids
    ((early, _),) = work.call("find_place", at=at)
    assert read(work, early)[0] == ids
    last = work.call("read_on", place=earliest)[-1]
    assert (last.id, last.kind, last.payload) == (None, None, None)
    assert last.created_at >= at


def test_retries_do_not_come_again_and_what_is_delayed_comes_when_it_is_due(work: Engine) -> None:
    ((place, _),) = work.call("find_place")
    ids = work.publish(2)
    assert read(work, place)[0] == ids
    _, place = read(work, place)
    held = work.lease(2)
    call(work.connection, "release", **held.named, ids=held.ids)
    delayed = ask(work.connection, "publish", queue=work.queue, payload={}, delay="1 minute")
    assert read(work, place)[0] == []
    move_clock(work.connection, "2 minutes")
    work.ask("promote")
    # Up to the tick of the last look, and then from there.
    _, place = read(work, place)
    assert read(work, place)[0] == [delayed]


def test_it_filters(work: Engine) -> None:
    ((place, _),) = work.call("find_place")
    odd = ask(work.connection, "publish", queue=work.queue, payload={}, kind="odd")
    ask(work.connection, "publish", queue=work.queue, payload={}, kind="even")
    found, after = read(work, place, filter={"kinds": ["odd"]})
    assert found == [odd]
    assert read(work, after)[0] == []


def test_what_a_place_no_longer_leads_to_is_refused(work: Engine, connection: Connection) -> None:
    ((place, _),) = work.call("find_place")
    for wrong in ("", "1", "1.2.3", "a.b", "1.2.3.4.5.6", "9" * 30 + ".1", "'; drop"):
        with refused("TQ005"):
            call(connection, "read_on", queue=work.queue, place=wrong)
    other = Engine(connection, next(new_names("other"))).create()
    with refused("TQ012"):
        call(connection, "read_on", queue=other.queue, place=place)
    queue, tick = place.partition("-")[0].split(".")
    with refused("TQ012"):
        call(connection, "read_on", queue=work.queue, place=f"{queue}.{int(tick) + 9}")
    with refused("TQ012"):
        call(connection, "find_place", queue=work.queue, at="2000-01-01")
    with refused("TQ005"):
        call(connection, "find_place", queue=work.queue, start="latest", at="2000-01-01")


def test_a_place_of_another_database_or_of_a_tick_that_was_lost_is_refused(
    new_database: Callable[..., str],
) -> None:
    with (
        psycopg.connect(new_database(), autocommit=True) as here,
        psycopg.connect(new_database(), autocommit=True) as there,
    ):
        work, other = (Engine(each, "q").create() for each in (here, there))
        work.publish(3)
        ((begin, _),) = other.call("find_place", start="earliest")
        other.publish(3)
        # Within a window, and behind it.
        places = [begin, *(row.place for row in other.call("read_on", place=begin))]
        work.ask("tick", force=True)
        numbers = [place.partition("-")[0] for place in places]
        for place in places:
            assert other.call("read_on", place=place) is not None
            with refused("TQ012", "of another database, or a failover"):
                work.call("read_on", place=place)
        # One that was kept since before places said more is taken by its numbers.
        assert read(work, numbers[0])[0]
        assert [row.id for row in other.call("read_on", place=numbers[1])][:2] == [2, 3]


def test_where_ticks_are_paused_it_reads_up_to_the_last(work: Engine) -> None:
    ((place, _),) = work.call("find_place")
    work.ask("pause_ticks")
    ids = work.publish(2)
    assert work.call("read_on", place=place) == []
    work.ask("resume_ticks")
    assert read(work, place)[0] == ids


@pytest.mark.parametrize(
    "options", [{"lanes": "key"}, {"unique": "refuse"}, {"lanes": "priority", "unique": "replace"}]
)
def test_a_queue_of_each_specimen_is_read(connection: Connection, options: dict[str, str]) -> None:
    work = Engine(connection, next(new_names("special"))).create(**options)
    work.ask("add_column", column="shop", type="text")
    ((place, _),) = work.call("find_place")
    (id,) = work.publish(1)
    (row, _) = work.call("read_on", place=place)
    assert (row.id, row.columns) == (id, {"shop": None})


def test_listeners_leave_nothing_behind_but_ticks(work: Engine, connection: Connection) -> None:
    def rows() -> Any:
        return fetch(
            connection,
            "select sum(n_tup_ins) from pg_stat_xact_user_tables"
            " where schemaname like 'trunq%' and relname <> 'tick'",
        )

    with connection.transaction():
        ((place, _),) = work.call("find_place")
        before = rows()
        read(work, place)
        assert rows() == before
    assert fetch(connection, "select count(*) from trunq.subscription where name <> 'default'") == 0


def test_a_notification_is_told_at_commit_with_who_sent_it(connection: Connection, connect: Connect) -> None:
    ear = connect()
    ear.execute('listen "a b"')
    with connection.transaction():
        pid = ask(connection, "notify", channel="a b", payload="x" * 7999)
        assert list(ear.notifies(timeout=0)) == []
    ask(connection, "notify", channel="a b")
    told = list(ear.notifies(timeout=60, stop_after=2))
    assert [(each.pid, len(each.payload)) for each in told] == [(pid, 7999), (pid, 0)]
    assert pid == connection.info.backend_pid
    with refused("TQ006"):
        call(connection, "notify", channel="a b", payload="é" * 4000)
    for channel in ("", "x" * 64, None):
        with refused("TQ005"):
            call(connection, "notify", channel=channel)


def test_a_reader_learns_no_header_by_a_filter_and_a_worker_sees_payloads(
    connection: Connection, connect: Connect
) -> None:
    shop = make_shop(connection)
    place = call(shop, "find_place", queue="mine")[0].place
    ask(shop, "publish", queue="mine", payload={"n": 9}, kind="odd", headers={"card": "4111"})
    with granting(shop, connect) as grant:
        for role in ("reader", "admin"):
            blind = grant(role)
            rows = call(blind, "read_on", queue="mine", place=place, filter={"kinds": ["odd"]})
            assert [row.payload for row in rows] == [None, None]
            for each in ({"headers": {"card": "4111"}}, {"kinds": ["odd"], "not_headers": {"card": "4111"}}):
                with refused("42501", "sees no payloads"):
                    call(blind, "read_on", queue="mine", place=place, filter=each)
        for roles, more in (
            (("worker",), {}),
            (("worker", "reader", "admin"), {}),
            (("reader",), {"payload": True}),
        ):
            rows = call(
                grant(*roles, **more),
                "read_on",
                queue="mine",
                place=place,
                filter={"headers": {"card": "4111"}},
            )
            assert [row.payload for row in rows] == [{"n": 9}, None]
