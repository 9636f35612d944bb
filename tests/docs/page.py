r"""A page, run as its reader runs it: from top to bottom, each block by its language.

`sh` runs in bash, in an empty folder; `python` runs in one namespace for the whole page; `sql` runs statement
by statement in one session; YAML is parsed. A block that a line such as "`shop.py`:" introduces is a file,
which later blocks use. Blocks of other languages, of none, and those marked `elsewhere`, are not run.

In SQL, a line `--> value` says what the statement above returns first, `--> TQ003` what it raises. As in
psql, `\gset` instead of the semicolon keeps the columns of a row, for `:name` and `:'name'`.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import yaml

from docs.program import Programs

LANGUAGES = {
    "",
    "dockerfile",
    "go",
    "ini",
    "javascript",
    "json",
    "mermaid",
    "php",
    "python",
    "sh",
    "sql",
    "text",
    "toml",
    "yaml",
}

BLOCK = re.compile(
    r"(?:^`(?P<file>[\w./-]+)`:\n\n)?^```(?P<language>\w*)(?P<where> elsewhere)?\n(?P<text>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)

STATEMENT = re.compile(
    r"(?P<sql>(?:--[^\n]*\n|\s|(?P<quote>\$\w*\$).*?(?P=quote)|'[^']*'|[^;'])+?)"
    r"(?:;|(?P<gset>\\gset))[ ]*(?:\n--> (?P<expected>[^\n]*)|(?=\n)|$)",
    re.DOTALL,
)

PROGRAM = re.compile(r"python (\S+\.py)\n")
"""A block of `sh` that only runs a program of the page."""

VARIABLE = re.compile(r"(?<![:\w]):('?)([a-z_]+)\1")


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    language: str
    text: str
    file: str | None
    line: int


@dataclass(frozen=True)
class Statement:
    """One statement of SQL, and what the page says of it."""

    sql: str
    is_kept: bool
    expected: str | None


def blocks(page: Path) -> list[Block]:
    """The blocks of a page, in their order."""
    text = page.read_text()
    return [
        Block(found["language"], found["text"], found["file"], text.count("\n", 0, found.start("text")) + 1)
        for found in BLOCK.finditer(text)
        if found["where"] is None
    ]


def statements(text: str) -> Iterator[Statement]:
    """The statements of a block of SQL; fails on what is left over."""
    place = 0
    for found in STATEMENT.finditer(text):
        assert text[place : found.start()].strip() == "", text[place : found.start()]
        yield Statement(found["sql"].strip(), found["gset"] is not None, found["expected"])
        place = found.end()
    rest = re.sub(r"^--[^\n]*$", "", text[place:], flags=re.MULTILINE)
    assert rest.strip() == "", f"a statement without an end: {rest}"


class Reader:
    """Somebody who follows a page, in a folder and a database of his own."""

    def __init__(
        self,
        page: Path,
        folder: Path,
        connection: psycopg.Connection[Any],
        environment: dict[str, str],
        programs: Programs | None = None,
    ) -> None:
        self.page = page
        self.folder = folder
        self.programs = programs
        self.connection = connection
        self.environment = environment
        self.names: dict[str, Any] = {"__name__": "page"}
        self.variables: dict[str, str] = {}

    def follow(self) -> int:
        """Run every block; returns how many."""
        ran = 0
        for block in blocks(self.page):
            assert block.language in LANGUAGES, f"{self.page.name}:{block.line}: {block.language}?"
            if block.language == "yaml":
                assert all(isinstance(each, dict) for each in yaml.safe_load_all(block.text)), block.line
            if block.file is not None:
                (self.folder / block.file).write_text(block.text)
                # Another page may have imported a module of this name.
                if block.file.endswith(".py"):
                    sys.modules.pop(Path(block.file).stem, None)
            elif block.language in {"python", "sh", "sql"}:
                getattr(self, block.language)(block)
                ran += 1
        return ran

    def python(self, block: Block) -> None:
        # Lines are those of the page, in a traceback too.
        code = compile("\n" * block.line + block.text, str(self.page), "exec")
        exec(code, self.names)  # noqa: S102

    def sh(self, block: Block) -> None:
        if self.programs is not None and (program := PROGRAM.fullmatch(block.text)):
            wrong = self.programs.run(program[1], self.environment)
            assert not wrong, f"{self.page.name}:{block.line}: {wrong}"
            return
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block.text],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, f"{self.page.name}:{block.line}: {done.stdout}{done.stderr}"

    def sql(self, block: Block) -> None:
        for statement in statements(block.text):
            where = f"{self.page.name}:{block.line}: {statement.sql}"
            returned, raised = self._execute(statement)
            if statement.expected is None:
                assert raised is None, f"{where}\n{raised}"
            else:
                got = returned if raised is None else raised.sqlstate
                assert got == statement.expected, f"{where}\n{raised or got}"

    def _execute(self, statement: Statement) -> tuple[str, psycopg.Error | None]:
        """What a statement returned first, or what it raised."""
        try:
            cursor = self.connection.execute(VARIABLE.sub(self._value, statement.sql).encode())
        except psycopg.Error as error:
            return "", error
        result = cursor.pgresult
        assert result is not None
        if result.nfields == 0:
            return cursor.statusmessage or "", None
        # As text, like psql.
        row = [result.get_value(0, number) for number in range(result.nfields)] if result.ntuples else []
        values = ["null" if value is None else value.decode() for value in row]
        if statement.is_kept:
            assert result.ntuples == 1, f"psql's \\gset keeps one row, not {result.ntuples}: {statement.sql}"
            names = [column.name for column in cursor.description or []]
            self.variables |= zip(names, values, strict=True)
        return values[0] if values else "nothing", None

    def _value(self, variable: re.Match[str]) -> str:
        value = self.variables[variable[2]]
        return f"'{value}'" if variable[1] else value
