"""The dashboard of Grafana, and scaling by HTTP: a real Prometheus scrapes a real leader, and answers each
question with data.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
import yaml

from deploying import METRICS, OPS, documents, free_ports
from engine import Engine
from shelling import start
from trunq import Client
from trunq.pipeline.runner import Runner
from waiting import wait_until

FILE = OPS / "grafana" / "trunq.json"
DASHBOARD: dict[str, Any] = json.loads(FILE.read_text())
PANELS = [each for each in DASHBOARD["panels"] if each["type"] != "row"]
EXPRS = [target["expr"] for panel in PANELS for target in panel["targets"]]
RULES = OPS / "prometheus" / "trunq.rules.yml"
ALERTS = [rule["expr"] for rule in yaml.safe_load(RULES.read_text())["groups"][0]["rules"]]

LEFT_OUT = {"trunq_refused"}
"""Metrics that no panel shows, on purpose: the figures of a role that lacks no grant have none of them."""

needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="prometheus is missing: apt-get install prometheus"
)


def of_keda() -> str:
    """What the scaler by HTTP asks."""
    (scaled,) = documents(OPS / "keda" / "prometheus.yml")
    (trigger,) = scaled["spec"]["triggers"]
    return str(trigger["metadata"]["query"])


def test_each_panel_has_a_number_and_a_place_of_its_own() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = set(itertools.product(range(at["x"], at["x"] + at["w"]), range(at["y"], at["y"] + at["h"])))
        assert at["x"] + at["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells


def test_the_datasource_is_a_variable_and_each_variable_exists() -> None:
    named = {each["name"]: each for each in DASHBOARD["templating"]["list"]}
    assert list(named) == ["datasource", "database", "queue", "subscription"]
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(DASHBOARD["panels"])))
    assert used == {*named, "__rate_interval"}
    for panel in PANELS:
        for each in [panel, *panel["targets"]]:
            assert each["datasource"] == {"type": "prometheus", "uid": "${datasource}"}


def test_each_metric_is_on_the_dashboard_or_left_out_on_purpose() -> None:
    asked = {name for expr in EXPRS for name in re.findall(r"\btrunq_\w+", expr)}
    assert asked | LEFT_OUT == METRICS
    assert asked & LEFT_OUT == set()


def test_two_leaders_that_tell_the_same_are_counted_once() -> None:
    """Each selector stands in a max, by labels that are not those of the process."""
    for expr in [*EXPRS, of_keda()]:
        for found in re.finditer(r"trunq_\w+\{", expr):
            before = re.sub(r"rate\($", "", expr[: found.start()])
            assert re.search(r"max(?: by \([^)]*\) )?\($", before), expr[found.start() :]
        assert not re.search(r"by \([^)]*\b(?:instance|job|pod)\b", expr)


def test_grafana_is_told_of_a_folder_that_compose_fills() -> None:
    (provider,) = documents(OPS / "grafana" / "provisioning" / "dashboards" / "trunq.yml")[0]["providers"]
    (source,) = documents(OPS / "grafana" / "provisioning" / "datasources" / "trunq.yml")[0]["datasources"]
    services = documents(OPS / "docker" / "compose.yml")[0]["services"]
    assert (
        f"../grafana/trunq.json:{provider['options']['path']}/trunq.json:ro" in services["grafana"]["volumes"]
    )
    assert source["url"] == "http://prometheus:9090"
    assert "../prometheus:/etc/prometheus:ro" in services["prometheus"]["volumes"]


@needs_prometheus
def test_prometheus_reads_its_configuration() -> None:
    done = subprocess.run(
        ["promtool", "check", "config", str(OPS / "prometheus" / "prometheus.yml")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


class Prometheus:
    """A Prometheus that scrapes a process, twice."""

    def __init__(self, port: int, database: str) -> None:
        self._http = httpx.Client(base_url=f"http://127.0.0.1:{port}/api/v1", timeout=60, trust_env=False)
        self._database = database

    def close(self) -> None:
        self._http.close()

    def is_ready(self) -> bool:
        try:
            return self._http.get("/status/runtimeinfo").status_code == 200
        except httpx.TransportError:
            return False

    def ask(self, expr: str) -> list[dict[str, Any]]:
        """The series that answer a question of a file; without those that are no number."""
        for variable in ("database", "queue", "subscription"):
            expr = expr.replace(f"${variable}", ".*")
        expr = expr.replace("$__rate_interval", "1m").replace(
            'database="shop"', f'database="{self._database}"'
        )
        answer = self._http.post("/query", data={"query": expr}).json()
        assert answer["status"] == "success", (expr, answer)
        found = answer["data"]["result"]
        return [each for each in found if not math.isnan(float(each["value"][1]))]

    def number(self, expr: str) -> float | None:
        """The one number that answers; None while there is none."""
        found = self.ask(expr)
        assert len(found) < 2, found
        return float(found[0]["value"][1]) if found else None

    def values(self, query: str) -> list[str]:
        """The values of a variable of the dashboard."""
        asked = re.fullmatch(r"label_values\((.+), (\w+)\)", query)
        assert asked is not None, query
        metric = re.sub(r"\$\w+", ".*", asked[1])
        return list(self._http.get(f"/label/{asked[2]}/values", params={"match[]": metric}).json()["data"])


@contextmanager
def prometheus(folder: Path, scraped: int, database: str) -> Iterator[Prometheus]:
    """One that scrapes a port each second, as two targets, and knows the alerts."""
    shutil.copy(RULES, folder)
    (port,) = free_ports(1)
    targets = [f"127.0.0.1:{scraped}", f"localhost:{scraped}"]
    configuration = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [RULES.name],
        "scrape_configs": [{"job_name": "trunq", "static_configs": [{"targets": targets}]}],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(configuration))
    log = folder / "log"
    with log.open("w") as told:
        process = subprocess.Popen(
            [
                *("prometheus", "--config.file=prometheus.yml", "--storage.tsdb.path=data"),
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            cwd=folder,
            stdout=told,
            stderr=told,
        )
    asked = Prometheus(port, database)
    try:
        wait_until(lambda: asked.is_ready() or process.poll() is not None, what="prometheus answers")
        assert process.poll() is None, log.read_text()
        yield asked
    finally:
        asked.close()
        process.kill()
        process.wait()


@contextmanager
def leading(folder: Path, dsn: str) -> Iterator[int]:
    """A leader as a process; its port."""
    (port,) = free_ports(1)
    at = f"127.0.0.1:{port}"
    process = start("leader", "--health", at, "--metrics", at, directory=folder, TRUNQ_DSN=dsn)
    try:
        yield port
    finally:
        process.kill()
        process.communicate()


def make(client: Client, connection: psycopg.Connection[Any], dsn: str) -> None:
    """Something of each metric."""
    client.create_queue("orders")
    client.subscribe("orders", "default", lease_time="1 hour")
    client.subscribe("orders", "stream", mode="exclusive")
    client.create_queue("unserved")
    client.publish("unserved", 1)
    client.create_schedule("nightly", "orders", every="1 day")
    lanes(client)
    times(Engine(connection, "timed").create(retention="10 days"), 1)
    loss(Engine(connection, "small").create(retention="2000 days", hold_at_most="2000 days"))
    pipeline(client, connection, dsn)


def lanes(client: Client) -> None:
    client.create_queue("laned", lanes="key")
    client.set_lanes("laned", "default", max_running=3, rate=10)
    client.set_lane("laned", "default", lane="acme", max_running=1)
    client.pause_lane("laned", "default", lane="umbrella")


def times(work: Engine, minute: int) -> None:
    """A minute with answers, that is over."""
    work.publish(2, kinds=["placed", "placed"])
    with work.clock(f"{minute} minutes"):
        work.ack(work.lease(2), took=[0.1, 0.2])
    with work.clock(f"{minute + 2} minutes"):
        wait_until(lambda: work.ask("roll_up") == 0 or None)


def loss(work: Engine) -> None:
    """Messages that a queue holds no longer, though its subscription needs them."""
    work.publish(3)
    work.rotate("3000 days")


def pipeline(client: Client, connection: psycopg.Connection[Any], dsn: str) -> None:
    """A pipeline that has run."""
    connection.execute("create table source as select generate_series(1, 5) as id")
    client.create_queue("pipelines")
    sink = {"format": "table", "table": "sink"}
    client.create_pipeline("moving", {"source": {"format": "table", "table": "source"}, "sink": sink})
    client.publish("pipelines", kind="moving")
    asyncio.run(Runner(dsn, until_empty=True).run_async())


def go_on(client: Client) -> None:
    """What happens all the time: messages come, succeed, fail and die."""
    client.publish_many("orders", list(range(6)), kind="placed")
    # One is held on to.
    done, failed, dead, _ = (
        wait_until(lambda: client.lease("orders", "default", "ada", 1)) for _ in range(4)
    )
    client.ack(done, took=0.2)
    client.retry(failed, error="no")
    client.reject(dead, "never")


@pytest.mark.slow
@needs_prometheus
def test_prometheus_answers_each_question_of_dashboard_scaler_and_alerts(
    database: str, connection: psycopg.Connection[Any], tmp_path: Path
) -> None:
    name = connection.info.dbname
    with ExitStack() as stack:
        client = stack.enter_context(Client(database))
        make(client, connection, database)
        port = stack.enter_context(leading(tmp_path, database))
        asked = stack.enter_context(prometheus(tmp_path, port, name))
        wait_until(lambda: asked.ask('trunq_published_total{queue="orders"}'), what="figures")
        wait_until(lambda: asked.ask("trunq_wait_seconds_count"), what="times")
        unanswered: list[str] = []
        minutes = itertools.count(5, 4)

        def are_answered() -> bool:
            go_on(client)
            # Prometheus tells how fast a histogram grows, so it grows.
            times(Engine(connection, "timed"), next(minutes))
            unanswered[:] = [expr for expr in [*EXPRS, of_keda()] if not asked.ask(expr)]
            return not unanswered

        wait_until(are_answered, what=f"answers to {unanswered}")
        told = {each["metric"]["__name__"] for each in asked.ask('{__name__=~"trunq_.+"}')}
        # Beside its buckets, a histogram has these two.
        ofs = {
            name.replace("_bucket", end)
            for name in METRICS
            if "_bucket" in name
            for end in ("_sum", "_count")
        }
        assert told == METRICS - LEFT_OUT | ofs
        for expr in ALERTS:
            asked.ask(expr)
        for each in DASHBOARD["templating"]["list"][1:]:
            values = asked.values(each["definition"])
            expected = {"database": name, "queue": "orders", "subscription": "stream"}[each["name"]]
            assert expected in values, (each["definition"], values)
        # Nobody publishes any more: both scalers, and both targets that were scraped, tell one number.
        backlog = client.backlog("orders", "default")
        assert backlog > 4
        wait_until(lambda: asked.number(of_keda()) == client.backlog("orders", "default"))
        nobody = next(panel for panel in PANELS if panel["title"] == "Messages wait, and nobody works")
        stuck = {
            (each["metric"]["queue"], each["metric"]["subscription"])
            for each in asked.ask(nobody["targets"][0]["expr"])
        }
        # Ada works on orders.
        assert {("unserved", "default"), ("orders", "stream")} <= stuck
        assert ("orders", "default") not in stuck
