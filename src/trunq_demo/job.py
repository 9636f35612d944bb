"""What a worker does with a flight: `trunq worker trunq_demo.job:worker`.

    kind       what the handler does                     how the message ends
    arrived    says how punctual the flight was          done, with a result
    late       books the passengers' compensation        done; the booking and the answer commit together
    diverted   notes the diversion                       done, with a result
    cancelled  looks up the aircraft in the register     dead: rejected, or, when the aircraft is not known,
                                                         given up after the last attempt

The first attempt at one flight in 200 fails at once, and is retried. The flight's data decides all of this,
so the expected numbers can be computed from the input. The same worker serves the office (office.py)
and the delays of the second act (refund.py).
"""

from __future__ import annotations

from typing import Any

from psycopg import AsyncConnection

from trunq import Message, Reject, Retry
from trunq.worker import Worker
from trunq_demo import office, refund
from trunq_demo.flights import Flight, stumbles

QUEUE = office.FLIGHTS
MAX_ATTEMPTS = 3
DELAYED_MINUTES = 15
"""An arrival is late from this delay on (the rule of the US Department of Transportation)."""

worker = Worker(QUEUE, office.OFFICE, refund.DELAYS, concurrency=20)
office.register(worker)
refund.register(worker)


class NoAnswer(Exception):
    """The airline's system did not answer, as the first attempt at some flights finds."""


@worker.handler("arrived")
async def note_arrival(message: Message) -> dict[str, Any]:
    """Return how punctual the flight was."""
    flight = _flight(message)
    return {"outcome": "delayed" if flight["arr_delay"] >= DELAYED_MINUTES else "on time"}


@worker.handler("late")
async def compensate(message: Message, connection: AsyncConnection[Any]) -> dict[str, Any]:
    """Book the compensation; the row and the answer commit in one transaction."""
    flight = _flight(message)
    euros = compensation(flight)
    await connection.execute(
        "insert into demo.compensation (message_id, carrier, minutes, euros) values (%s, %s, %s, %s)",
        (message.id, flight["carrier"], flight["arr_delay"], euros),
    )
    return {"outcome": "compensated", "euros": euros}


@worker.handler("diverted")
async def note_diversion(message: Message) -> dict[str, Any]:
    """Return that the flight left and did not arrive as planned."""
    _flight(message)
    return {"outcome": "diverted"}


@worker.handler("cancelled")
async def close_cancelled(message: Message) -> Retry | Reject:
    """Reject a flight that never left; retry one whose aircraft has no tail number."""
    flight = _flight(message)
    if flight["tailnum"] is None:
        return Retry(error="no tail number: the fleet register does not know the aircraft")
    return Reject("cancelled: the flight never left")


def compensation(flight: Flight) -> int:
    """The compensation for a flight's delay, in euros."""
    return refund.owed(flight["distance"])


def _flight(message: Message) -> Flight:
    flight: Flight = message.payload
    if message.attempt == 1 and stumbles(flight):
        raise NoAnswer(f"{flight['carrier']} did not answer")
    return flight
