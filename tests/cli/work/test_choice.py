"""Which messages a command is about."""

from __future__ import annotations

import re
from typing import Any

import psycopg
import pytest

from shelling import Shell
from trunq import Client


@pytest.fixture
def ids(client: Client) -> list[int]:
    """Four messages: three dead, one alive; of two kinds, with three errors."""
    client.create_queue("mail")
    ids = client.publish_many(
        "mail", [1, 2, 3, 4], kinds=["welcome", "bill", "welcome", "bill"], keys=["ann", "ann", "bob", "ann"]
    )
    held = client.lease("mail", "default", "postman", 3)
    errors = ["Timed out", "no street", "timed OUT"]
    client.reject("mail", "default", held[0].lease_id, held[0].token, ids[:3], errors=errors)
    return ids


@pytest.mark.parametrize(
    ("given", "dead", "alive"),
    [
        (["--kind", "bill"], [1], [3]),
        (["--key", "ann"], [0, 1], [3]),
        (["--error", "timed out"], [0, 2], []),
        (["--error", "timed out", "--key", "bob"], [2], []),
        (["--newer-than", "1h"], [0, 1, 2], [3]),
        (["--older-than", "1h"], [], []),
    ],
)
def test_messages_are_listed_and_requeued_by_what_they_have_in_common(
    trunq: Shell, client: Client, ids: list[int], given: list[str], dead: list[int], alive: list[int]
) -> None:
    def numbers(*command: str) -> list[int]:
        return sorted(row["id"] for row in trunq(*command, *given, "--json").json)

    assert numbers("message", "list", "mail") == sorted(ids[at] for at in [*dead, *alive])
    assert numbers("dead", "list", "mail") == [ids[at] for at in dead]
    if dead:
        asked = trunq("dead", "requeue", "mail", *given)
        assert asked.status == 1
        assert f"{len(dead)} dead message" in asked.said
        assert "say --yes" in asked.said
    assert client.count_dead("mail") == 3
    done = trunq("dead", "requeue", "mail", *given, "--yes", "--json")
    assert done.json == {"queue": "mail", "requeued": len(dead)}
    assert client.count_dead("mail") == 3 - len(dead)


def test_nothing_such_is_said_so(trunq: Shell, ids: list[int]) -> None:
    assert len(ids) == 4
    assert "Queue mail has no such dead messages." in trunq("dead", "list", "mail", "--kind", "x").said
    assert "Queue mail has no such messages." in trunq("message", "list", "mail", "--kind", "x").said


def test_many_are_a_sweep_of_only_those_that_were_counted(
    trunq: Shell, client: Client, ids: list[int]
) -> None:
    assert trunq("dead", "purge", "mail", "--all", "--yes", "--json").json["purged"] == 3
    assert client.list_messages("mail", state="ready")[0].id == ids[3]
    assert trunq("dead", "purge", "mail", "--all", "--json").json["purged"] == 0
    (row,) = trunq("sweep", "list", "mail", "--json").json
    assert (row["act"], row["state"], row["done"], row["counted"]) == ("purge", "finished", 3, 3)
    assert "had ended" in trunq("sweep", "stop", "mail", str(row["sweep_id"])).said
    assert "has no sweep 0" in trunq("sweep", "stop", "mail", "0").said


def test_a_sweep_says_of_which_messages_it_is(
    trunq: Shell, client: Client, ids: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(ids) == 4
    monkeypatch.setenv("COLUMNS", "200")
    client.start_sweep("mail", "requeue", kind="paid", key="ada", error="boom")
    client.start_sweep("mail", "cancel", "default", state="ready", payload={"n": 1})
    told = trunq("sweep", "list", "mail").said
    assert 'kind paid, key ada, error contains "boom"' in told
    assert "default, ready, payload contains what was given" in told


def test_one_fault_of_many_is_one_group(trunq: Shell, client: Client, ids: list[int]) -> None:
    (group, *_) = trunq("dead", "groups", "mail", "--json").json
    given = ("--fingerprint", group["fingerprint"], "--yes", "--json")
    assert trunq("dead", "requeue", "mail", *given).json["requeued"] == group["messages"] > 0
    assert group["fingerprint"] not in trunq("dead", "groups").said


def test_messages_that_are_named_are_taken_unasked(trunq: Shell, client: Client, ids: list[int]) -> None:
    assert trunq("dead", "purge", "mail", str(ids[0]), "--json").json["purged"] == 1
    assert client.count_dead("mail") == 2


def going_on(trunq: Shell, *command: str) -> tuple[list[Any], int]:
    """Rows of a list that may end early, and how many looks it took, each going on where one ended."""
    looks, further = 1, []
    while not (rows := (done := trunq(*command, *further, "--json")).json):
        told = re.fullmatch(r"It looked at [\d,]+; go on with: (--before) (\d+)\n", done.err)
        assert told is not None, done.said
        further, looks = list(told.groups()), looks + 1
    assert done.err == ""
    return rows, looks


def test_a_list_that_ends_early_says_how_to_go_on_whatever_the_role_has_sent(
    trunq: Shell, client: Client, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGOPTIONS", "-c client_min_messages=error")
    client.create_queue("mail")
    needle = client.publish("mail", 1, kind="rare")
    client.publish_many("mail", list(range(2500)))
    ((found,), looks) = going_on(trunq, "message", "list", "mail", "--kind", "rare", "--look", "1000", "-n1")
    assert (found["id"], looks) == (needle, 3)
    client.pause_queue("mail")
    with psycopg.connect(database) as connection:
        connection.execute(
            "insert into trunq.audit (at, who, login, application, did, arguments)"
            " select now(), 'another', 'app', '', 'purge', '{}' from generate_series(1, 100000)"
        )
    ((found,), looks) = going_on(trunq, "audit", "--did", "pause_queue")
    assert (found["queue"], looks) == ("mail", 2)
