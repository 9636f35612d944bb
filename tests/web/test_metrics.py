"""GET /metrics of the dashboard: the figures of `trunq leader --metrics`, for whoever may look."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import psycopg
import pytest
from prometheus_client.parser import text_string_to_metric_families
from psycopg.conninfo import make_conninfo

from browsing import TOKEN, VIEWER, browse, shop
from calling import call, new_names
from trunq import Client
from trunq.metrics import Metrics


def names(text: str) -> set[str]:
    """Of all figures."""
    return {family.name for family in text_string_to_metric_families(text)}


def filled(database: str, connection: psycopg.Connection[Any]) -> None:
    """Something of most figures."""
    shop(connection)
    parts = {"source": {"format": "table", "table": "a"}, "sink": {"format": "table", "table": "b"}}
    with Client(database) as client:
        client.create_schedule("nightly", "orders", every="1 day")
        client.create_pipeline("moving", parts)
    connection.execute("select trunq.sample()")
    connection.execute("select trunq.elect('somebody', '1 hour')")
    full = "array_fill(1::bigint, array[(select count(*)::int + 1 from unnest(trunq._total_bounds()))])"
    connection.execute(
        f"insert into trunq.statistic_total select queue_id, 'default', 'placed', {full}, {full}, 1, 1"
        " from trunq.queue where name = 'orders'".encode()
    )


def test_the_dashboard_tells_what_the_leader_tells(
    database: str, connection: psycopg.Connection[Any]
) -> None:
    filled(database, connection)

    async def scrape() -> bytes:
        async with Metrics(lambda: {connection.info.dbname: database}) as metrics:
            return (await metrics.page())[1]

    leaders = asyncio.run(scrape()).decode()
    with browse(database) as client:
        answer = client.get("/metrics", headers={"host": "127.0.0.1"})
        assert answer.headers["content-type"].startswith("text/plain")
        metrics = client.get("/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"})
        assert metrics.headers["content-type"].startswith("application/openmetrics-text")
    assert names(answer.text) == names(leaders)
    assert {"trunq_handler_seconds", "trunq_queue_bytes", "trunq_pipeline_runs"} <= names(answer.text)
    constant = ("trunq_published_total", "trunq_messages{", "trunq_handler_seconds_bucket")
    mine, theirs = (
        [line for line in text.splitlines() if line.startswith(constant)] for text in (answer.text, leaders)
    )
    assert mine == theirs


def test_prometheus_comes_in_with_the_token_of_a_viewer_and_is_told_how(shared_database: str) -> None:
    with browse(shared_database, token=TOKEN, viewer_token=VIEWER) as client:
        refused = client.get("/metrics")
        assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
        assert "Bearer" in refused.text
        for token in (TOKEN, VIEWER):
            answer = client.get("/metrics", headers={"authorization": f"Bearer {token}"})
            assert (answer.status_code, "trunq_up{" in answer.text) == (200, True)
        assert client.post("/metrics", headers={"authorization": f"Bearer {VIEWER}"}).status_code == 403


def test_a_database_that_is_away_is_told_to_be_down() -> None:
    with browse("postgresql://127.0.0.1:1/nothing") as client:
        answer = client.get("/metrics")
    assert answer.status_code == 200
    lines = [line for line in answer.text.splitlines() if not line.startswith("#")]
    assert len(lines) == 1
    assert lines[0].startswith("trunq_up{")
    assert lines[0].endswith(" 0.0")


def test_a_role_is_told_the_figures_of_its_queues_and_no_others(
    database: str, connection: psycopg.Connection[Any]
) -> None:
    shop(connection, "secret")
    filled(database, connection)
    name = next(new_names("onlooker"))
    connection.execute(f"create role {name} login".encode())
    call(connection, "grant_role", role="reader", queue="orders", grantee=name)
    try:
        with browse(make_conninfo(database, user=name)) as client:
            text = client.get("/metrics").text
    finally:
        connection.execute(f"drop owned by {name}".encode())
        connection.execute(f"drop role {name}".encode())
    assert 'queue="orders"' in text
    assert "secret" not in text
    assert up(text) == 1.0
    assert f'trunq_refused{{database="{connection.info.dbname}",grant="grant ' in text


def up(text: str) -> float:
    return (
        next(each for each in text_string_to_metric_families(text) if each.name == "trunq_up")
        .samples[0]
        .value
    )


@pytest.mark.parametrize("right", ["nothing", "usage on schema trunq"])
async def test_a_role_without_rights_is_told_the_grant_that_it_lacks_and_so_is_the_log(
    database: str, connection: psycopg.Connection[Any], caplog: pytest.LogCaptureFixture, right: str
) -> None:
    name = next(new_names("onlooker"))
    connection.execute(f"create role {name} login".encode())
    if right != "nothing":
        connection.execute(f"grant {right} to {name}".encode())
    dsn = make_conninfo(database, user=name)
    try:
        with browse(dsn) as client:
            texts = [client.get("/metrics").text]
        async with Metrics(lambda: {connection.info.dbname: dsn}) as metrics:
            texts.append((await metrics.page())[1].decode())
    finally:
        connection.execute(f"drop owned by {name}".encode())
        connection.execute(f"drop role {name}".encode())
    grant = f"grant {connection.info.user} to {name}"
    for text in texts:
        assert names(text) == {"trunq_up", "trunq_refused"}
        assert up(text) == 0.0
        assert f'grant="{grant}"' in text
    said = [record for record in caplog.records if grant in record.message]
    assert [record.name for record in said] == ["trunq.web", "trunq.metrics"]


def test_without_the_package_it_says_what_to_install(
    shared_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client.exposition", None)
    with browse(shared_database) as client:
        answer = client.get("/metrics")
    assert (answer.status_code, "pip install 'trunq[metrics]'" in answer.text) == (501, True)
