"""A process of a worker that runs handlers: what goes on in it. `process` is the worker's side.

It gets handlers by import path, a message at a time, over a socket of its own, and inherits nothing else but
stdout, stderr and the environment. Ctrl-C and SIGTERM mean its worker, which lets it finish or kills it. When
the worker dies, however, the kernel kills it, whatever it is doing: SIGIO, from a pipe that nobody writes to.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import logging
import os
import pickle
import select
import signal
import socket
import struct
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from logging.handlers import QueueHandler
from multiprocessing import spawn
from time import monotonic
from typing import Any, Final, cast

from trunq.client.message import Message, Reject, Retry, Runner
from trunq.client.park import Park
from trunq.errors import InvalidArgument
from trunq.worker.handler.result import encode, raised_answer, shortened, text_of, with_causes

LENGTH: Final = struct.Struct("!Q")
"""What stands before each thing that is sent: its size in bytes."""

READY: Final = "ready"
LOG: Final = "log"
STARTED: Final = "started"
RETURNED: Final = "returned"
ANSWERED: Final = "answered"
RAISED: Final = "raised"

MAIN: Final = "__main__"
_AS_MAIN: Final = "__mp_main__"
"""How multiprocessing calls, in a process it starts, the module that is the program of the one before."""

Around = Callable[[], AbstractContextManager[Any]]

is_child = False
"""Whether this process runs handlers for a worker."""


class HandlerFailed(Exception):
    """A handler in a process of its own raised what cannot be sent from there; the text says what."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What a process is told first. `start` names a function that it calls before it imports the handlers;
    what that returns, if anything, goes around each call of a handler.
    """

    program: dict[str, Any]
    """As multiprocessing hands it on: search path, arguments, directory, perhaps the main module."""
    level: int
    """Of the root logger."""
    start: str | None
    handlers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Work:
    """A handler to call, and what with: a message, or the payload alone."""

    handler: str
    first: Any
    time_left: float | None


def packed(value: Any) -> bytes:
    """A value as it is sent."""
    raw = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    return LENGTH.pack(len(raw)) + raw


def main() -> None:
    """Serve the worker that started this process, until it hangs up."""
    global is_child  # noqa: PLW0603  # said once, to all that asks
    is_child = True
    # Loaded now, while nothing has failed; not above, because the worker imports this module too.
    _pickling()
    for number in (signal.SIGINT, signal.SIGTERM):
        # Not ignored, or the programs that a handler starts would ignore it too.
        signal.signal(number, _leave_to_the_worker)
    die_with(int(sys.argv[2]))
    channel = _Channel(socket.socket(fileno=int(sys.argv[1])))
    os.register_at_fork(after_in_child=channel.close)
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        around = _prepare(channel, channel.receive())
        if around is not None:
            while True:
                _do(channel, channel.receive_raw(), around)


def die_with(pipe: int) -> None:
    """Be killed, with all that was started from here, when the other end of a pipe is closed: by the kernel,
    so that no handler that keeps the interpreter busy outlives its worker.
    """
    import fcntl  # noqa: PLC0415  # Windows has none, and no process handlers

    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(pipe, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([pipe], [], [], 0)[0]:
        os._exit(1)


def resolve(path: str) -> Any:
    """What `module:name` stands for."""
    module, _, names = path.partition(":")
    found: Any = importlib.import_module(_AS_MAIN if module == MAIN and is_child else module)
    for name in names.split("."):
        found = getattr(found, name)
    return found


class _Channel:
    """The socket to the worker."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(True)
        self._socket = connection
        self._reader = connection.makefile("rb")
        self._lock = threading.Lock()

    def send(self, *value: Any) -> None:
        """From any thread: a handler's own threads write to the log."""
        raw = packed(value)
        with self._lock:
            self._socket.sendall(raw)

    def receive(self) -> Any:
        return pickle.loads(self.receive_raw())  # noqa: S301  # of our own worker

    def receive_raw(self) -> bytes:
        """The next thing, as it came. Raises EOFError when the worker hung up."""
        (size,) = LENGTH.unpack(self._read(LENGTH.size))
        return self._read(size)

    def _read(self, size: int) -> bytes:
        raw = self._reader.read(size)
        if len(raw) < size:
            raise EOFError
        return raw

    def close(self) -> None:
        """In a fork that a handler makes, which is no process of ours: the end of the socket is our end."""
        os.close(self._socket.fileno())

    def put_nowait(self, record: logging.LogRecord) -> None:
        """What logging.QueueHandler calls, with a record that is fit to be sent."""
        self.send(LOG, pickle.dumps(record.__dict__))


