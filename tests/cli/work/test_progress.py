"""Progress in the shell."""

from __future__ import annotations

from shelling import Shell
from trunq import Client


def test_progress_is_listed_and_shown_with_its_message(trunq: Shell, client: Client) -> None:
    client.create_queue("mail")
    assert "No handler of queue mail reported progress." in trunq("message", "progress", "mail").said
    one, two, _ = client.publish_many("mail", [1, 2, 3])
    first, second, _ = client.lease("mail", "default", "ada", 3)
    client.set_progress(first, percent=12.5, note="begun")
    client.set_progress(second, percent=100, checkpoint={"at": 7})
    client.retry([second], after=60)
    said = trunq("message", "progress", "mail").said
    assert f"{one} default yes 12.5 % begun ada" in said
    assert f"{two} default no 100 % 9 B ada" in said
    rows = trunq("message", "progress", "mail", "--subscription", "default", "--limit", "1", "--json").json
    assert [(row["id"], row["is_running"], row["percent"]) for row in rows] == [(two, False, 100)]
    assert rows[0]["checkpoint_bytes"] == 9
    shown = trunq("message", "show", "mail", str(one)).said
    assert "percent 12.5 %" in shown
    assert "note begun" in shown
    assert "checkpoint" not in shown
    (row,) = trunq("message", "show", "mail", str(two), "--json").json
    assert row["progress"]["checkpoint_bytes"] == 9
    (row,) = trunq("message", "show", "mail", "3", "--json").json
    assert row["progress"] is None
