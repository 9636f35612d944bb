"""Subscriptions and the settings of queues, from the shell."""

from __future__ import annotations

import pytest

from shelling import Shell
from trunq import Client, QueueClosed, QueueFull


def named(client: Client, subscription: str) -> object:
    return next((row for row in client.list_subscriptions("mail") if row.subscription == subscription), None)


@pytest.fixture(autouse=True)
def mail(client: Client) -> None:
    client.create_queue("mail")


def test_a_subscription_is_created_listed_and_dropped(trunq: Shell, client: Client) -> None:
    client.publish("mail", 1)
    created = trunq(
        *("subscription", "create", "mail", "audit", "--start", "earliest"),
        *(
            "--max-attempts",
            "5",
            "--lease-time",
            "2m",
            "--backoff",
            "linear",
            "--jitter",
            "0",
            "--keep-results",
        ),
    )
    assert "Subscription audit of mail created" in created.said
    (row,) = (row for row in client.list_subscriptions("mail") if row.subscription == "audit")
    assert (row.max_attempts, row.backoff, row.jitter, row.keep_results) == (5, "linear", 0, True)
    assert row.lease_time.total_seconds() == 120
    assert [row["subscription"] for row in trunq("subscription", "list", "mail", "--json").json] == [
        "audit",
        "default",
    ]
    assert "mail audit shared 5 2m linear" in trunq("subscription", "list").said
    refused = trunq("subscription", "drop", "mail", "audit")
    assert refused.status == 1
    assert "has 1 ready, 0 leased, 0 delayed, 0 dead. Drop it? Nobody is here to answer" in refused.said
    assert named(client, "audit")
    assert "audit of mail dropped" in trunq("subscription", "drop", "mail", "audit", "--yes").said
    assert named(client, "audit") is None
    gone = trunq("subscription", "drop", "mail", "audit", "--yes")
    assert (gone.status, 'has no subscription "audit"' in gone.said) == (1, True)


def test_a_subscription_that_is_there_stays_as_it_is(trunq: Shell, client: Client) -> None:
    client.subscribe("mail", "audit", max_attempts=5)
    before = named(client, "audit")
    assert "is there already" in trunq("subscription", "create", "mail", "audit").said
    assert trunq("subscription", "create", "mail", "audit", "--max-attempts", "5").status == 0
    for given in (
        ["--max-attempts", "6"],
        ["--max-attempts", "0"],
        ["--mode", "exclusive"],
        ["--jitter", "0"],
    ):
        other = trunq("subscription", "create", "mail", "audit", *given)
        assert other.status == 1
        assert "has a subscription audit already, with" in other.said
    assert named(client, "audit") == before
    client.subscribe("mail", "endless", max_attempts=0)
    assert trunq("subscription", "create", "mail", "endless", "--max-attempts", "0").status == 0


def test_a_policy_is_changed_in_what_is_given(trunq: Shell, client: Client) -> None:
    said = trunq(
        "subscription", "set", "mail", "default", "--max-attempts", "0", "--dead-retention", "7d"
    ).said
    assert "max attempts for ever" in said
    assert "dead retention 7d" in said
    assert trunq("subscription", "set", "mail", "default", "--json").json["dead_retention"] == 7 * 86_400
    for given in ([], ["--max-attempts", "3"]):
        misspelt = trunq("subscription", "set", "mail", "defualt", *given)
        assert misspelt.status == 1
        assert 'has no subscription "defualt". Those there are: trunq subscription list mail' in misspelt.said
    assert named(client, "defualt") is None


def test_a_subscription_is_reset(trunq: Shell, client: Client) -> None:
    client.publish_many("mail", [1, 2, 3])
    assert trunq("subscription", "reset", "mail", "default").status == 1
    assert client.status("mail")[0].ready == 3
    assert "starts at the latest" in trunq("subscription", "reset", "mail", "default", "--yes").said
    assert client.status("mail")[0].ready == 0
    again = trunq("subscription", "reset", "mail", "default", "--start", "earliest", "--yes", "--json")
    assert again.json["start"] == "earliest"
    assert client.status("mail")[0].ready == 3


def test_a_queue_that_is_there_with_other_settings_is_said_to_be_so(trunq: Shell) -> None:
    assert trunq("queue", "create", "mail", "--retention", "1d").status == 0
    other = trunq("queue", "create", "mail", "--retention", "7d")
    assert other.status == 1
    assert "Queue mail is there already, with a retention of 1d, and stays as it is." in other.said
    assert "trunq queue set mail" in other.said


def test_a_queue_is_set(trunq: Shell, client: Client, database: str) -> None:
    done = trunq(
        *("queue", "set", "mail", "--retention", "12h", "--kinds", "welcome, goodbye", "--max-waiting", "2"),
        *("--max-per-transaction", "100", "--announce", "--tick-max-count", "9", "--json"),
    )
    assert {name: done.json[name] for name in ("retention", "kinds", "max_waiting", "tick_max_count")} == {
        "retention": 12 * 3600,
        "kinds": ["welcome", "goodbye"],
        "max_waiting": 2,
        "tick_max_count": 9,
    }
    assert (done.json["max_per_transaction"], done.json["announces"]) == (100, True)
    client.publish_many("mail", [1, 2], kind="welcome")
    with pytest.raises(QueueFull), Client(database) as another:
        another.publish("mail", 3, kind="welcome")
    assert "kinds welcome, goodbye" in trunq("queue", "set", "mail").said
    assert "12h welcome, goodbye 2" in trunq("queue", "list").said
    loose = trunq("queue", "set", "mail", "--kinds", "", "--max-waiting", "0", "--no-announce").said
    assert "kinds any" in loose
    assert "max per transaction 0" in trunq("queue", "set", "mail", "--max-per-transaction", "0").said
    unlimited = trunq("queue", "set", "mail", "--max-per-transaction", "-1")
    assert "max per transaction no limit" in unlimited.said
    assert "max waiting no limit" in loose
    assert "paused until –" in loose
    longer = trunq("queue", "set", "mail", "--retention", "30d")
    assert (longer.status, "was made for a retention of at most" in longer.said) == (1, True)


def test_a_queue_is_closed_and_opened(trunq: Shell, client: Client) -> None:
    assert "Queue mail is closed" in trunq("queue", "close", "mail").said
    with pytest.raises(QueueClosed):
        client.publish("mail", 1)
    assert "yes" in trunq("queue", "list").said
    assert trunq("publish", "mail", "1").status == 1
    assert "Queue mail is open" in trunq("queue", "open", "mail").said
    assert client.publish("mail", 1)
