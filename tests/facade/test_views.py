"""What PgQ's tables take, and these views do not: docs/operate/pgq.md says it."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from calling import fetch


def test_events_are_inserted_and_copied_into_the_parts_alone(pgq: psycopg.Connection[Any], name: str) -> None:
    number = fetch(pgq, "select queue_id from pgq.queue where queue_name = %s", name)
    pgq.execute(f"insert into pgq.event_{number}_0 (ev_type) values ('inserted')".encode())
    with pgq.cursor().copy(f"copy pgq.event_{number}_1 (ev_type) from stdin".encode()) as copy:
        copy.write_row(("copied",))
    with pgq.cursor().copy(f"copy (select ev_type from pgq.event_{number}) to stdout".encode()) as copied:
        assert sorted(row[0] for row in copied.rows()) == ["copied", "inserted"]
    for statement in (
        f"insert into pgq.event_{number} (ev_type) values ('x')",
        f"truncate pgq.event_{number}",
        f"truncate pgq.event_{number}_0",
        f"create table refers (ev_id bigint references pgq.event_{number})",
        "insert into pgq.queue (queue_name) values ('x')",
        "truncate pgq.queue",
        "insert into pgq.tick (tick_queue) values (1)",
        "insert into pgq.subscription (sub_queue) values (1)",
        f"copy pgq.event_{number} to stdout",
    ):
        with pytest.raises(psycopg.Error):
            pgq.execute(statement.encode())


def test_a_replica_s_events_go_where_current_event_table_says_and_are_refused_where_they_would_be_lost(
    pgq: psycopg.Connection[Any], name: str
) -> None:
    number = fetch(pgq, "select queue_id from pgq.queue where queue_name = %s", name)
    pgq.execute("update pgq.queue set queue_disable_insert = true where queue_name = %s", (name,))
    pgq.execute("set session_replication_role = replica")
    with pytest.raises(
        psycopg.errors.FeatureNotSupported, match=f"event_{number}_0 takes no events"
    ) as refused:
        pgq.execute(f"insert into pgq.event_{number}_0 (ev_type) values ('x')".encode())
    into_view = f"copy pgq.event_{number}_1 (ev_type) from stdin".encode()
    with pytest.raises(psycopg.errors.FeatureNotSupported), pgq.cursor().copy(into_view) as copy:
        copy.write_row(("x",))
    # The hint's two ways.
    assert "pgq.current_event_table" in (refused.value.diag.message_hint or "")
    table = fetch(pgq, "select pgq.current_event_table(%s)", name)
    pgq.execute(f"insert into {table} (ev_type, ev_extra2) values ('inserted', 'b')".encode())
    with pgq.cursor().copy(f"copy {table} (ev_id, ev_time, ev_type) from stdin".encode()) as copy:
        copy.write_row((4242, "2001-01-01 00:00:00+00", "copied"))
    pgq.execute("select pgq.insert_event(%s, 'called', null)", (name,))
    pgq.execute("reset session_replication_role")
    rows = pgq.execute(
        "select ev_id = 4242, ev_time < '2002-01-01', ev_type, ev_extra2"
        f" from pgq.event_{number} order by 3".encode()
    ).fetchall()
    assert rows == [
        (False, False, "called", None),
        (True, True, "copied", None),
        (False, False, "inserted", "b"),
    ]
    assert fetch(pgq, f"select count(*) from {table}") == 0
    # A native worker who sleeps is woken: no trigger of the log does it in such a session.
    channel = fetch(pgq, "select trunq.queue_channel(name) from trunq.queue where queue_id = %s", number)
    with psycopg.connect(pgq.info.dsn, autocommit=True) as sleeper:
        sleeper.execute(f"listen {channel}".encode())
        queue = fetch(pgq, "select name from trunq.queue where queue_id = %s", number)
        assert fetch(sleeper, "select trunq.take_bell(%s)", queue)
        pgq.execute("set session_replication_role = replica")
        pgq.execute(f"insert into {table} (ev_type) values ('x'), ('y')".encode())
        pgq.execute("reset session_replication_role")
        assert [heard.payload for heard in sleeper.notifies(timeout=10, stop_after=1)] == ["m"]
    # Another's is as before, and the table goes with the queue.
    with pytest.raises(psycopg.Error, match="Writing to queue disabled"):
        pgq.execute("select pgq.current_event_table(%s)", (name,))
    pgq.execute("select pgq.drop_queue(%s, true)", (name,))
    assert fetch(pgq, "select to_regclass(%s) is null", table)
