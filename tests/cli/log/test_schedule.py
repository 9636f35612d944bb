"""Schedules from the shell."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from shelling import Shell, at_a_terminal
from trunq import Client

SHOP = """
from trunq import Schedule, Worker

schedules = [Schedule(schedule="nightly", queue="mail", cron="0 3 * * *", zone="Europe/Prague")]
worker = Worker("mail")
nothing = 1

@worker.schedule("sweep", every=60, overlap="skip")
async def sweep(message): ...
"""


@pytest.fixture(autouse=True)
def mail(client: Client) -> None:
    client.create_queue("mail")


def test_a_schedule_is_made_shown_paused_resumed_and_deleted(trunq: Shell, client: Client) -> None:
    given = ["--cron", "0 3 * * *", "--zone", "Europe/Prague", "--kind", "report", "--max-attempts", "2"]
    made = trunq("schedule", "create", "nightly", "mail", '{"n": 1}', *given, "--headers", '{"a": "b"}')
    assert re.search(r"Schedule nightly created\. It is due next at 20\d\d-", made.said)
    assert "nightly changed" in trunq("schedule", "create", "nightly", "mail", '{"n": 1}', *given).said
    listed = trunq("schedule", "list").said
    assert "nightly" in listed
    assert "0 3 * * * Europe/Prague" in listed
    shown = trunq("schedule", "show", "nightly").said
    assert 'payload {"n": 1}' in shown
    assert "due times 1,000" in shown
    told = trunq("schedule", "show", "nightly", "--json").json
    assert (told["options"], told["missed"], told["paused"]) == ({"max_attempts": 2}, "one", False)
    said = trunq("schedule", "pause", "nightly", "--for", "2d").said
    assert "Schedule nightly is paused until 20" in said
    assert "trunq schedule resume nightly" in said
    assert trunq("schedule", "list", "--json").json[0]["paused"] is True
    assert "nightly goes on" in trunq("schedule", "resume", "nightly").said
    assert "was not paused" in trunq("schedule", "resume", "nightly").said
    assert trunq("schedule", "fill", "--json").json == {"schedules": 1}
    assert trunq("schedule", "delete", "nightly").said == "Schedule nightly deleted."
    assert client.list_schedules() == []
    assert "trunq schedule create" in trunq("schedule", "list").said


def test_runs_name_what_was_skipped_and_why(trunq: Shell, client: Client) -> None:
    assert trunq("schedule", "create", "sweep", "mail", "--every", "1h", "--json").json["created"] is True
    assert "has not run yet" in trunq("schedule", "runs", "sweep").said
    with client.transaction() as connection:
        connection.execute("set local trunq.clock_offset = '3 hours 10 minutes'")
        client.fire(connection=connection)
    said = trunq("schedule", "runs", "sweep").said
    assert "missed 2" in said
    fired, missed = trunq("schedule", "runs", "sweep", "--json").json
    assert (fired["skipped"], missed["skipped"], missed["runs"], missed["id"]) == (None, "missed", 2, None)


def test_a_preview_needs_no_database(shell: Shell) -> None:
    said = shell("schedule", "preview", "--cron", "30 2 * * *", "--zone", "Europe/Prague", "-n", "3").out
    lines = said.splitlines()
    assert len(lines) == 3
    assert all(re.fullmatch(r"\w{3} 20\d\d-\d\d-\d\d 0[23]:[03]0:00 CES?T", line) for line in lines)
    told = shell(
        "schedule", "preview", "--every", "90m", "--start-at", "2999-01-01", "--json", "-n", "2"
    ).json
    assert told == ["2999-01-01T00:00:00+00:00", "2999-01-01T01:30:00+00:00"]


def test_days_are_those_of_a_calendar(trunq: Shell, shell: Shell, client: Client) -> None:
    given = ["--every", "2d", "--at", "09:00", "--zone", "Europe/Prague"]
    said = shell("schedule", "preview", *given, "--start-at", "2999-03-31", "-n", "2").out.splitlines()
    assert [line[4:25] for line in said] == ["2999-03-31 09:00:00 C", "2999-04-02 09:00:00 C"]
    assert "created" in trunq("schedule", "create", "stock", "mail", *given).said
    assert "every 2 days at 09:00:00 Europe/Prague" in trunq("schedule", "list").said
    assert trunq("schedule", "list", "--json").json[0]["calendar"] == "2 days"
    assert "created" in trunq("schedule", "create", "close", "mail", "--every", "1 month").said
    assert "every 1 mon UTC" in trunq("schedule", "show", "close").said


def test_a_preview_of_a_schedule_is_what_stands_in_the_database(trunq: Shell, client: Client) -> None:
    client.create_schedule("nightly", "mail", cron="@daily", zone="Asia/Tokyo")
    shown = trunq("schedule", "preview", "nightly", "-n", "2").out.splitlines()
    assert [line[-12:] for line in shown] == ["00:00:00 JST"] * 2


def test_the_database_becomes_equal_to_a_list_in_the_code(
    trunq: Shell, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shop_of_schedules.py").write_text(SHOP)
    monkeypatch.syspath_prepend(tmp_path)
    client.create_schedule("by_hand", "mail", every=60)
    assert trunq("schedule", "sync", "shop_of_schedules:schedules").said == "Schedule nightly created."
    assert "Nothing was to be changed" in trunq("schedule", "sync", "shop_of_schedules:schedules").said
    told = trunq("schedule", "sync", "shop_of_schedules:worker", "--json").json
    assert told == [
        {"schedule": "nightly", "change": "deleted"},
        {"schedule": "sweep", "change": "created"},
    ]
    (sweep,) = [row for row in client.list_schedules() if row.schedule == "sweep"]
    assert (sweep.queue, sweep.kind, sweep.overlap) == ("mail", "sweep", "skip")
    assert len(client.list_schedules()) == 2
    done = trunq("schedule", "sync", "shop_of_schedules:nothing")
    assert (done.status, "neither a list of trunq.Schedule" in done.said) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["create", "s", "mail", "--cron", "61 * * * *"], "'61 * * * *' cannot be read: bad minute"),
        (["create", "s", "mail", "--cron", "@daily", "--zone", "Mars"], "no time zone 'Mars'"),
        (["create", "s", "mail"], "one of them"),
        (["create", "s", "mail", "--every", "1d", "--at", "noon"], "is no time of the day"),
        (["create", "s", "mail", "{", "--every", "1h"], "The payload is not JSON"),
        (["create", "s", "gone", "--every", "1h"], "trunq queue create"),
        (["preview"], "Say of what"),
        (["preview", "gone"], 'no schedule "gone"'),
        (["show", "gone"], "trunq schedule list"),
        (["pause", "gone"], "trunq schedule list"),
        (["runs", "gone"], "trunq schedule list"),
        (["delete", "gone"], "trunq schedule list"),
        (["sync", "shop"], "does not name a list of schedules"),
    ],
)
def test_a_mistake_is_told_with_the_way_out(trunq: Shell, arguments: list[str], words: str) -> None:
    done = trunq("schedule", *arguments)
    assert done.status == 1
    assert words in done.said
    assert "Traceback" not in done.said


def test_lists_fit_forty_columns(database: str, client: Client, tmp_path: Path) -> None:
    client.create_schedule("nightly", "mail", cron="0 3 * * *", zone="Europe/Prague")
    for command in (["list"], ["show", "nightly"], ["preview", "nightly"], ["runs", "nightly"]):
        status, shown = at_a_terminal(
            "schedule", *command, columns=40, directory=tmp_path, TRUNQ_DSN=database
        )
        assert status == 0
        assert "nightly" in shown or command[0] == "preview"
    shown = at_a_terminal("schedule", "list", columns=40, directory=tmp_path, TRUNQ_DSN=database)[1]
    assert max(map(len, re.sub(r"\x1b\[[0-9;]*m", "", shown).splitlines())) <= 40
