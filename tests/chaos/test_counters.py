"""Counters of /metrics while leader, worker, runner and dashboard are killed: none falls, all are right."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from prometheus_client.parser import text_string_to_metric_families

from calling import answer, ask, call, lease, move_clock, publish
from copying import copied_server
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


class Cast:
    """The processes, each of which can be killed as nobody can prepare for, and started again."""

    def __init__(self, database: str, directory: Path, scraper: Scraper) -> None:
        self.database, self.directory, self.scraper = database, directory, scraper
        self.running: dict[str, subprocess.Popen[Any]] = {}

    def start(self, *names: str) -> None:
        for name in names:
            begin = {"leader": self._leader, "web": self._web, "worker": self._worker, "runner": self._runner}
            begin[name]()

    def kill(self, *names: str) -> None:
        for name in names:
            process = self.running.pop(name)
            process.kill()
            process.communicate()

    def _leader(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = self.scraper.ports["leader"] = free.getsockname()[1]
        self._trunq("leader", "leader", "--metrics", f"127.0.0.1:{port}")

    def _web(self) -> None:
        process = self._trunq("web", "web", "--port", "0", "--json")
        assert process.stdout is not None
        said = ""
        while "}" not in said and process.poll() is None:
            said += process.stdout.readline()
        self.scraper.ports["web"] = json.loads(said)["port"]

    def _worker(self) -> None:
        self.running["worker"] = subprocess.Popen([sys.executable, "-c", WORKER, self.database])

    def _runner(self) -> None:
        self._trunq("runner", "worker", "trunq.pipeline.runner:worker", "--no-lead")

    def _trunq(self, name: str, *arguments: str) -> subprocess.Popen[str]:
        process = start(*arguments, directory=self.directory, TRUNQ_DSN=self.database)
        self.running[name] = process
        return process


@pytest.fixture
def scraper() -> Scraper:
    return Scraper()


@pytest.fixture
def cast(database: str, tmp_path: Path, scraper: Scraper) -> Iterator[Cast]:
    cast = Cast(database, tmp_path, scraper)
    yield cast
    cast.kill(*cast.running)


def settle(scraper: Scraper, count: int) -> None:
    """Both who are asked tell of so many."""
    for who in ("leader", "web"):
        wait_until(lambda who=who: scraper.told(who, "trunq_answers_total", "success") >= count)
        wait_until(lambda who=who: scraper.told(who, "trunq_published_total", "orders") >= count)


@pytest.mark.slow
def test_counters_never_fall_whatever_is_killed(
    connection: psycopg.Connection[Any], cast: Cast, scraper: Scraper
) -> None:
    call(connection, "create_queue", queue="orders")
    call(connection, "create_queue", queue="pipelines")
    cast.start("leader", "web", "worker", "runner")
    sampled = "select count(*) from trunq.sample where queue_id > 0"
    wait_until(lambda: connection.execute(sampled).fetchone() != (0,))
    published = 0
    for victim in ("worker", "leader", "runner", "web"):
        publish(connection, "orders", 50, kinds=["placed"])
        published += 50
        cast.kill(victim)
        for who in ("leader", "web"):
            scraper.scrape(who)
        cast.start(victim)
        settle(scraper, published)
    cast.kill("leader", "web", "worker", "runner")
    # Its minute is over: what it brought is in the histograms, and stays there.
    move_clock(connection, "10 minutes")
    ask(connection, "roll_up", queue="orders")
    for _ in range(2):
        cast.start("leader", "web")
        settle(scraper, published)
        for who in ("leader", "web"):
            assert scraper.told(who, "trunq_published_total", "orders") == published
            assert scraper.told(who, "trunq_answers_total", "success") == published
            for name in ("handler", "wait"):
                assert scraper.told(who, f"trunq_{name}_seconds_count", "placed") == published
        cast.kill("leader", "web")


def counted(connection: psycopg.Connection[Any]) -> list[Any]:
    """All that is counted."""
    samples = call(connection, "latest_samples", queue="orders")
    totals = connection.execute("select took, waited from trunq.statistic_total").fetchall()
    return [*((row.published, row.answers) for row in samples), *totals]


@pytest.mark.slow
def test_a_crash_takes_no_count_back_where_commits_do_not_wait_for_the_disk() -> None:
    lazy = {"synchronous_commit": "off", "wal_writer_delay": "10s", "wal_writer_flush_after": "1GB"}
    with copied_server(settings=lazy) as server:
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            call(connection, "create_queue", queue="orders")
        for duty in ("sample", "roll_up"):
            with psycopg.connect(server.dsn, autocommit=True) as connection:
                publish(connection, "orders", 3)
                answer(connection, "ack", lease(connection, "orders", 3), took=[0.1] * 3)
                move_clock(connection, "2 minutes" if duty == "sample" else "4 minutes")
                call(connection, "perform_duty", duty=duty, queue=None if duty == "sample" else "orders")
                told = counted(connection)
                assert told
                server.kill()
            server.restart()
            with psycopg.connect(server.dsn, autocommit=True) as connection:
                move_clock(connection, "4 minutes")
                assert counted(connection) == told, duty
