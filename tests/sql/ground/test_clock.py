"""Time and snapshots: functions/ground/clock.sql."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest

from calling import ask, burn, fetch, move_clock, refused
from conftest import Connect

Connection = psycopg.Connection[Any]


def test_the_clock_is_the_database_s(session: Connection) -> None:
    assert fetch(session, "select abs(extract(epoch from trunq.clock() - clock_timestamp())) < 1")


def test_the_clock_can_be_moved_both_ways(session: Connection) -> None:
    real = ask(session, "clock")
    move_clock(session, "1 hour")
    later = ask(session, "clock")
    move_clock(session, "-1 hour")
    earlier = ask(session, "clock")
    assert timedelta(minutes=59) < later - real < timedelta(minutes=61)
    assert timedelta(minutes=59) < real - earlier < timedelta(minutes=61)


def test_a_clock_moves_only_where_the_owner_lets_it(session: Connection, open_session: Connect) -> None:
    with session.transaction(force_rollback=True):
        ask(session, "let_clock_move", moves=False)
        assert ask(session, "clock")
        move = "select set_config('trunq.clock_offset', '1 hour', true)"
        with (
            refused("TQ005", "clock of this database does not move", "trunq.let_clock_move()"),
            session.transaction(),
        ):
            session.execute(move)
            ask(session, "clock")
        ask(session, "let_clock_move")
        session.execute(move)
        assert ask(session, "clock")
    with session.transaction(force_rollback=True):
        session.execute(
            "create role nobody_s; grant usage on schema trunq to nobody_s; set local role nobody_s"
        )
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            ask(session, "let_clock_move")


def test_a_snapshot_without_a_transaction_id_is_the_plain_one(session: Connection) -> None:
    with session.transaction():
        session.execute("set transaction isolation level repeatable read")
        assert fetch(session, "select trunq.snapshot()::text = pg_current_snapshot()::text")


def test_a_snapshot_holds_the_caller_s_own_transaction_to_be_in_progress(
    session: Connection, open_session: Connect
) -> None:
    with session.transaction():
        mine = fetch(session, "select pg_current_xact_id()::text::bigint")
        with open_session() as other:
            burn(other, 3)
        taken = "select pg_visible_in_snapshot(pg_current_xact_id(), {})"
        assert fetch(session, taken.format("pg_current_snapshot()")), "Postgres leaves it out"
        assert not fetch(session, taken.format("trunq.snapshot()"))
        assert fetch(session, "select pg_snapshot_xmin(trunq.snapshot())::text::bigint") <= mine


def test_a_snapshot_lists_own_and_other_transactions_in_order(
    session: Connection, open_session: Connect
) -> None:
    older, newer = open_session(autocommit=False), open_session(autocommit=False)
    ids = [fetch(older, "select pg_current_xact_id()::text::bigint")]
    with session.transaction():
        ids.append(fetch(session, "select pg_current_xact_id()::text::bigint"))
        ids.append(fetch(newer, "select pg_current_xact_id()::text::bigint"))
        with open_session() as other:
            burn(other, 1)
        listed = fetch(
            session, "select array(select x::text::bigint from pg_snapshot_xip(trunq.snapshot()) x)"
        )
        # Other tests' servers are quiet, but their autovacuum may have a transaction of its own.
        assert [xid for xid in listed if xid in ids] == ids
        assert listed == sorted(listed)


def test_tokens_are_random(session: Connection) -> None:
    assert fetch(session, "select count(distinct trunq._token()) from generate_series(1, 500)") == 500
