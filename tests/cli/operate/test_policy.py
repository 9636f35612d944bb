"""Filters and limits of subscriptions, from the shell."""

from __future__ import annotations

from datetime import timedelta

import pytest

from shelling import Shell
from trunq import Client
from trunq.record import Subscription


@pytest.fixture(autouse=True)
def mail(client: Client) -> None:
    client.create_queue("mail")


def named(client: Client, subscription: str) -> Subscription:
    return next(row for row in client.list_subscriptions("mail") if row.subscription == subscription)


def test_a_filter_is_given_in_options_and_obeyed(trunq: Shell, client: Client) -> None:
    done = trunq(
        *("subscription", "create", "mail", "some", "--kind", "invoice", "--kind", "reminder"),
        *("--not-key", "a", "--header", "country=CZ", "--header", "paid=false", "--not-header", "test=true"),
    )
    assert done.status == 0, done.said
    assert named(client, "some").filter == {
        "kinds": ["invoice", "reminder"],
        "not_keys": ["a"],
        "headers": {"country": "CZ", "paid": False},
        "not_headers": {"test": True},
    }
    wanted = {"country": "CZ", "paid": False}
    client.publish("mail", 1, kind="invoice", key="b", headers=wanted)
    client.publish("mail", 2, kind="invoice", key="a", headers=wanted)
    client.publish("mail", 3, kind="parcel", key="b", headers=wanted)
    client.publish("mail", 4, kind="invoice", key="b", headers=wanted | {"test": True})
    client.publish("mail", 5, kind="invoice", key="b", headers={"country": "CZ", "paid": "false"})
    assert [message.payload for message in client.lease("mail", "some", "me", 10)] == [1]


def test_a_filter_takes_the_place_of_the_one_before(trunq: Shell, client: Client) -> None:
    trunq("subscription", "set", "mail", "default", "--kind", "invoice")
    said = trunq("subscription", "set", "mail", "default", "--key", "b", "--max-attempts", "3").said
    assert 'filter {"keys": ["b"]}' in said
    trunq("subscription", "set", "mail", "default", "--max-attempts", "4")
    assert named(client, "default").filter == {"keys": ["b"]}
    assert '{"keys": ["b"]}' in trunq("subscription", "list").said
    assert "filter every message" in trunq("subscription", "set", "mail", "default", "--no-filter").said
    assert named(client, "default").filter is None


def test_an_exclusive_subscription_is_set_too(trunq: Shell, client: Client) -> None:
    client.subscribe("mail", "ledger", mode="exclusive")
    assert trunq("subscription", "set", "mail", "ledger", "--kind", "invoice").status == 0
    assert named(client, "ledger").filter == {"kinds": ["invoice"]}
    refused = trunq("subscription", "set", "mail", "ledger", "--rate", "5")
    assert (refused.status, '"ledger" is exclusive: it has no rate' in refused.said) == (1, True)


def test_limits_are_given_and_taken_back(trunq: Shell, client: Client) -> None:
    said = trunq(
        *("subscription", "set", "mail", "default", "--rate", "100/1m", "--burst", "3", "--max-running", "2")
    ).said
    assert "rate 100/1m" in said
    row = named(client, "default")
    assert (row.rate, row.rate_interval, row.burst, row.max_running) == (100, timedelta(minutes=1), 3, 2)
    assert "100/1m 2" in trunq("subscription", "list").said
    client.publish_many("mail", [1, 2, 3])
    assert len(client.lease("mail", "default", "me", 10)) == 2
    # 10 is a second, also where the interval was another.
    trunq("subscription", "set", "mail", "default", "--rate", "10", "--burst", "0")
    row = named(client, "default")
    assert (row.rate, row.rate_interval, row.burst) == (10, timedelta(seconds=1), None)
    assert trunq("subscription", "set", "mail", "default", "--burst", "4").status == 0
    trunq("subscription", "set", "mail", "default", "--rate", "0", "--burst", "0", "--max-running", "0")
    row = named(client, "default")
    assert (row.rate, row.burst, row.max_running) == (None, None, None)


