"""Whoever is connected may notify on any channel, and say what he likes."""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trunq import Client, Heard, Worker
from trunq.leader import Leader
from trunq.pipeline import Pipeline
from trunq.pipeline.run import Executor
from trunq.pipeline.triggering import Triggers
from trunq.wire.scalar import LARGEST, ids_told
from waiting import PATIENCE, wait_until

NASTY = (
    "9" * 5000,
    "cancel " + "9" * 5000,
    f"{'9' * 19}-{'9' * 19}",
    "9" * 3000 + "-" + "9" * 3000,
    "2-1",
    "-1",
    "cancel -1 x ²³ ٣٤ ⑨",
    "1e9 0x10 1_000 +5 5.0",
    str(LARGEST + 1),
    "bell bell look",
    "\x01\x7f\u202e" * 1000,
    "%s %d {0} \\ ' \" ; --",
    "",
    "cancel",
)


def anything(seed: int) -> Iterator[str]:
    """Texts that somebody may notify, the same each time."""
    chance = random.Random(seed)
    words = (
        "cancel",
        "bell",
        "look",
        "-",
        "0",
        "7",
        str(LARGEST),
        "9" * 20,
        "²",
        "\t",
        "\n",
        "é",
        "1-2",
        "x",
    )
    for _ in range(100):
        yield " ".join(chance.choice(words) for _ in range(chance.randrange(1, 40)))


@given(st.text(max_size=8000) | st.sampled_from(NASTY))
@settings(max_examples=200, deadline=None)
def test_what_is_told_is_ids_or_nothing(payload: str) -> None:
    assert all(0 <= id <= LARGEST for id in ids_told(payload))


def test_ids_are_understood() -> None:
    assert ids_told(f"cancel 1 22 {LARGEST} x") == {1, 22, LARGEST}


@pytest.fixture
def client(database: str) -> Iterator[Client]:
    with Client(database) as client:
        client.create_queue("orders")
        client.set_publishing("orders", announce=True)
        yield client


def notify_all(connection: psycopg.Connection[Any], channel: str) -> None:
    for payload in (*NASTY, *anything(7)):
        connection.execute("select pg_notify(%s, %s)", (channel, payload[:7999]))


def test_who_awaits_a_result_gets_it_and_forged_ones_are_logged_once(
    client: Client, connection: psycopg.Connection[Any], caplog: pytest.LogCaptureFixture
) -> None:
    id = client.publish("orders", 1, awaited=True)
    listening = (
        "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
        " and query ~* 'list_replies'"
    )
    with caplog.at_level(logging.WARNING), ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(client.result, "orders", id, timeout=PATIENCE)
        wait_until(lambda: (connection.execute(listening).fetchone() or (0,))[0])
        (channel,) = connection.execute("select trunq.reply_channel('orders')").fetchone() or ("",)
        notify_all(connection, channel)
        (message,) = client.lease("orders", "default", "w1")
        client.ack(message, result="right")
        assert waiting.result() == "right"
    told = [record.getMessage() for record in caplog.records]
    assert len([text for text in told if "is no id of a message" in text]) == 1
    assert max(len(text) for text in told) < 1000


def test_who_listens_hears_what_is_published(client: Client, connection: psycopg.Connection[Any]) -> None:
    channels = (client.queue_channel("orders"), client.announcement_channel("orders"))
    with client.listen("orders", poll=3600) as heard:
        for channel in channels:
            notify_all(connection, channel)
        id = client.publish("orders", 1)
        with ThreadPoolExecutor(1) as threads:
            found = threads.submit(next, heard).result(PATIENCE)
        assert isinstance(found, Heard)
        assert found.id == id


Proof = Callable[[], object]
"""Does something that the listener must hear of; true when it did."""


@contextmanager
def in_a_thread(running: Worker | Leader) -> Iterator[None]:
    """Run it beside the test; it must end in good order."""
    thread = threading.Thread(target=lambda: asyncio.run(running.run_async()))
    thread.start()
    try:
        yield
        assert thread.is_alive()
    finally:
        running.stop()
        thread.join(PATIENCE)
        assert not thread.is_alive()


@contextmanager
def a_worker(dsn: str, client: Client) -> Iterator[Proof]:
    worker = Worker("orders", dsn=dsn, poll=3600)
    handled: list[int] = []
    worker.handler("*")(lambda message: handled.append(message.id))
    with in_a_thread(worker):
        yield lambda: client.publish("orders", 1) and wait_until(lambda: handled)


@contextmanager
def a_stream(dsn: str, client: Client) -> Iterator[Proof]:
    client.subscribe("orders", "ledger", mode="exclusive")
    stream = client.stream("orders", "ledger", "reader", poll=3600)
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(next, iter(stream))
        try:
            yield lambda: client.publish("orders", 1) and first.result(PATIENCE)
        finally:
            stream.stop()


@contextmanager
def a_leader(dsn: str, client: Client) -> Iterator[Proof]:
    leader = Leader(dsn)
    with in_a_thread(leader):
        wait_until(lambda: leader.performed.calls.get("fire"))

        def is_fired() -> object:
            client.create_schedule("often", "orders", every=1)
            return wait_until(lambda: client.list_messages("orders"))

        yield is_fired


@contextmanager
def triggers(dsn: str, client: Client) -> Iterator[Proof]:
    client.create_queue("pipelines")
    source, sink = {"format": "queue", "queue": "orders"}, {"format": "table", "table": "copied"}
    triggers: tuple[dict[str, Any], ...] = ({"continuous": True}, {"on": "message", "queue": "orders"})
    for name, trigger in zip(("following", "woken"), triggers, strict=True):
        made = Pipeline(name, source=source, sink=sink, trigger=trigger)
        client.create_pipeline(name, made.definition)
    lookout = Triggers(dsn, Executor(client, dsn).control)
    lookout.start()
    try:
        # The first run is asked for by the one that follows: it listens.
        wait_until(lambda: client.list_messages("pipelines"))
        yield (
            lambda: (
                client.publish("orders", 1)
                and wait_until(lambda: len(client.list_messages("pipelines")) == 2)
            )
        )
    finally:
        lookout.stop()


LISTENERS = [a_worker, a_stream, a_leader, triggers]
CHANNELS = ["trunq_schedules", "trunq_pipelines"]
"""Besides that of the queue."""

HOLDS = "select count(*) from pg_locks where classid = trunq._lock_class('bell') and granted"


@pytest.mark.parametrize("listener", LISTENERS)
def test_forged_notifications_do_no_harm(
    listener: Callable[[str, Client], AbstractContextManager[Proof]],
    database: str,
    client: Client,
    connection: psycopg.Connection[Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING), listener(database, client) as is_heard:
        if listener in (a_worker, a_stream):
            wait_until(lambda: connection.execute(HOLDS).fetchone() == (1,))
        for channel in (*CHANNELS, client.queue_channel("orders")):
            notify_all(connection, channel)
        assert is_heard()
    told = [record.getMessage() for record in caplog.records]
    assert [text for text in told if "is no id of a message" not in text] == []
    assert len(told) <= 1
