"""A queue costs the same to make, however many there are."""

from __future__ import annotations

from typing import Any

import psycopg

from calling import ask, fetch

CALLS = "select sum(calls) from pg_stat_xact_user_functions"


def test_a_queue_is_made_and_dropped_by_no_more_calls_beside_twenty_others(
    connection: psycopg.Connection[Any],
) -> None:
    connection.execute("set track_functions = 'all'")

    def calls(queue: str) -> int:
        with connection.transaction():
            before = fetch(connection, CALLS) or 0
            ask(connection, "create_queue", queue=queue)
            ask(connection, "drop_queue", queue=queue)
            return int(fetch(connection, CALLS) - before)

    calls("first")
    alone = calls("alone")
    for number in range(20):
        ask(connection, "create_queue", queue=f"other_{number}")
    # Some are kept from one time to the next.
    assert calls("among") <= alone + 20
