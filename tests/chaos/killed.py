"""A worker process that some messages kill. Run as a program: dsn, name (`-`: none), concurrency."""

from __future__ import annotations

import asyncio
import os
import sys

from trunq.client.message import Message
from trunq.worker import Worker

LEASE_TIME = 2.0
PAUSE = 0.05


def main(dsn: str, name: str, concurrency: str) -> None:
    worker = Worker(
        "q",
        dsn=dsn,
        name=None if name == "-" else name,
        concurrency=int(concurrency),
        lease_time=LEASE_TIME,
        poll=0.2,
        lead=False,
    )

    @worker.handler("work")
    async def work(message: Message) -> None:
        await asyncio.sleep(PAUSE)

    @worker.handler("killer")
    async def kill(message: Message) -> None:
        os._exit(1)

    worker.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
