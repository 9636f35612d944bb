"""Resuming parked messages in the shell."""

from __future__ import annotations

from shelling import Shell
from trunq import Client


def test_a_message_is_resumed_by_its_token(trunq: Shell, client: Client) -> None:
    client.create_queue("mail")
    one, two = client.publish_many("mail", [1, 2])
    first, second = client.lease("mail", "default", "ada", 2)
    client.park(first, "secret", "1 day")
    client.park(second, "other", "1 day")
    assert "default (2 parked)" in trunq("status", "mail", "--once").said
    assert f"{one} parked" in trunq("message", "list", "mail", "--state", "parked").said
    said = trunq("message", "resume", "mail", "secret", '{"paid": true}').said
    assert "Resumed: the message of mail runs again." in said
    assert client.show_resumed("mail", one) == {"paid": True}
    assert "nothing changed in mail" in trunq("message", "resume", "mail", "secret").said
    assert trunq("message", "resume", "mail", "-", "--json", input="other\n").json == {
        "resumption": "resumed"
    }
    assert client.show_resumed("mail", two) is None
    assert "No message of mail is parked" in trunq("message", "resume", "mail", "early").said


def test_a_value_is_json(trunq: Shell, client: Client) -> None:
    client.create_queue("mail")
    told = trunq("message", "resume", "mail", "t", "no json")
    assert (told.status, "not JSON" in told.said) == (2, True)
