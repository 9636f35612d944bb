"""A moment for a request costs the same however many hosts and keys there are."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from counting import cost_of

CALLS = {
    "take": "select trunq._take_pace('host 7', 0.001)",
    "take none": "select trunq._take_pace('host 7', null)",
    "held": "select trunq._is_pace_held('host 7')",
    "hold": "select trunq._hold_pace('host 7', 0.001)",
}


@pytest.mark.parametrize("what", CALLS)
def test_a_moment_costs_the_same_with_ten_keys_and_ten_thousand(
    connection: psycopg.Connection[Any], what: str
) -> None:
    pages = {}
    for number in (10, 10_000):
        connection.execute(
            "insert into trunq.pace (name, next_at) select 'host ' || n, now() from generate_series(1, %s) n"
            " on conflict do nothing",
            (number,),
        )
        connection.execute("vacuum analyze trunq.pace")
        for _ in range(3):
            cost = cost_of(connection, CALLS[what])
        pages[number] = cost.pages
    # The index of ten thousand names has one level more, and a row that moves is put into it.
    assert pages[10_000] <= pages[10] + 8, pages
