"""The client behind PgBouncer in transaction mode: each statement may reach another server connection."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from psycopg_pool import ConnectionPool

from pooling import needs_pgbouncer, pooling
from trunq import Client, Message
from trunq.embedded import Embedded

pytestmark = needs_pgbouncer

THREADS = 6
ROUNDS = 7
"""psycopg prepares a statement at its fifth use."""


@pytest.fixture
def pooled(server: Embedded, database: str) -> Iterator[str]:
    """The test's database behind PgBouncer, with fewer server connections than there are clients."""
    with pooling(server, database, size=THREADS - 3) as dsn:
        yield dsn


class Noting:
    """A client that notes which of its methods were called."""

    def __init__(self, client: Client, called: set[str]) -> None:
        self._client = client
        self._called = called

    def __getattr__(self, name: str) -> Any:
        self._called.add(name)
        return getattr(self._client, name)


def methods() -> set[str]:
    return {name for name, _ in inspect.getmembers(Client, inspect.isfunction) if not name.startswith("_")}


def call_everything(client: Any, queue: str, direct: psycopg.Connection[Any]) -> None:
    """Call every method, and see that each answer is that of its own statement."""
    assert client.create_queue(queue)
    client.grant_publisher(queue, "postgres")
    assert client.subscribe(queue, "stream", mode="exclusive")
    assert not client.subscribe(queue, "default", max_attempts=1)
    for round in range(ROUNDS):
        use_messages(client, queue, round)
        use_ticks(client, queue, round)
    look(client, queue)
    # The bell is a session's, of which a pooler has none to give.
    assert client.take_bell(queue, connection=direct) == "held"
    assert client.give_bell(queue, connection=direct)
    assert client.unsubscribe(queue, "stream")
    client.drop_queue(queue, force=True)


def use_messages(client: Any, queue: str, round: int) -> None:
    texts = [f"{queue} {round} {n}" for n in range(5)]
    ids = client.publish_many(queue, texts[:3])
    with client.transaction() as connection:
        ids.append(client.publish(queue, texts[3], connection=connection))
    drawn = client.draw_ids(queue, 1)
    assert drawn and drawn[0] > ids[-1]
    with client.copy(queue) as copy:
        copy.write(texts[4])
    messages: list[Message] = client.lease(queue, "default", "w", 5)
    assert [message.payload for message in messages] == texts
    assert client.extend(messages, lease_time=60) > client.clock()
    done, again, never, back, last = messages
    assert client.ack(done, result=texts[0]) == 1
    assert client.retry(again, error="again") == 1
    assert client.reject(never, "never") == 1
    assert client.release(back) == 1
    assert client.ack(last) == 1
    assert client.show_message(queue, done.id)[0].result == texts[0]
    assert {dead.payload for dead in client.list_dead(queue)} == {texts[1], texts[2]}
    assert client.requeue(queue, ids=[again.id]) == 1
    assert client.purge(queue) == 1
    client.promote(queue)
    left = client.lease(queue, "default", "w", 5)
    assert {message.payload for message in left} == {texts[1], texts[3]}
    assert client.ack(left) == 2


def use_ticks(client: Any, queue: str, round: int) -> None:
    tick_id = client.tick(queue, force=True)
    batch = client.next_batch(queue, "stream", "w")
    texts = {message.payload for message in client.read(batch)}
    assert f"{queue} {round} 0" in texts
    assert texts == {message.payload for message in client.read_batch(queue, "stream", batch.batch_id)}
    if round % 2:
        assert client.finish(batch)
    else:
        assert client.finish_batch(queue, "stream", batch.batch_id, batch.token)
    assert client.position(queue, "stream") == tick_id
    assert client.list_ticks(queue, tick_id, tick_id)[0].tick_id == tick_id
    assert client.advance(queue, "stream", tick_id) == tick_id
