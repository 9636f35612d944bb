"""The line between the driver and each worker on an executor: a TCP connection, JSON a line.

Spark lets a task neither report before it has ended nor end in its own time: one that is cancelled is killed
two seconds later. So each worker calls the driver, says every second what it has done, and stops, as by a
SIGTERM, when the driver says so or hangs up.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import select
import socket
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from socketserver import StreamRequestHandler, ThreadingTCPServer
from typing import Any, Final, NamedTuple, Protocol

log = logging.getLogger("trunq.worker")

STOP: Final = b"stop\n"
_EVERY: Final = 1.0
"""Seconds between two reports."""
_CALLING: Final = 20.0
"""Seconds in which the driver must take the call."""
_WORDS: Final = 1000
"""So many lines of a worker's log wait to be sent at most."""


_AT_ONCE: Final = 100
_WORD: Final = 2000
"""So many lines go with a report, and so many characters of each, so that no report is longer than the driver
reads.
"""
_LONGEST: Final = 4_000_000


@dataclass(frozen=True, slots=True)
class Number:
    """Where the driver is called, and the word by which it knows its workers."""

    host: str
    port: int
    token: str = field(repr=False)


class Failure(NamedTuple):
    """Why a worker cannot work: class of the error, message, hint."""

    kind: str
    message: str
    hint: str | None


@dataclass(slots=True)
class Member:
    """A worker that has called: where it runs and what it has done, as far as it said."""

    host: str
    process: int
    statistics: dict[str, int] = field(default_factory=dict)
    is_running: bool = True


class Exchange:
    """The driver's end of all lines."""

    def __init__(self, bind: str, host: str, port: int, failed: Callable[[str, Failure], None]) -> None:
        """`failed` is called with the host and what a worker there cannot work for."""
        self._failed = failed
        self.members: dict[str, Member] = {}
        self._stopping = threading.Event()
        self._token = secrets.token_hex(16)
        self._changing = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._server = _Server((bind, port), self)
        self.number = Number(host, self._server.server_address[1], self._token)
        threading.Thread(target=self._server.serve_forever, name="trunq-exchange", daemon=True).start()

    def stop(self) -> None:
        """Tell all workers to stop, those too that have yet to call."""
        with self._changing:
            self._stopping.set()
            for each in self._sockets:
                _tell(each)

    def close(self) -> None:
        """Take no more calls."""
        self._server.shutdown()
        self._server.server_close()

    def follow(self, line: socket.socket, words: Callable[[], bytes]) -> None:
        """Listen to one worker until it hangs up."""
        hello = _parse(words())
        if not secrets.compare_digest(str(hello.get("token")).encode(), self._token.encode()):
            return
        member = Member(str(hello["host"]), int(hello["process"]))
        with self._changing:
            self.members[str(hello["worker"])] = member
            self._sockets.add(line)
            if self._stopping.is_set():
                _tell(line)
        try:
            while said := _parse(words()):
                member.statistics |= said.get("statistics", {})
                if (failure := said.get("failure")) is not None:
                    self._failed(member.host, Failure(*failure))
                for level, text in said.get("log", ()):
                    log.log(level, "%s: %s", member.host, text, extra={"host": member.host})
        finally:
            with self._changing:
                member.is_running = False
                self._sockets.discard(line)


class Served(Protocol):
    """What a worker's end needs of a Worker."""

    statistics: Any

    def stop(self) -> None: ...


class Line(logging.Handler):
    """A worker's end: it sends the worker's statistics and what is logged. Told to stop, it stops the worker,
    until that has ended.
    """

    def __init__(self, number: Number, name: str) -> None:
        super().__init__()
        self.is_stopping = False
        self._worker: Served | None = None
        self._words: deque[tuple[int, str]] = deque(maxlen=_WORDS)
        self._failure: Failure | None = None
        self._ended = threading.Event()
        self._socket = _call(number)
        self._tell({"token": number.token, "worker": name, **own_place()})
        self._thread = threading.Thread(target=self._keep, name="trunq-line", daemon=True)
        self._thread.start()

    def attach(self, worker: Served) -> None:
        """Speak for this worker."""
        self._worker = worker

    def fail(self, kind: str, message: str, hint: str | None) -> None:
        """Tell that the worker cannot work, nor could another."""
        self._failure = Failure(kind, message, hint)

    def emit(self, record: logging.LogRecord) -> None:
        """Have it sent with the next report."""
        self._words.append((record.levelno, record.getMessage()[:_WORD]))

    def hang_up(self) -> None:
        """Say the last, and end."""
        self._ended.set()
        self._thread.join()
        with suppress(OSError):
            self._report()
        self._socket.close()

    def _keep(self) -> None:
        while not self._ended.is_set():
            if self.is_stopping:
                # Again and again: it may just be starting.
                if self._worker is not None:
                    self._worker.stop()
                self._ended.wait(_EVERY / 10)
            else:
                self.is_stopping = self._hears()
            with suppress(OSError):
                self._report()

    def _hears(self) -> bool:
        """Whether it is to stop: the driver says so, or is gone."""
        ready, _, _ = select.select([self._socket], [], [], _EVERY)
        if not ready:
            return False
        with suppress(OSError):
            self._socket.recv(len(STOP))
        return True

    def _report(self) -> None:
        words = [self._words.popleft() for _ in range(min(len(self._words), _AT_ONCE))]
        done = {} if self._worker is None else asdict(self._worker.statistics)
        self._tell({"statistics": done, "log": words, "failure": self._failure})

    def _tell(self, what: dict[str, Any]) -> None:
        self._socket.sendall(json.dumps(what).encode() + b"\n")


def own_place() -> dict[str, Any]:
    """This host and process."""
    return {"host": socket.gethostname(), "process": os.getpid()}


class _Server(ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, place: tuple[str, int], exchange: Exchange) -> None:
        self.exchange = exchange
        super().__init__(place, _Caller)


class _Caller(StreamRequestHandler):
    server: _Server

    def handle(self) -> None:
        with suppress(OSError):
            self.server.exchange.follow(self.connection, lambda: self.rfile.readline(_LONGEST))


def _call(number: Number) -> socket.socket:
    try:
        line = socket.create_connection((number.host, number.port), _CALLING)
    except OSError as error:
        raise ConnectionError(
            f"the executor on {socket.gethostname()} cannot reach the driver at {number.host}:{number.port}"
            f" ({error}); spark.trunq.port sets the port, spark.driver.host the host"
        ) from error
    line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return line


def _tell(line: socket.socket) -> None:
    with suppress(OSError):
        line.sendall(STOP)


def _parse(line: bytes) -> dict[str, Any]:
    """What a line says; nothing at the end, nor for what is no line of ours."""
    try:
        said = json.loads(line) if line.endswith(b"\n") else {}
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}
