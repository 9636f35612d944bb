"""A proxy before a test's database, as a stopped pooler or a frozen machine is: it keeps connections open and
forwards nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from psycopg.conninfo import conninfo_to_dict, make_conninfo


class Proxy:
    """TCP before the server's socket. Everything passes until somebody says otherwise."""

    def __init__(self, dsn: str) -> None:
        address = conninfo_to_dict(dsn)
        self._server = f"{address['host']}/.s.PGSQL.{address.get('port', 5432)}"
        self._loop = asyncio.new_event_loop()
        self._passes: list[asyncio.Event] = []
        self._writers: list[asyncio.StreamWriter] = []
        self._is_open = True
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        self._ready.wait()
        self.dsn = make_conninfo(
            dsn, host="127.0.0.1", port=self.port, sslmode="disable", gssencmode="disable"
        )

    @property
    def connections(self) -> int:
        """How many were made so far."""
        return len(self._passes)

    def silence(self) -> None:
        """Nothing passes over the connections there are; new ones are as good as before."""
        self._call(lambda: [each.clear() for each in self._passes])

    def freeze(self) -> None:
        """Nothing passes at all: new connections are taken, and not answered."""
        self._is_open = False
        self.silence()

    def thaw(self) -> None:
        """Everything passes again, what waited first."""
        self._is_open = True
        self._call(lambda: [each.set() for each in self._passes])

    def close(self) -> None:
        """End it, and all connections."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _call(self, work: object) -> None:
        done = threading.Event()

        def do() -> None:
            work()  # type: ignore[operator]
            done.set()

        self._loop.call_soon_threadsafe(do)
        done.wait()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._take, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()
        server.close()
        self._loop.run_until_complete(self._end())
        self._loop.close()

    async def _end(self) -> None:
        """Let every pump come to its end, and every transport."""
        for passes in self._passes:
            passes.set()
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.gather(*(each for each in asyncio.all_tasks() if each is not asyncio.current_task()))
        await asyncio.gather(*(writer.wait_closed() for writer in self._writers), return_exceptions=True)

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        passes = asyncio.Event()
        self._passes.append(passes)
        if self._is_open:
            passes.set()
        there, back = await asyncio.open_unix_connection(self._server)
        self._writers += [back, writer]
        await asyncio.gather(self._pump(reader, back, passes), self._pump(there, writer, passes))

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, passes: asyncio.Event
    ) -> None:
        with contextlib.suppress(OSError):
            while read := await reader.read(65536):
                await passes.wait()
                writer.write(read)
                await writer.drain()
        writer.close()


@contextmanager
def freezing(dsn: str) -> Iterator[Proxy]:
    """Run one."""
    proxy = Proxy(dsn)
    try:
        yield proxy
    finally:
        proxy.close()
