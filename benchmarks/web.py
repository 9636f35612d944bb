"""What the dashboard's pages take, and what looking costs those who publish and lease.

Pages beside 5,000,000 messages handled, 1,000,000 waiting, about 30,000 dead and a million delayed, as in
views.py, and fifty subscriptions in a second database. Each page is asked by a client in the same process,
for the first time (nothing is kept) and again at once, as ten browsers do that look at the same. Then a
program publishes and another leases and acks, once alone and once beside ten browsers that poll every two
seconds and a scrape of the metrics every second; a leader samples in both.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
from starlette.testclient import TestClient

from _bench import (
    QUEUE,
    Options,
    Table,
    a_second,
    at_least,
    at_most,
    connect,
    copy_in,
    in_turn,
    main,
    median_ratio,
    milliseconds,
    new_database,
    payload,
    server,
)
from trunq.web import app
from views import build

PAGE = 300
"""Milliseconds that a page may take."""
OVERVIEW = 100
"""Milliseconds for the overview of fifty subscriptions."""
SHARE = 0.98
"""What publishing and leasing keep, at least."""
BROWSERS = 10
PATHS = (
    "/",
    f"/queues/{QUEUE}",
    f"/queues/{QUEUE}/subscriptions/default",
    f"/queues/{QUEUE}/messages",
    f"/queues/{QUEUE}/messages?state=ready",
    f"/queues/{QUEUE}/messages?state=done",
    f"/queues/{QUEUE}/messages?state=leased",
    f"/queues/{QUEUE}/messages?state=retrying",
    f"/queues/{QUEUE}/dead",
    "/dead",
    "/workers",
    "/streams",
    "/doctor",
)


def measure(options: Options) -> Iterator[Table]:
    """Two tables."""
    with server(options, autovacuum="off", fsync="off", synchronous_commit="off") as running:
        divisor = options.size(1, 50)
        filled, many = new_database(running), new_database(running, queue=False)
        with connect(filled) as connection:
            build(connection, divisor)
            connection.execute("select trunq.sample()")
        with connect(many) as connection:
            for number in range(50):
                connection.execute("select trunq.create_queue(%s)", (f"queue_{number}",))
                copy_in(connection, f"trunq_log.queue_{number}", 20)
            connection.execute("select trunq.sample()")
        table = Table(
            f"web, pages, Postgres {options.postgres}",
            f"Median of {options.rounds()} rounds: {5_000_000 // divisor:,} handled,"
            f" {1_000_000 // divisor:,} waiting, about {30_000 // divisor:,} dead.",
            ["page", "for the first time", "again", "target"],
        )
        for dsn, paths, target in ((filled, PATHS, PAGE), (many, ("/",), OVERVIEW)):
            for path in paths:
                first, again = times(dsn, path, options.rounds())
                name = "/, fifty subscriptions" if dsn == many else path
                table.add(name, milliseconds(first), milliseconds(again), at_most(first * 1e3, target, " ms"))
        yield table
    with server(options) as running:
        yield cost(options, new_database(running))


def times(dsn: str, path: str, rounds: int) -> tuple[float, float]:
    """Seconds of a page that asks everything anew, and of one right after it."""
    first, again = [], []
    with TestClient(app(dsn), base_url="http://127.0.0.1") as client:
        client.get("/healthz")
        client.get(path)
        for _ in range(rounds):
            client.app.state.database.forget()  # type: ignore[attr-defined]
            first.append(asked(client, path))
            again.append(asked(client, path))
    return statistics.median(first), statistics.median(again)


def asked(client: TestClient, path: str) -> float:
    """Seconds of one request."""
    begun = time.perf_counter()
    answer = client.get(path)
    took = time.perf_counter() - begun
    answer.raise_for_status()
    return took


def cost(options: Options, dsn: str) -> Table:
    """What remains of publishing and leasing beside those who look."""
    seconds = options.size(10, 2)
    table = Table(
        f"web, what looking costs, Postgres {options.postgres}",
        f"{options.rounds()} rounds of {seconds} s in turn: {BROWSERS} browsers poll the overview and the"
        " page of a queue every 2 s, Prometheus scrapes every second.",
        ["", "nobody looks", "they look", "ratio", "target"],
    )
    scraped = free_port()
    with (
        process(dsn, "leader", "--metrics", str(scraped)),
        process(dsn, "web", "--port", "0", "--json") as web,
    ):
        assert web.stdout is not None
        told = json.loads(read_json(web.stdout))
        address = f"http://{told['host']}:{told['port']}"
        for name, work in (("publish", publish), ("lease and ack", lease)):

            def alone(work: Any = work) -> float:
                return work(dsn, seconds)

            def looked(work: Any = work) -> float:
                with looking(address, f"http://127.0.0.1:{scraped}/metrics"):
                    return work(dsn, seconds)

            figures = in_turn({"alone": alone, "looked": looked}, options.rounds(), ["alone"])
            ratio = median_ratio(figures, "looked", "alone")
            table.add(
                name,
                *(a_second(statistics.median(figures[arm])) for arm in ("alone", "looked")),
                f"{ratio:.3f}",
                at_least(ratio, SHARE),
            )
    return table


def publish(dsn: str, seconds: float) -> float:
    """Messages a second, one a transaction."""
    count, end = 0, time.perf_counter() + seconds
    with connect(dsn) as connection:
        while time.perf_counter() < end:
            connection.execute("select trunq.publish(%s, %s)", (QUEUE, payload(count)))
            count += 1
    return count / seconds


def lease(dsn: str, seconds: float) -> float:
    """Messages a second, leased and acked a hundred at a time."""
    count = 0
    with connect(dsn) as connection:
        copy_in(connection, f"trunq_log.{QUEUE}", int(40_000 * seconds / 10))
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            held = connection.execute(
                "select min(lease_id), min(token), array_agg(id) from trunq.lease(%s, 'default', 'w', 100)",
                (QUEUE,),
            ).fetchone()
            assert held is not None
            if held[0] is None:
                copy_in(connection, f"trunq_log.{QUEUE}", 10_000)
                continue
            connection.execute("select trunq.ack(%s, 'default', %s, %s, %s)", (QUEUE, *held))
            count += len(held[2])
    return count / seconds


@contextmanager
def looking(address: str, metrics: str) -> Iterator[None]:
    """Ten browsers, and a scrape a second, in threads."""
    over = threading.Event()

    def poll(path: str, every: float, headers: dict[str, str]) -> None:
        with httpx.Client(timeout=30) as client:
            while not over.wait(every):
                with contextlib.suppress(httpx.HTTPError):
                    client.get(path, headers=headers)

    threads = [
        threading.Thread(target=poll, args=(f"{address}{path}", 2.0, {"HX-Request": "true"}))
        for path in ("/", f"/queues/{QUEUE}") * (BROWSERS // 2)
    ]
    threads.append(threading.Thread(target=poll, args=(metrics, 1.0, {})))
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


@contextmanager
def process(dsn: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A command of trunq beside this program."""
    started = subprocess.Popen(
        [sys.executable, "-m", "trunq.cli", *arguments],
        env={**os.environ, "TRUNQ_DSN": dsn},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        yield started
    finally:
        started.terminate()
        started.communicate()


def read_json(lines: Any) -> str:
    """The first JSON object of a program's output."""
    text = ""
    for line in lines:
        text += line
        with contextlib.suppress(json.JSONDecodeError):
            json.loads(text)
            return text
    raise RuntimeError(f"the dashboard did not start: {text}")


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


if __name__ == "__main__":
    main(__doc__, measure)
