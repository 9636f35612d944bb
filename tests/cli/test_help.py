"""--help teaches: every command says what it does and shows what to type."""

from __future__ import annotations

import shlex
import subprocess
import sys

import pytest

from shelling import Shell
from trunq.cli.command import app, app_for
from trunq.cli.ground.option import ORDER, PANELS

PLUG_INS = {"demo"}
"""Commands of packages beside the library."""

BEGINS = {"#", "trunq", "cat", "select"}
"""How a line of an example begins; one that the terminal broke would begin otherwise."""

COMMANDS = [
    *([name] for name in ("demo", "publish", "worker", "leader", "status", "doctor", "web", "statistics")),
    *([name] for name in ("overview", "backlog", "audit")),
    *(["db", verb] for verb in ("install", "upgrade", "downgrade", "version", "sql", "uninstall")),
    *(["workers", verb] for verb in ("list", "show", "duties", "free")),
    *(["session", verb] for verb in ("list", "end")),
    *(
        ["queue", verb]
        for verb in ("create", "set", "list", "close", "open", "pause", "resume", "convert", "drop")
    ),
    *(["stream", verb] for verb in ("list", "show", "seek", "retry", "losses", "accept", "move", "moves")),
    *(["group", verb] for verb in ("create", "list", "show", "drop")),
    *(["subscription", verb] for verb in ("create", "set", "list", "pause", "resume", "drop", "reset")),
    *(["lane", verb] for verb in ("list", "set", "pause", "resume", "policy", "rankings")),
    *(
        ["schedule", verb]
        for verb in (
            "run",
            "create",
            "list",
            "show",
            "preview",
            "pause",
            "resume",
            "runs",
            "sync",
            "fill",
            "delete",
        )
    ),
    *(
        ["pipeline", verb]
        for verb in ("create", "list", "run", "show", "cancel", "pause", "resume", "backfill", "state")
    ),
    *(["pipeline", verb] for verb in ("skip", "accept", "quarantine", "drop", "instances", "compact")),
    *(["pipeline", verb] for verb in ("shares", "plan", "schema")),
    *(["webhook", verb] for verb in ("create", "list", "drop", "serve")),
    *(["message", verb] for verb in ("show", "list", "progress", "find", "resume", "cancel", "delete")),
    *(["dead", verb] for verb in ("list", "groups", "requeue", "purge", "set")),
    *(["sweep", verb] for verb in ("list", "stop")),
    *(["capture", verb] for verb in ("create", "list", "drop")),
    *(["column", verb] for verb in ("add", "drop", "list")),
    *(["archive", verb] for verb in ("create", "list", "drop")),
    *(["taker", verb] for verb in ("create", "list", "drop")),
    *(["memo", verb] for verb in ("set", "get", "list", "delete")),
    *(["role", verb] for verb in ("grant", "revoke", "list")),
]


def registered() -> list[list[str]]:
    """Every command there is."""
    plain = [[str(command.name)] for command in app().registered_commands]
    for group in app().registered_groups:
        assert group.typer_instance is not None
        plain += [
            [str(group.name), str(command.name)] for command in group.typer_instance.registered_commands
        ]
    return plain


def test_all_commands_are_there_and_no_others() -> None:
    assert sorted(registered()) == sorted(COMMANDS)
    assert {command[0] for command in COMMANDS} == set(ORDER)


def test_a_command_line_loads_the_command_that_it_names_and_no_other() -> None:
    program = (
        "import sys; from trunq.cli.command import app_for; app_for(['lane', 'list']);"
        " print(*(name for name in sys.modules if name.startswith('trunq.cli.')))"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.split()
    assert "trunq.cli.lanes.lane" in loaded
    assert {name for name in loaded if name.startswith(("trunq.cli.pipeline", "trunq.cli.log"))} == set()
    names = [[str(command.name)] for command in app_for(["publish", "mail"]).registered_commands]
    assert names == [["publish"]]
    for words in ([], ["--help"], ["lan"]):
        assert len(app_for(words).registered_groups) == len(app().registered_groups), words


def test_the_commands_stand_under_headings_in_the_order_of_use(shell: Shell) -> None:
    said = shell("--help").out
    assert [heading for heading in PANELS if f"{heading} ─" in said] == list(PANELS)
    for (heading, names), following in zip(PANELS.items(), [*list(PANELS)[1:], "Examples"], strict=True):
        part = said.partition(f"{heading} ─")[2].partition(following)[0]
        firsts = [line.split()[1] for line in part.splitlines() if line.startswith("│ ") and line[2] != " "]
        assert tuple(firsts) == names


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_shows_examples_of_the_command_itself(shell: Shell, command: list[str]) -> None:
    done = shell(*command, "--help")
    assert done.status == 0
    before, _, examples = done.out.partition("Examples")
    assert len(before.split()) > 20
    assert f"trunq {shlex.join(command)}" in " ".join(examples.split())


@pytest.mark.parametrize("command", [*COMMANDS], ids=" ".join)
def test_commands_that_tell_something_tell_it_to_scripts_too(shell: Shell, command: list[str]) -> None:
    said = shell(*command, "--help").out
    if command != ["db", "sql"]:
        assert "--json" in said
    if command not in (["db", "sql"], ["demo"]):
        assert "--dsn" in said
        assert "--embedded" in said


@pytest.mark.parametrize("command", [[], *COMMANDS], ids=" ".join)
def test_each_line_of_the_examples_can_be_pasted(shell: Shell, command: list[str]) -> None:
    lines = shell(*command, "--help").out.partition("Examples")[2].splitlines()
    assert [line for line in lines if line.strip() and line.split()[0] not in BEGINS] == []


def test_the_whole_has_an_overview_in_the_order_of_use(shell: Shell) -> None:
    said = shell("--help").out
    positions = [said.index(f"│ {name} ") for name in (*sorted(PLUG_INS), *ORDER)]
    assert positions == sorted(positions)
    assert shell().status == 2
    assert shell("--version").out.startswith("trunq ")
