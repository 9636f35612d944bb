"""Completes the lists of a message's columns, in SQL and in Python, when a migration adds a column.

A list names kind, key, payload, body and headers, in this order. The new column follows, written like the
older column of its type: `g.key::text` gives `g.source::text`. So functions of the hot path name their
columns, in text that editors and linters read. `python tools/column.py` completes the lists; `--check` names
those that lack a column, or have another order.

A composite type that functions return would be one place, too, but an upgrade would change it under the
functions of queues that it has yet to reach.
"""

from __future__ import annotations

import re
import sys
from itertools import permutations
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "trunq"

TABLES = (
    *("trunq_log._specimen", "trunq_log._uniquespecimen", "trunq.delayed", "trunq.dead"),
    "trunq_data._specimen_archive",
)
"""The tables that hold messages. What the first gets, all get."""

NAMES = ("kind", "key", "payload", "body", "headers")
MODELS = {"text": "key", "jsonb": "headers", "bytea": "body"}
BY_HAND = ("publish.sql", "unique.sql", "lane.sql", "delete.sql", "role.sql")
"""Files with other lists, too: what publishers give, what is erased, what is secret."""

WIDTH = 120

_BEFORE = r'(?:None if )?(?:\w+\._?|_|")?'
_AFTER = r'(?:::\w+| (?:text|jsonb|bytea)|: [\w |]+|": \([^)]*\)|"| is None else decode_jsonb\(\w+\))?'
LIST = re.compile(
    r"(?<![\w.])"
    + r"(,\s*|\n\s*)".join(f"(?P<{name}>{_BEFORE}{name}{_AFTER})" for name in NAMES)
    + r"(?=,|\n|\)| from )"
)
OTHER = re.compile(
    "|".join(rf"\b{a}\b[^,()]*,[^,()]*\b{b}\b[^,()]*,[^,()]*\b{c}\b" for a, b, c in permutations(NAMES[2:]))
)
CALL = re.compile(r"_message_bytes\([^()]*\)")
"""It measures a message, and takes the same after an upgrade: functions of a former version call it."""


def columns() -> dict[str, str]:
    """The columns that migrations added to messages, with their types."""
    text = "".join(path.read_text() for path in sorted((SOURCE / "sql" / "migrations").glob("*.sql")))
    added = {
        table: dict(re.findall(rf"alter table {re.escape(table)}\s+add column (\w+) (\w+)", text))
        for table in TABLES
    }
    log = added[TABLES[0]]
    if lost := [f"{table} ({name})" for table, has in added.items() for name in log if name not in has]:
        sys.exit(f"a migration adds a column to {TABLES[0]}, and none adds it to {', '.join(lost)}")
    return {name: added["trunq.dead"][name] for name in log}


def complete(text: str, columns: dict[str, str]) -> str:
    """The text with all columns in its lists."""
    for found in reversed(list(LIST.finditer(_shown(text)))):
        at = found.end()
        for name, kind in columns.items():
            model = MODELS[kind]
            item = re.sub(rf"(?<![a-z]){model}(?![a-z])", name, found[model])
            if there := re.compile(rf",?\s*{re.escape(item)}(?!\w)").match(text, at):
                at = there.end()
                continue
            line = text[text.rfind("\n", 0, at) + 1 :].partition("\n")[0]
            is_long = len(line) <= WIDTH < len(line) + len(item) + 2 and found[2] == ", "
            indent = line[: len(line) - len(line.lstrip())]
            item = (f",\n{indent}" if is_long else found[2]) + item
            text = text[:at] + item + text[at:]
            at += len(item)
    return text


def others(text: str) -> list[int]:
    """The lines of lists in another order."""
    rest = re.sub(r"--[^\n]*", "", LIST.sub(_blank, _shown(text)))
    return [rest.count("\n", 0, found.start()) + 1 for found in OTHER.finditer(rest)]


def _shown(text: str) -> str:
    return CALL.sub(_blank, text)


def _blank(found: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", found[0])


def main() -> None:
    """Complete the lists, or check them."""
    given, wrong = columns(), []
    for path in sorted([*SOURCE.rglob("*.sql"), *SOURCE.rglob("*.py")]):
        if path.name == "publish.sql" or path.parent.name == "migrations":
            continue
        name, before = path.relative_to(ROOT), path.read_text()
        after = complete(before, given)
        if after != before and "--check" in sys.argv[1:]:
            wrong.append(f"{name}: a list of a message's columns lacks one: run python tools/column.py")
        elif after != before:
            path.write_text(after)
        if path.suffix == ".sql" and path.name not in BY_HAND:
            wrong += [f"{name}:{line}: write {', '.join(NAMES)} in this order" for line in others(after)]
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
