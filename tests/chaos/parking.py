"""A worker process whose messages wait for the outside. Run as a program: dsn, name."""

from __future__ import annotations

import sys
from typing import Any

import psycopg

from trunq import Message, Park, Worker


def main(dsn: str, name: str) -> None:
    worker = Worker("q", dsn=dsn, name=name, poll=0.2, lead=True)

    @worker.handler("work")
    async def work(message: Message, connection: psycopg.AsyncConnection[Any]) -> Park | None:
        step = 2 if message.is_resumed else 1
        await connection.execute(
            "insert into ledger values (%s, %s, %s)", (message.id, step, message.resumed)
        )
        return None if message.is_resumed else Park(f"token {message.id}", until="1 hour")

    worker.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
