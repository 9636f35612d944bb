"""Roles of a queue, granted, listed and revoked from the shell."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from psycopg.conninfo import make_conninfo

from shelling import Shell
from trunq import Client


@pytest.fixture
def ada(client: Client) -> Iterator[str]:
    """A database role."""
    client.create_queue("mail")
    with client.transaction() as connection:
        name = f"ada_{connection.info.dbname}"
        connection.execute(f"create role {name}".encode())
    yield name
    with client.transaction() as connection:
        connection.execute(f"drop owned by {name}; drop role {name}".encode())


def test_roles_are_granted_listed_and_revoked(trunq: Shell, ada: str) -> None:
    assert "No roles are granted." in trunq("role", "list").said
    assert trunq("role", "grant", "mail", "worker", ada).said == f"{ada} has the role worker of queue mail."
    told = trunq("role", "grant", "mail", "reader", ada, "--payload", "--json").json
    assert told == {"queue": "mail", "role": "reader", "grantee": ada, "payload": True}
    assert trunq("role", "list", "mail", "--json").json == [
        {"queue": "mail", "role": "reader", "grantee": ada, "payload": True},
        {"queue": "mail", "role": "worker", "grantee": ada, "payload": None},
    ]
    shown = trunq("role", "list").said
    assert f"mail reader {ada} yes" in shown
    assert "no more" in trunq("role", "revoke", "mail", "worker", ada).said
    assert "did not have" in trunq("role", "revoke", "mail", "worker", ada).said
    assert trunq("role", "revoke", "mail", "reader", ada, "--json").json["revoked"] is True


def test_the_status_of_a_reader_of_one_queue_says_what_it_sees_and_which_grant_shows_the_rest(
    trunq: Shell, client: Client, ada: str, database: str
) -> None:
    client.create_queue("bills")
    client.publish("bills", 1)
    client.grant_role("mail", "reader", ada)
    client.publish("mail", 1)
    with client.transaction() as connection:
        owner = connection.info.user
        connection.execute(f"alter role {ada} login".encode())
        connection.execute(
            "insert into trunq.duty_failure values ('rotate', 'mail', now(), 'disk full'),"
            " ('rotate', 'bills', now(), 'a secret')"
        )
    hers = ("--dsn", make_conninfo(database, user=ada))
    shown = trunq("status", "--once", *hers)
    assert shown.status == 0
    assert "mail default 1" in shown.said
    assert "disk full" in shown.said
    assert "bills" not in shown.said
    assert "a secret" not in shown.said
    told = (
        "? This role sees 1 queue of 2, and no warnings of the whole database:"
        f" grant {owner} to {ada} shows all, trunq role grant QUEUE reader {ada} one queue more"
    )
    assert shown.said.endswith(told)
    listed = trunq("status", "--json", *hers)
    assert [row["queue"] for row in listed.json] == ["mail"]
    assert told in " ".join(listed.err.split())
    for csv in ("--json", "--csv"):
        assert trunq("status", csv).err == "", "the owner sees all"
    refused = trunq("status", "bills", *hers)
    assert refused.status != 0
    (command,) = re.findall(r"trunq (role grant bills reader \S+)", refused.said)
    assert trunq(*command.split()).status == 0
    assert "bills default 1" in trunq("status", "bills", *hers).said
    assert "bills default" in trunq("overview", *hers).said


def test_a_role_that_sees_no_queue_is_not_told_that_there_is_none(
    trunq: Shell, client: Client, ada: str, database: str
) -> None:
    client.grant_role("mail", "publisher", ada)
    with client.transaction() as connection:
        connection.execute(f"alter role {ada} login".encode())
    for command in (("status", "--once"), ("overview",)):
        said = trunq(*command, "--dsn", make_conninfo(database, user=ada)).said
        assert "There is no queue" not in said
        assert "? This role sees no queue of 1" in said


def test_a_command_that_a_role_may_not_give_names_the_grant(
    trunq: Shell, client: Client, ada: str, database: str
) -> None:
    client.grant_role("mail", "publisher", ada)
    with client.transaction() as connection:
        connection.execute(f"alter role {ada} login".encode())
        owner = connection.info.user
    done = trunq("dead", "list", "mail", "--dsn", make_conninfo(database, user=ada))
    assert done.status != 0
    assert f"grant {owner} to {ada} gives it all, trunq role grant those to one queue." in done.said


def test_mistakes_are_sentences(trunq: Shell, ada: str) -> None:
    for arguments, words in (
        (("mail", "worker", "nobody_at_all"), 'There is no database role "nobody_at_all"'),
        (("nowhere", "worker", ada), 'here is no queue "nowhere"'),
        (("mail", "boss", ada), "boss"),
        (("mail", "worker", ada, "--payload"), "for a reader"),
    ):
        done = trunq("role", "grant", *arguments)
        assert done.status != 0
        assert words.lower() in done.said.lower()
    assert "No roles are granted." in trunq("role", "list").said
