"""The two-stage scheduler of docs/lanes/scheduler.md, with workers."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from serving import Queue, running
from trunq import Client, Worker
from trunq.client.message import Message
from waiting import async_wait_until

ROOT = Path(__file__).parents[2]
PROGRAM = (ROOT / "examples" / "scheduler.py").read_text()
SLOTS = 3


@pytest.fixture
def schedule(monkeypatch: pytest.MonkeyPatch) -> Callable[[Client], int]:
    monkeypatch.syspath_prepend(ROOT / "examples")
    monkeypatch.delitem(sys.modules, "scheduler", raising=False)
    import scheduler  # type: ignore[import-not-found]  # noqa: PLC0415

    return scheduler.schedule  # type: ignore[no-any-return]


@pytest.fixture
def client(database: str, connection: psycopg.Connection[Any]) -> Iterator[Client]:
    with Client(database) as client:
        client.create_queue("inbox")
        connection.execute("create table tenant (tenant text primary key, need integer not null)")
        connection.execute(
            "create table pending (id bigint primary key, tenant text, lease_id bigint, token bigint)"
        )
        connection.execute("insert into tenant values ('small', 1), ('large', 5)")
        yield client


def pending(connection: psycopg.Connection[Any]) -> int:
    return connection.execute("select count(*) from pending").fetchone()[0]  # type: ignore[no-any-return,index]


def test_the_page_has_the_program_of_the_examples() -> None:
    assert f"```python\n{PROGRAM}```" in (ROOT / "docs" / "lanes" / "scheduler.md").read_text()


async def test_never_more_than_twice_the_free_slots_are_ahead_and_the_order_is_that_of_the_table(
    client: Client, connection: psycopg.Connection[Any], schedule: Callable[[Client], int]
) -> None:
    work = Queue(str(connection.info.dsn), connection, "work")
    done: list[str] = []
    go_on = asyncio.Semaphore(0)
    worker = Worker("work", dsn=client_dsn(connection), lead=False, concurrency=SLOTS, prefetch=0)

    @worker.handler("*")
    async def handle(message: Message) -> None:
        await go_on.acquire()
        done.append(f"{message.key} {message.payload}")

    def ahead() -> int:
        (row,) = client.status("work")
        return row.ready

    client.publish_many("inbox", list(range(20)), keys=["small", "large"] * 10)
    # Without workers there is no free slot.
    assert schedule(client) == 0
    assert pending(connection) == 20
    async with running(worker):
        await async_wait_until(lambda: client.fleet("work").free_slots == SLOTS)
        # Workers that only attend: all six wait, and no more come.
        client.pause_subscription("work", "default")
        assert schedule(client) == 2 * SLOTS
        assert (schedule(client), ahead(), pending(connection)) == (0, 2 * SLOTS, 20 - 2 * SLOTS)
        client.resume_subscription("work", "default")
        await async_wait_until(lambda: client.fleet("work").free_slots == 0)
        assert (ahead(), schedule(client)) == (SLOTS, 0)
        # What is in the work queue stays; what is chosen from now on goes by the table as it is now.
        connection.execute("update tenant set need = 9 where tenant = 'small'")
        client.pause_subscription("work", "default")
        go_on.release()
        go_on.release()
        await async_wait_until(lambda: client.fleet("work").free_slots == 2)
        assert (ahead(), schedule(client), schedule(client)) == (3, 2 * 2 - 3, 0)
        client.resume_subscription("work", "default")
        while pending(connection):
            go_on.release()
            schedule(client)
            assert ahead() <= 2 * SLOTS
            await asyncio.sleep(0)
        for _ in range(20):
            go_on.release()
        await async_wait_until(lambda: len(done) == 20)
    large = [f"large {n}" for n in range(1, 20, 2)]
    small = [f"small {n}" for n in range(0, 20, 2)]
    assert sorted(done) == sorted(large + small)
    # Six were chosen while `large` came first; then all of `small`, then the rest. Three run at a time.
    expected = large[:6] + small + large[6:]
    assert max(abs(done.index(each) - place) for place, each in enumerate(expected)) < SLOTS
    assert work.states() == {"done": 20}


def test_a_round_that_fails_leaves_nothing_behind(
    client: Client, connection: psycopg.Connection[Any], schedule: Callable[[Client], int]
) -> None:
    client.create_queue("work")
    client.publish_many("inbox", [1, 2], keys=["small", "large"])
    connection.execute("alter table tenant rename to elsewhere")
    with pytest.raises(psycopg.errors.UndefinedTable):
        schedule(client)
    assert pending(connection) == 0
    connection.execute("alter table elsewhere rename to tenant")
    # What it leased is free again.
    schedule(client)
    assert pending(connection) == 2


def test_a_retry_is_ranked_again_and_whoever_published_follows_it(
    client: Client, connection: psycopg.Connection[Any], schedule: Callable[[Client], int]
) -> None:
    client.create_queue("work")
    connection.execute(
        "insert into trunq.worker (subscription_id, name, slots, seen_at)"
        " select subscription_id, 'w', 1, now() + interval '1 day' from trunq.subscription s"
        " join trunq.queue q using (queue_id) where q.name = 'work'"
    )
    first = client.publish("inbox", "one", kind="mail", key="large", headers={"trace": 1}, awaited=True)
    assert schedule(client) == 1
    (message,) = client.lease("work", "default", worker="w")
    client.retry(message, error="not yet", after=60)
    # Now the other tenant comes first.
    connection.execute("update tenant set need = 9 where tenant = 'small'")
    others = client.publish_many("inbox", ["two", "three"], keys=["small", "small"])
    connection.execute("update trunq.delayed set due_at = now()")
    schedule(client)
    client.promote("inbox")
    schedule(client)
    order = []
    for _ in range(4):
        for message in client.lease("work", "default", worker="w", max_messages=5):
            order.append(message.payload)
            assert message.payload != "one" or (message.attempt, message.kind, message.headers) == (
                2,
                "mail",
                {"trace": 1},
            )
            client.ack(message, result=message.payload)
        schedule(client)
    assert order == ["two", "three", "one"]
    assert [client.show_message("inbox", id)[0].state for id in (first, *others)] == ["done"] * 3
    (reply,) = client.list_replies("inbox", [first])
    assert reply.result == "one"


def client_dsn(connection: psycopg.Connection[Any]) -> str:
    return str(connection.info.dsn)
