"""What people see on terminals of several widths, with and without colours, and how they answer."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from shelling import Shell, at_a_terminal, start
from trunq import Client
from trunq.cli.ground import completion

ESCAPE = "\x1b["
LONG = "invoices_of_the_european_branch"


def plain(shown: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown)


@pytest.fixture
def busy(client: Client) -> Client:
    for queue in ("mail", LONG):
        client.create_queue(queue)
        client.subscribe(queue, "audit_of_everything")
        client.subscribe(queue, "ledger", mode="exclusive")
        client.publish_many(queue, list(range(1500)))
        held = client.lease(queue, "default", "postman", 3)
        client.reject(queue, "default", held[0].lease_id, held[0].token, [held[0].id], errors=["no " * 40])
    return client


@pytest.mark.parametrize("columns", [40, 60, 80, 120])
def test_status_fits_the_terminal_and_breaks_no_name(
    busy: Client, database: str, tmp_path: Path, columns: int
) -> None:
    busy.elect("ada")
    status, shown = at_a_terminal("status", "--once", columns=columns, directory=tmp_path, TRUNQ_DSN=database)
    assert status == 0, shown
    lines = plain(shown).splitlines()
    assert max(map(len, lines)) <= columns
    for name in ("mail", LONG, "audit_of_everything", "ledger (exclusive)"):
        assert any(name in line for line in lines), shown
    head = next(line for line in lines if "ready" in line)
    shown_columns = head.split()
    everything = ["queue", "subscription", "ready", "leased", "delayed", "dead", "oldest", "workers", "done"]
    assert "ready" in shown_columns
    # Those on the right are gone, and named.
    numbers = everything[2:]
    kept = [name for name in numbers if name in shown_columns]
    assert kept == numbers[: len(kept)]
    assert len(kept) >= {40: 2, 60: 4, 80: 7, 120: 7}[columns]
    said = " ".join(plain(shown).split())
    assert (f"No room for: {', '.join(numbers[len(kept) :])}." in said) == (kept != numbers)


def test_what_is_piped_has_all_columns_unless_columns_says_otherwise(
    busy: Client, database: str, tmp_path: Path
) -> None:
    busy.elect("ada")

    def width(**environment: str) -> int:
        process = start("status", "--once", directory=tmp_path, TRUNQ_DSN=database, **environment)
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        return max(map(len, out.splitlines()))

    assert width(COLUMNS="") > 100
    assert 30 < width(COLUMNS="40") <= 60


@pytest.mark.parametrize("command", [["status", "--once"], ["--help"], ["message", "show", "mail", "1"]])
def test_no_color_is_honoured_to_the_last_escape(
    client: Client, database: str, tmp_path: Path, command: list[str]
) -> None:
    client.create_queue("mail")
    client.publish("mail", 1)
    given = {"TRUNQ_DSN": database}
    _, coloured = at_a_terminal(*command, columns=80, directory=tmp_path, **given)
    status, bare = at_a_terminal(*command, columns=80, directory=tmp_path, NO_COLOR="1", **given)
    assert ESCAPE in coloured
    assert (status, ESCAPE in bare) == (0, False)
    # As no-color.org has it: empty is not set.
    assert ESCAPE in at_a_terminal(*command, columns=80, directory=tmp_path, NO_COLOR="", **given)[1]


def test_a_table_has_dates_and_ages_and_drops_what_has_no_room(
    busy: Client, database: str, tmp_path: Path
) -> None:
    (dead,) = busy.list_dead("mail")
    for columns, has_room in ((120, True), (40, False)):
        status, shown = at_a_terminal(
            "dead", "list", "mail", columns=columns, directory=tmp_path, TRUNQ_DSN=database
        )
        lines = plain(shown).splitlines()
        assert status == 0
        assert max(map(len, lines)) <= columns
        assert (f"{dead.died_at.astimezone():%Y-%m-%d %H:%M:%S}" in plain(shown)) == has_room
        assert ("died" in lines[0].split()) == has_room
        assert {"age", "error"} < set(lines[0].split())
        assert f"{dead.id} " in plain(shown)


@pytest.mark.parametrize(("answer", "left"), [("n\n", 1), ("\n", 1), ("y\n", 0)])
def test_the_dead_are_counted_and_purged_by_who_says_yes(
    busy: Client, database: str, tmp_path: Path, answer: str, left: int
) -> None:
    status, shown = at_a_terminal(
        *("dead", "purge", "mail", "--all"),
        columns=80,
        directory=tmp_path,
        answer=answer,
        TRUNQ_DSN=database,
    )
    assert "1 dead message of mail: purge? [y/N]" in plain(shown)
    assert busy.count_dead("mail") == left
    assert status == left
    assert ("Nothing was changed." in shown) == bool(left)


def test_tab_offers_queues_and_their_subscriptions(
    busy: Client, shell: Shell, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert busy.list_queues()

    def offered(line: str) -> list[str]:
        monkeypatch.setenv("_TRUNQ_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
        return shell().out.split()

    assert "subscription" in offered("trunq sub")
    assert offered("trunq publish ") == []
    monkeypatch.setenv("TRUNQ_DSN", database)
    assert offered("trunq publish ") == [LONG, "mail"]
    assert offered("trunq publish m") == ["mail"]
    assert offered("trunq message list mail --subscription a") == ["audit_of_everything"]
    assert offered("trunq subscription drop mail led") == ["ledger"]


def test_tab_offers_nothing_where_no_database_is(database: str) -> None:
    class Context:
        params = {"dsn": "postgresql:///nosuch?host=/nowhere"}  # noqa: RUF012

    assert completion.queues(Context()) == []
    Context.params = {"dsn": database, "embedded": True}  # type: ignore[dict-item]
    assert completion.subscriptions(Context()) == []
