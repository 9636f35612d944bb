"""A thread and a connection that serve all who want the same of a client: both come with the first and end
with the last. A connection that is lost is opened again.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from contextlib import closing, suppress
from typing import ClassVar, Generic, Protocol, TypeVar

import psycopg

from trunq.connection.backoff import Hurry, first_line, is_retryable, retrying
from trunq.connection.ear import Ear
from trunq.errors import ClientClosed, translate

log = logging.getLogger("trunq.client")


class Line(Protocol):
    """A connection that hears."""

    def close(self) -> None:
        """Close it."""


L = TypeVar("L", bound=Line)


class Attendant(ABC, Generic[L]):
    """The thread. `_lock` is for all that it shares with those who want something."""

    doing: ClassVar[str]
    """What it does, in its log: listening."""
    closed: ClassVar[str]
    """What those hear who still want something when the client is closed."""
    level: ClassVar[int] = logging.INFO
    """Of a line of the log about a connection that was lost."""

    def __init__(self, conninfo: str) -> None:
        self._conninfo = conninfo
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._ear = Ear()
        self._closed = Hurry()

    def close(self) -> None:
        """End the thread and its connection; who still wants something gets ClientClosed."""
        with self._lock:
            self._closed.set()
            thread = self._thread
            self._ear.wake()
        self._fail_all(ClientClosed(self.closed))
        if thread is not None:
            thread.join(timeout=5)
        if thread is None or not thread.is_alive():
            self._ear.close()

    def _begin(self) -> None:
        """Under the lock, before it is noted who wants something: there may be no room for another thread."""
        if self._closed.is_set():
            raise ClientClosed(self.closed)
        if self._thread is None:
            thread = threading.Thread(
                target=self._serve, name=f"trunq-{type(self).__name__.lower()}", daemon=True
            )
            thread.start()
            self._thread = thread
        self._ear.wake()

    @abstractmethod
    def _open(self) -> L:
        """Another connection."""

    @abstractmethod
    def _attend(self, line: L) -> None:
        """Serve over one connection until `_may_end`. Raises psycopg.Error when it is lost."""

    @abstractmethod
    def _is_wanted(self) -> bool:
        """Under the lock: whether anybody wants something."""

    @abstractmethod
    def _fail_all(self, error: Exception) -> None:
        """Tell all who want something why they will not get it."""

    def _may_end(self) -> bool:
        """Under the lock, so that whoever comes next starts another thread."""
        with self._lock:
            if self._is_wanted() and not self._closed.is_set():
                return False
            self._thread = None
            return True

    def _serve(self) -> None:
        tries = retrying(also=Exception, is_over=self._may_end, sleep=self._closed.pause)
        # The last of them, with which it ends, was logged like the others.
        with suppress(Exception):
            tries(self._serve_once)

    def _serve_once(self) -> None:
        """Serve over one connection until nobody wants anything, or it is lost."""
        try:
            with closing(self._open()) as line:
                self._attend(line)
        except psycopg.Error as error:
            if not is_retryable(error):
                self._fail_all(translate(error) or error)
            log.log(self.level, "not %s for now: %s", self.doing, first_line(error))
            raise
        except Exception as error:
            log.exception("%s failed", self.doing)
            self._fail_all(error)
            raise
