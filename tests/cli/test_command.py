"""What each command does."""

from __future__ import annotations

import csv
import io
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from shelling import Shell
from trunq import Client, install
from trunq.display import attempt


def test_install_puts_trunq_into_a_database(shell: Shell, new_database: Any) -> None:
    empty = new_database("template1")
    before = shell("db", "version", "--dsn", empty)
    assert "not in this database" in before.said
    first = shell("db", "install", "--dsn", empty)
    assert "trunq is installed" in first.said
    assert first.status == 0
    again = shell("db", "install", "--dsn", empty, "--json")
    newest = install.newest()
    nothing = {
        "before": newest,
        "after": newest,
        "functions_applied": False,
        "facades_applied": [],
        "queues": 0,
    }
    assert again.json == nothing
    facade = shell("db", "install", "--dsn", empty, "--facade", "pgq", "--json")
    assert facade.json == {**nothing, "facades_applied": ["pgq"]}
    assert "create schema pgq;" in shell("db", "sql", "--facade", "pgq").out
    assert shell("db", "version", "--dsn", empty, "--json").json == {
        "database": install.newest(),
        "program": install.newest(),
    }
    assert "up to date" in shell("db", "upgrade", "--dsn", empty).said


def test_the_printed_script_is_the_install(trunq: Shell, tmp_path: Path) -> None:
    assert trunq("db", "sql").out == install.render()
    assert "Written to" in trunq("db", "sql", "--file", "trunq.sql").said
    assert (tmp_path / "trunq.sql").read_text() == install.render()


def test_a_queue_is_created_listed_and_dropped(trunq: Shell) -> None:
    assert "Queue mail created" in trunq("queue", "create", "mail", "--retention", "7d").said
    assert "is there already" in trunq("queue", "create", "mail").said
    (listed,) = trunq("queue", "list", "--json").json
    assert (listed["queue"], listed["retention"]) == ("mail", 7 * 86_400)
    assert "mail 1 7d" in trunq("queue", "list").said
    assert "Queue mail dropped" in trunq("queue", "drop", "mail").said
    assert "There is no queue yet" in trunq("queue", "list").said


def test_a_payload_is_published_from_an_argument(trunq: Shell, client: Client) -> None:
    client.create_queue("mail")
    done = trunq(
        *("publish", "mail", '{"to": "ada"}', "--kind", "welcome", "--key", "ada"),
        *("--headers", '{"trace": 1}', "--json"),
    )
    (id,) = done.json["ids"]
    (message,) = client.show_message("mail", id)
    assert (message.payload, message.kind, message.key) == ({"to": "ada"}, "welcome", "ada")
    assert message.headers == {"trace": 1}


def test_a_payload_is_published_from_a_file(trunq: Shell, client: Client, tmp_path: Path) -> None:
    client.create_queue("mail")
    (tmp_path / "letter.json").write_text('{\n  "to": "ada"\n}\n')
    assert "Published message" in trunq("publish", "mail", "--file", "letter.json").said
    assert [message.payload for message in client.list_messages("mail")] == [{"to": "ada"}]


def test_lines_of_standard_input_are_published_in_order(trunq: Shell, client: Client) -> None:
    client.create_queue("mail")
    done = trunq("publish", "mail", "--kind", "line", input='{"n": 1}\n\n{"n": 2}\n"three"\n')
    assert "Published 3 messages to mail" in done.said
    leased = client.lease("mail", "default", "tester", 10)
    assert [message.payload for message in leased] == [{"n": 1}, {"n": 2}, "three"]
    assert {message.kind for message in leased} == {"line"}


