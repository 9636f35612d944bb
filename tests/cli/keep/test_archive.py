"""Archives from the shell."""

from __future__ import annotations

from shelling import Shell
from trunq import Client


def test_one_is_made_listed_and_dropped(trunq: Shell, client: Client) -> None:
    client.create_queue("mail")
    assert "No queue has an archive" in trunq("archive", "list").said
    said = trunq("archive", "create", "mail").said
    assert said == "Every attempt of queue mail is kept in trunq_archive.mail, for ever."
    again = trunq("archive", "create", "mail", "--for", "90d").said
    assert again == "Attempts of queue mail are kept in trunq_archive.mail, for 90d."
    assert trunq("archive", "create", "mail", "--json").json["created"] is False
    assert "mail for 90d 0 bytes" in trunq("archive", "list").said
    assert trunq("archive", "list", "--json").json[0]["archive_for"] == 90 * 86_400
    refused = trunq("archive", "drop", "mail")
    assert (refused.status, "Nobody is here to answer" in refused.said) == (1, True)
    assert trunq("archive", "drop", "mail", "--yes").said == "The archive of queue mail is dropped."
    assert "Queue mail has no archive" in trunq("archive", "drop", "mail", "--yes").said


def test_that_of_a_queue_that_is_gone_says_so(trunq: Shell, client: Client) -> None:
    client.create_queue("mail")
    client.create_archive("mail")
    client.drop_queue("mail")
    assert "no: its queue is gone" in trunq("archive", "list").said
    assert trunq("archive", "drop", "mail", "--yes", "--json").json == {"queue": "mail", "dropped": True}


def test_one_may_be_written_at_once(trunq: Shell, client: Client) -> None:
    client.create_queue("mail")
    made = trunq("archive", "create", "mail", "--at-once").said
    assert made == "Every attempt of queue mail is kept in trunq_archive.mail, for ever, written at once."
    assert "at once" in trunq("archive", "list").said
    assert trunq("archive", "create", "mail", "--for", "90d", "--json").json["at_once"] is True
    client.publish("mail", 1)
    assert client.ack(client.lease("mail", "default", "me")) == 1
    with client.transaction() as connection:
        assert connection.execute("select outcome from trunq_archive.mail").fetchall() == [("success",)]
    assert trunq("archive", "create", "mail", "--later", "--json").json["at_once"] is False
