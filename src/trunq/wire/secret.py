"""Passwords stay out of what people read."""

from __future__ import annotations

import re
from typing import Final

_IN_URI: Final = re.compile(r"((?:postgres(?:ql)?)(?:\+\w+)?://[^\s:/?#@]*):\S*@", re.IGNORECASE)
_IN_WORDS: Final = re.compile(r"(\b(?:ssl)?password\s*=\s*)(?:'(?:[^'\\]|\\.)*'|[^\s&'\"]+)", re.IGNORECASE)
_STUMBLED: Final = re.compile(
    r"percent-encoded|in URI|URI query parameter|missing \"=\" after|invalid port number"
    r"|invalid integer value"
)
_QUOTED: Final = re.compile(r"\"[^\"\s]{2,}\"")


def without_password(text: str) -> str:
    """A text, such as a line of a log, without the passwords of the addresses in it, also of malformed ones.

    libpq quotes the part of an address that it stumbles over, which may be the password.
    """
    text = _IN_URI.sub(r"\1:***@", text)
    text = _IN_WORDS.sub(r"\1***", text)
    return "\n".join(
        _QUOTED.sub('"***"', line) if _STUMBLED.search(line) else line for line in text.split("\n")
    )
