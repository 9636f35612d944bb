"""One queue through one connection: calling.py with both said once, and what tests of segments look at."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg

from calling import (
    Lease,
    answer,
    ask,
    call,
    drain,
    fetch,
    lease,
    lease_ids,
    move_clock,
    publish,
    state,
)

SEGMENTS = 4

THREE_SPANS = "36 hours"
"""Then the segment of now is the one that rotation empties next, whatever the hour."""


@dataclass(frozen=True)
class Engine:
    """`Engine(connection, "work").lease()`."""

    connection: psycopg.Connection[Any]
    queue: str

    def create(self, **options: Any) -> Engine:
        self.ask("create_queue", **options)
        return self

    def on(self, connection: psycopg.Connection[Any]) -> Engine:
        """The same queue through another connection."""
        return Engine(connection, self.queue)

    def call(self, function: str, /, **arguments: Any) -> list[Any]:
        return call(self.connection, function, queue=self.queue, **arguments)

    def ask(self, function: str, /, **arguments: Any) -> Any:
        return ask(self.connection, function, queue=self.queue, **arguments)

    def run(self, statement: str, *arguments: Any) -> psycopg.Cursor[Any]:
        """A statement about this queue's tables: {log}, {lease}, {receipt}, {turn}, {id}."""
        return self.connection.execute(self._named(statement).encode(), arguments or None)

    def rewrite(self, statement: str, *arguments: Any) -> None:
        """What a log refuses, as a fault in the world would do it."""
        self.run("select set_config('trunq.rewrite', 'on', false)")
        self.run(statement, *arguments)
        self.run("select set_config('trunq.rewrite', 'off', false)")

    def fetch(self, statement: str, *arguments: Any) -> Any:
        """The one value a statement about this queue's tables gives."""
        return fetch(self.connection, self._named(statement), *arguments)

    def _named(self, statement: str) -> str:
        id = self.queue_id
        return statement.format(
            id=id,
            log=f"trunq_log.{self.queue}",
            lease=f"trunq_data.{self.queue}_lease",
            receipt=f"trunq_data.{self.queue}_receipt",
            queue=self.queue,
            turn=f"trunq_data.{self.queue}_turn",
        )

    @property
    def queue_id(self) -> int:
        return int(fetch(self.connection, "select queue_id from trunq.queue where name = %s", self.queue))

    def publish(self, count: int = 1, **options: Any) -> list[int]:
        return publish(self.connection, self.queue, count, **options)

    def lease(self, count: int = 1, **options: Any) -> Lease:
        return lease(self.connection, self.queue, count, **options)

    def lease_ids(self, *ids: int, **options: Any) -> tuple[Lease, dict[int, Any]]:
        return lease_ids(self.connection, self.queue, *ids, **options)

    def take(self, *ids: int, **options: Any) -> Lease:
        """Lease messages by their ids, all of which are to be had."""
        held, others = self.lease_ids(*ids, **options)
        assert (sorted(held.ids), others) == (sorted(ids), {})
        return held

    def answer(self, verb: str, held: Lease, ids: Sequence[int] | None = None, **more: Any) -> int:
        return answer(self.connection, verb, held, ids, **more)

    def ack(self, held: Lease, ids: Sequence[int] | None = None, **more: Any) -> int:
        return answer(self.connection, "ack", held, ids, **more)

    def drain(self, subscription: str = "default") -> list[int]:
        return drain(self.connection, self.queue, subscription)

    def message(self, id: int, subscription: str = "default") -> Any:
        return state(self.connection, self.queue, id, subscription)

    def state(self, id: int, subscription: str = "default") -> str:
        return str(self.message(id, subscription).state)

    def listed(self, **options: Any) -> list[int]:
        return [row.id for row in self.call("list_messages", **options)]

    def status(self, subscription: str = "default") -> Any:
        (row,) = [row for row in self.call("status") if row.subscription == subscription]
        return row

    @contextmanager
    def clock(self, offset: str) -> Iterator[None]:
        """Time as this connection sees it, moved."""
        before = fetch(self.connection, "select current_setting('trunq.clock_offset', true)") or "0"
        move_clock(self.connection, offset)
        try:
            yield
        finally:
            move_clock(self.connection, before)

    def rotate(self, offset: str = "0") -> int:
        """Rotate at a moved time until there is nothing more to do. Returns how often there was."""
        with self.clock(offset):
            for done in range(50):
                if self.ask("rotate") != 1:
                    return done
        raise AssertionError("rotate never comes to an end")

    def pages(self, table: str) -> int:
        """Pages of the queue's log, lease or receipt table."""
        return sum(
            int(self.fetch(f"select pg_relation_size('trunq_data.{self.queue}_{table}_{segment}') / 8192"))
            for segment in range(SEGMENTS)
        )

    def is_empty(self, table: str) -> bool:
        return self.pages(table) == 0
