"""What `trunq leader --metrics` tells Prometheus: figures of the database, whose counters never fall."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import psycopg
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families

from calling import fetch
from engine import THREE_SPANS, Engine
from trunq import Client
from trunq.errors import InvalidArgument
from trunq.leader import Leaders
from trunq.metrics import Metrics, page_of
from trunq.metrics.figure import GAUGES, Known, Total, families
from waiting import async_wait_until

Samples = dict[str, dict[tuple[str, ...], float]]
LABELS = [
    *("database", "queue", "subscription", "state", "outcome", "kind", "le"),
    *("duty", "schedule", "pipeline"),
]


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@asynccontextmanager
async def leading(port: int, *dsns: str, **options: Any) -> AsyncIterator[Leaders]:
    """A leader that serves metrics, until the end of the block."""

    async def find() -> list[str]:
        return list(dsns)

    leaders = Leaders(find, **{"metrics": f"127.0.0.1:{port}", **options})
    task = asyncio.create_task(leaders.run_async())
    try:
        yield leaders
        leaders.stop()
        await asyncio.wait_for(task, 60)
    finally:
        task.cancel()


async def scrape(port: int, accept: str = "") -> httpx.Response | None:
    async with httpx.AsyncClient(timeout=60) as http:
        try:
            return await http.get(f"http://127.0.0.1:{port}/metrics", headers={"Accept": accept})
        except httpx.TransportError:
            return None


async def read(port: int) -> Samples:
    """Each figure, its values by those of its labels but database; none while nobody listens."""
    answer = await scrape(port)
    found: Samples = {}
    for family in text_string_to_metric_families("" if answer is None else answer.text):
        for sample in family.samples:
            assert set(sample.labels) <= set(LABELS)
            values = tuple(sample.labels[name] for name in LABELS[1:] if name in sample.labels)
            found.setdefault(sample.name, {})[values] = sample.value
    return found


async def told(port: int, is_there: Callable[[Samples], bool]) -> Samples:
    """What is told once it has this."""
    found: Samples = {}

    async def has_it() -> bool:
        nonlocal found
        found = await read(port)
        return is_there(found)

    await async_wait_until(has_it, 40)
    return found


def make(client: Client) -> None:
    """Something of each figure."""
    client.create_queue("orders")
    client.create_queue("laned", lanes="key")
    client.create_queue("pipelines")
    client.subscribe("orders", "stream", mode="exclusive")
    client.set_lanes("laned", "default", max_running=3)
    client.create_schedule("nightly", "orders", every="1 day")
    parts = {"source": {"format": "table", "table": "a"}, "sink": {"format": "table", "table": "b"}}
    client.create_pipeline("moving", parts)


def fill(client: Client) -> None:
    """Messages in each state."""
    client.publish_many("orders", list(range(20)), kind="placed")
    client.publish("orders", 1, delay=3600)
    held = client.lease("orders", "default", "ada", 10)
    client.ack(held[:3], took=0.2)
    client.reject(held[3], "no")


def is_sampled(found: Samples) -> bool:
    """Whether the queue is known: published messages count from then on."""
    return ("orders",) in found.get("trunq_published_total", {})


@pytest.mark.slow
async def test_each_figure_is_told_and_what_is_told_is_so(
    database: str, connection: psycopg.Connection[Any], port: int
) -> None:
    with Client(database) as client:
        make(client)
        async with leading(port, database):
            await told(port, is_sampled)
            fill(client)
            found = await told(port, lambda found: found["trunq_published_total"]["orders",] == 20)
        of = "orders", "default"
        states = {
            state: found["trunq_messages"][*of, state] for state in ("ready", "leased", "delayed", "dead")
        }
        assert states == {"ready": 10, "leased": 6, "delayed": 1, "dead": 1}
        assert found["trunq_published_total"]["orders",] == 20
        assert found["trunq_answers_total"] == {(*of, "success"): 3, (*of, "rejected"): 1}
        assert found["trunq_oldest_ready_seconds"][of] > 0
        assert found["trunq_lag_messages"]["orders", "stream"] == 20
        assert found["trunq_workers"][of] == 1
        assert found["trunq_paused"][of] == 0
        assert found["trunq_lane_max_running"]["laned", "default"] == 3
        assert found["trunq_schedule_late_seconds"]["orders", "nightly"] == 0
        assert found["trunq_queue_bytes"]["orders",] > 0
        assert found["trunq_segments_held"]["orders",] == 0
        assert found["trunq_pipeline_quarantined_rows"]["moving",] == 0
        assert found["trunq_up"][()] == found["trunq_leader_up"][()] == 1
        assert 0 <= found["trunq_sample_age_seconds"][()] < 60


@pytest.mark.slow
async def test_counters_go_on_where_they_were_when_every_process_is_gone(
    database: str, connection: psycopg.Connection[Any], port: int
) -> None:
    def counted(found: Samples, count: int) -> bool:
        return found.get("trunq_answers_total", {}).get(("orders", "default", "success"), 0) >= count

    with Client(database) as client:
        make(client)
        async with leading(port, database):
            await told(port, is_sampled)
            fill(client)
            await told(port, lambda found: counted(found, 3))
        client.ack(client.lease("orders", "default", "ada", 5))
        async with leading(port, database):
            found = await told(port, lambda found: bool(found.get("trunq_answers_total")))
            # Before this process has sampled: as the former one left it.
            assert found["trunq_published_total"]["orders",] == 20
            await told(port, lambda found: counted(found, 8))


async def test_a_database_that_is_away_is_said_to_be_down_and_disturbs_no_other(
    database: str, new_database: Callable[..., str], port: int
) -> None:
    async with leading(port, database, f"{new_database()} port=1"):
        answer = await scrape_until(port)
        up = {line for line in answer.splitlines() if line.startswith("trunq_up{")}
        assert sorted(line[-3:] for line in up) == ["0.0", "1.0"]


async def scrape_until(port: int) -> str:
    """The text, once somebody answers."""
    answer: httpx.Response | None = None

    async def has_answered() -> bool:
        nonlocal answer
        answer = await scrape(port)
        return answer is not None

    await async_wait_until(has_answered, 120)
    assert answer is not None
    return answer.text


async def test_health_and_metrics_may_have_one_port_and_open_metrics_is_spoken(
    database: str, port: int
) -> None:
    async with leading(port, database, health=f"127.0.0.1:{port}"):
        await scrape_until(port)
        async with httpx.AsyncClient(timeout=60) as http:
            for path in ("healthz", "readyz"):
                assert (await http.get(f"http://127.0.0.1:{port}/{path}")).text == "ok\n"
            missing = await http.get(f"http://127.0.0.1:{port}/else")
            assert missing.text == "ask /healthz, /readyz or /metrics\n"
        answer = await scrape(port, "application/openmetrics-text; version=1.0.0")
        assert answer is not None
        assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
        assert answer.text.endswith("# EOF\n")
        assert next(each.name for each in open_metrics(answer.text)) == "trunq_up"


def test_histograms_are_cumulative_and_a_kind_called_other_is_added_to_the_others() -> None:
    rows = [
        Total("orders", "default", kind, [1, 0, 2], [0, 3, 0], 5.5, 1.25, [0.5, 60.0])
        for kind in ("", "placed", "other", "(others)", 'a "quoted"\nkind')
    ]
    found = {each.name: each for each in families({"shop": Known([], rows, [])})}
    handler = found["trunq_handler_seconds"]
    assert handler.type == "histogram"
    assert {sample.labels["kind"] for sample in handler.samples} == {"", "placed", "other", rows[-1].kind}

    def told(kind: str) -> list[tuple[str, float]]:
        of = [sample for sample in handler.samples if sample.labels["kind"] == kind]
        return [
            (sample.labels.get("le", sample.name.removeprefix("trunq_handler_seconds")), sample.value)
            for sample in of
        ]

    assert told("placed") == [("0.5", 1), ("60", 1), ("+Inf", 3), ("_count", 3), ("_sum", 5.5)]
    assert told("other") == [("0.5", 2), ("60", 2), ("+Inf", 6), ("_count", 6), ("_sum", 11.0)]
    _, text = page_of("shop", Known([], rows, []))
    (parsed,) = [
        each for each in text_string_to_metric_families(text.decode()) if each.name == "trunq_handler_seconds"
    ]
    assert {sample.labels["kind"] for sample in parsed.samples} == {"", "placed", "other", rows[-1].kind}


def test_figures_of_the_database_are_known_by_name(
    connection: psycopg.Connection[Any], database: str
) -> None:
    with Client(database) as client:
        make(client)
    rows = connection.execute("select figure from trunq._list_figures(true)").fetchall()
    told = {figure for (figure,) in rows}
    assert told <= {*GAUGES, "pipeline_runs"}
    text = connection.execute("select pg_get_functiondef('trunq._list_figures'::regproc)").fetchone()
    assert text is not None
    assert [name for name in GAUGES if f"'{name}'" not in text[0]] == []


def test_without_the_package_the_option_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client.exposition", None)
    with pytest.raises(InvalidArgument, match="metrics need prometheus_client") as refused:
        Metrics(dict)
    assert refused.value.hint == "pip install 'trunq[metrics]'"


def test_a_segment_that_a_reader_needs_beyond_the_retention_is_held(
    connection: psycopg.Connection[Any],
) -> None:
    work = Engine(connection, "work").create(retention="1 day")
    work.publish(3)
    held = "select value from trunq._list_figures(true) where figure = 'segments_held' and queue = 'work'"
    assert fetch(connection, held) == 0
    work.rotate(THREE_SPANS)
    with work.clock(THREE_SPANS):
        assert fetch(connection, held) == 1
        work.drain()
    work.rotate(THREE_SPANS)
    with work.clock(THREE_SPANS):
        assert fetch(connection, held) == 0
