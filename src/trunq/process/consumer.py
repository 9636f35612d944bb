"""A process, or a thread, that reads a stream: each batch to a handler, in a transaction."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any

from psycopg import AsyncConnection

from trunq.client._async import AsyncClient
from trunq.client._async.stream.reading import AsyncBatchStream, AsyncOpenBatch
from trunq.process.signals import run_with_signals

if TYPE_CHECKING:
    from trunq.telemetry import Telemetry

log = logging.getLogger("trunq.consumer")

Handler = Callable[[AsyncOpenBatch, AsyncConnection[Any]], Awaitable[object]]


@dataclass
class Statistics:
    """What a consumer has done since it was made."""

    batches: int = 0
    """Those whose transaction was committed."""
    messages: int = 0
    """Messages that the handler had of them."""
    failures: int = 0
    """Batches whose handler raised, or that another reader had by then."""
    busy: float = 0.0
    """Seconds in handlers and their transactions, failed ones too."""
    last_error: str | None = None


class Consumer:
    """Reads an exclusive subscription.

        async def book(batch, connection):
            async for message in batch:
                await connection.execute("insert into ledger ...")

        Consumer("sales", "ledger", book, worker="bookkeeper").run()

    `handler` gets each batch and a connection in the transaction that finishes it: what it writes there and
    the position commit together. When it raises, both are rolled back, the batch has failed and comes again
    after its back-off. `options` are those of `client.stream`, such as `member`, its name in a group;
    `database` a connection string. With `telemetry`, each batch has a span of OpenTelemetry.
    """

    def __init__(
        self,
        queue: str,
        subscription: str,
        handler: Handler,
        *,
        database: str | None = None,
        worker: str | None = None,
        telemetry: Telemetry | None = None,
        **options: Any,
    ) -> None:
        if not inspect.iscoroutinefunction(handler):
            raise TypeError(
                f"handler is an async function (batch, connection), not {handler!r};"
                " without async, loop over Client.stream"
            )
        self.statistics = Statistics()
        self._queue = queue
        self._subscription = subscription
        self._handler = handler
        self._database = database
        self._worker = worker
        self._telemetry = telemetry
        self._options = options
        self._stream: AsyncBatchStream | None = None
        self._is_stopped = False
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def run(self) -> None:
        """Read until SIGTERM or SIGINT, which end it between two batches; a second one ends it at once.

        Raises psycopg.OperationalError when there is no database to begin with (later on it is waited for),
        and trunq's errors for a queue or subscription that does not exist.
        """
        run_with_signals(self.run_async, self.stop)

    async def run_async(self) -> None:
        """`run` on the event loop you have, without signals; `stop` ends it."""
        if self._stream is not None:
            raise RuntimeError("this consumer is running already")
        async with AsyncClient(self._database, telemetry=self._telemetry) as client:
            stream = client.stream(self._queue, self._subscription, self._worker, **self._options)
            self._stream = stream
            try:
                if self._is_stopped:
                    return
                async for batch in stream:
                    await self._handle(batch)
            finally:
                self._stream = None
                self._is_stopped = False

    def start(self) -> None:
        """`run` in a thread of its own, without signals; `stop` and `wait` end it."""
        if self._thread is not None:
            raise RuntimeError("this consumer was started already")
        self._error = None
        self._thread = threading.Thread(target=self._serve, name=f"trunq-{self._subscription}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End it when the batch in hand is done; from any thread."""
        self._is_stopped = True
        if (stream := self._stream) is not None:
            stream.stop()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the thread has ended, at most `timeout` seconds; raises what ended it."""
        if self._thread is None:
            return True
        self._thread.join(timeout)
        if self._thread.is_alive():
            return False
        self._thread = None
        if self._error is not None:
            raise self._error
        return True

    def _serve(self) -> None:
        try:
            asyncio.run(self.run_async())
        except BaseException as error:
            self._error = error
            log.error("the consumer of %s, %s ended: %s", self._queue, self._subscription, error)

    async def _handle(self, batch: AsyncOpenBatch) -> None:
        began = monotonic()
        try:
            async with batch.transaction() as connection:
                await self._handler(batch, connection)
        except Exception as error:
            self.statistics.failures += 1
            self.statistics.last_error = f"{type(error).__name__}: {error}"
            log.warning("%r failed: %s", batch, self.statistics.last_error)
        else:
            self.statistics.batches += 1
            self.statistics.messages += batch.message_count
        finally:
            self.statistics.busy += monotonic() - began
