"""Memos from the shell."""

from __future__ import annotations

from shelling import Shell
from trunq import Client


def test_one_is_set_read_listed_and_deleted(trunq: Shell, client: Client) -> None:
    made = trunq("memo", "set", "acme", "cursor", '{"page": 7}', "--expires", "1d", "--json").json
    memo = client.get_memo("acme", "cursor")
    assert memo is not None
    assert memo.expires_at is not None
    assert (memo.value, memo.version) == ({"page": 7}, made["version"])
    assert trunq("memo", "get", "acme", "cursor").said == '{"page": 7}'
    assert trunq("memo", "get", "acme", "cursor", "--json").json["version"] == made["version"]
    assert "is kept as version" in trunq("memo", "set", "zoo", "n", "null").said
    assert trunq("memo", "get", "zoo", "n").said == "null"
    listed = trunq("memo", "list", "--json").json
    assert [(row["scope"], row["name"], row["value"]) for row in listed] == [
        ("acme", "cursor", {"page": 7}),
        ("zoo", "n", None),
    ]
    assert 'acme cursor {"page": 7}' in trunq("memo", "list", "acme").said
    assert trunq("memo", "list", "--prefix", "x").said == "There are no such memos."
    assert trunq("memo", "delete", "acme", "cursor").said == "Memo cursor of acme is deleted."
    assert trunq("memo", "delete", "acme", "cursor", "--json").json["deleted"] is False
    assert trunq("memo", "delete", "acme", "cursor").said == "There is no memo cursor of acme."


def test_another_version_a_missing_one_and_no_json_are_mistakes(trunq: Shell, client: Client) -> None:
    version = client.set_memo("acme", "n", 1)
    assert trunq("memo", "set", "acme", "n", "2", "--expected", str(version)).status == 0
    late = trunq("memo", "set", "acme", "n", "3", "--expected", str(version))
    assert (late.status, "nothing was changed" in late.said) == (1, True)
    assert trunq("memo", "delete", "acme", "n", "--expected", str(version)).status == 1
    gone = trunq("memo", "get", "acme", "other")
    assert (gone.status, "There is no memo other of acme" in gone.said) == (1, True)
    assert "this is not JSON" in trunq("memo", "set", "acme", "n", "text").said
    large = trunq("memo", "set", "acme", "n", f'"{"x" * 70_000}"')
    assert (large.status, "too large" in large.said) == (1, True)
