"""pg_cron in the leader's place: Debian's, in its Postgres, where both are installed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from trunq import Retry, Worker, embedded, install
from trunq.client.message import Message
from waiting import async_wait_until

MAJOR = 15
CONTROL = Path(f"/usr/share/postgresql/{MAJOR}/extension/pg_cron.control")
PATIENCE = 180.0
"""Seconds: pg_cron before 1.5 begins a job at each minute."""

SECONDS = (
    "do $$ begin for n in 1..58 loop call trunq.perform_each_duty(); perform pg_sleep(1); end loop; end $$"
)
"""How a job of each minute does something each second; docs/operate/deployment.md has it."""


def _is_there() -> bool:
    return CONTROL.exists() and MAJOR in embedded.majors()


@pytest.mark.slow
@pytest.mark.skipif(not _is_there(), reason=f"needs Debian's postgresql-{MAJOR}-cron")
async def test_pg_cron_performs_the_duties_and_a_retried_message_comes_again() -> None:
    settings = {"shared_preload_libraries": "pg_cron", "cron.database_name": "postgres"}
    with embedded.start(None, MAJOR, settings) as server, _prepared(server.dsn) as connection:
        connection.execute("select trunq.create_queue('work')")
        connection.execute(
            "select trunq.create_schedule('often', 'work', p_kind => 'often', p_every => '1 second')"
        )
        connection.execute("select trunq.publish('work', p_kind => 'again')")
        attempts: list[int] = []
        fired: list[int] = []
        worker = Worker("work", dsn=server.dsn, lead=False)

        @worker.handler("again")
        async def again(message: Message) -> Retry | None:
            attempts.append(message.attempt)
            return Retry(after=0.1) if message.attempt == 1 else None

        @worker.handler("often")
        async def often(message: Message) -> None:
            fired.append(message.id)

        working = asyncio.create_task(worker.run_async())
        await async_wait_until(lambda: len(attempts) == 2 and len(fired) > 2, PATIENCE)
        worker.stop()
        await working
        assert attempts == [1, 2]
        leaders = "select count(*) from pg_stat_activity where application_name like 'trunq leader%'"
        assert connection.execute(leaders).fetchone() == (0,)


@contextmanager
def _prepared(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    """A database with trunq whose pg_cron has been told to perform the duties."""
    install.install(dsn)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("create extension pg_cron")
        connection.execute("select cron.schedule('trunq', '* * * * *', %s)", (SECONDS,))
        # Where the server listens: the socket's directory.
        connection.execute("update cron.job set nodename = %s", (str(conninfo_to_dict(dsn)["host"]),))
        yield connection
