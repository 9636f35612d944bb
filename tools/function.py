"""The public functions of the database, as their sources have them: what the other tools generate from."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).parent.parent
FUNCTIONS = ROOT / "src" / "trunq" / "sql" / "functions"
SPECIMEN = "".join(
    path.read_text() for path in sorted((FUNCTIONS.parent / "specimen" / "queue").glob("*.sql"))
)

ORDER = (
    *("queue", "subscription", "lane", "rank", "publish", "lease", "answer", "reap", "tick", "batch"),
    *("delayed", "dead", "history", "archive", "taker", "status", "statistics", "bell", "leader", "rotate"),
)
"""The files of functions in the order of the page; those not named follow."""

PUBLIC = r"[a-z]\w*"
DEFINITION = (
    r"^create or replace (?P<kind>function|procedure) trunq\.(?P<name>{name})\((?P<parameters>.*?)\)\s+"
    r"(?:returns (?P<returns>.*?)\n?)?language "
)
COMMENT = r"^comment on (?:function|procedure) trunq\.{name}(?:\([^)]*\))? is\s+'(?P<text>(?:[^']|'')*)';"


@dataclass(frozen=True)
class Function:
    """A public function, as its source says."""

    name: str
    parameters: list[str]
    returns: str
    sentence: str
    notes: dict[str, str]

    def call(self, schema: str = "trunq", prefix: str = "", left_out: str = "") -> str:
        """How SQL calls it; a procedure returns nothing."""
        given = ", ".join(text for text in self.parameters if text.split()[0] != left_out)
        return f"{'' if self.returns else 'call '}{schema}.{prefix}{self.name}({given})"

    def own(self) -> str:
        """How SQL calls that of a queue, which takes what its source says."""
        source = re.search(rf"_specimen_{self.name}\((.*?)\)\s+(?:returns|language)", SPECIMEN, re.DOTALL)
        taken = source[1].split() if source else None
        given = [text for text in self.parameters if taken is None or text.split()[0] in taken]
        return replace(self, parameters=given).call("trunq_queue", "orders_", "p_queue")


def functions(path: Path, name: str = PUBLIC) -> list[Function]:
    """The public functions of a file, or others by the pattern of their names, in its order."""
    text = path.read_text()
    found = []
    for definition in re.finditer(DEFINITION.format(name=name), text, re.DOTALL | re.MULTILINE):
        comment = re.search(COMMENT.format(name=definition["name"]), text, re.MULTILINE)
        assert comment is not None, definition["name"]
        sentence, *notes = comment["text"].replace("''", "'").splitlines()
        parts = [one_line(part) for part in definition["parameters"].split(",") if part.strip()]
        columns = ", ".join(part.removeprefix("out ") for part in parts if part.startswith("out "))
        returns = f"table ({columns})" if columns else definition["returns"] or ""
        found.append(
            Function(
                definition["name"],
                [part for part in parts if not part.startswith("out ")],
                one_line(re.sub(r"--[^\n]*", "", returns)),
                sentence,
                dict(note.split(": ", 1) for note in notes),
            )
        )
    return found


def one_line(text: str) -> str:
    """A text without its line breaks."""
    return " ".join(text.split())


def by_file() -> dict[str, list[Function]]:
    """The public functions of each file that has any, in the order of the page."""
    files = {
        path.stem: functions(path) for path in sorted(FUNCTIONS.rglob("*.sql"), key=lambda path: path.stem)
    }
    return {
        name: files[name] for name in [*ORDER, *(name for name in files if name not in ORDER)] if files[name]
    }
