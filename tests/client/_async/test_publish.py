"""Publishing through the client."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from conftest import AsyncConnect
from trunq import AsyncClient, InvalidArgument, InvalidName, Message, MessageTooLarge, QueueNotFound, RawJson

EVERYTHING: list[Any] = [
    {"a": [1, 2.5, None, True, "ü\t\n\\ \u2028 😀"], "b": {"c": {}}},
    [],
    "text",
    0,
    False,
    12345678901234567890,
    RawJson('{"raw": "a\\\\b\\n",\n\t"spaced" : 1}'),
    RawJson(b"[1]"),
]
DECODED: list[Any] = [*EVERYTHING[:-2], {"raw": "a\\b\n", "spaced": 1}, [1]]


async def leased(client: AsyncClient, queue: str = "orders") -> list[Message]:
    return await client.lease(queue, "default", "w", 1000)


async def test_what_is_published_is_what_is_leased(database: str) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("orders")
        before = await client.clock()
        message_id = await client.publish(
            "orders", {"n": 1}, kind="new", key="k", headers={"h": 1}, body=b"\0\xff"
        )
        (message,) = await leased(client)
        assert (message.id, message.attempt, message.max_attempts, message.priority) == (message_id, 1, 20, 0)
        assert (message.payload, message.headers) == ({"n": 1}, {"h": 1})
        assert (message.kind, message.key, message.body) == ("new", "k", b"\0\xff")
        assert (message.queue, message.subscription) == ("orders", "default")
        assert before <= message.created_at <= message.expires_at
        assert message.expires_at - message.created_at >= timedelta(seconds=59)
        assert not message.is_last_attempt


@pytest.mark.parametrize("position", range(len(EVERYTHING)))
async def test_all_of_json_survives(database: str, position: int) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("orders")
        await client.publish("orders", EVERYTHING[position])
        await client.publish_many("orders", [EVERYTHING[position]])
        async with client.copy("orders") as orders:
            await orders.write(EVERYTHING[position])
        assert [message.payload for message in await leased(client)] == [DECODED[position]] * 3


async def test_ids_come_in_the_order_given(database: str) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("orders")
        ids = await client.publish_many("orders", list(range(500)))
        assert len(ids) == len(set(ids)) == 500
        assert {message.id: message.payload for message in await leased(client)} == dict(
            zip(ids, range(500), strict=True)
        )


async def test_very_many_are_sent_in_parts_and_published_as_one(
    database: str, async_connect: AsyncConnect
) -> None:
    count = 1700
    async with AsyncClient(database) as client:
        await client.create_queue("orders")
        own = await async_connect()
        for connection in (None, own):
            ids = await client.publish_many(
                "orders", range(count), kind="new", keys=list(map(str, range(count))), connection=connection
            )
            assert ids == sorted(set(ids))
            messages = await client.lease("orders", "default", "w", 10_000)
            assert [(m.id, m.payload, m.kind, m.key) for m in messages] == [
                (id, n, "new", str(n)) for n, id in enumerate(ids)
            ]
            cursor = await own.execute(
                "select distinct txid::text from trunq_log.orders where id = any (%s)", (ids,)
            )
            assert len(await cursor.fetchall()) == 1


TOO_LATE = 1200


@pytest.mark.parametrize("autocommit", [None, True, False])
@pytest.mark.parametrize(
    ("payload", "trouble"),
    [(math.inf, rf"payloads\[{TOO_LATE}\] is inf"), (RawJson("{"), "invalid input syntax for type json")],
)
async def test_of_very_many_with_a_wrong_one_none_is_published(
    database: str, async_connect: AsyncConnect, autocommit: bool | None, payload: Any, trouble: str
) -> None:
    payloads: list[Any] = [0] * 1700
    payloads[TOO_LATE] = payload
    async with AsyncClient(database) as client:
        await client.create_queue("orders")
        connection = None if autocommit is None else await async_connect(autocommit=autocommit)
        with pytest.raises(InvalidArgument, match=trouble):
            await client.publish_many("orders", payloads, connection=connection)
        if connection is not None:
            await connection.commit()
        assert await leased(client) == []
        assert len(await client.publish_many("orders", [1], connection=connection)) == 1


async def test_very_many_join_the_callers_transaction(database: str, async_connect: AsyncConnect) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("orders")
        connection = await async_connect(autocommit=False)
        await client.publish_many("orders", range(1700), connection=connection)
        await connection.rollback()
        async with connection.transaction():
            await client.publish_many("orders", ["x"] * 600, connection=connection)
            assert await leased(client) == []
        assert [message.payload for message in await leased(client)] == ["x"] * 600


@pytest.mark.parametrize("times", [1, 300])
async def test_one_value_stands_for_all(database: str, times: int) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("orders")
        await client.publish_many(
            "orders",
            [1, 2, None] * times,
            kinds=["new\t\\"],
            keys=["a", None, "\\N\n"] * times,
            headers={"h": "\r"},
            bodies=[b"\\"],
        )
        messages = await client.lease("orders", "default", "w", 1000)
        assert [(m.payload, m.kind, m.key, m.headers, m.body) for m in messages] == [
            (1, "new\t\\", "a", {"h": "\r"}, b"\\"),
            (2, "new\t\\", None, {"h": "\r"}, b"\\"),
            (None, "new\t\\", "\\N\n", {"h": "\r"}, b"\\"),
        ] * times


@pytest.mark.parametrize("times", [1, 300])
async def test_all_of_json_survives_many_times(database: str, times: int) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("orders")
        headers = [
            None,
            *({"h": each} for each in EVERYTHING[1:-2]),
            RawJson(' {"h": 1}'),
            RawJson(b'{"h": 2}'),
        ]
        await client.publish_many("orders", EVERYTHING * times, headers=headers * times)
        messages = await client.lease("orders", "default", "w", 10_000)
        assert [message.payload for message in messages] == DECODED * times
        decoded = [None, *({"h": each} for each in EVERYTHING[1:-2]), {"h": 1}, {"h": 2}]
        assert [message.headers for message in messages] == decoded * times


async def test_columns_of_different_lengths_are_refused(database: str) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("orders")
        for kinds in ([], ["a", "b"], ["a"] * 599, ["a"] * 601):
            for payloads in ([1] * 3, range(600)):
                with pytest.raises(InvalidArgument, match="differ in length"):
                    await client.publish_many("orders", payloads, kinds=kinds)
        with pytest.raises(InvalidArgument, match=r"headers\[0\] is an object, not str"):
            await client.publish_many("orders", [1], headers="h")
        assert await leased(client) == []


async def test_very_many_go_through_a_pipeline(database: str, async_connect: AsyncConnect) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("orders")
        connection = await async_connect()
        async with connection.pipeline():
            ids = await client.publish_many("orders", range(1200), connection=connection)
        messages = await client.lease("orders", "default", "w", 10_000)
        assert {message.id: message.payload for message in messages} == dict(
            zip(ids, range(1200), strict=True)
        )


async def test_very_many_for_a_queue_that_is_not_there(database: str, async_connect: AsyncConnect) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("orders")
        connection = await async_connect()
        for own in (None, connection):
            with pytest.raises(QueueNotFound, match="nowhere"):
                await client.publish_many("nowhere", range(600), connection=own)


@pytest.mark.parametrize("count", [1, 2, 600])
async def test_a_lost_connection_is_said_to_be_lost(
    database: str, async_connect: AsyncConnect, count: int
) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("orders")
        connection, other = await async_connect(), await async_connect()
        await other.execute("select pg_terminate_backend(%s)", (connection.info.backend_pid,))
        for _ in range(2):
            with pytest.raises(psycopg.OperationalError):
                if count == 1:
                    await client.publish("orders", 1, connection=connection)
                else:
                    await client.publish_many("orders", range(count), connection=connection)
        with pytest.raises(psycopg.OperationalError):
            async with client.copy("orders", connection=connection) as orders:
                await orders.write(1)
        assert await leased(client) == []


@pytest.mark.parametrize("count", [1, 600])
async def test_one_too_large_among_many_is_said_to_be_too_large(database: str, count: int) -> None:
    too_large = {"payload": "x" * (17 * 1024 * 1024)}
    async with AsyncClient(database) as client:
        await client.create_queue("orders")
        with pytest.raises(MessageTooLarge, match="too large"):
            await client.publish_many("orders", [*range(count), too_large])
        with pytest.raises(MessageTooLarge, match="at most 16777216"):
            await client.publish_many("orders", bodies=[b""] * count + [b"x" * (17 * 1024 * 1024)])
        with pytest.raises(MessageTooLarge, match="line 2"):
            async with client.copy("orders") as orders:
                await orders.write(1)
                await orders.write(too_large)
        assert await leased(client) == []


async def test_a_clients_own_connections_speak_utf8(
    database: str, async_connect: AsyncConnect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    async with AsyncClient(database) as client:
        await client.create_queue("orders")
        await client.publish_many("orders", ["é", "ü"], kind="é")
        assert [(m.payload, m.kind) for m in await leased(client)] == [("é", "é"), ("ü", "é")]
        unicode = await async_connect()
        await unicode.execute("set client_encoding to 'UNICODE'")
        assert len(await client.publish_many("orders", range(600), connection=unicode)) == 600


async def test_another_encoding_changes_no_text(database: str, async_connect: AsyncConnect) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("orders")
        connection = await async_connect()
        await connection.execute("set client_encoding to 'LATIN1'")
        await client.publish("orders", {"é": "é"}, kind="é", connection=connection)
        for count in (1, 600):
            with pytest.raises(InvalidArgument, match="client_encoding of this connection is LATIN1"):
                await client.publish_many("orders", ["é"] * count, connection=connection)
        with pytest.raises(InvalidArgument, match="set client_encoding to UTF8"):
            async with client.copy("orders", connection=connection) as orders:
                await orders.write("é")
        assert [(m.payload, m.kind) for m in await leased(client)] == [({"é": "é"}, "é")]


async def test_ids_drawn_are_those_of_ones_own_copy(database: str, async_connect: AsyncConnect) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("orders")
        ids = await client.draw_ids("orders", 2)
        assert ids is not None
        connection = await async_connect()
        async with connection.cursor().copy("copy trunq_log.orders (id, payload) from stdin") as copy:
            for id, payload in zip(ids, ("1", "2"), strict=True):
                await copy.write_row((id, payload))
        assert [(m.id, m.payload) for m in await leased(client)] == list(zip(ids, (1, 2), strict=True))


async def test_bodies_alone_say_how_many(database: str) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("orders")
        assert len(await client.publish_many("orders", bodies=[b"a", b"", None])) == 3
        assert [(m.payload, m.body) for m in await leased(client)] == [
            (None, b"a"),
            (None, b""),
            (None, None),
        ]
        assert await client.publish_many("orders", []) == []


async def test_publishing_joins_the_callers_transaction(database: str, async_connect: AsyncConnect) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("orders")
        connection = await async_connect(autocommit=False)
        await client.publish("orders", 1, connection=connection)
        await client.publish_many("orders", [2, 3], connection=connection)
        async with client.copy("orders", connection=connection) as orders:
            await orders.write(4)
        assert await leased(client) == []
        await connection.rollback()
        assert await leased(client) == []
        await client.publish("orders", 5, connection=connection)
        await connection.commit()
        assert [message.payload for message in await leased(client)] == [5]


async def test_a_transaction_of_the_client_commits_or_rolls_back(database: str) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("orders")
        with pytest.raises(ZeroDivisionError):
            async with client.transaction() as connection:
                await client.publish("orders", 1, connection=connection)
                raise ZeroDivisionError
        async with client.transaction() as connection:
            await client.publish("orders", 2, connection=connection)
        assert [message.payload for message in await leased(client)] == [2]


async def test_a_copy_that_fails_publishes_nothing(database: str) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("orders")
        with pytest.raises(ZeroDivisionError):
            async with client.copy("orders") as orders:
                await orders.write(1)
                raise ZeroDivisionError
        async with client.copy("orders") as orders:
            for n in range(5000):
                await orders.write({"n": n}, kind="k\t\\", key="\\N", headers={"h": n}, body=b"\\x\n")
        messages = await client.lease("orders", "default", "w", 10_000)
        assert [message.payload["n"] for message in messages] == list(range(5000))
        last = messages[-1]
        assert (last.kind, last.key, last.headers, last.body) == ("k\t\\", "\\N", {"h": 4999}, b"\\x\n")
        with pytest.raises(QueueNotFound, match="nowhere"):
            async with client.copy("nowhere") as nowhere:
                await nowhere.write(1)


async def test_a_delay_or_a_time_holds_a_message_back(database: str) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("orders")
        await client.publish("orders", 1, delay=3600)
        await client.publish("orders", 2, due_at=datetime.now(UTC) + timedelta(hours=1))
        await client.publish_many("orders", [3, 4], delay=timedelta(hours=1))
        assert await leased(client) == []
        with pytest.raises(InvalidArgument, match="cannot be due"):
            await client.publish("orders", 5, delay=-1)
        await client.publish("orders", 5, delay=0)
        await client.promote("orders")
        assert [message.payload for message in await leased(client)] == [5]


async def test_wrong_arguments_are_refused_before_the_database_is_asked() -> None:
    client = AsyncClient("host=/nonexistent")
    for name in ("", "Orders", "1st", "a b", "x" * 49, "ü"):
        with pytest.raises(InvalidName, match="cannot be the name of a queue"):
            await client.publish(name, 1)
    with pytest.raises(TypeError, match="the name of a queue is a str, not int"):
        await client.publish(1, 1)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="delay is a timedelta, a number of seconds or text"):
        await client.publish("orders", 1, delay=b"1 s")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="delay is no length of time: 'soon'") as refused:
        await client.publish("orders", 1, delay="soon")
    assert refused.value.hint is not None
    assert 'write it as "10 minutes"' in refused.value.hint
    with pytest.raises(InvalidArgument, match="due_at has no time zone"):
        await client.publish("orders", 1, due_at=datetime(2026, 1, 1))
    with pytest.raises(InvalidArgument, match="kind has a NUL character"):
        await client.publish("orders", 1, kind="a\0b")
    for one in ("text", b"bytes", {"a": 1}):
        with pytest.raises(TypeError, match="payloads is a list of payloads, not one"):
            await client.publish_many("orders", one)
    with pytest.raises(InvalidArgument, match=r"kinds\[1\] is text, not list"):
        await client.publish_many("orders", [1, 2], kinds=["a", []])  # type: ignore[list-item]
    many = "orders", [1, 2]
    with pytest.raises(InvalidArgument, match=r"kinds is a list .*\nHINT: kind= is one for all"):
        await client.publish_many(*many, kinds="a")


async def test_what_the_database_cannot_read_is_a_wrong_argument(database: str) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("orders")
        broken = RawJson('{"a": nothing}')
        with pytest.raises(InvalidArgument, match=r"invalid input syntax for type json.*nothing"):
            await client.publish("orders", broken)
        with pytest.raises(InvalidArgument, match=r"invalid input syntax for type json.*nothing"):
            await client.publish_many("orders", [1, broken])
        with pytest.raises(InvalidArgument, match=r"invalid input syntax for type json.*nothing"):
            async with client.copy("orders") as orders:
                await orders.write(broken)
        with pytest.raises(InvalidArgument, match="out of range for type smallint"):
            await client.publish("orders", 1, priority=40_000)
        assert await client.publish_many("orders", (n for n in range(3)))
        assert [message.payload for message in await leased(client)] == [0, 1, 2]


async def test_a_copied_message_has_its_priority_its_options_and_its_time(database: str) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("orders")
        await client.create_queue("ranked", lanes="priority")
        await client.set_lanes("ranked", policy="priority")
        async with client.copy("ranked") as ranked:
            for priority in (3, -2, None):
                await ranked.write(priority, priority=priority)
        assert [message.priority for message in await leased(client, "ranked")] == [-2, 0, 3]
        due = await client.clock() + timedelta(hours=1)
        options = {"max_attempts": 2, "expires_at": "2999-01-31T10:00:00Z"}
        async with client.copy("orders") as orders:
            await orders.write(1, options=options)
            await orders.write(2)
            await orders.write(3, due_at=due, kind="later")
            await orders.write(4, options={"expires_at": "2001-01-31T10:00:00Z"})
        first, second = await leased(client)
        assert (first.payload, first.max_attempts, first.deadline) == (
            1,
            2,
            datetime(2999, 1, 31, 10, tzinfo=UTC),
        )
        assert (second.payload, second.max_attempts, second.deadline) == (2, 20, None)
        (later,) = await client.list_messages("orders", state="scheduled")
        assert (later.payload, later.kind, later.due_at) == (3, "later", due)
        assert [dead.reason for dead in await client.list_dead("orders")] == ["expired"]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"priority": 1}, "a plain queue has no priorities"),
        ({"priority": 1.5}, "is an int or None, not float"),
        ({"priority": 40_000}, "out of range for type"),
        ({"options": {"max_attempts": "x"}}, "options of a message cannot be read .*line 2"),
        ({"options": {"colour": 1}}, "options of a message cannot be read"),
        ({"options": [1]}, "options of a message cannot be read"),
        ({"due_at": datetime(2999, 1, 1)}, "has no time zone"),
        ({"due_at": "2999-01-01"}, "is a datetime"),
    ],
)
async def test_what_a_copied_message_cannot_have_is_refused(
    database: str, given: dict[str, Any], why: str
) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("orders")
        with pytest.raises(InvalidArgument, match=why):
            async with client.copy("orders") as orders:
                await orders.write(1)
                await orders.write(2, **given)
        assert await leased(client) == []


async def test_a_payload_in_the_place_of_the_queue_is_named(database: str) -> None:
    async with AsyncClient(database) as client:
        with pytest.raises(TypeError, match="name of a queue is a str, not dict; it comes before"):
            await client.publish({"order": 1}, "orders")  # type: ignore[arg-type]
