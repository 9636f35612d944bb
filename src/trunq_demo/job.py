"""What a worker does with a flight: `trunq worker trunq_demo.job:worker`.

    kind       what the handler does                     how it ends
    arrived    tells how punctual it was                 done, with a result
    late       books the passengers' compensation        done; the booking and the answer commit together
    diverted   notes it                                  done, with a result
    cancelled  asks the fleet register for the aircraft  dead: rejected, or, when the aircraft is not known,
                                                         given up after the last attempt

The first attempt at one flight in 200 fails before anything else, and is retried. All of it is decided by
the flight's own data, so what comes out can be computed from the input.
"""

from __future__ import annotations

from typing import Any

from psycopg import AsyncConnection

from trunq import Message, Reject, Retry
from trunq.worker import Worker
from trunq_demo.flights import Flight, stumbles

QUEUE = "flights"
MAX_ATTEMPTS = 3
DELAYED_MINUTES = 15
"""An arrival counts as on time up to this (the rule of the US Department of Transportation)."""

KILOMETRES_IN_A_MILE = 1.609344
COMPENSATION = ((1500, 250), (3500, 400))
"""Euros by distance in kilometres, as in European regulation 261/2004; farther: 600."""

worker = Worker(QUEUE, concurrency=20)


class NoAnswer(Exception):
    """The airline's system did not answer: what the first attempt at some flights meets."""


@worker.handler("arrived")
async def note_arrival(message: Message) -> dict[str, Any]:
    """How punctual it was."""
    flight = _flight(message)
    return {"outcome": "delayed" if flight["arr_delay"] >= DELAYED_MINUTES else "on time"}


@worker.handler("late")
async def compensate(message: Message, connection: AsyncConnection[Any]) -> dict[str, Any]:
    """Book the compensation; the row and the answer are one transaction."""
    flight = _flight(message)
    euros = compensation(flight)
    await connection.execute(
        "insert into demo.compensation (message_id, carrier, minutes, euros) values (%s, %s, %s, %s)",
        (message.id, flight["carrier"], flight["arr_delay"], euros),
    )
    return {"outcome": "compensated", "euros": euros}


@worker.handler("diverted")
async def note_diversion(message: Message) -> dict[str, Any]:
    """It left and did not arrive as planned."""
    _flight(message)
    return {"outcome": "diverted"}


@worker.handler("cancelled")
async def close_cancelled(message: Message) -> Retry | Reject:
    """There is nothing to settle for a flight that never left. Without a tail number not even its aircraft
    is known.
    """
    flight = _flight(message)
    if flight["tailnum"] is None:
        return Retry(error="no tail number: the fleet register does not know the aircraft")
    return Reject("cancelled: the flight never left")


def compensation(flight: Flight) -> int:
    """Euros a flight's delay costs."""
    kilometres = flight["distance"] * KILOMETRES_IN_A_MILE
    return next((euros for limit, euros in COMPENSATION if kilometres <= limit), 600)


def _flight(message: Message) -> Flight:
    flight: Flight = message.payload
    if message.attempt == 1 and stumbles(flight):
        raise NoAnswer(f"{flight['carrier']} did not answer")
    return flight