def test_lines_of_a_file_are_published_in_groups_of_one_transaction(
    trunq: Shell, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trunq.cli.log.publish.GROUP", 2)
    client.create_queue("mail")
    (tmp_path / "five.ndjson").write_text("1\n2\n3\n4\n5\n")
    assert len(trunq("publish", "mail", "--lines", "five.ndjson", "--json").json["ids"]) == 5
    (tmp_path / "broken.ndjson").write_text("1\n2\n3\n4\nfive\n")
    assert "Line 5 of broken.ndjson is not JSON" in trunq("publish", "mail", "--lines", "broken.ndjson").said
    assert sorted(message.payload for message in client.list_messages("mail")) == [1, 2, 3, 4, 5]


def test_a_delayed_message_is_scheduled(trunq: Shell, client: Client) -> None:
    client.create_queue("mail")
    trunq("publish", "mail", "1", "--delay", "1h 30m")
    trunq("publish", "mail", "2", "--due-at", "2999-01-31T18:00+01:00")
    later, sooner = client.list_messages("mail", state="scheduled")
    assert sooner.due_at is not None
    assert sooner.published_at is not None
    assert timedelta(minutes=89) < sooner.due_at - sooner.published_at < timedelta(minutes=91)
    assert later.due_at is not None
    assert later.due_at.isoformat() == "2999-01-31T17:00:00+00:00"


def test_status_counts_what_waits_and_what_is_held(trunq: Shell, client: Client) -> None:
    assert "There is no queue yet" in trunq("status").said
    client.create_queue("mail")
    client.subscribe("mail", "ledger", mode="exclusive")
    client.publish_many("mail", [1, 2, 3])
    client.lease("mail", "default", "tester", 1)
    rows = {row["subscription"]: row for row in trunq("status", "mail", "--json").json}
    assert (rows["default"]["ready"], rows["default"]["leased"]) == (2, 1)
    table = trunq("status", "--once").said
    assert "mail default 2 1" in table
    assert "ledger (exclusive)" in table


def test_the_first_line_of_status_says_when_no_leader_runs(trunq: Shell, client: Client) -> None:
    client.create_queue("mail")
    assert trunq("status", "--once").out.lstrip().startswith("! No leader runs")
    client.elect("ada")
    assert "No leader runs" not in trunq("status", "--once").said


def test_tables_are_printed_as_csv_too(trunq: Shell, client: Client) -> None:
    client.create_queue("mail")
    ids = client.publish_many("mail", [{"to": "ann, bob"}, 2], kind="welcome")
    held = client.lease("mail", "default", "postman", 2)
    client.reject("mail", "default", held[0].lease_id, held[0].token, ids[:1], errors=['no "such" box'])
    for command in ("status", "queue list", "message list mail", "dead list mail"):
        rows = trunq(*command.split(), "--json").json
        read = list(csv.DictReader(io.StringIO(trunq(*command.split(), "--csv").out)))
        assert [list(row) for row in read] == [list(row) for row in rows]
        if command == "message list mail":
            assert sorted((row["id"], row["state"], row["payload"], row["error"]) for row in read) == [
                (str(ids[0]), "dead", '{"to": "ann, bob"}', 'no "such" box'),
                (str(ids[1]), "leased", "2", ""),
            ]


def test_a_message_tells_its_story(trunq: Shell, client: Client) -> None:
    client.create_queue("mail")
    id = client.publish("mail", {"to": "ada"}, kind="welcome")
    (message,) = client.lease("mail", "default", "postman", 1)
    client.reject(
        "mail", "default", message.lease_id, message.token, [id], errors=["no such street"], took=[0.25]
    )
    shown = trunq("message", "show", "mail", str(id))
    assert 'payload {"to": "ada"}' in shown.said
    assert "Subscription default: dead" in shown.said
    assert re.search(r"attempt 1 rejected, by postman at \S+, in 250 ms: no such street", shown.said)
    (told,) = trunq("message", "show", "mail", str(id), "--json").json
    assert (told["state"], told["attempts"][0]["worker"]) == ("dead", "postman")
    assert attempt({"took": 1.0012}) == "running, by None, in 1.001 s"
    listed = trunq("message", "list", "mail", "--state", "dead").said
    assert f"{id} dead welcome" in listed
    assert "No message of queue mail is ready" in trunq("message", "list", "mail", "--state", "ready").said


def test_dead_messages_are_listed_requeued_and_purged(trunq: Shell, client: Client) -> None:
    client.create_queue("mail")
    ids = client.publish_many("mail", [1, 2, 3], kind="welcome")
    held = client.lease("mail", "default", "postman", 3)
    client.reject("mail", "default", held[0].lease_id, held[0].token, ids, errors=["moved"] * 3)
    listed = trunq("dead", "list", "mail").said
    assert "rejected" in listed
    assert "moved" in listed
    assert [row["id"] for row in trunq("dead", "list", "mail", "--json").json] == ids[::-1]
    assert "1 dead message of mail requeued" in trunq("dead", "requeue", "mail", str(ids[0])).said
    assert trunq("dead", "purge", "mail", "--older-than", "1h", "--json").json == {
        "queue": "mail",
        "purged": 0,
    }
    assert "2 dead messages of mail purged" in trunq("dead", "purge", "mail", "--all", "--yes").said
    assert "has no dead messages" in trunq("dead", "list", "mail").said


def test_a_table_in_a_pipe_is_never_cut(trunq: Shell, client: Client) -> None:
    client.create_queue("mail")
    ids = client.publish_many(
        "mail", [1], kind="a_kind_with_quite_a_long_name", key="a_key_of_some_length_too"
    )
    held = client.lease("mail", "default", "postman", 1)
    reason = "an error that goes on " * 10
    client.reject("mail", "default", held[0].lease_id, held[0].token, ids, errors=[reason])
    row = next(line for line in trunq("dead", "list", "mail").out.splitlines() if "rejected" in line)
    assert row.split() == [
        *(
            str(ids[0]),
            "default",
            "a_kind_with_quite_a_long_name",
            "a_key_of_some_length_too",
        ),
        row.split()[4],
        *("rejected", "1"),
        *row.split()[7:9],
        *reason.split(),
    ]


def test_an_embedded_database_is_kept_between_commands(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "created" in shell("queue", "create", "mail", "--embedded").said
    assert (tmp_path / ".trunq" / "data").is_dir()
    shell("publish", "mail", "1", "--embedded", "--directory", ".trunq")
    (row,) = shell("status", "--embedded", "--json").json
    assert row["ready"] == 1
    monkeypatch.setenv("TRUNQ_EMBEDDED", ".trunq")
    assert [row["queue"] for row in shell("queue", "list", "--json").json] == ["mail"]
    assert not (tmp_path / ".trunq" / "data" / "postmaster.pid").exists()


def test_the_settings_name_the_database(shell: Shell, database: str, tmp_path: Path) -> None:
    (tmp_path / "trunq.toml").write_text(f'dsn = "{database}"\n')
    assert "created" in shell("queue", "create", "mail").said
    assert [row["queue"] for row in shell("queue", "list", "--json").json] == ["mail"]


def test_deaths_are_made_known_as_somebody_says(trunq: Shell, client: Client) -> None:
    client.create_queue("mail")
    client.create_queue("failures")
    assert "warning no notify no into no other queue" in trunq("dead", "set", "mail").said
    said = trunq("dead", "set", "mail", "--warn", "--notify", "--into", "failures").said
    assert "warning yes notify on trunq_1_dead into failures" in said
    assert trunq("dead", "set", "mail", "--into", "", "--json").json["into_queue"] is None
    client.publish_many("mail", [1, 2])
    assert client.reject(client.lease("mail", "default", "w", 2), "no") == 2
    assert "2 dead messages" in trunq("dead", "requeue", "mail", "--reason", "rejected", "--yes").said
    assert "0 dead messages" in trunq("dead", "purge", "mail", "--reason", "max_attempts", "--yes").said
