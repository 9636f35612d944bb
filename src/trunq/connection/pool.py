"""psycopg's pools, with what an event loop that ends needs."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from psycopg import AsyncConnection, Connection
from psycopg_pool import AsyncConnectionPool, ConnectionPool
from psycopg_pool.pool_async import MaintenanceTask, StopWorker

log = logging.getLogger("psycopg.pool")


class AsyncOwnPool(AsyncConnectionPool[AsyncConnection[Any]]):
    """A pool whose tasks end when they are cancelled.

    Cancelled while it connects, a task of psycopg_pool goes on, and `asyncio.run` waits for it for ever.
    """

    @classmethod
    async def worker(cls, q: asyncio.Queue[MaintenanceTask]) -> None:
        """Do what the pool asks for, one thing after the other."""
        current = asyncio.current_task()
        assert current is not None
        while not isinstance(task := await q.get(), StopWorker):
            try:
                await task.run()
            except Exception as error:
                log.warning("task run %s failed: %s: %s", task, type(error).__name__, error)
            if current.cancelling():
                return


OwnPool = ConnectionPool[Connection[Any]]
