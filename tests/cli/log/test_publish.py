"""Options of messages, from the shell."""

from __future__ import annotations

from datetime import timedelta

import pytest

from shelling import Shell
from trunq import Client


@pytest.fixture(autouse=True)
def mail(client: Client) -> None:
    client.create_queue("mail")


def test_messages_have_attempts_and_an_age_of_their_own(trunq: Shell, client: Client) -> None:
    before = client.clock()
    assert trunq("publish", "mail", "--max-age", "5m", "--max-attempts", "2", input="1\n2\n").status == 0
    held = client.lease("mail", "default", "me", 10)
    assert [(message.payload, message.max_attempts) for message in held] == [(1, 2), (2, 2)]
    for message in held:
        assert message.deadline is not None
        assert before + timedelta(minutes=5) <= message.deadline <= client.clock() + timedelta(minutes=5)


def test_messages_have_a_policy_of_their_own(trunq: Shell, client: Client) -> None:
    client.create_queue("failures")
    policy = ("--backoff", "linear", "--backoff-base", "1m", "--backoff-cap", "1h", "--jitter", "0.5")
    assert trunq("publish", "mail", "1", *policy, "--dead-into", "failures", "--time-out", "2s").status == 0
    (message,) = client.lease("mail", "default", "me")
    said: dict[str, object] = {"backoff": "linear", "backoff_base": 60, "backoff_cap": 3600, "jitter": 0.5}
    said |= {"dead_into": "failures", "time_out": 2}
    assert {name: message.option(name) for name in said} == said
    assert 'no queue "nowhere"' in trunq("publish", "mail", "1", "--dead-into", "nowhere").said


def test_a_message_has_a_priority_where_its_queue_has_lanes_by_priority(trunq: Shell, client: Client) -> None:
    client.create_queue("work", lanes="priority")
    client.set_lanes("work", policy="priority")
    trunq("publish", "work", "9", "--priority", "9")
    assert trunq("publish", "work", "--priority", "-1", input="1\n2\n").status == 0
    assert [message.payload for message in client.lease("work", "default", "me", 2)] == [1, 2]


def test_attempts_alone_leave_a_message_without_an_end(trunq: Shell, client: Client) -> None:
    trunq("publish", "mail", "1", "--max-attempts", "3")
    (message,) = client.lease("mail", "default", "me")
    assert (message.max_attempts, message.deadline) == (3, None)


@pytest.mark.parametrize(
    ("options", "status", "sentence"),
    [
        (["--delay", "1h", "--max-age", "5m"], 1, "would expire before it is due"),
        (["--delay", "5m", "--max-age", "5m"], 1, "would expire before it is due"),
        (["--max-attempts", "0"], 2, "greater than or equal to 1"),
        (["--max-age", "soon"], 2, "is not an interval"),
    ],
)
def test_options_that_cannot_be_are_refused(
    trunq: Shell, client: Client, options: list[str], status: int, sentence: str
) -> None:
    done = trunq("publish", "mail", "1", *options)
    assert (done.status, sentence in done.said) == (status, True), done.said
    assert client.status("mail")[0].ready == client.status("mail")[0].delayed == 0
