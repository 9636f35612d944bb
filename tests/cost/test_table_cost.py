"""What a pipeline of many tables costs: each table as much, however many there are."""

from __future__ import annotations

import json
from typing import Any

import psycopg

from counting import cost_of
from trunq import Client


def found(number: int) -> str:
    """What a look has found."""
    tables = [
        {
            "value": f"shop.t{n}",
            "message": {"table": f"shop.t{n}", "schema_name": "shop", "table_name": f"t{n}"},
        }
        for n in range(number)
    ]
    return json.dumps(tables)


def take(connection: psycopg.Connection[Any], tables: str, *, asks: bool) -> int:
    """Pages of a look of these tables."""
    (begun,) = connection.execute("select trunq._begin_look('shop')").fetchone() or (None,)
    call = "select trunq._take_tables('shop', {look}, '{tables}', {asks})"
    return cost_of(connection, call.format(look=begun["look"], tables=tables, asks=asks)).pages


def test_a_look_costs_as_much_a_table_with_ten_tables_and_five_hundred(
    database: str, connection: psycopg.Connection[Any]
) -> None:
    client = Client(database)
    client.create_pipeline(
        "shop",
        {
            "source": {"format": "table", "tables": ["shop.*"]},
            "sink": {"format": "table", "table": "copy.${table}", "mode": "append"},
        },
    )
    a_table: dict[int, float] = {}
    nothing_new: dict[int, float] = {}
    opening: dict[int, int] = {}
    for number in (10, 100, 500):
        tables = found(number)
        take(connection, tables, asks=False)
        connection.execute("vacuum analyze trunq.pipeline")
        nothing_new[number] = take(connection, tables, asks=False) / number
        take(connection, tables, asks=True)
        # They wait, and are not asked for again.
        a_table[number] = take(connection, tables, asks=True) / number
        message = client.run_pipeline("shop", {"table": "shop.t7"})
        connection.execute("vacuum analyze trunq.pipeline")
        call = f"select trunq._open_run('shop', {message}, '{{\"table\": \"shop.t7\"}}')"
        opening[number] = [cost_of(connection, call).pages for _ in range(3)][-1]
    client.close()
    assert nothing_new[500] <= nothing_new[10] + 2
    assert a_table[500] <= a_table[10] + 4
    # The indexes of so many names have one more level.
    assert opening[500] <= opening[10] + 12
