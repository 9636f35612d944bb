"""`trunq db downgrade`: what it would drop, what it asks, and where that lies afterwards."""

from __future__ import annotations

import json
from pathlib import Path

import psycopg

from shelling import Shell
from trunq import Client, downgrade, install


def test_a_dry_run_says_what_it_would_drop_and_changes_nothing(
    trunq: Shell, client: Client, database: str
) -> None:
    client.create_queue("mail")
    client.create_archive("mail", archive_for="30 days")
    to = str(downgrade.lowest())
    done = trunq("db", "downgrade", "--to", to, "--dry-run")
    assert "takes back migration 0029_archive" in done.said
    assert "archive_for, at_once of trunq.taker: 1 row with a value" in done.said
    assert f"nobody publishes or works until `trunq db upgrade` of the release with schema {to}" in done.said
    assert "Nothing was changed." in done.said
    planned = trunq("db", "downgrade", "--to", to, "--dry-run", "--json").json
    assert {"table": "trunq.taker", "columns": ["archive_for", "at_once"], "rows": 1} in planned["losses"]
    assert install.version(database) == install.newest()


def test_it_asks_and_writes_what_it_drops_into_a_file_that_it_names(
    trunq: Shell, client: Client, database: str, tmp_path: Path
) -> None:
    client.create_queue("mail")
    client.create_archive("mail", archive_for="30 days")
    with psycopg.connect(database, autocommit=True) as session:
        session.execute("create table public.goods (id integer primary key)")
        session.execute("select trunq.capture('public.goods', 'mail')")
        session.execute("select trunq._attend('builder', '{mail}', 'default', 1)")
    to = str(downgrade.lowest())
    refused = trunq("db", "downgrade", "--to", to)
    assert refused.status == 1
    assert f"Go back to schema {to}? Nobody is here to answer, so nothing was changed" in refused.said
    assert "goods, which is captured, refuses changes until the upgrade" in refused.said
    assert "workers run, and will fail: builder" in refused.said
    assert install.version(database) == install.newest()

    file = tmp_path / "dropped.jsonl"
    done = trunq("db", "downgrade", "--to", to, "--yes", "--file", str(file))
    assert f"Went back from schema {install.newest()} to {to}. What was dropped is in" in done.said
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["row"]["archive_for"] for line in lines if line.get("table") == "trunq.taker"] == ["30 days"]
    failed = trunq("queue", "list")
    assert failed.status == 1
    assert "was taken back to schema" in failed.said
    assert "trunq db upgrade" in failed.said
    assert "Upgraded from schema" in trunq("db", "upgrade").said
    assert client.list_archives()[0].archive_for is not None


def test_without_a_name_the_file_is_named_after_database_and_time(
    trunq: Shell, client: Client, database: str, tmp_path: Path
) -> None:
    client.create_queue("mail")
    to = install.newest() - 1
    done = trunq("db", "downgrade", "--to", str(to), "--yes", "--json").json
    name = psycopg.conninfo.conninfo_to_dict(database)["dbname"]
    assert done["file"].startswith(f"trunq-{name}-to-{to}-2")
    assert (done["after"], done["migrations"]) == (to, [install.migrations()[-1].name])


def test_what_cannot_be_taken_back_is_refused_with_a_sentence(trunq: Shell, client: Client) -> None:
    client.list_queues()
    refused = trunq("db", "downgrade", "--to", "1", "--dry-run")
    assert refused.status == 1
    assert "cannot be taken back: Neither this migration nor one before it" in refused.said
    assert f"Schema {downgrade.lowest()} is the oldest" in refused.said


def test_a_schedule_by_the_calendar_is_in_the_way_and_a_sentence_says_so(
    trunq: Shell, client: Client
) -> None:
    client.create_queue("reports")
    client.create_schedule("stock", "reports", every="2 days", at="09:00", zone="Europe/Prague")
    refused = trunq("db", "downgrade", "--to", "41", "--dry-run")
    assert refused.status == 1
    assert "cannot be taken back: schedules go by the calendar" in refused.said
    assert "trunq schedule list" in refused.said
    assert "Traceback" not in refused.said


def test_messages_leased_by_their_ids_ahead_are_in_the_way_until_the_rest_was_read(
    trunq: Shell, client: Client
) -> None:
    client.create_queue("mail")
    (first, _, third) = client.publish_many("mail", [1, 2, 3])
    client.lease_ids("mail", "default", "desk", [third])
    refused = trunq("db", "downgrade", "--to", "33", "--dry-run")
    assert (refused.status, "lie ahead of its position" in refused.said) == (1, True), refused.said
    assert [message.id for message in client.lease("mail", "default", "desk", 5)][:1] == [first]
    assert client.lease("mail", "default", "desk", 5) == []
    allowed = trunq("db", "downgrade", "--to", "33", "--dry-run")
    assert allowed.status == 0, allowed.said
