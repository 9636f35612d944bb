"""The session in which handlers have their transactions: what one leaves there is nobody else's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from serving import Queue, drain, said
from trunq.client.message import Message, Retry
from waiting import wait_until

LEAVE = (
    "select pg_advisory_lock(7)",
    "listen gossip",
    "create temporary table scrap ()",
    "set statement_timeout = '77 s'",
    "select set_config('trunq.tenant', 'acme', false)",
    "declare held cursor with hold for select 1",
    "set session authorization session_of_a_handler",
)
LOOK = """select
  (select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid() and objid = 7),
  (select count(*) from pg_listening_channels()), to_regclass('pg_temp.scrap')::text,
  current_setting('statement_timeout'), session_user = current_setting('session_authorization')
    and session_user <> 'session_of_a_handler',
  coalesce(current_setting('trunq.tenant', true), ''),
  (select count(*) from pg_cursors where name = 'held'), pg_backend_pid()"""
CLEAN = (0, 0, None, "0", True, "", 0)


@pytest.mark.parametrize("outcome", ["done", "retried", "failed at the commit", "answered before"])
@pytest.mark.parametrize("colour", ["async", "sync"])
async def test_what_a_handler_leaves_in_its_session_the_next_does_not_find(
    queue: Queue, outcome: str, colour: str
) -> None:
    queue.connection.execute("drop role if exists session_of_a_handler")
    queue.connection.execute("create role session_of_a_handler superuser")
    queue.connection.execute("create table late (id bigint unique deferrable initially deferred)")
    queue.policy(max_attempts=1)
    found: list[Any] = []
    worker = queue.worker(concurrency=1)
    statements = [
        *LEAVE,
        "insert into late values (1), (1)" if outcome == "failed at the commit" else "select",
    ]
    answer = Retry(after=0) if outcome == "retried" else None

    def answer_before(message: Message) -> None:
        if outcome == "answered before":
            queue.connection.execute(
                "select trunq.ack('q', 'default', %s, %s, array[%s::bigint])",
                (message.lease_id, message.token, message.id),
            )

    async def leave(message: Message, connection: psycopg.AsyncConnection[Any]) -> Any:
        answer_before(message)
        for statement in statements:
            await connection.execute(statement.encode())
        connection.row_factory = dict_row
        return answer

    async def look(message: Message, connection: psycopg.AsyncConnection[Any]) -> None:
        found.append(await (await connection.execute(LOOK)).fetchone())

    def leave_sync(message: Message, connection: psycopg.Connection[Any]) -> Any:
        answer_before(message)
        for statement in statements:
            connection.execute(statement.encode())
        connection.row_factory = dict_row
        return answer

    def look_sync(message: Message, connection: psycopg.Connection[Any]) -> None:
        found.append(connection.execute(LOOK).fetchone())

    is_sync = colour == "sync"
    worker.handler("leave")(leave_sync if is_sync else leave)
    worker.handler("look")(look_sync if is_sync else look)
    (first,) = queue.publish("look")
    queue.publish("leave")
    (second,) = queue.publish("look")
    await drain(worker)
    assert queue.message(first).state == queue.message(second).state == "done"
    # The same session, and nothing in it.
    assert found[0] == found[1]
    assert found[1][:-1] == CLEAN


@pytest.mark.parametrize("colour", ["async", "sync"])
async def test_a_pipeline_left_open_fails_the_message_and_nobody_else(queue: Queue, colour: str) -> None:
    queue.connection.execute("create table effect (id bigint)")
    queue.policy(max_attempts=1)
    worker = queue.worker(concurrency=1)
    left: list[Any] = []

    @worker.handler("work")
    async def handle(message: Message, connection: psycopg.AsyncConnection[Any]) -> None:
        if message.payload == "leave it":
            left.append(connection.pipeline())
            await left[-1].__aenter__()
        await connection.execute("insert into effect values (%s)", (message.id,))

    def handle_sync(message: Message, connection: psycopg.Connection[Any]) -> None:
        if message.payload == "leave it":
            left.append(connection.pipeline())
            left[-1].__enter__()
        connection.execute("insert into effect values (%s)", (message.id,))

    if colour == "sync":
        worker = queue.worker(concurrency=1)
        worker.handler("work")(handle_sync)
    bad, good = queue.publish(payload=["leave it", "work"])
    await drain(worker)
    assert queue.connection.execute("select id from effect").fetchall() == [(good,)]
    (dead,) = queue.dead()
    assert dead.id == bad
    assert "a pipeline in the transaction is still open" in queue.message(bad).attempts[0]["error"]
    assert (worker.statistics.handled, worker.statistics.failed) == (1, 1)


@pytest.mark.parametrize("colour", ["async", "sync"])
async def test_an_ack_that_finds_no_room_is_no_attempt_of_its_message(
    queue: Queue, colour: str, caplog: pytest.LogCaptureFixture
) -> None:
    queue.connection.execute("create table effect (id bigint)")
    queue.connection.execute("create table full_disk ()")
    queue.connection.execute("insert into full_disk default values")
    queue.connection.execute(
        "create function refuse() returns trigger language plpgsql as $$ begin"
        " if new.outcome = 'a' and exists (select from public.full_disk) then"
        "  raise disk_full using message = 'could not extend file'; end if; return new; end $$"
    )
    (segments,) = queue.connection.execute(
        "select array_agg(inhrelid::regclass::text) from pg_inherits"
        " where inhparent = 'trunq_data.q_receipt'::regclass"
    ).fetchone() or ([],)
    refuse = "create trigger refuse before insert on {} for each row execute function refuse()"
    for segment in segments:
        queue.connection.execute(refuse.format(segment).encode())
    queue.policy(max_attempts=1)
    runs: list[int] = []

    def hear(message: Message) -> None:
        runs.append(message.attempt)
        if len(runs) == 2:
            # Room was made before the second run; the clock is moved to it.
            queue.connection.execute("delete from full_disk")

    async def handle(message: Message, connection: psycopg.AsyncConnection[Any]) -> None:
        hear(message)
        await connection.execute("insert into effect values (1)")

    def handle_sync(message: Message, connection: psycopg.Connection[Any]) -> None:
        hear(message)
        connection.execute("insert into effect values (1)")

    worker = queue.worker(lead=True)
    worker.handler("work")(handle if colour == "async" else handle_sync)
    (id,) = queue.publish()
    await drain(worker)
    assert queue.message(id).state == "done"
    assert runs == [1, 1]
    assert queue.connection.execute("select count(*) from effect").fetchone() == (1,)
    assert "its ack finds no room in the database: could not extend file" in caplog.text
    assert worker.statistics.failed == 0


async def test_a_result_that_is_too_large_fails_its_message_before_it_is_sent(queue: Queue) -> None:
    queue.policy(max_attempts=1)
    worker = queue.worker()

    @worker.handler("work")
    async def handle(message: Message) -> Any:
        return "x" * message.payload

    large, fits = queue.publish(payload=[17_000_000, 16_000_000])
    await drain(worker)
    (attempt,) = queue.message(large).attempts
    text = said(attempt["error"])
    assert text.startswith(
        "ValueError: the handler returned a result of 17,000,002 bytes, at most 16,777,216"
    )
    assert queue.message(fits).state == "done"


SLEEPER = """
import sys
import psycopg
from trunq.worker import Worker
worker = Worker("q", dsn=sys.argv[1], lead=False)

@worker.handler("work")
def handle(message, connection: psycopg.Connection):
    connection.execute("select pg_sleep(3600)")

worker.run()
"""


def test_a_statement_of_a_handler_ends_soon_after_its_worker_has_died(queue: Queue, tmp_path: Path) -> None:
    (tmp_path / "sleeper.py").write_text(SLEEPER)
    queue.publish()
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "sleeper.py"), queue.dsn], env=dict(os.environ)
    )

    def sleeping() -> bool:
        row = queue.connection.execute(
            "select from pg_stat_activity where query = 'select pg_sleep(3600)' and state = 'active'"
            " and datname = current_database()"
        ).fetchone()
        return row is not None

    try:
        wait_until(sleeping)
    finally:
        process.kill()
        process.wait()
    wait_until(lambda: not sleeping(), 60)
