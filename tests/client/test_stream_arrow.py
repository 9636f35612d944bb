"""Batches as Arrow: the rows of read_batch, whichever way they are read."""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from psycopg.conninfo import make_conninfo
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from trunq import AsyncClient, Client, InvalidArgument, MessagesLost, TickNotFound
from trunq.arrow import reader
from trunq.client._async.stream.columns import AsyncColumns
from trunq.record import Batch, BatchMessage
from waiting import async_wait_until

FILTER = {"not_kinds": ["test"]}
SCHEMA = pa.schema(
    [
        *(("id", pa.int64()), ("kind", pa.string()), ("key", pa.string()), ("payload", pa.string())),
        *(("body", pa.binary()), ("headers", pa.string()), ("priority", pa.int16()), ("attempt", pa.int16())),
        *(("created_at", pa.timestamp("us", "UTC")), ("txid", pa.int64())),
    ]
)


def messages(table: pa.Table) -> list[BatchMessage]:
    assert table.schema == SCHEMA
    rows = [BatchMessage(**row, columns={}) for row in table.to_pylist()]
    return [row._replace(payload=value(row.payload), headers=value(row.headers)) for row in rows]


def value(text: str | None) -> Any:
    return text and json.loads(text)


@pytest.fixture
def ledger(database: str) -> str:
    with Client(database) as client:
        client.create_queue("sales")
        client.subscribe("sales", "ledger", mode="exclusive", filter=FILTER, backoff_base=0)
    return database


class Ways:
    """One batch, read in each way there is."""

    def __init__(self, clients: dict[str, AsyncClient]) -> None:
        self.columns = {name: AsyncColumns(client) for name, client in clients.items()}

    async def read(self, batch: Batch, filter: dict[str, Any] | None) -> dict[str, list[BatchMessage]]:
        return {
            name: messages(await columns.table(batch, filter, None)) for name, columns in self.columns.items()
        }


@pytest.fixture
async def ways(ledger: str, connection: psycopg.Connection[Any]) -> AsyncIterator[Ways]:
    # A worker alone may not read the log; one who is a reader with payloads too, may.
    roles = {way: f"{connection.info.dbname}_{way}" for way in ("paged", "granted")}
    for role in roles.values():
        connection.execute(f"create role {role}".encode())
        connection.execute("select trunq.grant_role('sales', 'worker', %s)", (role,))
    connection.execute("select trunq.grant_role('sales', 'reader', %s, true)", (roles["granted"],))
    async with AsyncConnectionPool(ledger, min_size=1, open=False) as pool, AsyncExitStack() as stack:
        clients = {"adbc": AsyncClient(ledger), "psycopg": AsyncClient(pool)}
        clients |= {
            way: AsyncClient(make_conninfo(ledger, options=f"-c role={role}")) for way, role in roles.items()
        }
        for client in clients.values():
            stack.push_async_callback(client.close)
        made = Ways(clients)
        for columns in made.columns.values():
            stack.push_async_callback(columns.close)
        yield made
    for role in roles.values():
        connection.execute(f"drop owned by {role}; drop role {role}".encode())


async def test_every_way_reads_what_read_batch_reads(
    ways: Ways, ledger: str, connection: psycopg.Connection[Any], connect: Any
) -> None:
    """Transactions that commit late, parts, retries, filters."""
    chance = random.Random(7)
    writers = [connect(ledger, autocommit=False) for _ in range(3)]
    shapes, seen = set(), 0
    async with AsyncClient(ledger) as client:
        for _ in range(25):
            for writer in chance.sample(writers, 2):
                writer.execute(
                    "select trunq.publish('sales', %s::jsonb, p_kind => %s, p_key => %s,"
                    " p_headers => %s::jsonb)",
                    (
                        '{"n": 1.50, "text": "ž\\""}',
                        chance.choice(["a", "test", None]),
                        "k$1%s",
                        '{"h": "x"}',
                    ),
                )
                writer.execute("select trunq.publish('sales', p_body => '\\x00ff')")
                if chance.random() < 0.6:
                    writer.commit()
            batch = await client.next_batch("sales", "ledger", "ada")
            if batch is None:
                continue
            expected = {
                str(filter): await client.read_batch("sales", "ledger", batch.batch_id, filter=filter)
                for filter in (None, {"kinds": ["a"]})
            }
            for filter in (None, {"kinds": ["a"]}):
                for way, found in (await ways.read(batch, filter)).items():
                    assert found == expected[str(filter)], way
            rows = expected["None"]
            seen += len(rows)
            late = any(each.txid < int(batch.from_snapshot.split(":")[1]) for each in rows)
            shapes.add((late, batch.is_part, max((each.attempt for each in rows), default=1) > 1))
            upto = chance.choice(rows) if len(rows) > 1 and chance.random() < 0.5 else None
            if rows and chance.random() < 0.3:
                first = rows[0]
                await client.retry_batch("sales", "ledger", batch.batch_id, batch.token, [first.id], 0)
                await client.promote("sales")
            await client.finish_batch(
                "sales", "ledger", batch.batch_id, batch.token, upto and upto.txid, upto and upto.id
            )
    assert seen > 30
    assert {any(shape[place] for shape in shapes) for place in range(3)} == {True}, shapes
    # Each went the way it is named after.
    kept = {way for way, columns in ways.columns.items() if columns._kept is not None}
    assert kept == {"adbc", "granted"}


