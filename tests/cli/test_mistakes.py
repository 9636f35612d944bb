"""A user's mistake is answered with one sentence that says what to do, and no traceback."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from copying import copied_server
from shelling import Shell
from trunq import Client, install
from trunq.cli.ground.failure import in_shell
from trunq.errors import TrunqError
from trunq.explanation import explain_connection


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["publish", "nosuch", "1"],
            'There is no queue "nosuch". Create it with trunq queue create NAME',
        ),
        (["message", "list", "mail", "-s", "nosuch"], 'Queue "mail" has no subscription "nosuch".'),
        (["message", "show", "mail", "99"], 'Queue "mail" has no message 99.'),
        (["queue", "create", "No Name"], '"No Name" cannot be the name of a queue. 1 to 48 of a-z'),
        (["queue", "create", ""], '"" cannot be the name of a queue.'),
        (["queue", "create", "x" * 49], "cannot be the name of a queue. 1 to 48 of a-z"),
        (["queue", "drop", "nosuch"], 'There is no queue "nosuch".'),
        (["publish", "mail", "hello"], "The payload is not JSON"),
        (["publish", "mail", "1", "--file", "x"], "Give the payload once"),
        (["publish", "mail", "--file", "nosuch.json"], "nosuch.json: No such file or directory."),
        (["publish", "mail", "1", "--delay", "1h", "--due-at", "2999-01-01"], "either --delay or --due-at"),
        (["dead", "requeue", "mail"], "Say which messages to requeue: their ids, a filter"),
        (["dead", "purge", "mail", "1", "--all"], "Give --all, or ids and filters, not both."),
        (["status", "--directory", "here"], "give --embedded too."),
        (["status", "--embedded", "--dsn", "postgresql:///x"], "Give --dsn or --embedded, not both."),
        (["worker", "nosuch:app"], "There is no module nosuch here or installed."),
        (["worker", "os:nosuch"], "The module os has no nosuch. It has no Worker"),
        (["worker", "os:sep"], "os:sep is a str, not a trunq Worker."),
        (["worker", "os"], "'os' does not name a worker. Write module:name"),
        (["leader", "os:sep"], "os:sep is a str, not a trunq Ranks. It has no Ranks: ranks = Ranks() makes"),
        (["leader", "os"], "'os' does not name a Ranks. Write module:name"),
        (
            ["lane", "list", "mail"],
            "has no lanes. Lanes are chosen when a queue is made, or later: trunq queue convert mail",
        ),
        (["publish", "mail", "1", "--unique-key", "k"], "trunq queue convert mail --unique refuse."),
        (["publish", "mail", "1", "--priority", "1"], "it has no priorities. Publish with priority 0"),
        (["schedule", "create", "s", "mail"], "Give --cron or --every."),
        (["subscription", "set", "mail", "default", "--max-running", "1001"], "max_running of subscription"),
        (["queue", "list", "--dsn", "mysql://u:secret@h/db"], "begins with mysql:// is not one of Postgres"),
        (["lane", "policy", "mail", "mail"], "trunq lane policy mail mail fair (or priority, ranked)"),
    ],
)
def test_a_mistake_is_told_in_a_sentence(
    trunq: Shell, client: Client, arguments: list[str], sentence: str
) -> None:
    client.create_queue("mail")
    done = trunq(*arguments)
    assert done.status == 1
    assert done.err.startswith("error: ")
    assert sentence in done.said
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["publish", "mail", "1", "--delay", "10x"], "'10x' is not an interval; write it like 30s"),
        (["publish", "mail", "1", "--delay", "5 5"], "'5 5' is not an interval"),
        (["publish", "mail", "1", "--due-at", "soon"], "'soon' is not a time"),
        (["publish", "mail", "1", "--headers", "[1]"], "this must be a JSON object"),
        (["message", "list", "mail", "--state", "lost"], "'--state': 'lost' is not one of 'scheduled'"),
        (["message", "show", "mail", "first"], "valid integer"),
        (["statsu"], "Did you mean 'status'"),
        (["version"], "No such command 'version'. Write: trunq --version"),
        (["enqueue", "mail"], "No such command 'enqueue'. Write: trunq publish QUEUE PAYLOAD"),
        (["--json", "queue", "list"], "--json goes behind the command: trunq queue list --json"),
        (["--embedded"], "--embedded goes behind the command: trunq COMMAND --embedded"),
    ],
)
def test_what_cannot_be_read_has_status_2(shell: Shell, arguments: list[str], sentence: str) -> None:
    done = shell(*arguments)
    assert done.status == 2
    assert sentence in done.said
    assert "Traceback" not in done.err


def test_the_word_that_an_error_names_is_the_right_one(shell: Shell, client: Client, database: str) -> None:
    """Each is followed, with what stands for an address put in its place."""
    client.create_queue("mail", lanes="key")
    ways = [
        (["--dsn", database, "queue", "list"], "behind the command: "),
        ([f"--dsn={database}", "queue", "list"], "behind the command: "),
        (["lane", "policy", "mail", "fair", "--dsn", database], "which policy: "),
        (["subscription", "set", "mail", "default", "--policy", "fair"], "where lanes are: "),
        (["version"], "Write: "),
        (["queue", "list", "--dsn", "postgresql+psycopg://ada:secret@h/db"], "Leave out +psycopg: "),
    ]
    for arguments, before in ways:
        done = shell(*arguments)
        assert done.status in (1, 2), arguments
        said = done.said.partition(before)[2].rstrip(" ╯╰─.")
        assert "secret" not in done.said
        if said.startswith("postgresql://"):
            assert shell("queue", "list", "--dsn", database).status == 0
            continue
        words = [database if word == "DSN" else word for word in shlex.split(said)][1:]
        if words[0] != "--version" and "--dsn" not in words:
            words += ["--dsn", database]
        assert shell(*words).status == 0, words


def test_a_line_that_is_not_json_publishes_nothing(trunq: Shell, client: Client) -> None:
    client.create_queue("mail")
    done = trunq("publish", "mail", input='{"n": 1}\n{"n": 2\n')
    assert done.status == 1
    assert "Line 2 of standard input is not JSON" in done.said
    assert client.list_messages("mail") == []


def test_a_message_too_large_is_refused_with_the_limit(trunq: Shell, client: Client, tmp_path: Path) -> None:
    client.create_queue("mail")
    noise = os.urandom(9 * 1024 * 1024).hex()  # random, or Postgres would compress it below the limit
    (tmp_path / "large.json").write_text(f'"{noise}"')
    done = trunq("publish", "mail", "--file", "large.json")
    assert done.status == 1
    assert "at most 16777216" in done.said


def test_a_queue_in_use_is_not_dropped(trunq: Shell, client: Client) -> None:
    client.create_queue("mail")
    client.publish("mail", 1)
    done = trunq("queue", "drop", "mail")
    assert done.status == 1
    assert "--force" in done.said
    assert trunq("queue", "drop", "mail", "--force").status == 0


def test_no_database_given(shell: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PGHOST", str(tmp_path))
    done = shell("status", "--once")
    assert done.status == 1
    assert "No database is given" in done.said
    assert "Pass --dsn postgresql://user@host/name, set TRUNQ_DSN, or use --embedded" in done.said


def test_no_server_where_the_address_says(shell: Shell, tmp_path: Path) -> None:
    by_port = shell("status", "--once", "--dsn", "postgresql://127.0.0.1:1/shop")
    assert by_port.status == 1
    assert "No Postgres answers at 127.0.0.1, port 1." in by_port.said
    by_socket = shell("status", "--once", "--dsn", f"postgresql:///shop?host={tmp_path}")
    assert f"No Postgres answers on the socket {tmp_path}" in by_socket.said


def test_an_address_that_is_none(shell: Shell) -> None:
    done = shell("status", "--once", "--dsn", "server=there")
    assert done.status == 1
    assert "The address of the database cannot be read" in done.said


def test_a_database_or_user_that_is_not_there(shell: Shell, database: str) -> None:
    assert (
        "There is no database nosuch"
        in shell("status", "--dsn", make_conninfo(database, dbname="nosuch")).said
    )
    assert (
        "The server knows no user nobody"
        in shell("status", "--dsn", make_conninfo(database, user="nobody")).said
    )


@pytest.fixture(scope="module")
def strict_server() -> Iterator[str]:
    """A server that wants a password from ada, and has her."""
    with TemporaryDirectory() as folder:
        # The server may run as another user than the tests.
        Path(folder).chmod(0o755)
        rules = Path(folder, "pg_hba.conf")
        rules.write_text("local all ada scram-sha-256\nlocal all all trust\n")
        with copied_server(settings={"hba_file": str(rules)}) as server:
            with psycopg.connect(server.dsn, autocommit=True) as connection:
                connection.execute("create user ada password 'enchantress'")
                connection.execute("create user guest")
            yield server.dsn


def test_a_wrong_password(shell: Shell, strict_server: str) -> None:
    wrong = make_conninfo(strict_server, user="ada", password="guess")
    assert "Postgres refuses the password for user ada." in shell("status", "--dsn", wrong).said
    missing = make_conninfo(strict_server, user="ada")
    assert "Postgres wants a password and was given none." in shell("status", "--dsn", missing).said


def test_a_user_without_rights(shell: Shell, strict_server: str) -> None:
    done = shell("queue", "create", "mail", "--dsn", make_conninfo(strict_server, user="guest"))
    assert done.status == 1
    assert "ermission denied" in done.said
    assert "grant postgres to guest gives it all, trunq role grant those to one queue." in done.said


def test_a_database_without_trunq(shell: Shell, new_database: Any) -> None:
    empty = new_database("template1")
    for command in (["status"], ["publish", "mail", "1"], ["db", "upgrade"], ["queue", "list"]):
        done = shell(*command, "--dsn", empty)
        assert done.status == 1
        assert "trunq db install" in done.said


def test_a_database_older_than_the_program(trunq: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    newest = install.newest()
    monkeypatch.setattr(install, "newest", lambda: newest + 1)
    done = trunq("queue", "list")
    assert done.status == 1
    assert "trunq db upgrade" in done.said
    assert "run trunq db upgrade" in trunq("db", "version").said


def test_a_database_newer_than_the_program(trunq: Shell, connection: psycopg.Connection[Any]) -> None:
    connection.execute("insert into trunq.migration (number, name) values (999, 'from_the_future')")
    for command in (["queue", "list"], ["db", "install"]):
        done = trunq(*command)
        assert done.status == 1
        assert "pip install --upgrade trunq" in done.said


def test_a_directory_that_holds_other_things_gets_no_database(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_bytes(b"cat")
    done = shell("status", "--embedded", "--directory", "photos")
    assert done.status == 1
    assert "holds other files (cat.jpg)" in done.said


def test_a_place_that_cannot_be_written(trunq: Shell, tmp_path: Path) -> None:
    done = trunq("db", "sql", "--file", "nosuch/trunq.sql")
    assert done.status == 1
    assert "nosuch/trunq.sql: No such file or directory. Name another place" in done.said
    taken = trunq("status", "--embedded", "--directory", "/proc/nosuch")
    assert taken.status == 1
    assert "Traceback" not in taken.err


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("FATAL:  sorry, too many clients already", "The server has no connection left."),
        ("FATAL:  the database system is starting up", "The server is starting or stopping."),
        ("connection timeout expired", "The server did not answer in time."),
        ("failed to resolve host 'nohost': Name or service not known", "No host is called nohost."),
        ('FATAL:  no pg_hba.conf entry for host "10.0.0.1", user "ada"', 'no entry for host "10.0.0.1"'),
        ("the cat sat on the cable", "The database cannot be reached: The cat sat on the cable."),
    ],
)
def test_what_libpq_says_is_told_as_what_to_do(said: str, told: str) -> None:
    assert told in explain_connection(said).sentences


def test_a_filter_is_named_by_the_options_that_the_shell_has_for_it(trunq: Shell, client: Client) -> None:
    client.create_queue("parts")
    client.subscribe("parts", "due", due_first=True)
    with pytest.raises(TrunqError) as refused:
        client.lease("parts", "due", "w", 1, asks={"kinds": ["mail"]})
    said = in_shell(str(refused.value.hint))
    assert "(trunq subscription create, --kind, --key, --header or --column)" in said
    assert "--filter" not in said
    named = ("--kind", "mail", "--key", "k", "--header", "a=1")
    assert trunq("subscription", "create", "parts", "mail", *named).status == 0
    back = said[said.index("trunq subscription set") :]
    assert trunq(*back.split()[1:]).status == 0
    assert not client.lease("parts", "due", "w", 1, asks={"kinds": ["mail"]})


@pytest.mark.parametrize(
    ("hint", "said"),
    [
        (
            "none: trunq.create_queue(..., p_default_subscription => false)",
            "none: trunq queue create NAME --no-default-subscription",
        ),
        (
            "make one: trunq.create_queue(..., p_lanes => 'key')",
            "make one: trunq queue create NAME --lanes key",
        ),
        (
            "end it: select trunq.unsubscribe('mail', 'default')",
            "end it: trunq subscription drop mail default",
        ),
        (
            "select trunq.subscribe('mail', 'lake', 'exclusive', p_max_attempts => 0)",
            "trunq subscription set mail lake --max-attempts 0",
        ),
        (
            "let it: select trunq.set_publishing('mail', p_announce => true)",
            "let it: trunq queue set mail --announce",
        ),
        (
            "select trunq.set_queue('mail', p_tick_external => true), or",
            "trunq queue set mail --ticks external, or",
        ),
    ],
)
def test_a_hint_of_the_database_is_a_command_that_works(
    trunq: Shell, client: Client, hint: str, said: str
) -> None:
    client.create_queue("mail")
    client.subscribe("mail", "lake", mode="exclusive")
    assert in_shell(hint) == said
    command = said[said.index("trunq ") :].removesuffix(", or").replace("NAME", "made")
    done = trunq(*command.split()[1:], *(["--yes"] if " drop " in command else []))
    assert done.status == 0, done.said
