"""The original PgQ and trunq, each in a database of its own on one server."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from _bench import KIND, connect, new_database, payload, server_time
from trunq.embedded import Embedded

THEIRS, OURS, FACADE = "PgQ", "trunq", "facade"

PGQ = """
select pgq.create_queue('q');
update pgq.queue set queue_ticker_max_lag = '0', queue_ticker_idle_period = '0', queue_ticker_max_count = 1;
"""
"""A tick at each look, so that one can be asked for."""

OPENED = "select batch_id from pgq.next_batch_info('q', 'c')"


class Side:
    """A database on the server, and a connection to it."""

    def __init__(self, running: Embedded, name: str) -> None:
        self.name = name
        self.dsn = new_database(running, queue=name == OURS)
        self.connection = connect(self.dsn)
        if name == OURS:
            self.run("select trunq.unsubscribe('q', 'default')")
            self.run("select trunq.subscribe('q', 'c', 'exclusive')")
            return
        if name == THEIRS:
            self.run("create extension pgq")
        else:
            command = [sys.executable, "-m", "trunq", "db", "install", "--facade", "pgq", "--dsn", self.dsn]
            subprocess.run(command, check=True, capture_output=True)
        self.run(PGQ)
        self.run("select pgq.register_consumer('q', 'c')")

    def run(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Execute without preparing, where there are no values several statements."""
        cursor = self.connection.execute(statement.encode(), values or None, prepare=False)
        return cursor.fetchall() if cursor.description else []

    def ask(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """A prepared statement that returns rows."""
        return self.connection.execute(statement.encode(), values).fetchall()

    def taken(self, work: Callable[[], object]) -> float:
        """Seconds of a processor of server and client."""
        begun = time.process_time()
        return server_time(self.connection, work) + time.process_time() - begun


def opened(running: Embedded, name: str) -> Side | None:
    """A side, or None where its software is not there."""
    try:
        return Side(running, name)
    except (psycopg.errors.UndefinedFile, psycopg.errors.FeatureNotSupported, subprocess.CalledProcessError):
        return None


@contextmanager
def batch_of(side: Side, rows: int) -> Iterator[Any]:
    """A batch of so many messages, to be finished; what came before is passed over."""
    drained = False
    while True:
        if side.name == OURS:
            if drained:
                side.connection.execute(
                    "insert into trunq_log.q (kind, payload)"
                    " select %s, %s::jsonb from generate_series(1, %s)",
                    (KIND, payload(), rows),
                )
            side.ask("select trunq.tick('q', true)")
            ((batch, token),) = side.ask(
                "select batch_id, token from trunq_queue.q_next_batch('c', 'me', 1000)"
            )
            if drained:
                yield batch, token
                return
            side.ask("select trunq_queue.q_finish_batch('c', %s, %s)", batch, token)
        else:
            if drained:
                side.connection.execute(
                    "select count(pgq.insert_event('q', %s, %s)) from generate_series(1, %s)",
                    (KIND, payload(), rows),
                )
            side.ask("select pgq.ticker('q')")
            ((batch,),) = side.ask(OPENED)
            if drained:
                yield batch, None
                return
            side.ask("select pgq.finish_batch(%s)", batch)
            while (rest := side.ask(OPENED)[0][0]) is not None:
                side.ask("select pgq.finish_batch(%s)", rest)
        drained = True
