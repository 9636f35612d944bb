"""The worker that tests spread over a cluster, and a driver of ours: `python spreading.py`."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from typing import Any

import psutil

import trunq
from trunq import Message, Retry, Worker

worker = Worker("work", "ordered", concurrency=4, lead=True)


@worker.handler("effect")
async def write(message: Message, connection: Any) -> None:
    """One effect, with the ack."""
    await connection.execute(
        "insert into effect (queue, key, message_id, n, process) values (%s, %s, %s, %s, %s)",
        (message.queue, message.key, message.id, message.payload["n"], os.getpid()),
    )


@worker.handler("stumble")
def stumble(message: Message, connection: Any) -> Retry | None:
    """Likewise, at the second attempt."""
    if message.attempt == 1:
        return Retry(0)
    connection.execute(
        "insert into effect (queue, key, message_id, n, process) values (%s, %s, %s, %s, %s)",
        (message.queue, message.key, message.id, message.payload["n"], os.getpid()),
    )
    return None


@worker.handler("long")
async def wait(message: Message) -> str:
    """Run until the file is there that the message names."""
    while not os.path.exists(message.payload):  # noqa: ASYNC240, ASYNC110
        await asyncio.sleep(0.05)
    return "done"


def die_once(rows: Iterator[Any]) -> Iterator[tuple[str, int]]:
    """Where trunq is, and ids. It kills the executor in the middle of the first try of the first part."""
    from pyspark import TaskContext  # noqa: PLC0415

    context = TaskContext.get()
    assert context is not None
    yield trunq.__file__, next(rows).id
    if context.partitionId() == 0 and context.attemptNumber() == 0:
        os.kill(psutil.Process(os.getppid()).ppid(), signal.SIGKILL)
    yield from ((trunq.__file__, row.id) for row in rows)


@worker.handler("where")
def tell(message: Message, connection: Any) -> None:
    """The effect is where the worker has trunq from."""
    connection.execute(
        "insert into effect (queue, key, message_id, process) values (%s, %s, %s, %s)",
        (message.queue, trunq.__file__, message.id, os.getpid()),
    )


def main() -> None:
    """Read a queue while an executor dies; then spread a worker, and one that cannot work."""
    from trunq import spark  # noqa: PLC0415

    session = spark.session()
    frame = session.read.format("trunq").schema("id bigint").options(queue="work", minPartitions=4).load()
    places, ids = zip(*frame.rdd.mapPartitions(die_once).collect(), strict=True)
    assert len(set(ids)) == len(ids)
    print("read", len(ids))
    print(*sorted({place.partition("/environment/")[2] for place in places}))
    print("handled", spark.spread("spreading:worker", tasks=2, until_empty=True).wait(200).handled)
    try:
        spark.spread("spreading:worker", tasks=2, queues=("nowhere",)).wait(120)
    except Exception as error:
        print("told", type(error).__name__)
    session.stop()


if __name__ == "__main__":
    main()
