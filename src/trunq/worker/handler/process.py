"""Processes that run handlers, one message at a time each: the worker's side. `child` is theirs.

Each has a socket of its own. So one can be killed at any moment, and takes nothing with it but the attempt of
the message that it runs; a pool whose processes share a queue cannot promise that
(docs/decisions/0015-a-process-has-a-socket-of-its-own.md).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterable
from contextvars import ContextVar
from functools import partial
from multiprocessing import spawn
from typing import Any, Final

from trunq.client.message import Message
from trunq.wire.json import RawJson
from trunq.worker.handler import child
from trunq.worker.handler.child import Setup, Work

log = logging.getLogger("trunq.worker")

START_WITHIN: Final = 300.0
"""Seconds in which a process must have imported the handlers."""
_TRIES: Final = 3
"""Processes that may die before the handler is called."""
_BURIAL: Final = 2.0
"""Seconds in which what was killed should be gone."""
_LAST_BREATH: Final = 1.0
"""Seconds for one that hung up to end."""
_LOOK: Final = 0.005


class ProcessDied(Exception):
    """The process that ran a handler ended before it had an answer."""

    has_place = False


class NotReady(Exception):
    """No process could be started for a handler, which was not called."""


class _Gone(Exception):
    """A process hung up."""


def import_path(function: Callable[..., Any]) -> str:
    """How another process finds a function: `module:name`. Raises TypeError for what it could not find."""
    if sys.platform == "win32":
        raise TypeError(
            "process=True needs Linux or macOS: on Windows nothing ends processes with their worker"
        )
    name = getattr(function, "__qualname__", "")
    module = getattr(function, "__module__", "")
    if not name or not module or isinstance(function, partial):
        raise TypeError(
            f"a handler with process=True is a function that a module has under its name, not {function!r}"
        )
    if "<" in name:
        what = "a lambda" if name.endswith("<lambda>") else f"the function {name}, which is inside another"
        raise TypeError(
            f"a handler with process=True is imported by another process, which cannot find {what}:"
            " define it with def at the top of its module"
        )
    return f"{module}:{name}"


class Processes:
    """The processes of a worker, started when they are needed."""

    def __init__(self, start: str | None = None) -> None:
        self._start = start
        self._handlers: dict[str, Callable[..., Any]] = {}
        self._idle: list[_Process] = []
        self._all: set[_Process] = set()
        self._most = 1
        self._places = asyncio.Semaphore(1)
        self._mine: ContextVar[_Process] = ContextVar("trunq_process")

    def add(self, function: Callable[..., Any]) -> Callable[[Any], Any]:
        """What calls a function, with the message or the payload, in the process that was reserved."""
        path = import_path(function)
        self._handlers[path] = function

        async def call(first: Any) -> Any:
            return await self._call(path, first)

        return call

    def check(self) -> None:
        """Refuse functions that another process would not find, or find others in their place."""
        for path, function in self._handlers.items():
            try:
                found = child.resolve(path)
            except (ImportError, AttributeError) as error:
                raise ValueError(f"a handler with process=True is not where it was: {error}") from error
            if found is not function:
                raise ValueError(
                    f"{path} is not the function that was registered as a handler with process=True:"
                    " put @worker.handler above all other decorators, or rename one of the two"
                )

    def open(self, most: int) -> None:
        """So many at a time from now on."""
        self._most = most
        self._places = asyncio.Semaphore(most)

    @contextlib.asynccontextmanager
    async def reserved(self) -> AsyncIterator[None]:
        """A process that has imported the handlers, for one call."""
        async with self._places:
            own = self._mine.set(await self._take())
            try:
                yield
            finally:
                process = self._mine.get()
                self._mine.reset(own)
                if process.is_busy or process.has_ended:
                    self._kill(process)
                else:
                    self._idle.append(process)

    async def _call(self, path: str, first: Any) -> Any:
        for left in reversed(range(_TRIES)):
            process = self._mine.get()
            time_left = first.time_left if isinstance(first, Message) else None
            try:
                return await process.call(Work(path, first, time_left))
            except _Gone:
                status = await self._end_of(process)
                if process.has_started:
                    raise ProcessDied(f"the process {process.pid} of the handler {status}") from None
                if not left:
                    raise NotReady(f"{_TRIES} processes died before they had the message") from None
                self._mine.set(await self._take())
        raise AssertionError

    async def _take(self) -> _Process:
        """One that is idle, or a new one."""
        while self._idle:
            process = self._idle.pop()
            if not process.has_ended:
                return process
            self._kill(process)
        for _ in range(_TRIES):
            process = _Process()
            self._all.add(process)
            try:
                async with asyncio.timeout(START_WITHIN):
                    await process.start(self._setup())
            except _Gone:
                status = await self._end_of(process)
                log.warning("the process %s of handlers %s before it was ready", process.pid, status)
            except BaseException as error:
                self._kill(process)
                if isinstance(error, TimeoutError):
                    raise NotReady(f"importing the handlers took more than {START_WITHIN:g} s") from None
                raise
            else:
                return process
        raise NotReady(f"{_TRIES} processes died before they were ready; the last {status}")

    def _setup(self) -> Setup:
        handlers = tuple(self._handlers)
        return Setup(_program(handlers), _level(), self._start, handlers)

    async def _end_of(self, process: _Process) -> str:
        """How one that hung up has ended: by itself, if it exits within a moment."""
        await _gone([process], _LAST_BREATH)
        process.kill()
        await _buried([process])
        self._all.discard(process)
        return process.status

    def _kill(self, process: _Process) -> None:
        process.kill()
        # Those that were killed before are gone by now, and are to leave no zombies.
        self._all = {each for each in self._all if not each.has_ended}

    async def close(self) -> None:
        """End all."""
        everyone, self._all = self._all, set()
        self._idle.clear()
        for process in everyone:
            process.kill()
        await _buried(everyone)


class _Process:
    """One process, and the socket to it."""

    def __init__(self) -> None:
        self.is_busy = False
        self.has_started = False
        """Whether the handler of the last call was called."""
        ours, theirs = socket.socketpair()
        with theirs:
            reading, self._leash = os.pipe()
            try:
                self._popen = subprocess.Popen(
                    [spawn.get_executable(), "-c", _COMMAND, str(theirs.fileno()), str(reading)],
                    stdin=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno(), reading],
                    # A group of its own: Ctrl-C is the worker's, and what a handler started ends with it.
                    start_new_session=True,
                )
            except BaseException:
                ours.close()
                os.close(self._leash)
                raise
            finally:
                os.close(reading)
        self._socket: socket.socket | None = ours
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self.pid = self._popen.pid

    @property
    def has_ended(self) -> bool:
        """Whether it has exited; asked often enough, it leaves no zombie."""
        return self._popen.poll() is not None

    @property
    def status(self) -> str:
        """How it ended."""
        code = self._popen.returncode
        if code is None or code >= 0:
            return "did not end" if code is None else f"ended by itself, with status {code}"
        with contextlib.suppress(ValueError):
            return f"was killed by {signal.Signals(-code).name}"
        return f"was killed by signal {-code}"

    async def start(self, setup: Setup) -> None:
        """Returns when it has imported the handlers. Raises what kept it from that."""
        assert self._socket is not None
        self._reader, self._writer = await asyncio.open_unix_connection(sock=self._socket)
        self._socket = None
        await self._send(setup)
        self._outcome(await self._next())

    async def call(self, work: Work) -> Any:
        """What a handler returns, or raises. Raises _Gone when the process ends before."""
        raw = child.packed(work)
        self.is_busy, self.has_started = True, False
        await self._send_raw(raw)
        said = await self._next()
        if said == (child.STARTED,):
            self.has_started = True
            said = await self._next()
        self.is_busy = False
        return self._outcome(said)

    def kill(self) -> None:
        """With all that it started. At once, whatever it does."""
        if self._popen.returncode is None:
            # Not waited for yet, so the number is its own.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
        if self._writer is not None:
            self._writer.transport.abort()
            self._writer = None
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._leash >= 0:
            os.close(self._leash)
            self._leash = -1

    async def _send(self, value: Any) -> None:
        await self._send_raw(child.packed(value))

    async def _send_raw(self, raw: bytes) -> None:
        assert self._writer is not None
        try:
            self._writer.write(raw)
            await self._writer.drain()
        except OSError as error:
            raise _Gone from error

    async def _next(self) -> Any:
        """What it says next, but for lines of its log."""
        assert self._reader is not None
        while True:
            try:
                (size,) = child.LENGTH.unpack(await self._reader.readexactly(child.LENGTH.size))
                raw = await self._reader.readexactly(size)
            except (asyncio.IncompleteReadError, OSError) as error:
                raise _Gone from error
            said = pickle.loads(raw)  # noqa: S301  # of a process of ours
            if said[0] != child.LOG:
                return said
            with contextlib.suppress(Exception):
                _log(pickle.loads(said[1]))  # noqa: S301  # of a process of ours

    def _outcome(self, said: Any) -> Any:
        what, *rest = said
        if what == child.RAISED:
            raise _error(*rest)
        if what == child.RETURNED:
            (raw,) = rest
            return None if raw is None else RawJson(raw)
        return rest[0] if rest else None


_COMMAND: Final = "from trunq.worker.handler.child import main; main()"


def _program(handlers: Iterable[str]) -> dict[str, Any]:
    """What multiprocessing would tell a process; of the main module only if handlers are in it."""
    program = spawn.get_preparation_data("trunq")
    for name in ("authkey", "log_to_stderr", "log_level", "start_method"):
        program.pop(name, None)
    if not any(path.startswith(f"{child.MAIN}:") for path in handlers):
        program.pop("init_main_from_path", None)
        program.pop("init_main_from_name", None)
    return program


def _level() -> int:
    return logging.getLogger().getEffectiveLevel()


def _log(fields: dict[str, Any]) -> None:
    """Say what a process logged, as if it were said here."""
    record = logging.makeLogRecord(fields)
    logger = logging.getLogger(record.name)
    if logger.isEnabledFor(record.levelno):
        logger.handle(record)


def _error(raw: bytes | None, told: bytes) -> BaseException:
    if raw is not None:
        with contextlib.suppress(Exception):
            error = pickle.loads(raw)  # noqa: S301  # of a process of ours
            if isinstance(error, Exception):
                return error
    return pickle.loads(told)  # type: ignore[no-any-return]  # noqa: S301


async def _gone(processes: Iterable[_Process], within: float = _BURIAL) -> list[_Process]:
    """Wait until they have exited. Returns those that have not in time."""
    left = [process for process in processes if not process.has_ended]
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(within):
            while left:
                await asyncio.sleep(_LOOK)
                left = [process for process in left if not process.has_ended]
    return left


async def _buried(processes: Iterable[_Process]) -> None:
    """Wait until killed processes have exited; give up on those that nothing can kill."""
    if left := await _gone(processes):
        log.error("cannot be killed: %s", ", ".join(f"process {process.pid}" for process in left))
