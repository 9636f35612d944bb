"""Listening to a queue and to channels, and notifying, through the client."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from trunq import (
    AsyncClient,
    Channel,
    ClientClosed,
    Heard,
    InvalidArgument,
    MessageTooLarge,
    Missed,
    Notification,
    QueueNotFound,
    RawJson,
    Unfit,
)
from waiting import async_wait_until


@dataclass
class Price:
    of: str
    cents: int


LISTENERS = """
    select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()
    and (query ~* '^(un)?listen' or query ~ 'take_bell|give_bell|pg_catalog.clock_timestamp')"""
"""Sessions that hear: this is what they execute, and nobody else does."""


def listeners(connection: psycopg.Connection[Any]) -> int:
    return (connection.execute(LISTENERS).fetchone() or (0,))[0]


def cut(connection: psycopg.Connection[Any]) -> None:
    """End the session that hears."""
    ended = connection.execute(
        LISTENERS.replace("count(*)", "pg_terminate_backend(pid, 5000)").encode()
    ).fetchall()
    assert ended == [(True,)]


async def test_who_listens_to_a_queue_gets_what_is_published_once_and_in_order(database: str) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("orders")
        await client.publish("orders", "before")
        async with client.listen("orders") as heard:
            ids = [await client.publish("orders", {"n": n}, kind="k", headers={"h": n}) for n in range(3)]
            ids += await client.publish_many("orders", [{"n": n} for n in range(3, 2500)])
            found = [await anext(heard) for _ in ids]
            assert [each.id for each in found if isinstance(each, Heard)] == ids
            first = found[0]
            assert isinstance(first, Heard)
            assert (first.payload, first.kind, first.key, first.headers) == ({"n": 0}, "k", None, {"h": 0})
            assert (first.queue, first.columns, first.body, first.json) == ("orders", {}, None, b'{"n": 0}')
        with pytest.raises(StopAsyncIteration):
            await anext(heard)


async def test_payloads_have_the_type_that_is_asked_for_and_what_does_not_fit_comes_raw(
    database: str,
) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("prices")
        async with client.listen("prices", payload_type=Price) as heard:
            await client.publish("prices", {"of": "tea", "cents": 250})
            id = await client.publish("prices", {"of": "tea", "cents": "much"})
            await client.publish("prices", {"of": "milk", "cents": 90})
            read: list[Any] = []
            while len(read) < 3:
                each = await anext(heard)
                assert isinstance(each, Heard)
                try:
                    read.append(each.payload)
                except Unfit as error:
                    read.append((error.message is each, str(error), each.json))
            said = f"message {id} of prices does not fit Price: cents: Input should be a valid integer"
            assert read[0::2] == [Price("tea", 250), Price("milk", 90)]
            assert read[1][0::2] == (True, b'{"of": "tea", "cents": "much"}')
            assert read[1][1].startswith(said)
    async with (
        AsyncClient(database, payload_types={"price": Price}) as typed,
        typed.listen("prices") as by_kind,
    ):
        await typed.publish("prices", {"of": "tea", "cents": 1}, kind="price")
        await typed.publish("prices", [1], kind="other")
        told = [await anext(by_kind), await anext(by_kind)]
        assert [each.payload for each in told if isinstance(each, Heard)] == [Price("tea", 1), [1]]


async def test_a_channel_is_typed_both_ways(database: str, connection: psycopg.Connection[Any]) -> None:
    prices = Channel("prices; \"'--", Price)
    async with AsyncClient(database) as client:
        async with client.listen(prices) as heard:
            await client.notify(prices, Price("tea", 250))
            with pytest.raises(InvalidArgument, match="does not fit Price"):
                await client.notify(prices, {"of": "tea"})  # type: ignore[arg-type]
            connection.execute("select pg_notify(%s, %s)", (prices.name, "{"))
            connection.execute("select pg_notify(%s, '')", (prices.name,))
            async with client.transaction() as transaction:
                await client.notify(prices, Price("milk", 90), connection=transaction)
            told = [await anext(heard) for _ in range(4)]
            good, broken, empty, last = (each for each in told if isinstance(each, Notification))
            assert (good.payload, last.payload) == (Price("tea", 250), Price("milk", 90))
            assert (good.raw, broken.pid) == ('{"of":"tea","cents":250}', connection.info.backend_pid)
            for each in (broken, empty):
                with pytest.raises(Unfit) as caught:
                    _ = each.payload
                assert caught.value.message is each
        async with client.listen(Channel("plain")) as plain:
            await client.notify("plain", {"any": [1]})
            await client.notify("plain")
            await client.notify("plain", RawJson(b"1"))
            connection.execute("select pg_notify('plain', 'no json')")
            said = [await anext(plain) for _ in range(4)]
            assert [each.payload for each in said[:3] if isinstance(each, Notification)] == [
                {"any": [1]},
                None,
                1,
            ]
            with pytest.raises(Unfit, match="is no JSON"):
                _ = said[3].payload  # type: ignore[union-attr]


async def test_what_is_too_large_or_makes_no_sense_is_refused(database: str) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("orders")
        await client.notify("news", "x" * 7997)
        with pytest.raises(MessageTooLarge, match="fewer than 8000"):
            await client.notify("news", "x" * 7998)
        for name in ("", "x" * 64, "a\0b"):
            with pytest.raises(InvalidArgument, match="1 to 63 bytes"):
                Channel(name)
        with pytest.raises(InvalidArgument, match="no past"):
            client.listen(Channel("news"), start="earliest")  # type: ignore[call-overload]
        with pytest.raises(InvalidArgument, match="size"):
            client.listen(Channel("news"), size=0)
        with pytest.raises(InvalidArgument, match="one place"):
            client.listen("orders", start="latest", after="1.1")
        with pytest.raises(InvalidArgument, match="poll must be positive"):
            client.listen("orders", poll=0)
        with pytest.raises(QueueNotFound):
            await anext(client.listen("other"))
        with pytest.raises(InvalidArgument, match="no place"):
            await anext(client.listen("orders", after="here"))


async def test_no_local_leaves_out_what_the_client_published_itself(database: str) -> None:
    async with AsyncClient(database) as client, AsyncClient(database) as other:
        await client.create_queue("orders")
        news = Channel[str]("news")
        async with (
            client.listen("orders", no_local=True) as messages,
            client.listen("orders") as all_messages,
            client.listen(news, no_local=True) as told,
            client.listen(news) as all_told,
        ):
            for n in range(20):
                await client.publish("orders", f"own {n}", headers={"mine": True})
                await client.notify(news, f"own {n}")
            async with client.copy("orders") as copy:
                await copy.write("own copy")
            async with client.transaction() as connection:
                await client.publish_many("orders", ["own many"], connection=connection)
                await client.notify(news, "own in a transaction", connection=connection)
            await other.publish("orders", "foreign")
            await other.notify(news, "foreign")
            assert (await anext(messages)).payload == "foreign"  # type: ignore[union-attr]
            assert (await anext(told)).payload == "foreign"  # type: ignore[union-attr]
            assert len([await anext(all_messages) for _ in range(23)]) == 23
            assert len([await anext(all_told) for _ in range(22)]) == 22


async def test_a_listener_that_is_cut_misses_nothing_of_a_queue_and_says_what_of_a_channel(
    database: str, connection: psycopg.Connection[Any]
) -> None:
    async with AsyncClient(database) as client, AsyncClient(database) as other:
        await client.create_queue("orders")
        async with client.listen("orders") as orders, client.listen(Channel("news")) as news:
            ids = []
            for n in range(3):
                await other.notify("news", n)
                told = await anext(news)
                assert isinstance(told, Notification)
                assert told.payload == n
                cut(connection)
                ids += [await other.publish("orders", n) for _ in range(2)]
                await other.notify("news", "perhaps missed")
                missed = await anext(news)
                while isinstance(missed, Notification):
                    assert missed.payload == "perhaps missed"
                    missed = await anext(news)
                assert missed.since is not None
                assert missed.since < missed.until
                assert missed.count is None
                now = connection.execute("select clock_timestamp()").fetchone()
                assert now is not None
                assert missed.until < now[0]
                await other.notify("news", "heard")
                while (await anext(news)).payload != "heard":  # type: ignore[union-attr]
                    pass
            found = [await anext(orders) for _ in ids]
            assert [each.id for each in found if isinstance(each, Heard)] == ids


async def test_all_that_listens_shares_one_connection_which_closes_with_the_last(
    database: str, connection: psycopg.Connection[Any]
) -> None:
    async with AsyncClient(database, max_connections=1) as client:
        for queue in ("one", "two"):
            await client.create_queue(queue)
        opened: list[Any] = [client.listen(queue) for queue in ("one", "two", "two")]
        opened += [client.listen(Channel(name)) for name in ("one", "two", "two")]
        for each in opened:
            await each.__aenter__()
        assert listeners(connection) == 1
        await client.publish("two", 2)
        await client.notify("two", "two")
        for each in (opened[1], opened[2], opened[4], opened[5]):
            await anext(each)
        assert listeners(connection) == 1
        for each in opened[1:]:
            each.close()
        await client.publish("one", 1)
        await anext(opened[0])
        assert listeners(connection) == 1
        opened[0].close()
        await async_wait_until(lambda: listeners(connection) == 0)
        async with client.listen(Channel("again")) as again:
            await client.notify("again", 1)
            assert (await anext(again)).payload == 1  # type: ignore[union-attr]


async def test_a_slow_listener_loses_the_oldest_of_a_channel_and_nothing_of_a_queue(
    database: str, connection: psycopg.Connection[Any]
) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("orders")
        async with (
            client.listen(Channel("news"), size=3) as slow,
            client.listen(Channel("news")) as quick,
            client.listen("orders") as orders,
        ):
            connection.execute("select pg_notify('news', n::text) from generate_series(1, 10) n")
            ids = await client.publish_many("orders", list(range(3000)))
            assert [(await anext(quick)).payload for _ in range(10)] == [*range(1, 11)]  # type: ignore[union-attr]
            missed = await anext(slow)
            assert isinstance(missed, Missed)
            assert missed.count == 7
            assert [(await anext(slow)).payload for _ in range(3)] == [8, 9, 10]  # type: ignore[union-attr]
            assert [(await anext(orders)).id for _ in ids] == ids  # type: ignore[union-attr]


async def test_a_listener_goes_on_from_a_place_a_time_or_the_earliest_and_by_its_filter(
    database: str, connection: psycopg.Connection[Any]
) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("orders")
        ids = [await client.publish("orders", n, kind="even" if n % 2 == 0 else "odd") for n in range(6)]
        async with client.listen("orders", start="earliest") as heard:
            found = [await anext(heard) for _ in ids]
            places = [each.place for each in found if isinstance(each, Heard)]
        for n in (0, 2, 4):
            async with client.listen("orders", after=places[n]) as heard:
                assert [(await anext(heard)).id for _ in ids[n + 1 :]] == ids[n + 1 :]  # type: ignore[union-attr]
        async with client.listen("orders", start="earliest", filter={"kinds": ["odd"]}) as heard:
            assert [(await anext(heard)).id for _ in range(3)] == ids[1::2]  # type: ignore[union-attr]
        now = await client.clock()
        async with client.listen("orders", at=now + timedelta(hours=1)) as heard:
            last = await client.publish("orders", "last")
            assert (await anext(heard)).id == last  # type: ignore[union-attr]


async def test_who_comes_back_after_the_queue_kept_no_more_is_told(database: str) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("orders")
        await client.publish("orders", 1)
        async with client.listen("orders", start="earliest") as heard:
            assert isinstance(await anext(heard), Heard)
            # Another queue of this name: nothing of the first is there any more.
            await client.drop_queue("orders", force=True)
            await client.create_queue("orders")
            ids = [await client.publish("orders", n) for n in range(2)]
            missed = await anext(heard)
            assert isinstance(missed, Missed)
            assert missed.count is None
            assert [(await anext(heard)).id for _ in ids] == ids  # type: ignore[union-attr]


async def test_a_client_that_is_closed_ends_its_listeners(database: str) -> None:
    client = AsyncClient(database)
    await client.create_queue("orders")
    queue, channel = client.listen("orders"), client.listen(Channel("news"))
    await queue.__aenter__()
    await channel.__aenter__()
    await client.close()
    with pytest.raises(ClientClosed):
        await anext(queue)
    with pytest.raises(ClientClosed):
        await anext(channel)
    await client.close()
