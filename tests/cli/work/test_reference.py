"""An error found by its reference, and what users may see, from the shell."""

from __future__ import annotations

import pytest

from shelling import Shell
from trunq import Client


@pytest.fixture
def failed(client: Client) -> tuple[int, str]:
    """A message that was rejected: its id and reference."""
    client.create_queue("mail")
    id = client.publish("mail", 1, kind="letter")
    text = client.add_reference("KeyError: '[card] 4711'\n  shop.py:12", "Your card was declined.")
    client.reject(client.lease("mail", "default", "w7")[0], text)
    reference = client.show_public("mail", id)[0].reference
    assert reference is not None
    return id, reference


def test_an_error_is_found(trunq: Shell, failed: tuple[int, str]) -> None:
    id, reference = failed
    done = trunq("message", "find", f"{reference[:5]}-{reference[5:]}".lower())
    assert done.status == 0
    for said in (reference, f"id {id}", "worker w7", "kind letter", "KeyError: '[card] 4711'"):
        assert said in " ".join(done.out.split())
    (row,) = trunq("message", "find", reference, "--queue", "mail", "--json").json
    assert (row["id"], row["public"], row["error"].split("\n")[1]) == (
        id, "Your card was declined.", "  shop.py:12"
    )  # fmt: skip


def test_none_is_a_mistake_with_the_way_out(trunq: Shell, failed: tuple[int, str]) -> None:
    assert failed
    none = trunq("message", "find", "0123456789")
    assert (none.status, "No error that is still kept has the reference 0123456789" in none.said) == (1, True)
    assert trunq("message", "find", "0123456789", "--json").out.strip() == "[]"
    wrong = trunq("message", "find", "x")
    assert (wrong.status, "ten letters and digits" in wrong.said) == (1, True)


def test_users_see_no_more_than_the_public_text(trunq: Shell, failed: tuple[int, str]) -> None:
    id, reference = failed
    shown = trunq("message", "show", "mail", str(id), "--public")
    assert "dead" in shown.out
    assert reference in shown.out
    assert "Your card was declined." in shown.out
    assert "4711" not in shown.said
    assert trunq("message", "show", "mail", str(id), "--public", "--json").json == [
        {
            "subscription": "default",
            "state": "dead",
            "reference": reference,
            "public": "Your card was declined.",
        }
    ]
    assert "4711" in trunq("message", "show", "mail", str(id)).out
