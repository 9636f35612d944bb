"""Whether a customer of a pipeline waits for another: 500 of one definition, one is slow and one fails.

Runs of customers are asked for at random moments, fewer than a runner with four slots can do, and the time
from the request to the end of its run counts. In turn nobody is in trouble, or one customer has one run that
does not end, and twenty requests behind it, and another customer's run fails and is tried again.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

from _bench import (
    Options,
    Table,
    at_most,
    in_turn,
    main,
    milliseconds,
    moments,
    new_database,
    percentile,
    server,
)
from _customers import GO_ON
from trunq import Client
from trunq.pipeline import Pipeline
from trunq.pipeline.runner import Runner

PIPELINE = "orders"
TROUBLED = ("slow", "fails")


def measure(options: Options) -> Iterator[Table]:
    """Requests of the others, with and without trouble."""
    number, length, rate = options.size(500, 20), options.size(12, 3), 2.0
    with server(options) as running:
        dsn = new_database(running, queue=False)
        with Client(dsn) as client:
            client.create_pipeline(PIPELINE, definition())
        with Client(dsn) as client, working(dsn):
            for customer in names(number):
                client.run_pipeline(PIPELINE, {"customer": customer})
            await_runs(client, number - len(TROUBLED))
            seeds = iter(range(10**6))
            found: dict[str, list[float]] = {"alone": [], "in trouble": []}

            def arm(name: str) -> float:
                with trouble(client, name == "in trouble"):
                    waited = ask(client, names(number), rate, length, next(seeds))
                found[name] += waited
                return median(waited)

            figures = in_turn({name: lambda name=name: arm(name) for name in found}, options.rounds())
    table = Table(
        f"{number} customers of one pipeline, Postgres {options.postgres}",
        f"One runner, four slots; {rate:g} requests a second of random customers, {length} s an arm,"
        f" {len(figures['alone'])} rounds in turn: from the request to the end of its run. In trouble: one"
        " customer is at a run that does not end, with twenty requests behind it, and one fails and is tried"
        " again.",
        ("the others", "requests", "median", "slowest of twenty", "of alone, median of rounds"),
    )
    ratio = median(a / b for a, b in zip(figures["in trouble"], figures["alone"], strict=True))
    for name, values in found.items():
        told = "" if name == "alone" else f"{ratio:.2f} ({at_most(ratio, 1.1)})"
        table.add(
            name, str(len(values)), milliseconds(median(values)), milliseconds(percentile(values, 0.95)), told
        )
    yield table


def definition() -> dict[str, Any]:
    """One for all."""
    return Pipeline(
        PIPELINE,
        message={"customer": "text"},
        per="message.customer",
        source={"format": "python", "function": "_customers:rows"},
        sink={"format": "table", "table": "moved"},
    ).definition


def names(number: int) -> list[str]:
    """Those who are not in trouble."""
    return [f"c{at}" for at in range(number - len(TROUBLED))]


@contextmanager
def working(dsn: str) -> Iterator[None]:
    """A runner."""
    runner = Runner(dsn, concurrency=4)
    thread = threading.Thread(target=lambda: asyncio.run(runner.run_async()))
    thread.start()
    try:
        yield
    finally:
        GO_ON.set()
        runner.stop()
        thread.join()


def await_runs(client: Client, number: int) -> None:
    """Until each has had its first run."""
    while client.list_pipelines(PIPELINE)[0].runs < number:
        time.sleep(0.5)


@contextmanager
def trouble(client: Client, is_there: bool) -> Iterator[None]:
    """One is slow and asks for more, one fails; at the end nothing of that is left."""
    if not is_there:
        yield
        return
    GO_ON.clear()
    ids = [client.run_pipeline(PIPELINE, {"customer": "slow", "at": at}) for at in range(21)]
    ids.append(client.run_pipeline(PIPELINE, {"customer": "fails"}))
    while client.list_instances(PIPELINE, 1)[0].failures == 0:
        time.sleep(0.1)
    try:
        yield
    finally:
        GO_ON.set()
        client.cancel("pipelines", ids[-1:])
        client.cancel_pipeline(f"{PIPELINE}/fails")
        while any(row.ready + row.leased + row.delayed for row in client.status("pipelines")):
            time.sleep(0.2)


def ask(client: Client, customers: list[str], rate: float, length: float, seed: int) -> list[float]:
    """Seconds that each request took."""
    chance, begun = random.Random(seed), time.monotonic()
    asked = {}
    for at, customer in zip(
        moments(rate, length, seed), chance.sample(customers, len(customers)), strict=False
    ):
        time.sleep(max(0.0, begun + at - time.monotonic()))
        asked[client.run_pipeline(PIPELINE, {"customer": customer, "round": seed})] = customer
    waited: dict[int, float] = {}
    while len(waited) < len(asked):
        time.sleep(0.2)
        for run in client.list_runs(PIPELINE, limit=len(asked) + 100):
            if run.message_id in asked and run.ended_at is not None:
                published = client.show_message("pipelines", run.message_id)[0].published_at
                assert published is not None
                waited[run.message_id] = (run.ended_at - published).total_seconds()
    return [*waited.values()]


if __name__ == "__main__":
    main(__doc__, measure)
