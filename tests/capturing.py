"""A table of orders whose changes are captured, and what was published of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from calling import ask, new_names

Connection = psycopg.Connection[Any]

ORDERS = "id integer primary key, status text, total numeric, seen integer default 0"


@contextmanager
def table_of_orders(session: Connection) -> Iterator[str]:
    """A table of orders that nobody else has."""
    name = next(new_names("orders"))
    session.execute(f"create table {name} ({ORDERS})".encode())
    yield name
    session.execute(f"drop table if exists {name} cascade".encode())


def capture(session: Connection, table: str, queue: str, **options: Any) -> bool:
    return bool(ask(session, "capture", table=table, queue=queue, **options))


def taken(session: Connection, queue: str) -> list[tuple[str, str | None, Any]]:
    """Kind, key and payload of what was published since, in order; the log is empty afterwards."""
    rows = session.execute(
        f"select kind, key, payload from trunq_log.{queue} order by txid, id".encode()
    ).fetchall()
    session.execute(f"truncate trunq_log.{queue}".encode())
    return rows


def run(session: Connection, table: str, statement: str, *values: Any) -> None:
    session.execute(statement.replace("TABLE", table).encode(), values or None)
