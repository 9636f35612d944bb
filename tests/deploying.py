"""What lies in ops/: its files, the commands in them, and what the metrics are called."""

from __future__ import annotations

import json
import re
import shlex
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import typer
import yaml

from trunq.cli.command import app
from trunq.metrics.figure import names

ROOT = Path(__file__).parents[1]
OPS = ROOT / "ops"
FILES = sorted(path for path in OPS.rglob("*") if path.is_file() and "__pycache__" not in path.parts)

COMMAND: Any = typer.main.get_command(app())

METRICS = names()

WRITTEN = re.compile(rf"""\btrunq["']?,?(?:\s+-\s+|[ ]+)["']?(?:{"|".join(COMMAND.commands)})\b""")
"""A command, as it looks in any of these files: words, or a list of JSON or YAML."""


Unit = dict[str, dict[str, list[str]]]
"""A unit of systemd: by section and name, each value that is set."""


def unit(path: Path) -> Unit:
    """A unit, read from its file."""
    found: Unit = {}
    section = ""
    for line in path.read_text().splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif line and line[0] not in "#;":
            name, is_set, value = line.partition("=")
            assert is_set, line
            found.setdefault(section, {}).setdefault(name, []).append(value)
    return found


def documents(path: Path) -> list[dict[str, Any]]:
    """The documents of a file of YAML."""
    return [each for each in yaml.safe_load_all(path.read_text()) if each is not None]


def manifests() -> dict[tuple[str, str], dict[str, Any]]:
    """What ops/kubernetes has, by kind and name."""
    found = [each for path in sorted((OPS / "kubernetes").glob("*.yaml")) for each in documents(path)]
    return {(each["kind"], each.get("metadata", {}).get("name", "")): each for each in found}


def pods() -> dict[str, dict[str, Any]]:
    """The specification of the pods of each workload."""
    return {
        f"{kind}/{name}": each["spec"]["template"]["spec"]
        for (kind, name), each in manifests().items()
        if "template" in each.get("spec", {})
    }


def units() -> dict[str, Unit]:
    """The units of systemd, by the names of their files."""
    return {path.name: unit(path) for path in sorted((OPS / "systemd").glob("*.service"))}


def compose() -> dict[str, Any]:
    """The file of Compose."""
    (found,) = documents(OPS / "docker" / "compose.yml")
    return found


def services() -> dict[str, dict[str, Any]]:
    """Those of its services that run trunq."""
    return {name: each for name, each in compose()["services"].items() if each["image"] == "trunq"}


def instructions() -> list[tuple[str, str]]:
    """The instructions of the Dockerfile, each with what follows, continued lines joined."""
    text = (OPS / "docker" / "Dockerfile").read_text()
    lines = re.sub(r"^#[^\n]*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ").splitlines()
    split = (line.strip().partition(" ") for line in lines if line.strip())
    return [(first, rest.strip()) for first, _, rest in split]


def stages() -> dict[str, list[tuple[str, str]]]:
    """The instructions of each stage of the Dockerfile."""
    found: dict[str, list[tuple[str, str]]] = {}
    name = ""
    for first, rest in instructions():
        if first == "FROM":
            name = rest.rpartition(" AS ")[2]
        found.setdefault(name, []).append((first, rest))
    return found


def healthcheck() -> list[str]:
    """The command by which the image asks whether what it runs is alive."""
    ((_, rest),) = [each for each in stages()["trunq"] if each[0] == "HEALTHCHECK"]
    return list(json.loads(rest.partition("CMD ")[2]))


def commands(path: Path) -> Iterator[list[str]]:
    """The arguments of each command `trunq` in a file."""
    text = path.read_text()
    comments = re.findall(r"^\s*(?:#|--) ?(.*)$", text, re.MULTILINE)
    for line in [*comments, *_texts(path)]:
        for quoted in re.findall(r"`trunq ([^`]+)`", line):
            yield shlex.split(quoted)
        if plain := re.search(r"(?:^|: )trunq (?=\w)([^`:]*)$", line):
            yield shlex.split(plain[1])
    if path.suffix in (".yml", ".yaml"):
        for each in documents(path):
            yield from _lists(each)
    elif path.suffix == ".service":
        yield shlex.split(unit(path)["Service"]["ExecStart"][0])[1:]
    elif path.name == "Dockerfile":
        yield from _steps()


def _steps() -> Iterator[list[str]]:
    """The commands that building the image runs."""
    for first, rest in instructions():
        for part in re.split(r"&&|\|\||;", rest) if first == "RUN" else []:
            if (words := shlex.split(part.partition(">")[0])) and words[0] == "trunq":
                yield words[1:]


def implied(path: Path) -> Iterator[list[str]]:
    """The arguments of commands that the image begins with `trunq`."""
    if path.name == "compose.yml":
        for each in services().values():
            yield [str(argument) for argument in each["command"]]
    if path.name == "Dockerfile":
        yield from (json.loads(rest) for first, rest in stages()["trunq"] if first == "CMD")


def _texts(path: Path) -> list[str]:
    """The texts of the dashboard that people read."""
    if path.suffix != ".json":
        return []
    dashboard = json.loads(path.read_text())
    return [str(each.get("description", "")) for each in [dashboard, *dashboard["panels"]]]


def _lists(value: Any) -> Iterator[list[str]]:
    if isinstance(value, dict):
        for each in value.values():
            yield from _lists(each)
    elif isinstance(value, list):
        if value and value[0] == "trunq":
            yield [str(each) for each in value[1:]]
        for each in value:
            yield from _lists(each)


def parse(arguments: list[str]) -> Any:
    """What the real command line makes of these arguments; raises as it does, and runs nothing."""
    command, rest = COMMAND, arguments
    context = command.make_context("trunq", list(rest), resilient_parsing=False)
    while hasattr(command, "commands"):
        name, command, rest = command.resolve_command(context, rest)
        context = command.make_context(name, list(rest), parent=context)
    return context


def seconds(time: str | int) -> float:
    """A time as these files have it: 110s, 1m, 120."""
    found = re.fullmatch(r"(\d+)(s|m|h)?", str(time))
    assert found is not None, time
    return int(found[1]) * {"s": 1, "m": 60, "h": 3600, None: 1}[found[2]]


def free_ports(count: int) -> list[int]:
    """Ports of this machine that nobody has."""
    with ExitStack() as stack:
        found = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in found:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in found]
