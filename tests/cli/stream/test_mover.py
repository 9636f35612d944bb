"""Movers from the shell."""

from __future__ import annotations

from shelling import Shell
from trunq import Client


def test_a_stream_is_moved_and_its_mover_told_of(trunq: Shell, client: Client) -> None:
    assert trunq("stream", "moves").said == "There are no movers: trunq stream move starts one."
    client.create_queue("sales", default_subscription=False)
    client.publish_many("sales", [1, 2], kind="mail")
    client.publish("sales", 3, kind="eu.order")
    maps = ("--map", "^mail=mails", "--map", "^(?P<region>eu|us)=shop_{region}")
    moving = ("stream", "move", "sales", "rest", "--once", "--split", "pattern", *maps)
    refused = trunq(*moving)
    assert (refused.status, 'no queue "rest"' in refused.said, "--create" in refused.said) == (1, True, True)
    assert trunq(*moving, "--create").out == "Mover to_rest of sales moved 3 messages in 1 batch.\n"
    counts = {row.queue: row.ready for row in client.status() if row.queue != "sales"}
    assert counts == {"mails": 2, "rest": 0, "shop_eu": 1}
    assert trunq(*moving, "--kind", "mail", "--json").json["messages"] == 0
    (row,) = trunq("stream", "moves", "--json").json
    assert (row["to"], row["messages"], row["definition"]["filter"]) == ("rest", 3, {"kinds": ["mail"]})
    assert "to_rest" in trunq("stream", "moves", "sales").said
    assert trunq("stream", "move", "sales", "rest", "--status", "--json").json == row
    assert "messages" in trunq("stream", "move", "sales", "--status").said
    assert trunq("stream", "move", "sales", "--stop").said == "Mover to_rest of sales had ended before."


def test_what_cannot_be_is_refused(trunq: Shell, client: Client) -> None:
    client.create_queue("sales")
    for command, words in (
        (["sales"], "Name the queue"),
        (["sales", "--stop"], "has no mover. Those there are: none"),
        (["sales", "x", "--stop", "--status"], "not both"),
        (["sales", "x", "--split", "kind"], "orders_{kind}"),
        (["sales", "x_{kind}"], "A target without a split has no name in braces"),
        (["sales", "x_{slot}", "--split", "key"], "1 to 1,000: none is given"),
        (["sales", "x", "--map", "nothing"], "REGEX=QUEUE"),
        (["sales", "sales"], "to itself"),
        (["nothing", "x"], 'no queue "nothing"'),
    ):
        asked = trunq("stream", "move", *command)
        assert asked.status != 0
        assert words in asked.said
    assert client.list_movers() == []
