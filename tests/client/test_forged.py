"""Whoever is connected may notify on any channel, and say what he likes."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trunq import Client
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
        "select count(*) from pg_stat_activity where datname = current_database() and query ~* 'list_replies'"
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
    channel = client.announcement_channel("orders")
    heard = client.listen("orders")
    listening = "select count(*) from pg_stat_activity where query ~* '^listen'"
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(next, heard)
        wait_until(lambda: (connection.execute(listening).fetchone() or (0,))[0])
        notify_all(connection, channel)
        id = client.publish("orders", 1)
        found = first.result(PATIENCE)
        while found.first != id:
            assert 0 <= found.first <= found.last <= LARGEST
            found = threads.submit(next, heard).result(PATIENCE)
    heard.close()
