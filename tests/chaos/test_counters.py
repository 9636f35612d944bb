"""Counters of /metrics while leader, worker, runner and dashboard are killed: none ever falls, and each is right at the end."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from prometheus_client.parser import text_string_to_metric_families

from calling import ask, call, move_clock
from shelling import start
from waiting import wait_until

WORKER = """
import sys
from trunq import Worker
worker = Worker("orders", dsn=sys.argv[1], lead=False, concurrency=4, lease_time=2.0)
@worker.handler("placed")
def handle(message): pass
worker.run()
"""

Counts = dict[tuple[str, str], float]


class Scraper:
    """Reads counters of whoever answers, and sees that none falls."""

    def __init__(self) -> None:
        self.ports: dict[str, int] = {}
        self.counts: Counts = {}

    def scrape(self, who: str) -> bool:
        """Whether somebody has answered."""
        try:
            answer = httpx.get(f"http://127.0.0.1:{self.ports[who]}/metrics", timeout=60)
        except httpx.TransportError:
            return False
        found: Counts = {}
        for family in text_string_to_metric_families(answer.text):
            if family.type in ("counter", "histogram"):
                for sample in family.samples:
                    found[sample.name, json.dumps(sample.labels, sort_keys=True)] = sample.value
        # The leader keeps what it read for four seconds, the dashboard as well: each goes by its own.
        for key, value in found.items():
            assert value >= self.counts.get((who + key[0], key[1]), 0), (who, key)
            self.counts[who + key[0], key[1]] = value
        return answer.status_code == 200

    def told(self, who: str, name: str, *words: str) -> float:
        """The sum of the counters of a name whose labels have these words."""
        self.scrape(who)
        return sum(
            value
            for (named, labels), value in self.counts.items()
            if named == who + name and all(word in labels for word in words)
        )


@pytest.fixture
def killing() -> Iterator[Callable[[subprocess.Popen[Any]], None]]:
    """Kills a process as nobody can prepare for; what is left at the end, too."""
    begun: list[subprocess.Popen[Any]] = []

    def kill(process: subprocess.Popen[Any]) -> None:
        process.kill()
        process.communicate()

    kill.begun = begun  # type: ignore[attr-defined]
    yield kill
    for process in begun:
        kill(process)


def test_counters_never_fall_whatever_is_killed(
    database: str,
    connection: psycopg.Connection[Any],
    tmp_path: Path,
    killing: Any,
) -> None:
    scraper = Scraper()

    def leader() -> subprocess.Popen[Any]:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            scraper.ports["leader"] = free.getsockname()[1]
        at = f"127.0.0.1:{scraper.ports['leader']}"
        return begin("leader", "--metrics", at)

    def web() -> subprocess.Popen[Any]:
        process = begin("web", "--port", "0", "--json")
        assert process.stdout is not None
        said = ""
        while "}" not in said and process.poll() is None:
            said += process.stdout.readline()
        scraper.ports["web"] = json.loads(said)["port"]
        return process

    def worker() -> subprocess.Popen[Any]:
        process = subprocess.Popen([sys.executable, "-c", WORKER, database])
        killing.begun.append(process)
        return process

    def runner() -> subprocess.Popen[Any]:
        return begin("worker", "trunq.pipeline.runner:worker", "--no-lead")

    def begin(*arguments: str) -> subprocess.Popen[Any]:
        process = start(*arguments, directory=tmp_path, TRUNQ_DSN=database)
        killing.begun.append(process)
        return process

    call(connection, "create_queue", queue="orders")
    call(connection, "create_queue", queue="pipelines")
    running = {"leader": leader(), "web": web(), "worker": worker(), "runner": runner()}
    again = {"leader": leader, "web": web, "worker": worker, "runner": runner}
    published = 0

    def settle(count: int) -> None:
        """Both tell of so many."""
        for who in ("leader", "web"):
            wait_until(lambda who=who: scraper.told(who, "trunq_answers_total", "success") >= count)
            wait_until(lambda who=who: scraper.told(who, "trunq_published_total", "orders") >= count)

    wait_until(
        lambda: scraper.told("leader", "trunq_published_total", "orders") == 0 and scraper.scrape("web")
    )
    sampled = "select count(*) from trunq.sample where queue_id > 0"
    wait_until(lambda: connection.execute(sampled).fetchone() != (0,))
    for victim in ("worker", "leader", "runner", "web"):
        connection.execute(
            "select trunq.publish_many('orders', array_fill('{}'::jsonb, array[50]), array['placed'])"
        )
        published += 50
        killing(running[victim])
        for who in ("leader", "web"):
            scraper.scrape(who)
        running[victim] = again[victim]()
        settle(published)
    for process in running.values():
        killing(process)
    # Its minute is over: what it brought is in the histograms, and stays there.
    move_clock(connection, "10 minutes")
    ask(connection, "roll_up", queue="orders")
    for _ in range(2):
        running = {name: again[name]() for name in ("leader", "web")}
        settle(published)
        for who in running:
            assert scraper.told(who, "trunq_published_total", "orders") == published
            assert scraper.told(who, "trunq_answers_total", "success") == published
            for name in ("handler", "wait"):
                assert scraper.told(who, f"trunq_{name}_seconds_count", "placed") == published
        for process in running.values():
            killing(process)
