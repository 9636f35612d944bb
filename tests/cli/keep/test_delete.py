"""Messages erased from the shell."""

from __future__ import annotations

from shelling import Shell
from trunq import Client


def test_messages_are_erased_when_somebody_says_yes(trunq: Shell, client: Client) -> None:
    client.create_queue("mail")
    running, ready = client.publish_many("mail", [1, 2])
    client.lease("mail", "default", "me")
    asked = trunq("message", "delete", "mail", str(ready))
    assert asked.status != 0
    assert "erase for good?" in asked.said
    assert "--yes" in asked.said
    assert client.list_deletions("mail") == []
    done = trunq("message", "delete", "mail", str(running), str(ready), "999", "--yes")
    assert "2 messages of mail erased; it has none with 1 of these ids." in done.said
    assert "Workers hold 1 of them" in done.said
    assert client.lease("mail", "default", "me", 9) == []
    assert trunq("message", "delete", "mail", str(ready), "--yes", "--json").json == {
        "deleted": 1,
        "running": 0,
    }
    (first, second) = trunq("message", "delete", "mail", "--list", "--json").json
    assert (first["ids"], second["ids"]) == ([ready], [running, ready])
    assert "by their ids" in trunq("message", "delete", "mail").said
