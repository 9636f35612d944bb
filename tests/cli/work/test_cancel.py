"""Messages cancelled, and time-outs set, from the shell."""

from __future__ import annotations

from datetime import timedelta

import pytest

from shelling import Shell
from trunq import Client


@pytest.fixture(autouse=True)
def mail(client: Client) -> None:
    client.create_queue("mail")


def reasons(client: Client, subscription: str = "default") -> dict[int, str]:
    return {row.id: row.reason for row in client.list_dead("mail", subscription)}


def test_messages_are_cancelled_by_id_and_it_says_what_becomes_of_each(trunq: Shell, client: Client) -> None:
    running, done, ready = client.publish_many("mail", [1, 2, 3])
    later = client.publish("mail", 4, delay=3600)
    held = client.lease("mail", "default", "me", 2)
    client.ack([held[1]])
    said = trunq("message", "cancel", "mail", str(running), str(done), str(ready), str(later)).said
    for sentence in (
        f"{running} default leased its worker is told",
        f"{done} default done was done before",
        f"{ready} default ready will not run",
        f"{later} default scheduled will not run",
    ):
        assert sentence in said
    client.retry([held[0]])
    assert client.lease("mail", "default", "me", 10) == []
    assert reasons(client) == dict.fromkeys((running, ready, later), "cancelled")
    assert "cancelled" in trunq("dead", "list", "mail").said
    assert "cancelled, by me" in trunq("message", "show", "mail", str(ready)).said


def test_as_json(trunq: Shell, client: Client) -> None:
    id = client.publish("mail", 1)
    assert trunq("message", "cancel", "mail", str(id), "--json").json == [
        {"subscription": "default", "id": id, "state": "ready"}
    ]


def test_for_one_subscription(trunq: Shell, client: Client) -> None:
    client.subscribe("mail", "audit")
    id = client.publish("mail", 1)
    trunq("message", "cancel", "mail", str(id), "--subscription", "audit")
    assert client.lease("mail", "audit", "me") == []
    assert [message.id for message in client.lease("mail", "default", "me")] == [id]


def test_by_filter_it_asks_and_leaves_what_is_over(trunq: Shell, client: Client) -> None:
    client.publish("mail", 0, kind="news")
    client.ack(client.lease("mail", "default", "me"))
    ids = client.publish_many("mail", [1, 2], kind="news")
    ids.append(client.publish("mail", 3, kind="news", delay=3600))
    other = client.publish("mail", 4, kind="invoice")
    refused = trunq("message", "cancel", "mail", "--kind", "news")
    assert refused.status == 1
    assert "3 messages of mail: cancel? Nobody is here to answer" in refused.said
    found = trunq("message", "cancel", "mail", "--kind", "news", "--yes", "--json").json
    assert {row["id"] for row in found} == set(ids)
    assert [message.id for message in client.lease("mail", "default", "me", 10)] == [other]
    assert "no such messages" in trunq("message", "cancel", "mail", "--kind", "news").said


def test_by_state(trunq: Shell, client: Client) -> None:
    ids = client.publish_many("mail", [1, 2])
    client.lease("mail", "default", "me")
    assert trunq("message", "cancel", "mail", "--state", "leased", "--yes", "--json").json == [
        {"subscription": "default", "id": ids[0], "state": "leased"}
    ]


def test_of_many_it_says_numbers(trunq: Shell, client: Client) -> None:
    client.publish_many("mail", range(60), kind="news")
    assert "60 ready: will not run." in trunq("message", "cancel", "mail", "--kind", "news", "--yes").said
    assert client.lease("mail", "default", "me", 100) == []


@pytest.mark.parametrize(
    ("arguments", "status", "sentence"),
    [
        ([], 1, "Say which messages to cancel"),
        (["1", "--kind", "news"], 1, "ids or filters, not both"),
        (["999"], 1, "no message 999"),
        (["1", "--subscription", "nobody"], 1, "nobody"),
        (["--state", "done"], 2, "done"),
        (["x"], 2, "valid integer"),
    ],
)
def test_mistakes(trunq: Shell, client: Client, arguments: list[str], status: int, sentence: str) -> None:
    client.publish("mail", 1)
    done = trunq("message", "cancel", "mail", *arguments)
    assert (done.status, sentence in done.said) == (status, True), done.said
    assert len(client.lease("mail", "default", "me")) == 1


def test_a_subscription_has_a_time_out(trunq: Shell, client: Client) -> None:
    assert "time out none" in trunq("subscription", "set", "mail", "default").said
    assert "time out 1m 30s" in trunq("subscription", "set", "mail", "default", "--time-out", "90s").said
    assert client.list_subscriptions("mail")[0].time_out == timedelta(seconds=90)
    trunq("subscription", "set", "mail", "default", "--time-out", "0")
    assert client.list_subscriptions("mail")[0].time_out is None
    done = trunq("subscription", "create", "mail", "stream", "--mode", "exclusive", "--time-out", "5s")
    assert (done.status, "have no time-out" in done.said) == (1, True)


def test_a_message_has_a_time_out(trunq: Shell, client: Client) -> None:
    trunq("publish", "mail", "1", "--time-out", "2m", "--max-attempts", "2")
    (message,) = client.lease("mail", "default", "me")
    assert (message.time_out, message.max_attempts) == (120.0, 2)
    done = trunq("publish", "mail", "1", "--time-out", "0")
    assert (done.status, "time_out in seconds" in done.said) == (1, True), done.said
