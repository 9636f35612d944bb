"""Waiting for results: many waiters, one connection; lost connections, poolers, dead workers."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from psycopg_pool import ConnectionPool

from copying import copied_server
from pooling import needs_pgbouncer, pooling
from serving import running
from trunq import AsyncClient, Client, ClientClosed, InvalidArgument, Message, MessageNotFound, Worker
from trunq.client import reply
from trunq.connection._sync.watched import Watched
from trunq.embedded import Embedded
from waiting import async_wait_until, wait_until

PATIENCE = 120.0
NEVER = 3600.0
WAITERS = 30


@pytest.fixture
def client(database: str) -> Iterator[Client]:
    with Client(database) as made:
        made.create_queue("orders")
        yield made


@pytest.fixture
def only_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits looks once, and again only when told."""
    monkeypatch.setattr(reply, "_LOOK", NEVER)
    monkeypatch.setattr(reply, "FIRST_CHECK", NEVER)


def answer_all(client: Client, *, of: Callable[[Message], Any] = lambda message: message.id) -> int:
    messages = client.lease("orders", "default", "w1", 100)
    for message in messages:
        client.ack(message, result=of(message))
    return len(messages)


LISTENERS = (
    "select pid from pg_stat_activity where datname = current_database()"
    " and pid <> pg_backend_pid() and (query ~ '^listen' or query ~ 'reply_channel|list_replies')"
)


def listeners(connection: psycopg.Connection[Any]) -> list[int]:
    """Connections of those who wait for results."""
    return [pid for (pid,) in connection.execute(LISTENERS)]


def has_looked(connection: psycopg.Connection[Any], count: int = 1) -> bool:
    """Whether so many connections listen and have looked since."""
    query = (
        "select count(*) from pg_stat_activity where datname = current_database() and state = 'idle'"
        " and pid <> pg_backend_pid() and query ~ 'list_replies'"
    )
    return connection.execute(query).fetchone() == (count,)


@pytest.mark.usefixtures("only_told")
def test_thirty_threads_share_one_connection_which_ends_with_them(
    client: Client, connection: psycopg.Connection[Any]
) -> None:
    ids = client.publish_many("orders", list(range(WAITERS)), awaited=True)
    with ThreadPoolExecutor(WAITERS) as threads:
        # Two for one of them.
        waiting = [threads.submit(client.result, "orders", id, timeout=PATIENCE) for id in ids[1:]]
        waiting.append(threads.submit(client.result, "orders", ids[1], timeout=PATIENCE))
        wait_until(lambda: has_looked(connection))
        assert len(listeners(connection)) == 1
        assert answer_all(client) == WAITERS
        assert [each.result() for each in waiting] == [*ids[1:], ids[1]]
    wait_until(lambda: not listeners(connection))
    wait_until(lambda: "trunq-replies" not in [each.name for each in threading.enumerate()])
    # And another one, for who comes later.
    assert client.result("orders", ids[0], timeout=PATIENCE) == ids[0]


@pytest.mark.usefixtures("only_told")
async def test_tasks_share_one_connection_too_and_a_cancelled_one_leaves(
    client: Client, database: str, connection: psycopg.Connection[Any]
) -> None:
    client.create_queue("mail")
    ids = client.publish_many("orders", list(range(WAITERS)), awaited=True)
    (other,) = client.publish_many("mail", ["hello"], awaited=True)
    async with AsyncClient(database) as awaiting:
        tasks = [asyncio.create_task(awaiting.result("orders", id)) for id in ids]
        tasks.append(asyncio.create_task(awaiting.result("mail", other)))
        await async_wait_until(lambda: has_looked(connection))
        assert len(listeners(connection)) == 1
        tasks[0].cancel()
        await asyncio.wait([tasks[0]])
        await asyncio.to_thread(answer_all, client)
        (mail,) = client.lease("mail", "default", "w1")
        client.ack(mail, result="sent")
        async with asyncio.timeout(PATIENCE):
            assert await asyncio.gather(*tasks[1:]) == [*ids[1:], "sent"]
        await async_wait_until(lambda: not listeners(connection))


