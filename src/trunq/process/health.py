"""Probes of an orchestrator, answered beside the work: GET /healthz and GET /readyz.

/healthz asks no database: an outage must not have every process started again, which would end the handlers
that run. It is answered by the event loop that does the work, so one that hangs does not answer. /readyz asks
each database, and is refused while the process stops.

It is this small, and no web server, so that a worker needs no further package.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from time import monotonic
from types import MappingProxyType, TracebackType
from typing import Final, Self

from trunq.client._async.database import check_schema
from trunq.connection._async.opening import open_connection
from trunq.connection.address import complete
from trunq.connection.backoff import first_line
from trunq.errors import InvalidArgument, TrunqError

log = logging.getLogger("trunq.health")

Page = Callable[[str], Awaitable[tuple[str, bytes]]]
"""Given what who asks accepts: the type of a text, and the text."""

Ready = Callable[[], Awaitable[str | None]]
"""Why a process is not ready; None: it is."""

_WITHIN: Final = 2.0
"""Seconds for a database to answer, and for a client to say what it asks."""
_KNOWN_FOR: Final = 1.0
"""Seconds for which an answer of the databases is given again: many probes cost what one does."""
_LONGEST: Final = 8192
_PORTS: Final = range(1, 65536)


class Health:
    """Listens at `at` while it is entered; `at` None: it does nothing.

    Raises InvalidArgument for an address that cannot be one, or that another process has.
    """

    def __init__(
        self, at: str | int | None, ready: Ready, pages: Mapping[str, Page] = MappingProxyType({})
    ) -> None:
        self._at = None if at is None else parse(at)
        self._pages = pages
        self._ready = ready
        self._server: asyncio.Server | None = None
        self._asking = asyncio.Lock()
        self._answer: tuple[float, str | None] | None = None

    async def __aenter__(self) -> Self:
        if self._at is None:
            return self
        host, port = self._at
        try:
            self._server = await asyncio.start_server(self._serve, host, port, limit=_LONGEST)
        except OSError as error:
            where = f"{host or '*'}:{port}"
            raise InvalidArgument(
                f"probes cannot be answered at {where}: {error.strerror or error}", "give another --health"
            ) from None
        log.info("answers GET %s at %s:%s", self._known, host or "*", port)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_WITHIN):
                head = await reader.readuntil(b"\r\n\r\n")
            status, type, body = await self._answered(head.decode("latin-1"))
            writer.write(_response(status, type, body, is_head=head.startswith(b"HEAD ")))
            await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            # Whoever connects and says nothing, or nothing of ours.
            pass
        finally:
            writer.close()

    @property
    def _known(self) -> str:
        *others, last = ["/healthz", "/readyz", *self._pages]
        return f"{', '.join(others)} and {last}"

    async def _answered(self, head: str) -> tuple[HTTPStatus, str, bytes]:
        line, _, rest = head.partition("\r\n")
        method, _, asked = line.partition(" ")
        path = asked.partition(" ")[0].partition("?")[0]
        if path not in ("/healthz", "/readyz", *self._pages):
            return _plain(HTTPStatus.NOT_FOUND, f"ask {self._known.replace(' and ', ' or ')}")
        if method not in ("GET", "HEAD"):
            return _plain(HTTPStatus.METHOD_NOT_ALLOWED, "ask with GET")
        if (page := self._pages.get(path)) is not None:
            accepted = [each[7:] for each in rest.split("\r\n") if each.lower().startswith("accept:")]
            return (HTTPStatus.OK, *await page(",".join(accepted)))
        why = None if path == "/healthz" else await self._why()
        return _plain(HTTPStatus.OK if why is None else HTTPStatus.SERVICE_UNAVAILABLE, why or "ok")

    async def _why(self) -> str | None:
        async with self._asking:
            if self._answer is None or self._answer[0] < monotonic() - _KNOWN_FOR:
                self._answer = monotonic(), await self._ready()
            return self._answer[1]


def parse(at: str | int) -> tuple[str | None, int]:
    """Host and port of `8080`, `127.0.0.1:8080` or `[::1]:8080`; a port alone is one of every address of the
    machine, as an orchestrator asks from outside.
    """
    host, _, port = str(at).rpartition(":")
    if not port.isascii() or not port.isdigit() or int(port) not in _PORTS:
        raise InvalidArgument(
            f"{str(at)[:60]!r} is no address for probes",
            "give a port, as 8080, or host and port, 127.0.0.1:8080",
        )
    return host.removeprefix("[").removesuffix("]") or None, int(port)


async def why_not(dsn: str, title: str) -> str | None:
    """Why a database cannot be worked with, in a line without its password; None: it answers, and has the
    schema that we need.
    """
    try:
        async with asyncio.timeout(_WITHIN):
            async with await open_connection(complete(dsn, title)) as connection:
                await check_schema(connection)
    except TimeoutError:
        return f"the database has not answered for {_WITHIN:g} s"
    except Exception as error:
        hint = error.hint if isinstance(error, TrunqError) else None
        return first_line(error) + (f"; {hint}" if hint else "")
    return None


def _plain(status: HTTPStatus, text: str) -> tuple[HTTPStatus, str, bytes]:
    return status, "text/plain; charset=utf-8", f"{text}\n".encode()


def _response(status: HTTPStatus, type: str, body: bytes, *, is_head: bool) -> bytes:
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {type}\r\n"
        f"Content-Length: {len(body)}\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + (b"" if is_head else body)
