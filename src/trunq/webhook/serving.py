"""The server of `trunq webhook serve`: it closes connections beyond its limit, and those that stay silent."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

CONNECTIONS: Final = 1000
"""At the same time; one more is closed at once."""
HEADERS_WITHIN: Final = 10.0
"""Seconds for the first line and the headers of a request. Bodies have a time of their own."""


def configure(
    app: Any,
    *,
    host: str,
    port: int,
    connections: int = CONNECTIONS,
    headers_within: float = HEADERS_WITHIN,
) -> uvicorn.Config:
    """What uvicorn serves, and how."""

    class Bounded(_Bounded):
        most = connections
        within = headers_within

    return uvicorn.Config(
        app,
        host=host,
        port=port,
        http=Bounded,
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=20,
    )


class _Bounded(H11Protocol):
    """A connection."""

    most: int
    within: float
    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.most:
            transport.abort()
        else:
            self._look()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        super().connection_lost(exc)

    def _look(self) -> None:
        # Between two requests uvicorn's own time-out runs, until a byte comes.
        if not self._waits():
            self._stop()
        elif self._late is None:
            self._late = self.loop.call_later(self.within, self._give_up)

    def _stop(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _give_up(self) -> None:
        self._late = None
        if self._waits() and not self.transport.is_closing():
            self.transport.abort()

    def _waits(self) -> bool:
        """Whether no request is there whose headers have come and whose answer has not gone."""
        cycle: Any = self.cycle
        return cycle is None or bool(cycle.response_complete)