@pytest.mark.usefixtures("only_told")
@pytest.mark.parametrize("moment", ["before it listens", "before it looks", "after it looked"])
def test_an_answer_at_any_moment_reaches_who_waits(
    client: Client, connection: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    id = client.publish("orders", 1, awaited=True)
    (message,) = client.lease("orders", "default", "w1")
    listen, look = reply._Listening.listen, reply._Listening.replies

    def commit() -> None:
        if not client.list_replies("orders", [id]):
            client.ack(message, result=moment)

    def listening(self: Any, queue: str) -> None:
        if moment == "before it listens":
            commit()
        listen(self, queue)

    def looking(self: Any, *arguments: Any, **options: Any) -> Any:
        if moment == "before it looks":
            commit()
        found = look(self, *arguments, **options)
        if moment == "after it looked":
            commit()
        return found

    monkeypatch.setattr(reply._Listening, "listen", listening)
    monkeypatch.setattr(reply._Listening, "replies", looking)
    assert client.result("orders", id, timeout=PATIENCE) == moment


@pytest.mark.usefixtures("only_told")
def test_an_answer_counts_when_it_commits(client: Client, connection: psycopg.Connection[Any]) -> None:
    id = client.publish("orders", 1, awaited=True)
    (message,) = client.lease("orders", "default", "w1")
    with ThreadPoolExecutor(1) as threads:
        with pytest.raises(ZeroDivisionError), client.transaction() as own:
            client.ack(message, result="never", connection=own)
            waiting = threads.submit(client.result, "orders", id, timeout=PATIENCE)
            wait_until(lambda: has_looked(connection))
            _ = 1 / 0
        with client.transaction() as own:
            client.ack(message, result="in the end", connection=own)
            assert not waiting.done()
        assert waiting.result() == "in the end"


def test_what_is_not_notified_is_found_all_the_same(
    client: Client, connection: psycopg.Connection[Any]
) -> None:
    id = client.publish("orders", 1, awaited=True)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(client.result, "orders", id, timeout=PATIENCE)
        wait_until(lambda: has_looked(connection))
        connection.execute("set trunq.notify = off")
        (row,) = connection.execute("select lease_id, token from trunq.lease('orders', 'default', 'w1')")
        connection.execute(
            "select trunq.ack('orders', 'default', %s, %s, array[%s], array['7'::jsonb])", (*row, id)
        )
        assert waiting.result() == 7


@pytest.mark.usefixtures("only_told")
def test_a_connection_that_is_cut_is_opened_again(
    client: Client, connection: psycopg.Connection[Any]
) -> None:
    id = client.publish("orders", 1, awaited=True)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(client.result, "orders", id, timeout=PATIENCE)
        wait_until(lambda: has_looked(connection))
        (first,) = listeners(connection)
        connection.execute("select pg_terminate_backend(%s, 5000)", (first,))
        wait_until(lambda: has_looked(connection) and listeners(connection) != [first])
        answer_all(client)
        assert waiting.result() == id


def test_a_server_that_restarts_is_waited_for() -> None:
    with (
        copied_server(settings={"fsync": "off"}) as server,
        Client(server.dsn) as client,
        ThreadPoolExecutor(1) as threads,
        Client(server.dsn) as other,
    ):
        client.create_queue("orders")
        id = client.publish("orders", 1, awaited=True)
        waiting = threads.submit(client.result, "orders", id, timeout=2 * PATIENCE)
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            wait_until(lambda: has_looked(connection))
        server.kill()
        server.restart()

        def is_answered() -> bool:
            try:
                return answer_all(other) == 1
            except psycopg.OperationalError:
                return False

        wait_until(is_answered, PATIENCE)
        assert waiting.result() == id


def test_among_many_who_wait_only_those_who_would_wait_for_ever_are_refused(client: Client) -> None:
    good = client.publish_many("orders", list(range(WAITERS)), awaited=True)
    bad = [client.publish("orders", 1), 10**9]
    with ThreadPoolExecutor(WAITERS + 2) as threads:
        waiting = {id: threads.submit(client.result, "orders", id, timeout=PATIENCE) for id in [*good, *bad]}
        with pytest.raises(InvalidArgument, match="not published as awaited"):
            waiting[bad[0]].result()
        with pytest.raises(MessageNotFound, match="no message 1000000000"):
            waiting[bad[1]].result()
        assert answer_all(client) == WAITERS + 1
        assert [waiting[id].result() for id in good] == good


@needs_pgbouncer
def test_behind_a_pooler_one_connection_polls_for_all(
    server: Embedded, database: str, client: Client
) -> None:
    ids = client.publish_many("orders", [1, 2, 3], awaited=True)
    with (
        pooling(server, database, size=3) as dsn,
        Client(dsn) as pooled,
        ThreadPoolExecutor(3) as threads,
    ):
        waiting = [threads.submit(pooled.result, "orders", id, timeout=PATIENCE) for id in ids]
        wait_until(lambda: pooled._waiting is not None)
        assert answer_all(client) == 3
        assert [each.result() for each in waiting] == ids


def test_where_nothing_is_notified_one_connection_polls_for_all(
    client: Client, connection: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Watched, "is_pooled", True)
    ids = client.publish_many("orders", list(range(WAITERS)), awaited=True)
    with ThreadPoolExecutor(WAITERS) as threads:
        waiting = [threads.submit(client.result, "orders", id, timeout=PATIENCE) for id in ids]
        wait_until(lambda: has_looked(connection))
        assert not connection.execute(f"{LISTENERS} and query ~ '^listen'".encode()).fetchall()
        assert answer_all(client) == WAITERS
        assert [each.result() for each in waiting] == ids


def test_a_client_of_a_pool_of_yours_asks_through_it(client: Client, database: str) -> None:
    id = client.publish("orders", 1, awaited=True)
    with (
        ConnectionPool(database, min_size=1, max_size=2) as pool,
        Client(pool) as other,
        ThreadPoolExecutor(1) as threads,
    ):
        waiting = threads.submit(other.result, "orders", id, timeout=PATIENCE)
        answer_all(client)
        assert waiting.result() == id


@pytest.mark.usefixtures("only_told")
def test_who_finds_no_room_for_a_thread_may_ask_again(client: Client) -> None:
    first = client.publish("orders", 1, awaited=True)
    former = threading.stack_size(2**46)
    try:
        with pytest.raises(RuntimeError, match="start new thread"):
            client.result("orders", first, timeout=PATIENCE)
    finally:
        threading.stack_size(former)
    assert answer_all(client) == 1
    assert client.result("orders", first, timeout=PATIENCE) == first


def test_who_waits_hears_that_the_client_is_closed(
    database: str, client: Client, connection: psycopg.Connection[Any]
) -> None:
    id = client.publish("orders", 1, awaited=True)
    other = Client(database)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(other.result, "orders", id)
        wait_until(lambda: has_looked(connection))
        other.close()
        with pytest.raises(ClientClosed, match="while a result was awaited"):
            waiting.result(PATIENCE)
    wait_until(lambda: not listeners(connection))
    answer_all(client)
    assert other.result("orders", id, timeout=PATIENCE) == id
    other.close()


async def test_a_transaction_of_a_handler_that_fails_leaves_no_result(
    client: Client, database: str, connection: psycopg.Connection[Any]
) -> None:
    connection.execute("create table parent (id int primary key)")
    connection.execute("create table child (id int references parent deferrable initially deferred)")
    client.subscribe("orders", "default", backoff="constant", backoff_base=0)
    id = client.publish("orders", 1, kind="work", awaited=True)
    worker = Worker("orders", dsn=database, lead=False, poll=0.05)

    @worker.handler("work", transaction=True)
    async def write(message: Message, connection: psycopg.AsyncConnection[Any]) -> int:
        if message.attempt == 1:
            # Found out at the commit, after the ack.
            await connection.execute("insert into child values (1)")
        return message.attempt

    async with running(worker), AsyncClient(database) as awaiting:
        assert await awaiting.result("orders", id, timeout=PATIENCE) == 2


PROGRAM = """
import sys, time
from trunq import Worker

worker = Worker("orders", dsn=sys.argv[1], name="w1", lead=False)

@worker.handler("work")
def work(message):
    if message.attempt == 1:
        print("begun", flush=True)
        time.sleep(600)
    return message.attempt

worker.run()
"""


def test_after_a_worker_was_killed_the_next_attempt_replies_once(
    client: Client, database: str, connection: psycopg.Connection[Any]
) -> None:
    id = client.publish("orders", 1, kind="work", awaited=True)

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen([sys.executable, "-c", PROGRAM, database], stdout=subprocess.PIPE, text=True)

    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(client.result, "orders", id, timeout=2 * PATIENCE)
        with start() as first:
            assert first.stdout is not None
            assert first.stdout.readline() == "begun\n"
            first.kill()
        assert client.list_replies("orders", [id]) == []
        # Under its name, it takes back what it held; scattered for some seconds, unless it was alone.
        with start() as second:
            try:
                wait_until(lambda: waiting.done() or client.promote("orders"), PATIENCE)
                assert waiting.result() == 2
            finally:
                second.send_signal(signal.SIGTERM)
    (found,) = client.list_replies("orders", [id])
    assert found.result == 2
    assert connection.execute("select count(*) from trunq.reply").fetchone() == (1,)