def _prepare(channel: _Channel, setup: Setup) -> Around | None:
    to_worker = QueueHandler(cast("Any", channel))
    to_worker.setFormatter(logging.Formatter("%(message)s"))
    logging.basicConfig(level=setup.level, handlers=[to_worker], force=True)
    try:
        spawn.prepare(setup.program)
        around = resolve(setup.start)() if setup.start is not None else None
        for path in setup.handlers:
            resolve(path)
    except BaseException as error:
        _tell(channel, error)
        return None
    channel.send(READY)
    return around or nullcontext


def _do(channel: _Channel, raw: bytes, around: Around) -> None:
    try:
        work: Work = pickle.loads(raw)  # noqa: S301  # of our own worker
        handler, message = resolve(work.handler), work.first
        if isinstance(message, Message):
            message._runner = cast("Runner", _Apart(work.time_left))
        channel.send(STARTED)
        with around():
            result = handler(message)
            if inspect.iscoroutine(result):
                result = asyncio.run(_awaited(result))
        if isinstance(result, Park):
            channel.send(ANSWERED, Park(result.token, result.until))
        elif isinstance(result, Retry | Reject):
            channel.send(ANSWERED, _plain(result))
        else:
            channel.send(RETURNED, encode(result))
    except (Retry, Reject) as answer:
        _tell_answer(channel, answer)
    except BaseException as error:
        # Also that the worker hung up, which is raised again when this is sent.
        _tell(channel, error)
    finally:
        # Whoever is killed later has said it.
        with suppress(Exception):
            sys.stdout.flush()


async def _awaited(result: Any) -> Any:
    return await result


def _plain(answer: Retry | Reject) -> Retry | Reject:
    """An answer that can be sent: of a class of the handler's own it may not be made again."""
    if isinstance(answer, Retry):
        return Retry(answer.after, answer.error)
    return Reject(answer.detail, answer.public)


def _tell_answer(channel: _Channel, answer: Retry | Reject) -> None:
    """Send an answer that was raised, or, when it lacks what an answer has, that it was raised."""
    try:
        plain = _plain(raised_answer(answer))
    except Exception as error:
        _tell(channel, error)
    else:
        channel.send(ANSWERED, plain)


def _tell(channel: _Channel, error: BaseException) -> None:
    """Send what was raised, with its traceback; and in case it cannot be sent, or read, its text."""
    kind, said = type(error).__name__, text_of(error)
    trace = shortened(_ours_left_out(error))
    told = HandlerFailed(f"{kind}: {said}" if said else kind).with_traceback(trace)
    raw = None
    if isinstance(error, Exception):
        error.__traceback__ = trace
        for cause in with_causes(error)[1:]:
            cause.__traceback__ = shortened(cause.__traceback__)
        raw = _copied(error)
        if raw is None:
            # It may be its cause that cannot be.
            error.__cause__ = error.__context__ = None
            raw = _copied(error)
    _pickling().install(told)
    channel.send(RAISED, raw, pickle.dumps(told, pickle.HIGHEST_PROTOCOL))


def _copied(error: Exception) -> bytes | None:
    """An error as it is sent; None when it cannot be made again from that."""
    with suppress(Exception):
        _pickling().install(error)
        raw = pickle.dumps(error, pickle.HIGHEST_PROTOCOL)
        pickle.loads(raw)  # noqa: S301  # just made
        return raw
    return None


def _pickling() -> Any:
    """What makes errors fit to be sent with their tracebacks."""
    from tblib import pickling_support  # noqa: PLC0415

    return pickling_support


def _ours_left_out(error: BaseException) -> Any:
    """A traceback without the frame here, which holds the message."""
    trace = error.__traceback__
    return trace.tb_next if trace is not None and trace.tb_next is not None else trace


class _Apart:
    """What runs a message's handler, as the message knows it here: without the worker's connections."""

    def __init__(self, time_left: float | None) -> None:
        self._stops_at = None if time_left is None else monotonic() + time_left

    def time_left(self, _message: Message) -> float | None:
        """Seconds until the worker kills this process."""
        return None if self._stops_at is None else max(0.0, self._stops_at - monotonic())

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise InvalidArgument(
            f"a handler with process=True has no connection for {name.removesuffix('_in_thread')}",
            "return what is to be kept; the worker extends the lease while the handler runs",
        )


def _leave_to_the_worker(*_: object) -> None:
    """A signal that the worker gets too, and acts on."""
