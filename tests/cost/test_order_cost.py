"""To cancel what holds many lanes of a subscription in order costs no more for each of them."""

from __future__ import annotations

from typing import Any

import psycopg

from counting import cost_of
from engine import Engine

FEW, MANY = 50, 500


def test_a_lease_after_many_held_lanes_were_cancelled(connection: psycopg.Connection[Any]) -> None:
    read = []
    for count in (FEW, MANY):
        work = Engine(connection, f"ordered_{count}").create(lanes="key")
        work.ask("subscribe", subscription="default", in_order=True)
        work.publish(2 * count, keys=[f"k{n % count}" for n in range(2 * count)])
        held = work.lease(count)
        work.answer("retry", held, delays=["1 hour"] * count)
        work.call("cancel", ids=held.ids)
        taken = cost_of(connection, "select * from trunq.lease(%s, 'default', 'w', 1)", work.queue)
        assert taken.rows == 1
        read.append(taken.rows_read)
    few, many = read
    assert many < 2 * few * MANY / FEW, read
