"""What people see on terminals of several widths, with and without colours, and how they answer."""

from __future__ import annotations

import io
import re
from pathlib import Path

import psycopg
import pytest
from rich.console import Console

from shelling import Shell, at_a_terminal, start
from trunq import Client
from trunq.cli.ground import completion
from trunq.cli.operate.status import _shown

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


@pytest.fixture
def many(client: Client) -> Client:
    """Two dozen subscriptions, the last two of which wait for somebody."""
    client.create_queue("mail")
    client.elect("ada")
    names = [f"s{n:02}" for n in range(22)]
    for name in names:
        client.subscribe("mail", name)
    client.publish("mail", 1)
    for name in ("default", *names[:-2]):
        held = client.lease("mail", name, "postman", 1)
        client.ack("mail", name, held[0].lease_id, held[0].token, [held[0].id])
    client.pause_subscription("mail", names[-2])
    return client


def test_of_many_subscriptions_the_status_tells_the_worst_first(many: Client, trunq: Shell) -> None:
    said = [line.split()[1] for line in trunq("status", "--once").out.splitlines() if line.startswith("mail")]
    assert said == ["s21", "s20", "default", *(f"s{n:02}" for n in range(20))]


def test_a_status_that_does_not_fit_says_how_much_is_left_out(many: Client) -> None:
    console = Console(width=100, height=20, file=io.StringIO())
    console.print(_shown(many, None, console.height))
    told = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert len(told) < 20
    shown = [line.split()[1] for line in told if line.startswith("mail")]
    assert shown[:2] == ["s21", "s20"]
    assert f"{23 - len(shown)} subscriptions more: trunq status --once" in told


def test_of_many_warnings_the_status_tells_ten_and_how_many_there_are(
    many: Client, trunq: Shell, database: str
) -> None:
    many.publish("mail", 2)
    with psycopg.connect(database, autocommit=True) as session:
        session.execute(f"alter database {session.info.dbname} set trunq.clock_offset = '600 s'".encode())
    done = trunq("status", "--once")
    assert sum(line.startswith("! nobody has read") for line in done.out.splitlines()) == 10, done.out
    assert done.out.endswith("22 warnings in all, the worst first: trunq doctor\n")


def test_lines_of_the_doctor_stand_under_their_beginning(
    client: Client, database: str, tmp_path: Path
) -> None:
    client.create_queue("mail")
    client.pause_queue("mail")
    client.publish("mail", 1)
    _, shown = at_a_terminal("doctor", columns=60, directory=tmp_path, TRUNQ_DSN=database)
    lines = plain(shown).splitlines()
    first = next(n for n, line in enumerate(lines) if line.startswith("! warning subscription"))
    assert re.match(r" {10}\S", lines[first + 1]), shown
    assert lines[first + 3] == "    trunq queue resume mail", shown


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
