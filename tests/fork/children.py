"""What tests of forks run in processes of their own: a parent that has used a client, and its children.

python children.py DSN SCENARIO
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import psycopg
from psycopg_pool import ConnectionPool

from trunq import AsyncClient, Client, TransactionEnded

EACH = 50
"""What each child publishes."""

dsn = sys.argv[1] if len(sys.argv) > 1 and __name__ in {"__main__", "__mp_main__"} else ""
client = Client(dsn, max_connections=2)


def publish(child: int) -> list[tuple[int, str]]:
    """Publish from a child, and say what each id is of."""
    return [(client.publish("q", text), text) for text in (f"{child}-{n}" for n in range(EACH))]


def in_child(work: Callable[[], Any]) -> Any:
    """What `work` returns, or the text of what it raises, in a forked child."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            said: Any = work()
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
        with os.fdopen(writing, "w") as pipe:
            json.dump(said, pipe)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    os.waitpid(pid, 0)
    return json.loads(text)


def pool(method: str) -> Any:
    """Children of a multiprocessing pool publish, the parent too."""
    with multiprocessing.get_context(method).Pool(4) as children:
        found = children.map_async(publish, range(4), chunksize=1)
        own = publish(4)
        return sum(found.get(60), own)


def forked() -> Any:
    """Children forked while other threads of the parent are in the middle of their calls."""
    stopped = threading.Event()
    own: list[tuple[int, str]] = []

    def keep_publishing(name: int) -> None:
        while not stopped.is_set():
            own.extend(publish(name))

    threads = [threading.Thread(target=keep_publishing, args=(name,)) for name in (100, 101)]
    for thread in threads:
        thread.start()
    found = [in_child(lambda child=child: publish(child)) for child in range(4)]
    stopped.set()
    for thread in threads:
        thread.join()
    return sum(found, own)


def transaction() -> Any:
    """A child is given the connection of its parent's transaction, and leaves the block itself."""
    pid = -1
    try:
        with client.transaction() as connection:
            client.publish("q", "parent", connection=connection)
            refused = in_child(lambda: client.publish("q", "child", connection=connection))
            pid = os.fork()
            if pid > 0:
                _, status = os.waitpid(pid, 0)
    except TransactionEnded:
        os._exit(42 if pid == 0 else 1)
    return [refused, os.waitstatus_to_exitcode(status), in_child(lambda: client.publish("q", "of its own"))]


def connection() -> Any:
    """A connection the parent opened and never showed to trunq."""
    with psycopg.connect(dsn, autocommit=True) as own:
        refused = in_child(lambda: client.publish("q", 1, connection=own))
        copied = in_child(lambda: client.publish_many("q", [1] * 1000, connection=own))
        return [refused, copied, client.publish("q", "parent", connection=own)]


def own_pool() -> Any:
    """A pool the parent opened."""
    with ConnectionPool(dsn, min_size=1, open=True) as opened:
        opened.wait()
        pooled = Client(opened)
        pooled.publish("q", "parent")
        return [
            in_child(lambda: pooled.publish("q", 1)),
            in_child(lambda: Client(opened).publish("q", 1)),
            pooled.publish("q", "parent"),
        ]


def loops() -> Any:
    """An async client in a parent's loop, then in a child's."""
    shared = AsyncClient(dsn)

    async def call(text: str) -> int:
        return await shared.publish("q", text)

    async def main() -> Any:
        await call("parent")
        child = await asyncio.to_thread(in_child, lambda: asyncio.run(call("child")))
        own = await call("parent")
        await shared.close()
        return [child, own]

    return asyncio.run(main())


def listening() -> Any:
    """A loop of the parent's goes on beside a child that listens by itself."""
    with client.listen("q") as heard:

        def child() -> Any:
            try:
                next(heard)
            except Exception as error:
                said = type(error).__name__
            heard.close()
            with client.listen("q", start="earliest") as own:
                first = next(own)
            client.close()
            return [said, first.payload]

        said = in_child(child)
        client.publish("q", "after")
        return [*said, next(heard).payload]


def not_local() -> Any:
    """What a child publishes is not its parent's own."""
    with client.listen("q", no_local=True) as heard:

        def child() -> Any:
            with client.listen("q", no_local=True) as own:
                client.publish("q", "child")
                with Client(dsn) as other:
                    other.publish("q", "other")
                first = next(own)
            client.close()
            return first.payload

        client.publish("q", "parent")
        said = in_child(child)
        return [said, next(heard).payload]


def main() -> None:
    scenario, *arguments = sys.argv[2:]
    client.publish("q", "before")
    answer = globals()[scenario](*arguments)
    client.close()
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
