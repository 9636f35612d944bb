"""Lanes from the shell."""

from __future__ import annotations

from datetime import timedelta

import pytest

from shelling import Shell
from trunq import Client
from trunq.record import Lane


@pytest.fixture(autouse=True)
def queues(trunq: Shell) -> None:
    for queue, lanes in (("mail", "key"), ("work", "priority"), ("both", "priority,kind")):
        assert trunq("queue", "create", queue, "--lanes", lanes).status == 0


def lane(client: Client, queue: str, name: str = "", priority: int = 0) -> Lane:
    return next(row for row in client.list_lanes(queue) if (row.lane, row.priority) == (name, priority))


def leased(client: Client, queue: str) -> list[object]:
    return sorted(message.payload for message in client.lease(queue, "default", "me", 10))


def test_a_queue_that_is_there_with_other_lanes_is_said_to_be_so(trunq: Shell) -> None:
    assert trunq("queue", "create", "mail", "--lanes", "key").status == 0
    other = trunq("queue", "create", "mail", "--lanes", "kind")
    assert (other.status, 'has lanes by "key", not by "kind"' in other.said) == (1, True)
    assert trunq("queue", "create", "other", "--lanes", "colour").status == 2


def test_lanes_are_listed_with_what_they_hold_and_may(trunq: Shell, client: Client) -> None:
    assert "Nothing waits or runs in a lane of mail" in trunq("lane", "list", "mail").said
    client.publish_many("mail", [1, 2, 3], keys=["a", "a", None])
    said = trunq("lane", "set", "mail", "a", "--rate", "60/1m", "--burst", "5", "--weight", "2")
    assert "Lane a of mail is set." in said.said
    rows = trunq("lane", "list", "mail", "--json").json
    assert [(row["lane"], row["depth"], row["rate"]) for row in rows] == [("a", 2, 1.0), ("", 1, None)]
    shown = trunq("lane", "list", "mail").out
    (first, second) = (line.split() for line in shown.splitlines()[-2:])
    assert (first[0], second[0]) == ("a", "''")
    assert "1/s" in first
    assert "priority" not in shown
    client.publish("work", 1, priority=3)
    shown = trunq("lane", "list", "work").out
    assert shown.split()[0] == "priority"


def test_a_lane_is_paused_and_resumed(trunq: Shell, client: Client) -> None:
    client.publish_many("mail", [1, 2], keys=["large tenant", "b"])
    said = trunq("lane", "pause", "mail", "large tenant").said
    assert "is paused until it is resumed. Resume it with: trunq lane resume mail 'large tenant'" in said
    assert "large tenant 1 0" in trunq("lane", "list", "mail").said
    assert "yes" in trunq("lane", "list", "mail").said
    assert leased(client, "mail") == [2]
    assert "goes on" in trunq("lane", "resume", "mail", "large tenant").said
    assert leased(client, "mail") == [1]
    again = trunq("lane", "resume", "mail", "large tenant", "--json").json
    assert again == {
        "queue": "mail",
        "subscription": "default",
        "lane": "large tenant",
        "priority": 0,
        "resumed": False,
    }


def test_a_pause_of_a_lane_ends_at_a_time(trunq: Shell, client: Client) -> None:
    before = client.clock()
    assert trunq("lane", "pause", "work", "--priority", "9", "--for", "2h").status == 0
    until = lane(client, "work", priority=9).paused_until
    assert until is not None
    assert before + timedelta(hours=2) <= until <= client.clock() + timedelta(hours=2)
    assert (
        "until 2999-01-01" in trunq("lane", "pause", "work", "--priority", "9", "--until", "2999-01-01").said
    )
    assert "until 2999-01-01" in trunq("lane", "list", "work").said


def test_a_lane_is_set_and_as_the_others_again(trunq: Shell, client: Client) -> None:
    client.subscribe("both", "audit")
    there = ("both", "spam", "--priority", "2")
    assert trunq("lane", "set", *there, "--max-running", "3", "--rank", "-7").status == 0
    row = lane(client, "both", "spam", 2)
    assert (row.max_running, row.rank, row.weight, row.rate) == (3, -7, 1, None)
    assert trunq("lane", "set", *there, "-s", "audit", "--weight", "4").status == 0
    assert client.list_lanes("both", "audit")[0].weight == 4
    assert lane(client, "both", "spam", 2).weight == 1
    # What is left out is as for the others.
    trunq("lane", "set", *there, "--weight", "5")
    row = lane(client, "both", "spam", 2)
    assert (row.max_running, row.rank, row.weight) == (None, None, 5)
    trunq("lane", "set", *there, "--as-others")
    assert lane(client, "both", "spam", 2).weight == 1


