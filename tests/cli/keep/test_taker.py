"""Takers from the shell, and in the status of their queue."""

from __future__ import annotations

from shelling import Shell
from trunq import Client


def test_one_is_made_listed_shown_and_dropped(trunq: Shell, client: Client) -> None:
    client.create_queue("mail")
    assert "Nobody takes the history" in trunq("taker", "list").said
    said = trunq("taker", "create", "mail", "lake").said
    assert said == "Queue mail keeps its history until lake has taken it."
    assert trunq("taker", "create", "mail", "lake", "--json").json["created"] is False
    assert "mail lake nothing to take yet" in trunq("taker", "list").said
    assert "lake takes the history of mail: nothing to take yet" in trunq("status", "--once").said
    client.publish("mail", 1)
    client.ack(client.lease("mail", "default", "w"))
    assert "behind" in trunq("status", "--once").said
    assert trunq("taker", "list", "mail", "--json").json[0]["behind"] >= 0
    refused = trunq("taker", "drop", "mail", "lake")
    assert (refused.status, "Nobody is here to answer" in refused.said) == (1, True)
    dropped = trunq("taker", "drop", "mail", "lake", "--yes").said
    assert dropped == "Queue mail keeps nothing for lake any more."
    assert "Queue mail has no taker lake" in trunq("taker", "drop", "mail", "lake", "--yes").said
    assert "takes the history" not in trunq("status", "--once").said
