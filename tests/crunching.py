"""Handlers that run in processes: at the top of a module, where a process finds them."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import re
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trunq.client.message import Message, Reject, Retry

HANGS = re.compile("(a+)+$")
"""Matched against many a and a b, it takes for ever and lets no other thread run."""


class Refused(Exception):
    """An error that pickle alone cannot copy: it cannot be made from what it says."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(f"{why} ({code})")


@dataclass
class Order:
    id: int
    name: str


def kind_of(fd: int) -> str | None:
    """What an open file is."""
    try:
        mode = os.fstat(fd).st_mode
    except OSError:
        return None
    return "socket" if stat.S_ISSOCK(mode) else "pipe" if stat.S_ISFIFO(mode) else "other"


def echo(message: Message) -> Any:
    """What a handler finds in its process."""
    return {
        "pid": os.getpid(),
        "parent": os.getppid(),
        "payload": message.payload,
        "attempt": message.attempt,
        "has_time": message.time_left is not None,
        "files": [kind_of(fd) for fd in range(3, 1024) if kind_of(fd)],
    }


async def echo_async(message: Message) -> Any:
    await asyncio.sleep(0)
    return {"pid": os.getpid()}


def place(order: Order) -> Any:
    return {"is_order": type(order) is Order, "name": order.name, "pid": os.getpid()}


def fail(message: Message) -> Any:
    """Whatever the payload asks for."""
    logging.getLogger("crunching").warning("about to %s", message.payload)
    return DEEDS[message.payload](message)


def recurse() -> None:
    """For ever."""
    recurse()


def recurse_because_of() -> None:
    """For ever, as the cause of another error."""
    try:
        recurse()
    except RecursionError as error:
        raise LookupError("deep") from error


def throw(error: BaseException) -> Any:
    raise error


def with_a_cause(_message: Message) -> Any:
    raise LookupError("nothing there") from ValueError("the cause")


def again_with_a_cause(_message: Message) -> Any:
    raise Retry(after=0) from LookupError("not yet")


def one_inside(_message: Message) -> Any:
    class Inside(Exception): ...

    raise Inside("no")


def of_its_own() -> Reject:
    """An answer that pickle cannot copy."""

    class Declined(Reject):
        def __init__(self, code: int) -> None:
            super().__init__(f"declined {code}", public="Your card was declined.")

    return Declined(7)


DEEDS: dict[str, Callable[[Message], Any]] = {
    "raise": with_a_cause,
    "raise what cannot be copied": lambda _: throw(Refused(7, "no")),
    "raise what cannot be sent": one_inside,
    "exit": lambda _: sys.exit(3),
    "interrupt": lambda _: throw(KeyboardInterrupt()),
    "return what is no JSON": lambda _: object(),
    "retry": lambda _: throw(Retry(after=0)),
    "retry because of": again_with_a_cause,
    "reject": lambda _: Reject("bad"),
    "raise an answer of its own": lambda _: throw(of_its_own()),
    "return an answer of its own": lambda _: of_its_own(),
    "lose a connection": lambda _: throw(ConnectionResetError("by peer")),
    "write to nobody": lambda _: throw(BrokenPipeError("nobody reads")),
    "extend": lambda message: message.extend_sync(60),
    "die": lambda _: os._exit(7),
    "crash": lambda _: ctypes.string_at(0),
    "recurse": lambda _: recurse(),
    "recurse because of": lambda _: recurse_because_of(),
    "nothing": lambda _: None,
}


def note(message: Message) -> None:
    """Write down who runs it, in the file that the payload names, then do as it says."""
    book, what = message.payload["book"], message.payload.get("then")
    with Path(book).open("a") as lines:
        lines.write(f"{message.id} {message.attempt} {os.getpid()}\n")
    if what == "hang":
        HANGS.match("a" * 60 + "b")
    elif what == "sleep in a program":
        subprocess.run(["sleep", "1000"], check=True)
    elif what == "die":
        os._exit(1)
    elif what:
        threading.Event().wait(what)
