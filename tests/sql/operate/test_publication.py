"""A publication for all tables, as Debezium or an upgrade by replication makes it, stops nothing."""

from __future__ import annotations

from typing import Any

import psycopg

from calling import answer, ask, call, come_back, fetch, lease, move_clock, publish

Connection = psycopg.Connection[Any]

TABLES = """
    select c.oid::regclass::text from pg_class c join pg_namespace n on n.oid = c.relnamespace
    where n.nspname like 'trunq%' and c.relkind = 'r' and c.relreplident <> 'f'
      and not exists (select from pg_index i where i.indrelid = c.oid and i.indisprimary)
    order by 1"""


def test_each_table_tells_which_row_changed(connection: Connection) -> None:
    ask(connection, "create_queue", queue="work")
    assert connection.execute(TABLES).fetchall() == []


def finish_batch(connection: Connection) -> None:
    """All there is to read for the stream."""
    ask(connection, "tick", queue="work", force=True)
    (batch,) = call(connection, "next_batch", queue="work", subscription="stream", worker="w", max_ticks=9)
    held = {"batch_id": batch.batch_id, "token": batch.token}
    ask(connection, "finish_batch", queue="work", subscription="stream", **held)


def test_the_whole_life_of_a_message(connection: Connection) -> None:
    ask(connection, "create_queue", queue="work", retention="1 day")
    ask(connection, "subscribe", queue="work", subscription="stream", mode="exclusive")
    connection.execute("create publication everything for all tables")
    publish(connection, "work", 5)
    publish(connection, "work", delay="1 second")
    ask(connection, "elect", name="me")
    held = lease(connection, "work", 2)
    ask(connection, "extend", **held.named, lease_time="2 hours")
    ask(connection, "extend", **held.named, lease_time="1 second")
    answer(connection, "ack", held, held.ids[:1])
    answer(connection, "reject", lease(connection, "work"))
    answer(connection, "retry", lease(connection, "work"))
    move_clock(connection, "1 minute")
    ask(connection, "reap", queue="work")
    ask(connection, "reclaim", queue="work", subscription="default", worker="w")
    come_back(connection, "work")
    finish_batch(connection)
    ask(connection, "requeue", queue="work")
    answer(connection, "reject", lease(connection, "work", 9))
    ask(connection, "purge", queue="work")
    while held := lease(connection, "work", 9):
        answer(connection, "ack", held)
    # Twice: what it read last it may have to repeat.
    finish_batch(connection)
    finish_batch(connection)
    move_clock(connection, "9 days 12 hours")
    connection.execute("call trunq.perform_each_duty()")
    assert fetch(connection, "select count(*) from trunq.duty_failure") == 0
    assert fetch(connection, "select count(*) from trunq_log.work") == 0
    publish(connection, "work", 3)
    lease(connection, "work")
    assert ask(connection, "rebase") > 0
    ask(connection, "resign", name="me", term=1)
    ask(connection, "empty_queue", queue="work")
    ask(connection, "unsubscribe", queue="work", subscription="stream")
    ask(connection, "drop_queue", queue="work")
    assert call(connection, "list_queues") == []
