"""The files of SQL that an install applies, in their order: of trunq, and of other systems' APIs over it.

Such an API is a package beside this one, with a folder sql: an entry point of the group `trunq.facades` has
its name and the package.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from importlib.resources import files
from typing import Final

from trunq.plan import write_settings

_ORDER: Final = {"schema.sql": 0, "view.sql": 2, "role.sql": 3}
"""Which files of a facade come before the others, and which after them."""


_FUNCTION: Final = re.compile(
    r"(?m)^create or replace (?:function|procedure) (?P<made>[\w.]+)\((?P<taken>[^()]*)\)"
    r"|^(?:comment|\w+ execute) on (?:function|procedure) (?P<named>[\w.]+)(?= (?:is|to|from)\b)"
)
"""Where a file makes a function, and where it names one that it has made."""


@dataclass(frozen=True, slots=True)
class Migration:
    """One file of sql/migrations."""

    number: int
    name: str
    sql: str


@cache
def migrations() -> tuple[Migration, ...]:
    """Every migration, in order; their numbers are 1, 2, 3 without a gap."""
    return tuple(
        Migration(int(name[:4]), name.removesuffix(".sql"), sql) for name, sql in _read("migrations")
    )


@cache
def function_files() -> tuple[tuple[str, str], ...]:
    """Every file of functions, whatever its room, in the order of names, then those of specimens."""
    folders = ("functions", "specimen/queue", "specimen/lanes", "specimen/unique")
    return tuple((f"{folder}/{name}", _sign(sql)) for folder in folders for name, sql in _read(folder))


@cache
def facades() -> dict[str, str]:
    """Other systems' APIs over trunq's queues that are installed here, and the package of each."""
    return {each.name: each.value for each in sorted(entry_points(group="trunq.facades"))}


@cache
def facade_files(facade: str) -> tuple[tuple[str, str], ...]:
    """Path and text of every file of a facade, in the order they are applied."""
    found = sorted(_read("", facades()[facade]), key=lambda file: _ORDER.get(file[0], 1))
    return tuple((f"{facade}/{name}", _sign(sql)) for name, sql in found)


def _read(folder: str, package: str = "trunq") -> list[tuple[str, str]]:
    top = [*(files(package) / "sql" / folder).iterdir()]
    paths = [
        *top,
        *(path for room in top if room.is_dir() and room.name != "back" for path in room.iterdir()),
    ]
    return sorted((path.name, path.read_text("utf-8")) for path in paths if path.name.endswith(".sql"))


def _sign(sql: str) -> str:
    """Name functions with their arguments: a former version's, with others, may still be in the database."""
    made: dict[str, str] = {}

    def complete(found: re.Match[str]) -> str:
        if found["named"]:
            return f"{found[0]}({made[found['named']]})"
        made[found["made"]] = ",".join(re.split(r"\sdefault\s", one)[0] for one in found["taken"].split(","))
        return found[0]

    return _FUNCTION.sub(complete, write_settings(sql))