def test_a_policy_says_the_order_and_what_each_lane_may(trunq: Shell, client: Client) -> None:
    said = trunq(
        "lane", "policy", "work", "default", "priority", "--max-running", "1", "--rate", "600/1m"
    ).said
    assert "Subscription default of work serves its lanes by the policy priority." in said
    for priority in (9, 1, 1):
        client.publish("work", priority, priority=priority)
    (row,) = (row for row in client.list_lanes("work") if row.priority == 1)
    assert (row.max_running, row.rate) == (1, 10)
    assert [message.payload for message in client.lease("work", "default", "me", 1)] == [1]
    told = trunq("lane", "policy", "work", "default", "fair", "--json").json
    assert (told["policy"], told["max_running"], told["rate"]) == ("fair", None, None)
    assert lane(client, "work", priority=1).max_running is None


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["pause", "mail"], "Say which lane: its name"),
        (["resume", "mail"], "Say which lane: its name"),
        (["set", "mail", "--weight", "3"], "Say which lane: its name"),
        (["set", "mail", "a"], "Give what this lane may, its weight or its rank, or else --as-others."),
        (["set", "mail", "a", "--as-others", "--rank", "0"], "or else --as-others."),
        (["set", "mail", "a", "--burst", "3"], "give --rate too"),
        (["set", "mail", "a", "--rate", "0"], "rate of a lane is 0.000001"),
        (["set", "mail", "a", "--priority", "3", "--weight", "3"], "it has no priorities"),
        (["policy", "mail", "default", "fair", "--burst", "3"], "give --rate too"),
        (["policy", "mail", "fair"], "which policy: trunq lane policy mail default fair"),
        (["pause", "work", "a"], 'none of them is called "a"'),
        (["pause", "mail", "a", "--until", "2001-01-01"], "that time is over"),
        (["pause", "mail", "a", "--until", "2999-01-01", "--for", "1h"], "either --until or --for"),
        (["list", "plain"], "it has no lanes"),
        (["list", "mail", "-s", "nosuch"], 'has no subscription "nosuch"'),
    ],
)
def test_what_cannot_be_is_refused(trunq: Shell, client: Client, arguments: list[str], sentence: str) -> None:
    client.create_queue("plain")
    done = trunq("lane", *arguments)
    assert (done.status, sentence in done.said) == (1, True), done.said
    assert client.list_lanes("mail") == client.list_lanes("work") == []


def test_lanes_are_ranked_by_a_function_and_it_is_shown_who_ranks(trunq: Shell, client: Client) -> None:
    assert "No function ranks lanes." in trunq("lane", "rankings").said
    assert trunq("lane", "policy", "mail", "default", "ranked").status == 1
    assert trunq("lane", "policy", "mail", "default", "fair", "--function", "by_need").status == 1
    said = trunq("lane", "policy", "mail", "default", "ranked", "--function", "by_need").said
    assert "trunq lane rankings mail" in said
    (row,) = trunq("lane", "rankings", "mail", "--json").json
    assert (row["function"], row["ranker"], row["error"]) == ("by_need", None, None)
    assert "nobody" in trunq("lane", "rankings", "mail").out.split()
    assert "no process ranks the lanes" in trunq("status", "mail").said
    assert "Ranked by the function by_need: no process has it" in trunq("lane", "list", "mail").said
    with client.transaction() as connection:
        connection.execute("select trunq._start_ranking('me', '{by_need}', '{}')")
        connection.execute("select trunq._fail_ranking('me', subscription_id, 'no luck') from trunq.ranking")
    shown = trunq("lane", "rankings", "mail").out
    assert "me" in shown.split()
    assert "no luck" in shown
    assert "by_need: called by me; it failed: no luck." in trunq("lane", "list", "mail").said


def test_a_list_of_queues_tells_which_have_lanes(trunq: Shell) -> None:
    lanes = {row["queue"]: row["lanes"] for row in trunq("queue", "list", "--json").json}
    assert lanes == {"mail": "key", "work": "priority", "both": "priority,kind"}
