"""Columns of the user's own from the shell."""

from __future__ import annotations

from shelling import Shell
from trunq import Client


def test_a_column_is_added_published_filtered_listed_and_dropped(trunq: Shell, client: Client) -> None:
    client.create_queue("orders")
    assert "no columns of your own" in trunq("column", "list", "orders").said
    said = trunq("column", "add", "orders", "customer", "text").said
    assert said == "Queue orders has the column customer."
    assert trunq("column", "add", "orders", "customer", "text").said.endswith("customer already.")
    added = trunq("column", "add", "orders", "total", "numeric(9,2)", "--default", "0", "--json").json
    assert added == {"queue": "orders", "column": "total", "added": True}
    listed = trunq("column", "list", "orders", "--json").json
    assert [(row["name"], row["type"]) for row in listed] == [("customer", "text"), ("total", "numeric(9,2)")]
    named = (
        "subscription",
        "create",
        "orders",
        "acme",
        "--column",
        "customer=acme",
        "--not-column",
        "total=1",
    )
    trunq(*named)
    for customer, total in (("acme", 7), ("acme", 1), ("other", 7)):
        columns = f'{{"customer": "{customer}", "total": {total}}}'
        trunq("publish", "orders", "{}", "--columns", columns)
    (message,) = client.lease("orders", "acme", "w", 10)
    assert message.columns == {"customer": "acme", "total": 7}
    refused = trunq("publish", "orders", "{}", "--columns", '{"custmer": "acme"}').said
    assert 'no column "custmer"' in refused
    assert trunq("publish", "orders", "{}", "--columns", "{}", "--unique").status == 1
    said = trunq("column", "drop", "orders", "customer", "--yes").said
    hint = "trunq subscription set orders acme --no-filter"
    assert said.endswith(f"Give it another filter first: {hint}."), said
    assert trunq(*hint.split()[1:]).status == 0
    assert "say --yes" in trunq("column", "drop", "orders", "customer").said
    assert (
        trunq("column", "drop", "orders", "customer", "--yes").said
        == "Column customer of queue orders is dropped."
    )
    dropped = trunq("column", "drop", "orders", "total", "--yes", "--json").json
    assert dropped == {"queue": "orders", "column": "total", "dropped": True}
