"""Lineage: what runs tell to OpenLineage, and that nobody who listens, or does not, delays them."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict

from pipeline.piping import Bench
from trunq.pipeline import Pipeline
from trunq.pipeline.lineage import Lineage
from trunq.pipeline.lineage.dataset import name_of
from trunq.pipeline.runner import Runner
from trunq.settings import Lineage as Wanted
from waiting import wait_until

TABLE = {"format": "table", "table": "source"}
SINK = {"format": "table", "table": "moved"}


class Server:
    """Takes events, or keeps whoever sends one waiting."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.asked: list[tuple[str, str | None]] = []
        self.may_answer = threading.Event()
        self.may_answer.set()
        kept = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                kept.may_answer.wait(120)
                kept.asked.append((self.path, self.headers.get("Authorization")))
                kept.events.append(json.loads(body))
                self.send_response(201)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.may_answer.set()
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def listener() -> Iterator[Server]:
    """A server of lineage."""
    server = Server()
    yield server
    server.close()


@pytest.fixture
def filled(bench: Bench) -> Bench:
    """A table `source`, and a pipeline that moves it."""
    bench.sql("create table source as select generate_series(1, 5) as id, 'a' as name")
    bench.client.create_queue("pipelines")
    bench.make(TABLE, SINK, name="moving")
    return bench


def lineage(bench: Bench, **wanted: Any) -> Lineage:
    """What the bench's executor tells to."""
    made = Lineage(Wanted(**wanted), bench.dsn)
    bench.executor.lineage = made
    return made


