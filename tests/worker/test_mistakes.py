"""A user's mistakes end with a sentence that says what to do, at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from copying import copied_server
from serving import Queue
from trunq.client.message import Message
from trunq.embedded import Embedded
from trunq.errors import InvalidArgument, QueueNotFound, SchemaMissing, SubscriptionNotFound, WrongMode
from trunq.worker import Worker
from trunq.worker import run as policy
from waiting import async_wait_until


def worker(*queues: str, **options: Any) -> Worker:
    made = Worker(*queues, **options)

    @made.handler("work")
    async def handle(message: Message) -> None: ...

    return made


async def run(made: Worker) -> None:
    async with asyncio.timeout(120):
        await made.run_async()


async def test_an_unknown_queue_is_named(queue: Queue) -> None:
    with pytest.raises(QueueNotFound, match='"orders"'):
        await run(worker("orders", dsn=queue.dsn))


async def test_an_unknown_subscription_is_named_with_its_queue(queue: Queue) -> None:
    with pytest.raises(SubscriptionNotFound, match='queue "q" has no subscription "audit"'):
        await run(worker("q", subscription="audit", dsn=queue.dsn))


async def test_an_exclusive_subscription_has_no_leases(queue: Queue) -> None:
    queue.connection.execute("select trunq.subscribe('q', 'lake', 'exclusive')")
    with pytest.raises(WrongMode, match='"lake" of queue "q" is exclusive') as caught:
        await run(worker("q", subscription="lake", dsn=queue.dsn))
    assert "next_batch" in str(caught.value.hint)


async def test_a_database_without_trunq_says_how_to_install_it(new_database: Callable[..., str]) -> None:
    with pytest.raises(SchemaMissing) as caught:
        await run(worker("q", dsn=new_database("template1")))
    assert "trunq db install" in str(caught.value.hint)


async def test_a_database_that_does_not_exist_is_named(server: Embedded) -> None:
    with pytest.raises(psycopg.OperationalError, match='database "nowhere" does not exist'):
        await run(worker("q", dsn=make_conninfo(server.dsn, dbname="nowhere")))


async def test_no_server_is_an_error_not_a_hang() -> None:
    with pytest.raises(psycopg.OperationalError, match=r"connection failed|Connection refused"):
        await run(worker("q", dsn="postgresql://127.0.0.1:1/x"))


@pytest.fixture(scope="module")
def guarded() -> Iterator[str]:
    """A server that asks for a password; the dsn has the right one."""
    with copied_server() as server:
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            connection.execute("create role clerk login password 'right'")
            connection.execute("grant pg_read_all_data to clerk")
            rules = server.data / "pg_hba.conf"
            rules.write_text("local all clerk scram-sha-256\n" + rules.read_text())
            connection.execute("select pg_reload_conf()")
        yield make_conninfo(server.dsn, user="clerk", password="right")


async def test_a_wrong_password_is_an_error_not_a_hang(guarded: str) -> None:
    with pytest.raises(psycopg.OperationalError, match='password authentication failed for user "clerk"'):
        await run(worker("q", dsn=make_conninfo(guarded, password="wrong")))


async def test_a_reserve_as_long_as_the_lease_is_refused(queue: Queue) -> None:
    with pytest.raises(InvalidArgument, match="a reserve of 60 s leaves nothing of a lease of 60 s"):
        await run(worker("q", dsn=queue.dsn, reserve=60))


async def test_a_policy_that_leaves_nothing_of_the_lease_ends_a_running_worker_with_a_sentence(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy, "_POLICY_EVERY", 0.02)
    made = worker("q", dsn=queue.dsn, reserve=1, lead=False)
    task = asyncio.create_task(run(made))
    await async_wait_until(lambda: made.statistics.looks)
    queue.policy(lease_time="0.5 s")
    with pytest.raises(InvalidArgument, match=r"a reserve of 1 s leaves nothing of a lease of 0\.5 s"):
        await task


async def test_what_runs_is_finished_and_answered_when_another_part_of_the_worker_fails(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy, "_POLICY_EVERY", 0.02)
    made, entered, go = Worker("q", dsn=queue.dsn, reserve=1, lead=False), asyncio.Event(), asyncio.Event()
    (id,) = queue.publish()

    @made.handler("work")
    async def wait(message: Message) -> str:
        entered.set()
        await go.wait()
        return "finished"

    task = asyncio.create_task(run(made))
    await entered.wait()
    queue.policy(lease_time="0.5 s")
    await async_wait_until(lambda: not any("_keep_following" in repr(task) for task in asyncio.all_tasks()))
    go.set()
    with pytest.raises(InvalidArgument, match="a reserve of 1 s"):
        await task
    assert (queue.message(id).state, queue.message(id).result) == ("done", "finished")


async def test_a_worker_that_names_no_database_asks_the_settings(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRUNQ_DSN", queue.dsn)
    queue.publish()
    made = worker("q", until_empty=True, lead=False)
    await run(made)
    assert made.statistics.handled == 1


async def test_a_worker_without_handlers_says_so(queue: Queue) -> None:
    with pytest.raises(ValueError, match="no handlers"):
        await Worker("q", dsn=queue.dsn).run_async()


@pytest.mark.parametrize(
    ("queues", "options", "sentence"),
    [
        ((), {"dsn": "x"}, "needs a queue"),
        (("q",), {"dsn": "x", "concurrency": 0}, "concurrency must be at least 1, not 0"),
        (("q",), {"dsn": "x", "prefetch": -1}, "prefetch cannot be negative"),
        (("q",), {"dsn": "x", "poll": 0}, "poll must be positive"),
        (("q",), {"dsn": "x", "lease_time": -1.0}, "lease_time must be positive"),
        (("q",), {"dsn": "nonsense=1 =", "poll": 1}, None),
    ],
)
async def test_options_out_of_range_are_named(
    queues: tuple[str, ...], options: dict[str, Any], sentence: str | None
) -> None:
    expected = psycopg.ProgrammingError if sentence is None else ValueError
    with pytest.raises(expected, match=sentence):
        await run(worker(*queues, **options))


def test_a_list_of_queues_is_told_how_to_be_given() -> None:
    with pytest.raises(TypeError, match=r"one by one: Worker\('a', 'b'\)"):
        Worker(["a", "b"])  # type: ignore[arg-type]
