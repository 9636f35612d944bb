"""A queue to read with Spark."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest

from trunq.spark.source.column import BY_NAME, Column
from trunq.spark.source.option import Options

OTHERS = (
    "from pg_stat_activity where datname = current_database() and backend_type = 'client backend'"
    " and pid <> pg_backend_pid()"
)


def columns(*names: str) -> tuple[Column, ...]:
    """Columns that every message has."""
    return tuple(BY_NAME[name] for name in names)


@dataclass
class Queue:
    """The queue `q` of a fresh database."""

    dsn: str
    connection: psycopg.Connection[Any]
    connect: Callable[..., psycopg.Connection[Any]]

    def publish(self, count: int, kind: str = "k", connection: psycopg.Connection[Any] | None = None) -> None:
        """Messages, in one statement."""
        (connection or self.connection).execute(
            "insert into trunq_log.q (kind, key, payload)"
            " select %s, g::text, jsonb_build_object('n', g) from generate_series(1, %s) g",
            (kind, count),
        )

    def tick(self) -> int:
        """Cuts a tick."""
        return int(self.value("select trunq.tick('q', p_force => true)"))

    def value(self, query: str, *values: Any) -> Any:
        """The first value of the first row."""
        row = self.connection.execute(query, values).fetchone()
        assert row is not None
        return row[0]

    def others(self) -> int:
        """How many other connections to the database there are."""
        return int(self.value(f"select count(*) {OTHERS}"))

    def disconnect_others(self) -> int:
        """Ends the other connections; returns how many there were."""
        return int(self.value(f"select count(pg_terminate_backend(pid, 5000)) {OTHERS}"))

    def ids(self, condition: str = "true") -> list[int]:
        """Message ids for everyone, sorted."""
        query = f"select id from trunq_log.q where subscription_id is null and {condition} order by id"
        return [row[0] for row in self.connection.execute(query).fetchall()]

    def options(self, **given: str) -> Options:
        """The source's options for this queue, as Spark gives them."""
        return Options.parse({"dsn": self.dsn, "queue": "q", **given})


@pytest.fixture
def queue(
    database: str, connection: psycopg.Connection[Any], connect: Callable[..., psycopg.Connection[Any]]
) -> Queue:
    connection.execute("select trunq.create_queue('q')")
    return Queue(database, connection, connect)
