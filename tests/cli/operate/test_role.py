"""Roles of a queue, granted, listed and revoked from the shell."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

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
