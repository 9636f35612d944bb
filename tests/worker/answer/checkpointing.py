"""A worker process that goes on from a checkpoint. Run as a program: dsn, name.

Its first attempt reports step after step and never ends; the next says where it started.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from trunq.client.message import Message
from trunq.worker import Worker


def main(dsn: str, name: str) -> None:
    worker = Worker("q", dsn=dsn, name=name, poll=0.2, lead=True)

    @worker.handler("work")
    async def work(message: Message) -> Any:
        if message.attempt > 1:
            return {"attempt": message.attempt, "checkpoint": message.checkpoint}
        for step in range(1, message.payload["steps"] + 1):
            await message.set_progress(note=f"step {step}", checkpoint={"step": step})
        return await asyncio.Event().wait()

    worker.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
