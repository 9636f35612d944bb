"""What an older release does not know of APIs and webhooks holds a downgrade up, and the hints help."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import psycopg
import pytest

from calling import ask, fetch
from conftest import Connect
from pipeline.killing import execute_and_die
from pipeline.piping import Bench
from trunq import downgrade, install
from trunq.errors import SchemaError
from trunq.pipeline.runner import Runner
from trunq.sql import migrations

SOURCE = {"format": "http", "url": "http://shop.example/orders"}
SINK = {"format": "table", "table": "moved"}


def older() -> int:
    """The schema before these."""
    numbers = [each.number for each in migrations()]
    own = next(each.number for each in migrations() if each.name.endswith("_pace"))
    return numbers[numbers.index(own) - 1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "definition",
    [
        {"source": {**SOURCE, "each": {"url": "http://shop.example/"}}, "sink": SINK},
        {"source": {**SOURCE, "cursor": {"path": "a", "param": "b", "more": "c"}}, "sink": SINK},
        {"source": {**SOURCE, "since": {"path": "a", "param": "b", "lag": "PT5M"}}, "sink": SINK},
        {"source": SINK, "sink": {**SOURCE, "sign": "${SECRET}"}},
    ],
)
def test_a_pipeline_that_asks_an_api_in_a_newer_way_holds_a_downgrade_up(
    database: str, connect: Connect, tmp_path: Path, definition: dict[str, Any]
) -> None:
    session = connect()
    ask(session, "create_pipeline", pipeline="orders", definition=definition)
    with pytest.raises(SchemaError, match='pipeline "orders" asks its API') as caught:
        downgrade.downgrade(database, older(), tmp_path / "dropped")
    assert "create it without each, after, oauth" in str(caught.value.hint)
    plain = {
        part: {k: v for k, v in of.items() if k in ("format", "url", "table")}
        for part, of in definition.items()
    }
    ask(session, "create_pipeline", pipeline="orders", definition=plain)
    back_and_forth(database, session, tmp_path)


def test_a_webhook_of_a_newer_scheme_holds_a_downgrade_up(
    database: str, connect: Connect, tmp_path: Path
) -> None:
    session = connect()
    ask(session, "create_queue", queue="plain")
    ask(session, "create_webhook", webhook="meta", queue="plain", secret="S", scheme="meta")
    ask(session, "_hold_pace", name="a", seconds=600)
    with pytest.raises(SchemaError, match='webhook "meta" has a scheme') as caught:
        downgrade.downgrade(database, older(), tmp_path / "dropped")
    assert "trunq webhook drop meta" in str(caught.value.hint)
    ask(session, "drop_webhook", webhook="meta")
    back_and_forth(database, session, tmp_path)
    assert fetch(session, "select count(*) from trunq.pace") == 0


@pytest.mark.parametrize(
    "change",
    [
        {"source": {"format": "table", "table": "orders", "changes": "capture"}},
        {"sink": {**SINK, "mode": "apply", "key": ["id"]}},
        {"sink": {**SINK, "mode": "upsert", "missing": "delete"}},
        {"sink": {"format": "delta", "path": "/lake", "mode": "history"}},
    ],
    ids=str,
)
def test_a_pipeline_that_takes_changes_in_a_newer_way_holds_a_downgrade_up(
    database: str, connect: Connect, tmp_path: Path, change: dict[str, Any]
) -> None:
    session = connect()
    plain = {"source": {"format": "table", "table": "orders"}, "sink": SINK}
    ask(session, "create_pipeline", pipeline="orders", definition={**plain, **change})
    with pytest.raises(SchemaError, match='pipeline "orders" takes changes') as caught:
        downgrade.downgrade(database, 48, tmp_path / "dropped")
    assert "changes = capture, mode apply" in str(caught.value.hint)
    ask(session, "create_pipeline", pipeline="orders", definition=plain)
    downgrade.downgrade(database, 48, tmp_path / "dropped")


@pytest.mark.parametrize(
    "change",
    [
        {"evolve": {"partitions": "rewrite"}},
        {"stamp": True},
        {"columns": {"cast": {"id": {"a": "int64"}}}},
    ],
    ids=str,
)
def test_what_lakes_have_since_holds_a_downgrade_up(
    database: str, connect: Connect, tmp_path: Path, change: dict[str, Any]
) -> None:
    session = connect()
    plain = {"source": {"format": "table", "table": "orders"}, "sink": SINK}
    ask(session, "create_pipeline", pipeline="orders", definition={**plain, **change})
    with pytest.raises(SchemaError, match='pipeline "orders" has stamp, compact') as caught:
        downgrade.downgrade(database, 52, tmp_path / "dropped")
    assert caught.value.hint == "create it without them"
    ask(session, "create_pipeline", pipeline="orders", definition=plain)
    downgrade.downgrade(database, 52, tmp_path / "dropped")


@pytest.mark.slow
@pytest.mark.parametrize("way_out", ["runner", "leave"])
def test_what_a_dropped_pipeline_left_holds_a_downgrade_up_until_a_runner_has_removed_it(
    database: str, connect: Connect, tmp_path: Path, way_out: str
) -> None:
    session = connect()
    bench = Bench(database, session)
    session.execute("create table source as select 1 as id")
    name = bench.make({"format": "table", "table": "source"}, SINK, name="orders")
    message = bench.client.run_pipeline(name)
    assert execute_and_die(database, bench.asked(message), "written") == -signal.SIGKILL
    bench.client.drop_pipeline(name)
    stages = "select count(*) from pg_class where relname like 'stage\\_%'"
    assert fetch(session, stages) == 1
    with pytest.raises(SchemaError, match='pipeline "orders" was dropped, and its sink may') as caught:
        downgrade.downgrade(database, older(), tmp_path / "dropped")
    assert "trunq worker trunq.pipeline.runner:worker; to leave it there: delete" in str(caught.value.hint)
    if way_out == "runner":
        Runner(database, until_empty=True).run()
        assert fetch(session, stages) == 0
    else:
        session.execute("delete from trunq.pipeline_left")
    bench.close()
    back_and_forth(database, session, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "evolve",
    [
        {"tables": "refuse"},
        {"rename": {"a": "b"}},
        {"columns": "quarantine"},
        {"types": "quarantine"},
        {"column": {"a": "quarantine"}},
        {"column": {"a": "widen"}},
    ],
    ids=str,
)
def test_an_evolve_that_the_older_release_does_not_know_holds_a_downgrade_up(
    database: str, connect: Connect, tmp_path: Path, evolve: dict[str, Any]
) -> None:
    session = connect()
    lake = {"format": "delta", "path": "/lake"}
    plain = {"source": {"format": "table", "table": "orders"}, "sink": lake}
    ask(session, "create_pipeline", pipeline="orders", definition={**plain, "evolve": evolve})
    with pytest.raises(SchemaError, match='pipeline "orders" has an evolve with') as caught:
        downgrade.downgrade(database, 53, tmp_path / "dropped")
    assert "create it without them" in str(caught.value.hint)
    ask(session, "create_pipeline", pipeline="orders", definition=plain)
    downgrade.downgrade(database, 53, tmp_path / "dropped")


@pytest.mark.parametrize("side", ["source", "sink"])
def test_another_database_holds_a_downgrade_up(
    database: str, connect: Connect, tmp_path: Path, side: str
) -> None:
    session = connect()
    other = {"format": "jdbc", "url": "jdbc:postgresql://host/shop", "table": "orders"}
    plain = {"source": {"format": "table", "table": "orders"}, "sink": SINK}
    ask(session, "create_pipeline", pipeline="orders", definition={**plain, side: other})
    with pytest.raises(SchemaError, match='pipeline "orders" reads or writes another database') as caught:
        downgrade.downgrade(database, 53, tmp_path / "dropped")
    assert "trunq pipeline drop orders" in str(caught.value.hint)
    ask(session, "drop_pipeline", pipeline="orders")
    downgrade.downgrade(database, 53, tmp_path / "dropped")


def test_an_older_release_does_not_take_a_pause_for_a_limit(
    database: str, connect: Connect, tmp_path: Path
) -> None:
    session = connect()
    ask(session, "create_pipeline", pipeline="orders", definition={"source": SOURCE, "sink": SINK})
    ask(session, "pause_pipeline", pipeline="orders")
    assert ask(session, "_open_run", pipeline="orders", message_id=1)["action"] == "wait"
    assert fetch(session, "select put_off_for from trunq.pipeline") == "pause"
    downgrade.downgrade(database, older(), tmp_path / "dropped")
    assert fetch(session, "select put_off_for from trunq.pipeline") is None


def back_and_forth(database: str, session: psycopg.Connection[Any], tmp_path: Path) -> None:
    downgrade.downgrade(database, older(), tmp_path / "dropped")
    assert fetch(session, "select to_regclass('trunq.pace')") is None
    assert install.install(database).after == install.newest()
