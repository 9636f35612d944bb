"""Queues and subscriptions, paused and resumed from the shell."""

from __future__ import annotations

from datetime import timedelta

import pytest

from shelling import Shell
from trunq import Client


@pytest.fixture(autouse=True)
def mail(client: Client) -> None:
    client.create_queue("mail")
    client.subscribe("mail", "audit")
    client.publish("mail", 1)


def leased(client: Client, subscription: str) -> int:
    return len(client.lease("mail", subscription, "me", 10))


def test_a_queue_is_paused_and_resumed(trunq: Shell, client: Client) -> None:
    said = trunq("queue", "pause", "mail").said
    assert "Queue mail is paused until it is resumed. Resume it with: trunq queue resume mail" in said
    assert leased(client, "default") == 0
    assert "default (paused)" in trunq("status", "--once").said
    assert "mail 2 1d yes" in trunq("queue", "list").said
    assert "paused yes" in trunq("queue", "set", "mail").said
    assert trunq("queue", "resume", "mail").said == "Queue mail goes on."
    assert leased(client, "default") == 1
    assert "paused" not in trunq("status", "--once").said
    assert trunq("queue", "resume", "mail").said == "Queue mail was not paused."
    assert trunq("queue", "resume", "mail", "--json").json["resumed"] is False


def test_a_subscription_is_paused_and_resumed_beside_others(trunq: Shell, client: Client) -> None:
    said = trunq("subscription", "pause", "mail", "audit").said
    assert "audit of mail is paused until it is resumed." in said
    assert "trunq subscription resume mail audit" in said
    assert (leased(client, "audit"), leased(client, "default")) == (0, 1)
    assert "audit (paused)" in trunq("status", "--once").said
    assert "mail audit shared yes 20" in trunq("subscription", "list").said
    assert "no longer paused" in trunq("subscription", "resume", "mail", "audit").said
    assert leased(client, "audit") == 1
    assert "was not paused" in trunq("subscription", "resume", "mail", "audit").said


def test_what_stays_paused_is_said(trunq: Shell) -> None:
    trunq("queue", "pause", "mail")
    trunq("subscription", "pause", "mail", "audit")
    assert (
        "All of queue mail is paused: trunq queue resume mail"
        in trunq("subscription", "resume", "mail", "audit").said
    )
    trunq("subscription", "pause", "mail", "audit")
    resumed = trunq("queue", "resume", "mail").said
    assert "subscription audit is paused itself: trunq subscription resume mail audit" in resumed
    assert trunq("queue", "resume", "mail", "--json").json["still_paused"] == ["audit"]


@pytest.mark.parametrize("noun", [("queue", "mail"), ("subscription", "mail", "audit")])
def test_a_pause_ends_at_a_time(trunq: Shell, client: Client, noun: tuple[str, ...]) -> None:
    what, *names = noun
    said = trunq(what, "pause", *names, "--until", "2999-01-31T12:00").said
    assert "is paused until 2999-01-31" in said
    assert "audit (paused until 2999-01-31" in trunq("status", "--once").said
    before = client.clock()
    told = trunq(what, "pause", *names, "--for", "2h", "--json").json
    assert told["paused"] is True
    (row,) = (row for row in client.status("mail") if row.subscription == "audit")
    assert row.paused_until is not None
    assert told["paused_until"] == row.paused_until.isoformat()
    assert before + timedelta(hours=2) <= row.paused_until <= client.clock() + timedelta(hours=2)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["queue", "pause", "mail", "--for", "1h", "--until", "2999-01-01"], "either --until or --for"),
        (["queue", "pause", "mail", "--until", "2001-01-01"], "that time is over"),
        (["queue", "pause", "nosuch"], 'There is no queue "nosuch".'),
        (["subscription", "pause", "mail", "nosuch"], 'has no subscription "nosuch"'),
        (["subscription", "resume", "mail", "nosuch"], 'has no subscription "nosuch"'),
    ],
)
def test_a_pause_that_cannot_be_is_refused(
    trunq: Shell, client: Client, arguments: list[str], sentence: str
) -> None:
    done = trunq(*arguments)
    assert (done.status, sentence in done.said) == (1, True), done.said
    assert not any(row.paused for row in client.status("mail"))
