"""Delays above three hours, which a pipeline puts into a queue: the passengers are compensated, once each."""

from __future__ import annotations

import time
from typing import Any

from psycopg import AsyncConnection

from trunq import Client, Message
from trunq.worker import Worker
from trunq_demo.fleet import Fleet

DELAYS = "delays"
KIND = "delay"
STUMBLES = 20
"""Of so many delays, the first attempt at one fails, when the compensation is written already."""
LOOK = 0.1

KILOMETRES_IN_A_MILE = 1.609344
COMPENSATION = ((1500, 250), (3500, 400))
"""Euros by distance in kilometres, as in European regulation 261/2004; farther: 600."""


class NoBank(Exception):
    """The bank did not answer."""


def register(worker: Worker) -> None:
    """Have a worker compensate."""
    worker.handler(KIND)(refund)


async def refund(message: Message, connection: AsyncConnection[Any]) -> dict[str, Any]:
    """Write the compensation; the row and the answer commit in one transaction."""
    flight = message.payload
    euros = owed(flight["distance"])
    await connection.execute(
        "insert into demo.refund (message_id, flight_id, minutes, euros) values (%s, %s, %s, %s)",
        (message.id, flight["id"], flight["arr_delay"], euros),
    )
    if message.attempt == 1 and flight["id"] % STUMBLES == 0:
        raise NoBank("the bank did not answer")
    return {"outcome": "compensated", "euros": euros}


def owed(miles: int) -> int:
    """The compensation for a distance, in euros."""
    kilometres = miles * KILOMETRES_IN_A_MILE
    return next((euros for limit, euros in COMPENSATION if kilometres <= limit), 600)


def open_queue(client: Client) -> None:
    """Make the queue anew, empty."""
    if DELAYS in {queue.queue for queue in client.list_queues()}:
        client.drop_queue(DELAYS, force=True)
    client.create_queue(DELAYS)
    client.subscribe(DELAYS, "default", backoff="constant", backoff_base=1)


def await_refunds(client: Client, fleet: Fleet) -> None:
    """Wait until every delay is answered."""
    while any(row.ready + row.leased + row.delayed for row in client.status(DELAYS)):
        fleet.check()
        time.sleep(LOOK)