def test_the_age_of_what_it_takes_is_given_and_taken_back(trunq: Shell, client: Client) -> None:
    assert "max age 10m" in trunq("subscription", "set", "mail", "default", "--max-age", "10m").said
    assert named(client, "default").max_age == timedelta(minutes=10)
    assert "max age no limit" in trunq("subscription", "set", "mail", "default", "--max-age", "0").said
    assert named(client, "default").max_age is None


def test_what_fell_due_comes_first_where_it_is_said_and_until_it_is_taken_back(
    trunq: Shell, client: Client
) -> None:
    assert "due first yes" in trunq("subscription", "set", "mail", "default", "--due-first").said
    assert named(client, "default").due_first is True
    assert trunq("subscription", "create", "mail", "more", "--due-first").status == 0
    assert trunq("subscription", "create", "mail", "more", "--due-first").status == 0
    other = trunq("subscription", "create", "mail", "more", "--no-due-first")
    assert (other.status, "with due first yes, and it stays" in other.said) == (1, True), other.said
    assert "due first no" in trunq("subscription", "set", "mail", "default", "--no-due-first").said
    assert named(client, "default").due_first is False
    refused = trunq("subscription", "create", "mail", "ledger", "--mode", "exclusive", "--due-first")
    assert (refused.status, '"ledger" is exclusive' in refused.said) == (1, True)


def test_one_that_is_there_with_another_filter_or_rate_is_said_to_be_so(trunq: Shell) -> None:
    create = ("subscription", "create", "mail", "some")
    assert trunq(*create, "--kind", "b", "--kind", "a", "--rate", "10/m").status == 0
    assert trunq(*create, "--kind", "a", "--kind", "b", "--rate", "10/1m").status == 0
    other = trunq(*create, "--kind", "a")
    assert (other.status, 'with filter {"kinds": ["a", "b"]}, and it stays' in other.said) == (1, True)
    other = trunq(*create, "--rate", "11/m")
    assert (other.status, "with rate 10/1m, and it stays" in other.said) == (1, True)
    assert trunq("subscription", "create", "mail", "default", "--no-filter", "--rate", "0").status == 0


@pytest.mark.parametrize("verb", ["create", "set"])
@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--no-filter", "--kind", "a"], "Give --no-filter, or what a filter lets pass, not both."),
        (["--kind", "a", "--not-kind", "a"], 'No message passes both --kind and --not-kind "a"'),
        (["--key", "a", "--not-key", "a"], 'No message passes both --key and --not-key "a"'),
        (["--header", "a=1", "--not-header", "a=1"], 'No message passes both --header and --not-header "a"'),
        (["--header", "a=1", "--header", "a=2"], "--header a is given with two values"),
        (["--not-header", "a=1", "--not-header", "a=2"], "--not-header a is given with two values"),
        (["--burst", "5"], "--burst says how much of a rate may go out at once, and there is none"),
        (["--burst", "5", "--rate", "0"], "--burst says how much of a rate"),
    ],
)
def test_contradictions_are_refused(
    trunq: Shell, client: Client, verb: str, options: list[str], sentence: str
) -> None:
    name = "some" if verb == "create" else "default"
    before = client.list_subscriptions("mail")
    done = trunq("subscription", verb, "mail", name, *options)
    assert (done.status, sentence in done.said) == (1, True), done.said
    assert client.list_subscriptions("mail") == before


@pytest.mark.parametrize("rate", ["x", "10/", "10/0s", "-1", "nan", "inf", "10/x"])
def test_what_is_no_rate_is_told_so(shell: Shell, rate: str) -> None:
    done = shell("subscription", "set", "mail", "default", f"--rate={rate}")
    assert (done.status, "is not a" in done.said) == (2, True), done.said


def test_what_is_no_header_is_told_so(shell: Shell) -> None:
    done = shell("subscription", "set", "mail", "default", "--header", "country")
    assert (done.status, "is not a header; write it like country=CZ" in done.said) == (2, True)
