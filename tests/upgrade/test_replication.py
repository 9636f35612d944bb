"""Logical replication from one log into another: the recipe of docs/operate/replication.md, and its parts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from calling import answer, ask, call, come_back, drain, fetch, lease, named, new_names, publish
from trunq import embedded, install
from trunq.embedded import Embedded
from waiting import wait_until

Connection = psycopg.Connection[Any]

PAGE = Path(__file__).parents[2] / "docs" / "operate" / "replication.md"
BLOCK = re.search(r"```sql elsewhere\n-- source\n(.*?)-- target\n(.*?)```", PAGE.read_text(), re.DOTALL)

WHOLE_ROWS = (
    "create publication orders for table trunq_log.orders"
    " with (publish = 'insert', publish_via_partition_root = true)"
)

AGAIN = re.search(r"```sql elsewhere\n(insert into .*?)```", PAGE.read_text(), re.DOTALL)


@pytest.fixture(scope="module")
def logical(server: Embedded) -> Iterator[Embedded]:
    """A server that decodes its log."""
    settings = {"fsync": "off", "wal_level": "logical", "max_prepared_transactions": "5"}
    with embedded.start(major=server.major, settings=settings) as started:
        yield started


Replicate = Callable[[str], None]


@pytest.fixture
def ends(logical: Embedded) -> Iterator[tuple[Connection, Connection, Replicate]]:
    """Sessions in the source and the target, each with a queue `orders`, and what connects the two."""
    names = [next(new_names(what)) for what in ("source", "target")]
    slot = names[1]
    with psycopg.connect(logical.dsn, autocommit=True) as admin:
        for name in names:
            admin.execute(f"create database {name}".encode())
            install.install(named(logical.dsn, name))
        # No connection of its own to a server that waits for this very transaction: the slot is made first.
        options = f" with (create_slot = false, slot_name = '{slot}')"
        with (
            psycopg.connect(named(logical.dsn, names[0]), autocommit=True) as source,
            psycopg.connect(named(logical.dsn, names[1]), autocommit=True) as target,
        ):
            for session in (source, target):
                ask(session, "create_queue", queue="orders")

            def replicate(publication: str) -> None:
                assert BLOCK is not None
                source.execute(publication.encode())
                source.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))
                parts = conninfo_to_dict(named(logical.dsn, names[0]))
                address = " ".join(f"{key}={value}" for key, value in parts.items())
                statement = BLOCK[2].strip().rstrip(";").replace("host=source dbname=shop", address)
                target.execute((statement + options).encode())

            yield source, target, replicate
            target.execute("drop subscription if exists orders")
        for name in names:
            admin.execute(f"drop database {name} with (force)".encode())


def arrived(target: Connection, count: int) -> None:
    wait_until(lambda: fetch(target, "select count(*) from trunq_log.orders") == count, what="rows arrive")


def warnings(session: Connection) -> list[tuple[str, str]]:
    query = "select w.* from trunq.queue q cross join lateral trunq._warn_unreachable(q) w"
    return session.execute(query).fetchall()


@pytest.mark.slow
def test_what_is_published_at_the_source_is_leased_at_the_target_once(
    ends: tuple[Connection, Connection, Replicate],
) -> None:
    source, target, replicate = ends
    assert BLOCK is not None
    publish(source, "orders", 2)
    publish(target, "orders", 1)
    assert len(drain(target, "orders")) == 1
    replicate(BLOCK[1])
    arrived(target, 3)
    ask(source, "publish", queue="orders", payload={"n": 3}, kind="k", key="y", headers={"h": 1}, body=b"b")
    # A retry is a row of the source's log, and its own business.
    held = lease(source, "orders", 3)
    answer(source, "retry", held, delays=["0"] * 3)
    assert len(lease(source, "orders", 3).ids) == 3
    publish(source, "orders", 1)
    arrived(target, 5)
    held = lease(target, "orders", 10)
    assert [message.payload for message in held.messages] == [{"n": 0}, {"n": 1}, {"n": 3}, {"n": 0}]
    third = held.messages[2]
    assert (third.kind, third.key, third.headers, third.body, third.attempt) == ("k", "y", {"h": 1}, b"b", 1)
    assert answer(target, "ack", held) == 4
    assert lease(target, "orders", 10).messages == []
    assert warnings(target) == warnings(source) == []


def test_a_message_with_a_time_arrives_once_when_it_is_due(
    ends: tuple[Connection, Connection, Replicate],
) -> None:
    source, target, replicate = ends
    assert BLOCK is not None
    replicate(BLOCK[1])
    publish(source, "orders", 1)
    # What there was is copied by now, what comes is streamed.
    arrived(target, 1)
    source.execute("insert into trunq_log.orders (payload, due_at) values ('1', now() + interval '1 day')")
    publish(source, "orders", 1)
    arrived(target, 2)
    assert [message.payload for message in lease(target, "orders", 5).messages] == [{"n": 0}, {"n": 0}]
    come_back(source, "orders")
    arrived(target, 3)
    assert [message.payload for message in lease(target, "orders", 5).messages] == [1]


def test_emptying_a_segment_of_the_source_leaves_the_target_alone(
    ends: tuple[Connection, Connection, Replicate],
) -> None:
    source, target, replicate = ends
    assert BLOCK is not None
    replicate(BLOCK[1])
    ids = publish(source, "orders", 2)
    arrived(target, 2)
    source.execute("truncate trunq_log.orders")
    more = publish(source, "orders", 1)
    arrived(target, 3)
    assert len(lease(target, "orders", 5).ids) == len(ids) + len(more)


@pytest.mark.slow
@pytest.mark.parametrize("txid", ["600", "1000000000"], ids=["lower", "higher"])
def test_rows_with_transaction_ids_of_their_own_are_reported(
    ends: tuple[Connection, Connection, Replicate], txid: str
) -> None:
    source, target, replicate = ends
    assert AGAIN is not None
    own = publish(target, "orders", 1)
    assert drain(target, "orders") == own
    replicate(WHOLE_ROWS)
    # As from a cluster with other transaction ids.
    insert = "insert into trunq_log.orders (id, txid, payload) values (17, %s, '1') returning id"
    lost = fetch(source, insert, txid)
    arrived(target, 2)
    assert lease(target, "orders", 5).messages == []
    ((warning, hint),) = warnings(target)
    assert f"message {lost} came with transaction id {txid}" in warning
    assert "docs/operate/replication.md" in hint
    target.execute(AGAIN[1].encode())
    assert [message.payload for message in lease(target, "orders", 5).messages] == [1]


@pytest.mark.slow
def test_rows_of_this_cluster_are_never_reported(ends: tuple[Connection, Connection, Replicate]) -> None:
    session, _, _ = ends
    for _ in range(3):
        publish(session, "orders", 20)
        ask(session, "tick", queue="orders", force=True)
        answer(session, "retry", lease(session, "orders", 5), delays=["0"] * 5)
        with session.transaction():
            publish(session, "orders", 1)
            with session.transaction():
                publish(session, "orders", 1)
            assert warnings(session) == []
        assert warnings(session) == []
    ask(session, "rebase")
    assert warnings(session) == []
    assert call(session, "status")
