"""Listening through what may happen to a process and its server: threads, tasks, restarts, many channels."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from operator import contains
from typing import Any

import psycopg
import pytest
from psycopg_pool import ConnectionPool

from calling import move_clock
from copying import copied_server
from pooling import needs_pgbouncer, pooling
from standby import one, primary_and_standby
from trunq import AsyncClient, Channel, Client, Heard, InvalidArgument, Missed, Notification, Worker, embedded
from trunq.embedded import Embedded
from waiting import PATIENCE, wait_until

CHANNELS = 1000

HOLDS = "select count(*) from pg_locks where classid = trunq._lock_class('bell') and granted"

FINDS = "select pid from pg_stat_activity where wait_event = 'advisory' and query ~ 'find_place'"


@pytest.fixture
def client(database: str) -> Iterator[Client]:
    with Client(database) as client:
        client.create_queue("orders")
        yield client


def holds_bell(connection: psycopg.Connection[Any]) -> bool:
    return connection.execute(HOLDS.encode()).fetchone() == (1,)


def answers(client: Client) -> bool:
    """Whether its database is there again."""
    try:
        return bool(client.list_queues())
    except psycopg.OperationalError:
        return False


def test_another_thread_ends_a_loop_that_waits(client: Client) -> None:
    listening: list[Any] = [client.listen("orders"), client.listen(Channel("news"))]
    with ThreadPoolExecutor(2) as threads:
        for each in listening:
            each.__enter__()
        heard: list[Any] = [[], []]
        loops = [threads.submit(into.extend, each) for into, each in zip(heard, listening, strict=True)]
        client.publish("orders", 1)
        client.notify("news", 1)
        for each, into in zip(listening, heard, strict=True):
            # A loop that waits before its first is not the one that waits behind it.
            wait_until(lambda each=each, into=into: into and each._inbox._waiting)
            each.close()
        for loop in loops:
            loop.result(PATIENCE)
    assert [[type(one) for one in each] for each in heard] == [[Heard], [Notification]]


def test_a_publisher_wakes_a_listener_that_rests_and_workers_beside_it(
    client: Client, database: str, connection: psycopg.Connection[Any]
) -> None:
    worker = Worker("orders", dsn=database, poll=3600)
    handled: list[int] = []
    worker.handler("*")(lambda message: handled.append(message.id))
    running = threading.Thread(target=lambda: asyncio.run(worker.run_async()))
    running.start()
    try:
        with client.listen("orders", poll=3600) as heard, ThreadPoolExecutor(1) as threads:
            for n in range(20):
                found = threads.submit(next, heard)
                if n % 2:
                    wait_until(lambda: holds_bell(connection))
                connection.execute("insert into trunq_log.orders (payload) values ('1')")
                message = found.result(PATIENCE)
                assert isinstance(message, Heard)
                wait_until(partial(contains, handled, message.id))
    finally:
        worker.stop()
        running.join(PATIENCE)
    assert len(handled) == 20


def test_who_finds_no_room_for_a_thread_may_try_again(client: Client) -> None:
    client.publish("orders", "the pool has its threads")
    news = Channel[int]("news")
    former = threading.stack_size(2**46)
    try:
        with pytest.raises(RuntimeError, match="start new thread"):
            client.listen(news).__enter__()
    finally:
        threading.stack_size(former)
    with client.listen(news) as heard:
        client.notify(news, 1)
        assert next(heard).payload == 1  # type: ignore[union-attr]


def test_headers_that_are_no_object_are_nobody_s_own(
    client: Client, connection: psycopg.Connection[Any]
) -> None:
    with client.listen("orders", no_local=True) as heard:
        connection.execute(
            "insert into trunq_log.orders (payload, headers) values ('1', '[1]'), ('2', '\"x\"')"
        )
        assert [next(heard).payload, next(heard).payload] == [1, 2]  # type: ignore[union-attr]


async def test_a_task_that_is_cancelled_loses_nothing(database: str) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("orders")
        async with client.listen("orders") as orders, client.listen(Channel("news")) as news:
            ids, read, told = [], [], []
            for n in range(30):
                tasks = [asyncio.create_task(anext(orders)), asyncio.create_task(anext(news))]
                ids.append(await client.publish("orders", n))
                await client.notify("news", n)
                for _ in range(n % 7):
                    await asyncio.sleep(0)
                for task in tasks:
                    task.cancel()
                for into, done in zip(
                    (read, told), await asyncio.gather(*tasks, return_exceptions=True), strict=True
                ):
                    if not isinstance(done, BaseException):
                        into.append(done)
            while len(read) < len(ids):
                read.append(await anext(orders))
            while len(told) < len(ids):
                told.append(await anext(news))
        assert [each.id for each in read if isinstance(each, Heard)] == ids
        assert [each.payload for each in told if isinstance(each, Notification)] == [*range(30)]


def test_a_thousand_channels_share_one_connection_and_each_hears_its_own(
    client: Client, connection: psycopg.Connection[Any]
) -> None:
    listening = [client.listen(Channel[int](f"channel {n}"), size=2) for n in range(CHANNELS)]
    for each in listening:
        each.__enter__()
    count = "select count(*) from pg_stat_activity where datname = current_database() and query ~* '^listen'"
    assert connection.execute(count.encode()).fetchone() == (1,)
    connection.execute(
        "select pg_notify('channel ' || n, n::text) from generate_series(0, %s) n", (CHANNELS - 1,)
    )
    for n, each in enumerate(listening):
        told = next(each)
        assert isinstance(told, Notification)
        assert told.payload == n
    for each in listening:
        each.close()


def test_a_restart_of_the_server_is_told_to_a_channel_and_nothing_of_a_queue_is_missed() -> None:
    with copied_server(settings={"synchronous_commit": "off"}) as server, Client(server.dsn) as client:
        client.create_queue("orders")
        with client.listen("orders") as orders, client.listen(Channel("news")) as news:
            client.notify("news", 1)
            assert isinstance(next(news), Notification)
            ids = []
            for stop in (server.restart, lambda: (server.kill(), server.restart())):
                ids.append(client.publish("orders", 1))
                assert next(orders).id == ids[-1]  # type: ignore[union-attr]
                stop()
                missed = next(news)
                assert isinstance(missed, Missed)
                assert missed.since is not None
                assert missed.since < missed.until
                # Transaction ids that a crash took back come again: no place was beyond what the disk had.
                wait_until(lambda: answers(client))
                ids += [client.publish("orders", n) for n in range(40)]
                assert [next(orders).id for _ in range(40)] == ids[-40:]  # type: ignore[union-attr]


def test_a_session_that_is_cut_while_it_looks_where_to_begin_again_ends_no_loop(
    client: Client, connection: psycopg.Connection[Any]
) -> None:
    client.publish("orders", 1)
    with client.listen("orders", start="earliest") as heard, ThreadPoolExecutor(1) as threads:
        assert isinstance(next(heard), Heard)
        client.drop_queue("orders", force=True)
        client.create_queue("orders")
        id = client.publish("orders", 2)
        lock = "(trunq._lock_class('queue'), queue_id) from trunq.queue"
        connection.execute(f"select pg_advisory_lock{lock}".encode())
        found = threads.submit(next, heard)
        wait_until(lambda: connection.execute(FINDS.encode()).fetchall())
        ended = connection.execute(FINDS.replace("pid", "pg_terminate_backend(pid, 5000)", 1).encode())
        assert ended.fetchall() == [(True,)]
        connection.execute(f"select pg_advisory_unlock{lock}".encode())
        assert isinstance(found.result(PATIENCE), Missed)
        assert next(heard).id == id  # type: ignore[union-attr]


@pytest.mark.parametrize("ahead", ["0", "2 hours"])
def test_what_a_failover_lost_is_told_and_nothing_that_is_left_is_missed(ahead: str) -> None:
    """Whatever the clocks of the two servers."""
    with primary_and_standby(embedded.majors()[0]) as pair, Client(pair.either) as client:
        set_clock(pair.primary, ahead)
        with client.listen("q") as heard:
            kept = client.publish("q", "kept")
            assert next(heard).id == kept  # type: ignore[union-attr]
            pair.caught_up()
            pair.sever()
            lost = [client.publish("q", "lost") for _ in range(3)]
            told = [next(heard) for _ in lost]
            assert [each.id for each in told if isinstance(each, Heard)] == lost
            place = told[-1].place  # type: ignore[union-attr]
            pair.fail_over()
            set_clock(pair.standby, "0")
            wait_until(lambda: answers(client))
            # Ticks of the new primary have the numbers of those that were lost; the first of them sees this.
            client.publish("q", "new")
            for _ in range(9):
                one(pair.standby.dsn, "select trunq.tick('q', true)")
            client.publish("q", "newer")
            missed = next(heard)
            assert isinstance(missed, Missed)
            assert missed.since is not None
            assert missed.since <= missed.until
            again = [next(heard) for _ in range(2)]
            assert [each.payload for each in again if isinstance(each, Heard)] == ["new", "newer"]
        with client.listen("q", after=place) as later:
            assert isinstance(next(later), Missed)
            assert [next(later).payload for _ in range(3)] == [  # type: ignore[union-attr]
                "kept", "new", "newer",
            ]  # fmt: skip


def set_clock(server: Embedded, ahead: str) -> None:
    """The time of a server, for sessions that begin from now on."""
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        move_clock(connection, "0")
        connection.execute(f"alter database postgres set trunq.clock_offset = '{ahead}'".encode())


def test_a_channel_needs_a_connection_of_its_own_and_a_queue_is_polled_without(database: str) -> None:
    with ConnectionPool(database, min_size=1, open=True) as pool:
        client = Client(pool)
        client.create_queue("orders")
        with pytest.raises(InvalidArgument, match="give it a connection string"):
            next(client.listen(Channel("news")))
        with client.listen("orders", poll=0.05) as heard:
            id = client.publish("orders", 1)
            assert next(heard).id == id  # type: ignore[union-attr]
        client.notify("news", 1)


@needs_pgbouncer
def test_behind_a_pooler_a_channel_is_refused_and_a_queue_is_polled(server: Embedded, database: str) -> None:
    with pooling(server, database) as dsn, Client(dsn) as client, Client(database) as direct:
        client.create_queue("orders")
        with pytest.raises(InvalidArgument, match="pooler in transaction mode") as caught:
            next(client.listen(Channel("news")))
        assert "address of the server itself" in str(caught.value.hint)
        with client.listen("orders", poll=0.05) as heard:
            ids = [client.publish("orders", n) for n in range(3)]
            assert [next(heard).id for _ in ids] == ids  # type: ignore[union-attr]
        # The way out.
        with direct.listen(Channel[int]("news")) as news:
            client.notify("news", 7)
            assert next(news).payload == 7  # type: ignore[union-attr]


def test_a_role_that_may_read_listens_and_one_that_may_not_is_refused(
    client: Client, database: str, connection: psycopg.Connection[Any]
) -> None:
    name = f"ear_{connection.info.dbname}"
    connection.execute(f"create role {name} login".encode())
    try:
        with Client(psycopg.conninfo.make_conninfo(database, user=name)) as reader:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                next(reader.listen("orders"))
            client.grant_role("orders", "reader", name, payload=True)
            with reader.listen("orders") as heard, reader.listen(Channel[int]("news")) as news:
                client.publish("orders", {"secret": 1})
                client.notify("news", 1)
                assert next(heard).payload == {"secret": 1}  # type: ignore[union-attr]
                assert next(news).payload == 1  # type: ignore[union-attr]
            client.revoke_role("orders", "reader", name)
            client.grant_role("orders", "reader", name)
            with reader.listen("orders") as heard:
                id = client.publish("orders", {"secret": 1})
                message = next(heard)
                assert isinstance(message, Heard)
                assert (message.id, message.payload) == (id, None)
    finally:
        connection.execute(f"drop owned by {name}; drop role {name}".encode())
