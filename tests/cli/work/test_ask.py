"""`trunq worker` for a part of a subscription, and what `trunq status` says of what nobody asks for."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import psycopg
import pytest

from shelling import Shell, start
from trunq import Client

APP = """
from trunq.worker import Worker

post = Worker("mail", lead=False)


@post.handler
async def deliver(message):
    pass
"""


@pytest.fixture
def office(tmp_path: Path, client: Client) -> Path:
    """A directory with an application, and the queue it serves."""
    (tmp_path / "office.py").write_text(APP)
    client.create_queue("mail")
    return tmp_path


def handled(office: Path, database: str, *given: str) -> int:
    worker = start("worker", *given, "--until-empty", "--json", directory=office, TRUNQ_DSN=database)
    out, err = worker.communicate(timeout=120)
    assert worker.returncode == 0, err
    return int(json.loads(out)["handled"])


def test_a_worker_leases_what_its_options_ask_for(office: Path, client: Client, database: str) -> None:
    for kind, key, country in (
        ("letter", "eu-1", "CZ"),
        ("parcel", "eu-2", "CZ"),
        ("letter", "us-1", "CZ"),
        ("letter", "eu-3", "SK"),
        ("card", "eu-4", "CZ"),
    ):
        client.publish("mail", 1, kind=kind, key=key, headers={"country": country})
    kinds = ("--kind", "letter", "--kind", "parcel")
    given = ("office:post", *kinds, "--key-prefix", "eu-", "--header", "country=CZ")
    assert handled(office, database, *given) == 2
    states = {message.key: message.state for message in client.list_messages("mail")}
    assert {key for key, state in states.items() if state == "done"} == {"eu-1", "eu-2"}
    assert {state for key, state in states.items() if key not in {"eu-1", "eu-2"}} == {"ready"}


def test_the_commands_of_the_warning_take_what_nobody_asks_for(
    office: Path, client: Client, database: str, connection: psycopg.Connection[object]
) -> None:
    client.publish("mail", 1, kind='it\'s a "fax"')
    client.publish("mail", 2, kind="card")
    assert client.lease("mail", "default", "me", asks={"kinds": ["letter"]}) == []
    connection.execute("update trunq.delayed set aside_at = aside_at - interval '2 minutes'")
    (warning,) = client.list_warnings("mail")
    everything, _, these = warning.hint.partition(", or lease: ")[0].partition(", or for these, ")
    command = re.sub(r"^.*?trunq worker MODULE:APP", "office:post", everything)
    assert handled(office, database, *shlex.split(f"{command} {these}")) == 1
    assert [message.state for message in client.list_messages("mail")] == ["ready", "done"]
    assert handled(office, database, *shlex.split(command)) == 1
    assert client.list_warnings("mail") == []


def test_mistakes_are_named(office: Path, trunq: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(office)
    for given, words in (
        (("--header", "country"), "'country' is not a header; write it like country=CZ."),
        (("--header", "a=1", "--header", "a=2"), "--header a is given with two values"),
        (("--key-prefix", "x" * 1001, "--until-empty"), '"key_prefix" is a text of 1 to 1,000 bytes'),
    ):
        done = trunq("worker", "office:post", *given)
        assert done.status != 0
        assert words in done.said
