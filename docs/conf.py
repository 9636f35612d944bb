"""How `make docs` builds the pages as a site. README.md, the list of pages, is its menu too."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pygments.lexers.special import TextLexer
from pygments.lexers.sql import PostgresLexer
from pygments.token import Error, Text

HERE = Path(__file__).parent

project = "trunq"
author = "The trunq authors"
extensions = ["myst_parser", "sphinx_copybutton"]
root_doc = "README"
html_theme = "furo"
html_title = "trunq"
html_favicon = "../src/trunq/web/static/trunq.svg"
myst_heading_anchors = 4

OUTSIDE = re.compile(
    r"\[([^\]]+)\]\((?:\.\./)+((?:examples|benchmarks|README|ARCHITECTURE|CONTRIBUTING)[^)]*)\)"
)
LISTED = re.compile(r"^\| \[[^\]]+\]\(([^)]+)\.md\)", re.MULTILINE)


class Sql(PostgresLexer):  # type: ignore[misc]
    """SQL as psql takes it, where a backslash and a comment's arrow are no mistakes."""

    def get_tokens_unprocessed(self, text: str, *given: Any) -> Iterator[tuple[int, Any, str]]:
        for at, kind, value in super().get_tokens_unprocessed(text, *given):
            yield at, Text if kind is Error else kind, value


def inside(_app: Any, page: str, source: list[str]) -> None:
    """What lies beside the pages in the repository is named; and a list of pages is a part of the menu."""
    text = OUTSIDE.sub(r"\1 (`\2` of the repository)", source[0])
    if page in (root_doc, "decisions/README"):
        for part in text.split("\n## ")[1:] if page == root_doc else [text]:
            caption, pages = part.splitlines()[0].strip("# "), "\n".join(LISTED.findall(part))
            text += f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{pages}\n```\n"
    source[0] = text


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.add_lexer("sql", Sql)
    app.add_lexer("mermaid", TextLexer)
    app.connect("source-read", inside)
