"""How a task, or a thread, waits for a connection to have something to read, or to be woken."""

from __future__ import annotations

import asyncio
import contextlib
import selectors
import socket
from typing import Any

import psycopg


class AsyncEar:
    """In an event loop."""

    def __init__(self) -> None:
        self._stirred = asyncio.Event()

    async def wait(self, connection: psycopg.AsyncConnection[Any] | None, seconds: float) -> None:
        """Wait until there is something to read, for `wake`, or for so many seconds."""
        with contextlib.ExitStack() as stack:
            if connection is not None:
                # By a descriptor of our own: psycopg watches its own while another task executes something.
                ours = stack.enter_context(
                    socket.fromfd(connection.fileno(), socket.AF_INET, socket.SOCK_STREAM)
                )
                loop = asyncio.get_running_loop()
                loop.add_reader(ours, self._stirred.set)
                stack.callback(loop.remove_reader, ours)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._stirred.wait()
        self._stirred.clear()

    def wake(self) -> None:
        """End the wait, or the next one; on the event loop."""
        self._stirred.set()

    def close(self) -> None:
        """Nothing is left of it."""


class Ear:
    """In a thread."""

    def __init__(self) -> None:
        self._bell, self._hearing = socket.socketpair()
        self._bell.setblocking(False)
        self._hearing.setblocking(False)

    def wait(self, connection: psycopg.Connection[Any] | None, seconds: float) -> None:
        """Wait until there is something to read, for `wake`, or for so many seconds."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._hearing, selectors.EVENT_READ)
            if connection is not None:
                selector.register(connection.fileno(), selectors.EVENT_READ)
            selector.select(max(0.0, seconds))
        with contextlib.suppress(BlockingIOError):
            while self._hearing.recv(4096):
                pass

    def wake(self) -> None:
        """End the wait, or the next one; from any thread."""
        # There may be enough in it already.
        with contextlib.suppress(BlockingIOError):
            self._bell.send(b"\0")

    def close(self) -> None:
        """Close its sockets."""
        self._bell.close()
        self._hearing.close()
