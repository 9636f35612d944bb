"""Opening a run of one customer costs the same whoever else there is."""

from __future__ import annotations

from typing import Any

import psycopg

from counting import cost_of
from trunq import Client

CALL = "select trunq._open_run('orders', {message}, '{{\"customer\": \"c7\"}}')"


def test_a_run_is_opened_at_the_same_cost_with_ten_customers_and_a_thousand(
    database: str, connection: psycopg.Connection[Any]
) -> None:
    client = Client(database)
    definition = {
        "source": {"format": "table", "table": "source_${message.customer}"},
        "sink": {"format": "table", "table": "moved"},
        "message": {"customer": "text"},
        "per": "message.customer",
        "limits": {"rate": "10/minute", "rows_a_day": 1000, "running": 1},
    }
    client.create_pipeline("orders", definition)
    pages = {}
    for number in (10, 1000, 2000):
        connection.execute(
            "select trunq._open_run('orders', n, jsonb_build_object('customer', 'c' || n), p_message => '{}')"
            " from generate_series(1, %s) n",
            (number,),
        )
        # No more rows that are dead, nor statistics of another size.
        connection.execute("vacuum analyze trunq.pipeline")
        message = client.run_pipeline("orders", {"customer": "c7"})
        for _ in range(3):
            cost = cost_of(connection, CALL.format(message=message))
        pages[number] = cost.pages
    client.close()
    # The indexes of a thousand names have one more level than those of ten.
    assert pages[1000] <= pages[10] + 12
    assert pages[2000] <= pages[1000] + 2
