"""A worker process that keeps a ledger of its effects. Run as a program: dsn, name, folder.

Handlers of kinds `once...` write into the table `effect` in their transaction. Handlers of kind `outside`
have an effect on the world outside the database: a line in a file, written with one system call, so that even
a process killed with -9 leaves whole lines.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from pathlib import Path
from typing import Any

import psycopg

from trunq.client.message import Message, Retry
from trunq.worker import Worker

LEASE_TIME = 2.0

PAUSE = 0.04
"""Seconds a handler takes, so that there is always something in the middle of which to be killed."""


def main(dsn: str, name: str, folder: str) -> None:
    logging.basicConfig(format="%(asctime)s %(name)s %(message)s")
    book = os.open(Path(folder) / f"effects-{os.getpid()}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    worker = Worker(
        "q",
        dsn=dsn,
        name=None if name == "-" else name,
        concurrency=8,
        prefetch=40,
        lease_time=LEASE_TIME,
        poll=0.5,
        lead=False,
    )

    @worker.handler("outside")
    async def outside(message: Message) -> None:
        os.write(book, f"{message.id} {message.attempt}\n".encode())
        await asyncio.sleep(PAUSE)

    @worker.handler("once")
    async def once(message: Message, connection: psycopg.AsyncConnection[Any]) -> None:
        await connection.execute("insert into effect values (%s, %s)", (message.id, message.attempt))
        await asyncio.sleep(PAUSE)

    @worker.handler("once_sync")
    def once_sync(message: Message, connection: psycopg.Connection[Any]) -> None:
        connection.execute("insert into effect values (%s, %s)", (message.id, message.attempt))
        connection.execute("select pg_sleep(%s)", (PAUSE,))

    @worker.batch("once_batch", size=20, wait=0.02)
    async def once_batch(messages: list[Message], connection: psycopg.AsyncConnection[Any]) -> list[Any]:
        again = [message for message in messages if message.attempt == 1 and message.id % 7 == 0]
        for message in messages:
            if message not in again:
                await connection.execute("insert into effect values (%s, %s)", (message.id, message.attempt))
        await asyncio.sleep(PAUSE)
        return [Retry() if message in again else None for message in messages]

    worker.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
