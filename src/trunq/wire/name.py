"""The names of queues and subscriptions, and of processes."""

from __future__ import annotations

import os
import re
import secrets
import socket
from functools import lru_cache
from typing import Final

from trunq.errors import InvalidName

NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,47}")
"""What a name is. The tables and functions of a queue are named after it, so it needs no quoting in SQL."""


def check_name(what: str, name: str) -> None:
    """Refuse what cannot be the name of a queue or subscription."""
    if not isinstance(name, str):
        order = "; it comes before the payload" if what == "queue" else ""
        raise TypeError(f"the name of a {what} is a str, not {type(name).__name__}{order}")
    _check_text(what, name)


@lru_cache(maxsize=1024)
def _check_text(what: str, name: str) -> None:
    if not NAME.fullmatch(name):
        raise InvalidName(
            f'"{name}" cannot be the name of a {what}', "1 to 48 of a-z, 0-9 and _, starting with a letter"
        )


def own_name() -> str:
    """A name no other process has: host, process, and some chance for containers that are all number 1."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(2)}"
