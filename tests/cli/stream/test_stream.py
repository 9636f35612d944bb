"""Streams from the shell."""

from __future__ import annotations

import pytest

from shelling import Shell
from trunq import Client, LeaseLost


@pytest.fixture
def tick(client: Client) -> int:
    """A stream that finished two messages; two more wait. The tick it started at."""
    client.create_queue("orders", default_subscription=False)
    client.subscribe("orders", "ledger", mode="exclusive")
    tick = client.position("orders", "ledger")
    client.publish_many("orders", [1, 2])
    batch = client.next_batch("orders", "ledger", "ada")
    assert batch is not None
    client.finish(batch)
    client.publish_many("orders", [3, 4])
    return tick


def test_streams_are_listed_shown_and_moved(trunq: Shell, client: Client, tick: int) -> None:
    (row,) = trunq("stream", "list", "--json").json
    assert (row["queue"], row["subscription"], row["position_tick_id"]) == ("orders", "ledger", tick + 1)
    assert "ledger" in trunq("stream", "list", "orders").said
    shown = trunq("stream", "show", "orders", "ledger", "--json").json
    assert (shown["pending"], shown["batch_id"]) == (2, None)
    lines = [line.rstrip() for line in trunq("stream", "show", "orders", "ledger").out.splitlines()]
    assert {"  subscription     ledger", f"  position tick id {tick + 1}"} <= set(lines)
    moved = trunq("stream", "seek", "orders", "ledger", "--tick", str(tick), "--json").json
    assert moved == {"queue": "orders", "subscription": "ledger", "position_tick_id": tick}
    assert trunq("stream", "show", "orders", "ledger", "--json").json["pending"] == 4
    said = trunq("stream", "seek", "orders", "ledger", "--start", "latest").said
    assert said == f"Stream ledger of orders stands at tick {client.position('orders', 'ledger')}."
    assert client.next_batch("orders", "ledger", "ada") is None


def test_the_open_batch_is_taken_from_its_reader_and_comes_again(
    trunq: Shell, client: Client, tick: int
) -> None:
    retry = ("stream", "retry", "orders", "ledger")
    assert "has no open batch" in trunq(*retry).said
    held = client.next_batch("orders", "ledger", "ada")
    assert held is not None
    assert f"is at {held.batch_id}" in trunq(*retry, "--batch", str(held.batch_id + 9)).said
    told = trunq(*retry, "--batch", str(held.batch_id), "--after", "0", "--error", "no disk", "--json").json
    assert (told["batch_id"], told["messages"]) == (held.batch_id, None)
    with pytest.raises(LeaseLost):
        client.finish(held)
    assert "no disk" in trunq("stream", "show", "orders", "ledger").said
    again = client.next_batch("orders", "ledger", "ada")
    assert again is not None
    assert [message.payload for message in client.read(again)] == [3, 4]
    client.publish("orders", 5)
    assert "2 messages of batch" in trunq(*retry, "--later", "--after", "0").said
    following = client.next_batch("orders", "ledger", "ada")
    assert following is not None
    came = [(message.payload, message.attempt) for message in client.read(following)]
    assert came == [(5, 1), (3, 2), (4, 2)]
    assert "from 2" in trunq(*retry, "--after", "1h").said
    assert "waits" in trunq(*retry).said
    assert client.next_batch("orders", "ledger", "ada") is None


def test_the_status_says_at_which_tick_streams_stand(trunq: Shell, tick: int) -> None:
    (row,) = trunq("status", "--json").json
    assert (row["position_tick_id"], row["newest_tick_id"]) == (tick + 1, tick + 1)
    assert (
        f"Stream ledger of orders: tick {tick + 1} of {tick + 1}, 2 pending for"
        in trunq("status", "--once").said
    )


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["seek", "orders", "ledger"], "give --tick, --at, --start or --like"),
        (
            ["seek", "orders", "ledger", "--tick", "1", "--start", "latest"],
            "give --tick, --at, --start or --like",
        ),
        (["seek", "orders", "ledger", "--tick", "99"], "has no tick 99"),
        (["seek", "orders", "ledger", "--at", "2001-01-01"], "keeps no tick in reach"),
        (["show", "orders", "nobody"], "trunq stream list orders"),
        (["retry", "orders", "nobody"], "trunq stream list orders"),
        (["retry", "orders", "ledger", "--after", "soon"], "not an interval"),
    ],
)
@pytest.mark.usefixtures("tick")
def test_what_cannot_be_is_refused(trunq: Shell, command: list[str], words: str) -> None:
    asked = trunq("stream", *command)
    assert asked.status != 0
    assert words in asked.said


def test_without_streams_it_says_so(trunq: Shell, client: Client) -> None:
    assert trunq("queue", "create", "mail", "--no-default-subscription").status == 0
    assert client.list_subscriptions("mail") == []
    assert trunq("stream", "list").said == "There are no streams: no subscription is exclusive."


def test_what_was_lost_is_listed_warned_of_and_accepted(trunq: Shell, client: Client) -> None:
    assert trunq("queue", "create", "mail", "--retention", "2d", "--hold-at-most", "2d").status == 0
    assert trunq("stream", "losses").said == "Nothing was lost."
    assert "had lost nothing" in trunq("stream", "accept", "mail", "default").said
    client.publish_many("mail", [1, 2, 3])
    with client.transaction() as connection:
        connection.execute("select set_config('trunq.clock_offset', '3 days', true)")
        assert client.rotate("mail", connection=connection) == 1
    status = trunq("status", "--once").said
    assert "default (messages lost)" in status
    assert "until somebody accepts that: trunq stream accept mail default" in status
    assert 'subscription "default" of queue "mail" has lost messages: 3' in status
    (row,) = trunq("stream", "losses", "mail", "--json").json
    assert (row["messages"], row["reason"], row["accepted_at"]) == (3, "time", None)
    assert "default time 3" in trunq("stream", "losses").said
    assert trunq("stream", "accept", "mail", "default", "--json").json["accepted"] == 1
    assert "messages lost" not in trunq("status", "--once").said


def test_space_and_ticks_of_a_queue_are_set(trunq: Shell, client: Client) -> None:
    assert trunq("queue", "create", "mail").status == 0
    asked = trunq(
        "queue", "set", "mail", "--hold-at-most", "1d", "--hold-size", "1000000", "--ticks", "paused"
    )
    assert asked.status == 0, asked.said
    settings = trunq("queue", "set", "mail", "--retain-size", "500", "--tick-max-count", "0", "--json").json
    names = ("hold_at_most", "hold_size", "retain_size", "tick_paused", "tick_external")
    assert [settings[name] for name in names] == [86400, 1_000_000, 500, True, False]
    client.subscribe("mail", "ledger", mode="exclusive")
    assert "ledger (exclusive, ticks paused)" in trunq("status", "--once").said
    settings = trunq("queue", "set", "mail", "--hold-at-most", "0s", "--ticks", "external", "--json").json
    assert [settings[name] for name in names] == [None, 1_000_000, 500, False, True]
    asked = trunq("queue", "create", "mail", "--hold-at-most", "7d")
    assert "is there already, with a hold_at_most of no limit" in asked.said
