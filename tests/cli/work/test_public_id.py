"""A message found by its public id, and reminders, from the shell."""

from __future__ import annotations

from uuid import uuid4

from shelling import Shell
from trunq import Client


def test_a_message_is_shown_by_its_public_id(trunq: Shell, client: Client) -> None:
    client.create_queue("mail")
    id = client.publish("mail", {"to": "x"}, kind="letter")
    public_id = str(client.public_id("mail", id))
    done = trunq("message", "show", "--public-id", public_id)
    assert (done.status, f"Message {id} of queue mail" in done.said) == (0, True)
    assert trunq("message", "show", "mail", "--public-id", public_id, "--json").json[0]["id"] == id
    none = trunq("message", "show", "--public-id", str(uuid4()))
    assert (none.status, "No message here has the public id" in none.said) == (1, True)
    for arguments in ((), ("mail",), ("mail", "1", "--public-id", public_id)):
        wrong = trunq("message", "show", *arguments)
        assert (wrong.status, "by --public-id" in wrong.said) == (1, True)


def test_reminders_are_set_and_taken_back(trunq: Shell, client: Client) -> None:
    client.create_queue("mail")
    wrong = trunq("queue", "set", "mail", "--remind-after", "1m")
    assert (wrong.status, "does not announce" in wrong.said) == (1, True)
    assert trunq("queue", "set", "mail", "--announce", "--remind-after", "1m").status == 0
    assert client.remind() == 1
    assert trunq("queue", "set", "mail", "--remind-after", "0").status == 0
    assert client.remind() == 0