def test_what_cannot_be_told_of_fails_no_run(
    filled: Bench, listener: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> Any:
        raise AttributeError("no name")

    telling = lineage(filled, url=listener.url)
    monkeypatch.setattr("trunq.pipeline.lineage.telling.name_of", broken)
    assert filled.run("moving")["outcome"] == "done"
    telling.close()
    assert listener.events == []
    assert caplog.text.count("runs go on without: AttributeError") == 1


def test_a_run_tells_its_start_and_its_end_with_rows_and_columns(filled: Bench, listener: Server) -> None:
    telling = lineage(filled, url=listener.url, api_key="secret", namespace="shop")
    filled.run("moving")
    telling.close()
    start, end = listener.events
    assert [start["eventType"], end["eventType"]] == ["START", "COMPLETE"]
    assert start["run"]["runId"] == end["run"]["runId"]
    assert {key: end["job"][key] for key in ("namespace", "name")} == {"namespace": "shop", "name": "moving"}
    (source,), (sink,) = end["inputs"], end["outputs"]
    parts = conninfo_to_dict(filled.dsn)
    assert source["name"] == f"{parts['dbname']}.public.source"
    assert sink["name"] == f"{parts['dbname']}.public.moved"
    assert source["namespace"] == sink["namespace"]
    assert source["namespace"].startswith("postgres://localhost:")
    assert source["inputFacets"]["inputStatistics"]["rowCount"] == 5
    assert sink["outputFacets"]["outputStatistics"]["rowCount"] == 5
    assert [field["name"] for field in sink["facets"]["schema"]["fields"]] == ["id", "name"]
    assert listener.asked == [("/api/v1/lineage", "Bearer secret")] * 2


def test_each_attempt_that_fails_tells_so_without_secrets(
    filled: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ELSEWHERE", "host=/nowhere password=hunter22 dbname=x")
    filled.make(TABLE, SINK | {"dsn": "${ELSEWHERE}"}, name="broken")
    telling = lineage(filled, file=tmp_path / "lineage.jsonl")
    message = filled.client.run_pipeline("moving")
    filled.sql(
        "create function refuse() returns trigger language plpgsql as"
        " $$ begin raise exception 'the password is %', 'none'; end $$"
    )
    filled.sql("create table moved (id int, name text)")
    filled.sql("create trigger refuse before insert on moved for each row execute function refuse()")
    for _ in range(2):
        with pytest.raises(Exception, match="the password is none"):
            filled.execute(message)
    filled.sql("drop trigger refuse on moved")
    filled.execute(message)
    telling.close()
    events = [json.loads(line) for line in (tmp_path / "lineage.jsonl").read_text().splitlines()]
    assert [each["eventType"] for each in events] == ["START", "FAIL", "START", "FAIL", "START", "COMPLETE"]
    assert len({each["run"]["runId"] for each in events}) == 3
    assert "the password is none" in events[1]["run"]["facets"]["errorMessage"]["message"]
    assert "hunter22" not in (tmp_path / "lineage.jsonl").read_text()


def test_a_server_that_does_not_answer_delays_no_run_and_is_named_once(
    filled: Bench, listener: Server, caplog: pytest.LogCaptureFixture
) -> None:
    listener.may_answer.clear()
    telling = lineage(filled, url=listener.url, timeout=0.2)
    filled.run("moving")
    filled.sql("insert into source values (6, 'b')")
    filled.run("moving")
    # Both runs are over, and nobody has answered.
    assert listener.events == []
    assert filled.one("select count(*) from moved") == 6
    wait_until(telling._waiting.empty, 120)
    telling.close()
    named = [each.message for each in caplog.records if "lineage" in each.message]
    assert len(named) == 1
    assert named[0].startswith(f"lineage is not told to {listener.url}, runs go on without: ReadTimeout")


def test_the_end_of_a_runner_waits_for_lineage_no_longer_than_a_bound(
    filled: Bench, listener: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trunq.pipeline.lineage._LAST", 0.3)
    listener.may_answer.clear()
    telling = lineage(filled, url=listener.url, timeout=60)
    filled.run("moving")
    began = monotonic()
    telling.close()
    assert monotonic() - began < 30


def test_what_is_too_much_to_wait_is_left_out_and_said(
    filled: Bench, listener: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("trunq.pipeline.lineage._MOST", 1)
    listener.may_answer.clear()
    telling = lineage(filled, url=listener.url, timeout=60)
    for _ in range(3):
        filled.sql("insert into source values (7, 'c')")
        filled.run("moving")
    telling.close()
    assert "runs go on without: 1 events wait" in caplog.text


def test_a_runner_tells_where_the_settings_ask_for_it_and_else_nobody(
    filled: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    filled.client.run_pipeline("moving")
    asyncio.run(Runner(filled.dsn, until_empty=True).run_async())
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "trunq.toml").write_text('[lineage]\nfile = "events.jsonl"\n')
    filled.sql("insert into source values (6, 'b')")
    filled.client.run_pipeline("moving")
    asyncio.run(Runner(filled.dsn, until_empty=True).run_async())
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [each["eventType"] for each in events] == ["START", "COMPLETE"]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ({"format": "queue", "queue": "orders"}, ("postgres://db:6000", "shop.trunq_log.orders")),
        ({"format": "table", "table": 'own."a.b"'}, ("postgres://db:6000", "shop.own.a.b")),
        ({"format": "history", "queue": "orders"}, ("postgres://db:6000", "shop.trunq_data.orders_receipt")),
        ({"format": "csv", "path": "/data/*.csv"}, ("file", "/data/*.csv")),
        ({"format": "csv", "path": "s3://bucket/in/*.csv"}, ("s3://bucket", "in/*.csv")),
        ({"format": "python", "function": "shop:rows"}, ("python", "shop:rows")),
        (
            {"format": "jdbc", "url": "jdbc:mariadb://db:3306/shop?x=y", "table": "orders"},
            ("mariadb://db:3306/shop", "orders"),
        ),
        (
            {"format": "jdbc", "url": "jdbc:postgresql://db/shop", "query": "select 1"},
            ("postgresql://db/shop", "query"),
        ),
        (
            {"format": "http", "url": "https://api.example.com/v1/orders"},
            ("https://api.example.com", "/v1/orders"),
        ),
    ],
    ids=lambda given: str(given.get("format")) if isinstance(given, dict) else "",
)
def test_datasets_are_called_by_the_rules_of_openlineage(
    source: dict[str, Any], expected: tuple[str, str]
) -> None:
    made = Pipeline("moving", source=source, sink=SINK)
    assert name_of(made.source, "host=db port=6000 dbname=shop user=me password=secret") == expected


def test_without_the_package_the_setting_says_what_to_install(
    filled: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys  # noqa: PLC0415

    monkeypatch.delitem(sys.modules, "trunq.pipeline.lineage.telling", raising=False)
    monkeypatch.setitem(sys.modules, "openlineage.client.event_v2", None)
    with pytest.raises(Exception, match="lineage needs openlineage") as refused:
        lineage(filled, url="http://127.0.0.1:1")
    assert refused.value.hint == "pip install 'trunq[lineage]'"  # type: ignore[attr-defined]