async def test_a_batch_of_any_size_is_read_in_pieces(ledger: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "BATCH_BYTES", 20_000)
    async with AsyncClient(ledger) as client, AsyncConnectionPool(ledger, open=False) as pool:
        await client.subscribe("sales", "other", mode="exclusive")
        ids = await client.publish_many("sales", ["x" * 100] * 1000)
        for reading, subscription in ((client, "ledger"), (AsyncClient(pool), "other")):
            async for batch in reading.stream("sales", subscription):
                async with batch.transaction() as connection:
                    with pytest.raises(InvalidArgument, match="in a thread"):
                        batch.to_arrow_reader().read_next_batch()
                    pieces = await asyncio.to_thread(list, batch.to_arrow_reader())
                    if not pieces:
                        # Between the tick of the first subscription and that of the second.
                        continue
                    assert len(pieces) > 3
                    assert pa.Table.from_batches(pieces)["id"].to_pylist() == ids
                    # What reading set is not left in the user's transaction.
                    assert await (await connection.execute("show enable_seqscan")).fetchone() == ("on",)
                break


def test_a_sync_reader_in_a_transaction(ledger: str) -> None:
    with Client(ledger) as client, ConnectionPool(ledger, open=False) as pool:
        ids = client.publish_many("sales", list(range(100)))
        for batch in Client(pool).stream("sales", "ledger"):
            with batch.transaction():
                assert batch.to_arrow_reader({"keys": ["none"]}).read_all().num_rows == 0
                assert batch.to_arrow()["id"].to_pylist() == ids
            break


async def test_what_is_gone_or_cut_is_noticed(
    ledger: str, connection: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with AsyncClient(ledger) as client:
        await client.publish_many("sales", [1, 2, 3])
        async for batch in client.stream("sales", "ledger"):
            assert (await batch.to_arrow()).num_rows == 3
            assert batch._columns._kept is not None
            kept = batch._columns._kept._kept
            with kept._connection.cursor() as cursor:
                cursor.execute("select pg_backend_pid()")
                connection.execute("select pg_terminate_backend(%s, 10000)", cursor.fetchone())
            assert (await batch.to_arrow()).num_rows == 3
            connection.execute("update trunq.queue set reachable_tick_id = 1000")
            with pytest.raises(TickNotFound, match="out of reach"):
                await batch.to_arrow()
            with monkeypatch.context() as patch:
                patch.setitem(sys.modules, "pyarrow", None)
                with pytest.raises(InvalidArgument, match=r"trunq\[arrow\]"):
                    await batch.to_arrow()
            await batch.finish()
            break
        await async_wait_until(lambda: kept._connection is None)


def test_a_batch_of_a_group_by_key_has_the_messages_of_its_slot(ledger: str) -> None:
    with Client(ledger) as client:
        client.create_group("sales", "crew", 4)
        published = client.publish_many("sales", list(range(20)), keys=[f"k{n}" for n in range(20)])
        found: list[int] = []
        for batch in client.stream("sales", "crew", member="ada"):
            ids = [message.id for message in batch]
            assert [row.id for row in messages(batch.to_arrow())] == ids
            batch.finish()
            found += ids
            if len(found) == len(published):
                break
        assert sorted(found) == sorted(published)


def test_what_has_lost_messages_gives_none_as_arrow_until_that_is_accepted(ledger: str) -> None:
    with Client(ledger) as client:
        client.publish("sales", 1)
        for batch in client.stream("sales", "ledger"):
            with psycopg.connect(ledger, autocommit=True) as connection:
                # As rotation notes it.
                connection.execute("update trunq.subscription set lost_at = now() where name = 'ledger'")
            with pytest.raises(MessagesLost):
                batch.to_arrow()
            break
