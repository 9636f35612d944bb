"""Files of a storage whose paths match a pattern, with * and ** as `glob` has them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from trunq.pipeline.storage import Entry, Storage

_MAGIC: Final = re.compile(r"[*?[]")
_PIECES: Final = re.compile(r"\*|\?|\[!?\]?[^\]/]*\]|[^*?[]+|\[")


def is_pattern(path: str) -> bool:
    """Whether a path stands for several."""
    return bool(_MAGIC.search(path))


def directory_of(pattern: str) -> str:
    """The directory that files of a pattern are in, or below."""
    return _MAGIC.split(pattern, maxsplit=1)[0].rpartition("/")[0]


def find(storage: Storage, pattern: str) -> Iterator[Entry]:
    """The files that match."""
    if not is_pattern(pattern):
        found = storage.look(pattern)
        yield from [] if found is None else [found]
        return
    directory = directory_of(pattern)
    rest = pattern.removeprefix(directory).strip("/").split("/")
    matches = re.compile(_regex(pattern.split("/"))).fullmatch
    depth = None if "**" in rest else len(rest)
    yield from (entry for entry in storage.walk(directory, depth) if matches(entry.path))


def _regex(segments: list[str]) -> str:
    """Names that begin with a dot are matched by a dot alone."""
    made = []
    for at, segment in enumerate(segments):
        is_last = at == len(segments) - 1
        if segment == "**":
            made.append(r"(?:(?!\.)[^/]+/)*" + (r"(?!\.)[^/]+" if is_last else ""))
            continue
        hidden = r"(?!\.)" if segment[:1] in ("*", "?", "[") else ""
        made.append(hidden + "".join(map(_piece, _PIECES.findall(segment))) + ("" if is_last else "/"))
    return "".join(made)


def _piece(text: str) -> str:
    if text == "*":
        return "[^/]*"
    if text == "?":
        return "[^/]"
    if text[0] == "[" and len(text) > 1:
        inner = text[1:-1].replace("\\", r"\\")
        return f"[^/{inner[1:]}]" if inner[0] == "!" else f"[{inner}]"
    return re.escape(text)
