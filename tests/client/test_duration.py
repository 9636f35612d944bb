"""Lengths of time as text: in Python they are what Postgres takes them for."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest
from typer import BadParameter

from serving import Queue
from trunq import Client, InvalidArgument, Retry
from trunq.cli.ground import option
from trunq.client.message import Message
from trunq.pipeline.definition.iso_duration import read_duration
from trunq.wire.scalar import interval
from trunq.worker import Worker

SPANS = [
    *(
        "10 minutes",
        "90 days",
        "1h 30m",
        "1 day 2 hours",
        "PT10M",
        "P1DT2H",
        "1.5s",
        "PT0.25S",
        "2 weeks 1 day",
    ),
    *(
        "500ms",
        "90",
        "0.5",
        "01:30",
        "01:30:05.5",
        "1 day 01:30:00",
        "36:00",
        "5 mins",
        "2 hrs",
        "3 secs",
        "7 us",
    ),
    *("1 week", "1m", "1 min", "5 MINUTES", " 5 minutes ", "5minutes", "0", "P2W"),
]
NONE = [
    "",
    "soon",
    "10 x",
    "5 5",
    "ten minutes",
    "P",
    "PT",
    "1:75",
    "1:2:3:4",
    "-5 minutes",
    "1 month",
    "2 years",
]


@pytest.fixture
def queue(database: str, connection: psycopg.Connection[Any]) -> Queue:
    return Queue(database, connection)


def test_a_text_is_what_postgres_takes_it_for(connection: psycopg.Connection[Any]) -> None:
    for text in SPANS:
        (seconds,) = connection.execute("select extract(epoch from %s::interval)", (text,)).fetchone() or (0,)
        expected = timedelta(seconds=float(seconds))
        assert interval("delay", text) == option.interval(text) == read_duration(text) == expected, text


@pytest.mark.parametrize("text", [*NONE, "1 hour and -1 minute", "9" * 400 + " days"])
def test_what_is_none_is_refused_everywhere_with_the_way_to_write_it(text: str) -> None:
    with pytest.raises(InvalidArgument, match="delay is no length of time") as refused:
        interval("delay", text)
    assert refused.value.hint is not None
    for way in ("10 minutes", "1h 30m", "PT10M"):
        assert f'"{way}"' in refused.value.hint
        assert interval("delay", way)
    with pytest.raises(BadParameter):
        option.interval(text)
    with pytest.raises(ValueError):
        read_duration(text)


async def test_client_worker_and_options_take_it(queue: Queue) -> None:
    with Client(queue.dsn) as client:
        client.subscribe("q", "default", dead_retention="90 days", backoff_base="1 minute", lease_time="40 s")
        id = client.publish("q", 1, delay="10 minutes", max_age="2 hours", options={"time_out": "5 minutes"})
        due, created = due_of(queue, id)
        assert timedelta(minutes=9) < due - created <= timedelta(minutes=10)
        other = client.publish("q", 2)
        (policy,) = client.list_subscriptions("q")
        assert (policy.dead_retention, policy.lease_time) == (timedelta(days=90), timedelta(seconds=40))
    worker = queue.worker(lease_time="1 minute", poll="500 ms", grace="1h", reserve="1s", until_empty=True)
    left: list[float | None] = []

    @worker.handler(time_out="20 minutes", backoff_cap="1 day")
    async def handle(message: Message) -> Retry:
        left.append(message.time_left)
        return Retry(after="3 hours")

    await worker.run_async()
    assert left[0] is not None
    assert 1000 < left[0] <= 1200
    due, _ = due_of(queue, other)
    (now,) = queue.connection.execute("select trunq.clock()").fetchone() or (None,)
    assert timedelta(hours=2, minutes=59) < due - now <= timedelta(hours=3)
    with pytest.raises(InvalidArgument, match="grace is no length of time: 'a while'"):
        await bare("q", grace="a while").run_async()


def bare(*queues: str, **options: Any) -> Worker:
    worker = Worker(*queues, **options)
    worker.handler(len)
    return worker


def due_of(queue: Queue, id: int) -> tuple[datetime, datetime]:
    row = queue.connection.execute(
        "select due_at, created_at from trunq.delayed where id = %s", (id,)
    ).fetchone()
    assert row is not None
    return row[0], row[1]
