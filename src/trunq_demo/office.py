"""The office beside the flights: a second queue, which a schedule and one long message fill.

kind   what the handler does                                  how the message ends
count  notes how many flights wait; a schedule publishes one  done; the row and the answer commit together
       each second
books  adds up the compensations, carrier by carrier; it      done, in the second attempt: the first fails
       reports how far it is, and each carrier is a           after half of the carriers, and the second
       checkpoint                                             goes on from there
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from psycopg import AsyncConnection

from trunq import Client, Message
from trunq.record import MessageState
from trunq.worker import Worker

OFFICE = "office"
FLIGHTS = "flights"
SCHEDULE = "count_flights"
EVERY = 1
"""Seconds between two counts."""
LOOK = 0.1


class BooksShut(Exception):
    """The archive closed over lunch, as the first attempt finds when half of the carriers are done."""


def register(worker: Worker) -> None:
    """Have a worker handle what the office does."""
    worker.handler("count")(count)
    worker.handler("books")(close_books)


async def count(message: Message, connection: AsyncConnection[Any]) -> None:
    """Note how many flights wait or are worked on."""
    await connection.execute(
        "insert into demo.count (message_id, unanswered)"
        " select %s, ready + leased + delayed from trunq.status(%s) where subscription = 'default'",
        (message.id, FLIGHTS),
    )


async def close_books(message: Message, connection: AsyncConnection[Any]) -> dict[str, Any]:
    """Add up the compensations of each carrier that has some."""
    rows = await connection.execute(
        "select carrier, sum(euros)::int from demo.compensation group by carrier order by carrier"
    )
    carriers = await rows.fetchall()
    books = message.checkpoint or {"carriers": 0, "euros": 0}
    went_on_from = books["carriers"]
    for carrier, euros in carriers[went_on_from:]:
        if message.attempt == 1 and books["carriers"] == len(carriers) // 2:
            raise BooksShut(f"the archive closed before {carrier}")
        books = {"carriers": books["carriers"] + 1, "euros": books["euros"] + euros}
        await message.set_progress(100 * books["carriers"] / len(carriers), carrier, checkpoint=books)
    return {"outcome": "closed", "went_on_from": went_on_from, **books}


@dataclass(frozen=True, slots=True)
class Books:
    """The books, closed: carriers and euros, and how many carriers the last attempt was spared."""

    carriers: int
    euros: int
    went_on_from: int


def open_office(client: Client) -> None:
    """Make the queue anew, empty and without its schedule."""
    if OFFICE in {queue.queue for queue in client.list_queues()}:
        client.drop_queue(OFFICE, force=True)
    client.create_queue(OFFICE)
    client.subscribe(OFFICE, "default", backoff="constant", backoff_base=1)


def count_from_now(client: Client) -> None:
    """Have the flights counted every second."""
    client.create_schedule(SCHEDULE, OFFICE, every=EVERY, kind="count")


def counts(client: Client) -> int:
    """How often the schedule fired, of the last 1,000 times."""
    return sum(run.id is not None for run in client.list_schedule_runs(SCHEDULE, limit=1000))


def await_books(client: Client, id: int) -> float | None:
    """Wait until the books are closed; returns how many percent were done when the first attempt failed."""
    failed_at = None
    while _books(client).state != "done":
        for row in client.list_progress(OFFICE, ids=[id]):
            if not row.is_running:
                failed_at = row.percent
        time.sleep(LOOK)
    return failed_at


def await_counts(client: Client) -> None:
    """End the counting, and wait for the last."""
    client.pause_schedule(SCHEDULE)
    while any(row.ready + row.leased + row.delayed for row in client.status(OFFICE)):
        time.sleep(LOOK)


def books(client: Client) -> Books:
    """What the handler returned."""
    result = _books(client).result
    return Books(result["carriers"], result["euros"], result["went_on_from"])


def _books(client: Client) -> MessageState:
    (found,) = client.list_messages(OFFICE, kind="books")
    return found
