"""A queue's history through a pipeline: every attempt arrives once, whatever is killed or ends."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from pipeline.killing import execute_and_die
from pipeline.piping import Bench
from trunq.errors import InvalidPipeline
from trunq.pipeline.definition.reading import read_definition
from trunq.pipeline.source import Context
from trunq.pipeline.source.history import HistorySource

POINTS = ("planned", "begun", "tried", "staged", "written", "committed", "finished")


@pytest.fixture(autouse=True)
def _in_a_directory_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.killing.DIRECTORY", str(tmp_path))
    monkeypatch.chdir(tmp_path)


class Shop:
    """A queue whose messages a worker answers, and what is to arrive of it."""

    def __init__(self, bench: Bench) -> None:
        self.client = bench.client
        self.client.create_queue("orders")
        self.expected: Counter[tuple[Any, ...]] = Counter()
        self.open: list[Any] = []

    def work(self, count: int = 20) -> None:
        """Publish and answer: some are retried, some rejected, and one stays open until the next time."""
        self.client.promote("orders")
        former, self.open = self.open, []
        if former:
            self.client.ack(former)
            self.expected.update((message.id, message.attempt, "success") for message in former)
        self.client.publish_many("orders", [{"n": n} for n in range(count)], kinds=["placed"] * count)
        self.open = list(self.client.lease("orders", "default", "slow"))
        while held := self.client.lease("orders", "default", "w", 7):
            acked, retried, rejected = held[:-2], held[-2:-1], held[-1:]
            self._answer(acked, "success", self.client.ack)
            self._answer(retried, "failed", lambda told: self.client.retry(told, error="busy", after=0))
            self._answer(rejected, "rejected", lambda told: self.client.reject(told, "wrong"))

    def _answer(self, held: list[Any], outcome: str, answer: Any) -> None:
        if held:
            answer(held)
            self.expected.update((message.id, message.attempt, outcome) for message in held)


@pytest.fixture
def shop(bench: Bench) -> Shop:
    return Shop(bench)


def lake() -> Counter[tuple[Any, ...]]:
    """What arrived."""
    rows = DeltaTable("lake").to_pyarrow_table().to_pylist()
    return Counter((row["id"], row["attempt"], row["outcome"]) for row in rows)


def make(bench: Bench, **more: Any) -> str:
    return bench.make({"format": "history", "queue": "orders", **more}, {"format": "delta", "path": "lake"})


def test_killed_at_each_point_every_attempt_arrives_once(bench: Bench, shop: Shop) -> None:
    pipeline = make(bench)
    for point in POINTS:
        shop.work()
        message = bench.client.run_pipeline(pipeline)
        assert execute_and_die(bench.dsn, bench.asked(message), point) == -signal.SIGKILL, point
        shop.work(5)  # what it planned stays what it planned
        bench.execute(message)
        bench.run(pipeline)
        assert lake() == shop.expected, point
    assert set(shop.expected.values()) == {1}
    assert bench.run(pipeline)["outcome"] == "nothing new"
    (taker,) = bench.client.list_takers()
    assert (taker.taker, taker.behind, taker.open) == (pipeline, None, 1)


def test_it_feeds_a_table_and_names_each_attempt_in_it(bench: Bench, shop: Shop) -> None:
    key = ["subscription_id", "lease_id", "id"]
    sink = {"format": "table", "table": "attempts", "mode": "upsert", "key": key}
    pipeline = bench.make({"format": "history", "queue": "orders", "payload": True}, sink)
    shop.work()
    bench.run(pipeline)
    shop.work(1)
    bench.run(pipeline)
    assert bench.one("select count(*) from attempts") == sum(shop.expected.values())
    assert bench.one("select count(*) from attempts where payload->>'n' is not null and took is null") > 0


def test_a_queue_made_again_goes_on_in_the_same_lake(bench: Bench, shop: Shop) -> None:
    pipeline = make(bench)
    shop.work()
    bench.run(pipeline)
    bench.client.drop_queue("orders", force=True)
    shop.open = []
    bench.client.create_queue("orders")
    shop.work()
    bench.run(pipeline)
    assert lake() == shop.expected


def test_a_run_over_a_queue_that_is_gone_is_cancelled(bench: Bench, shop: Shop) -> None:
    pipeline = make(bench)
    shop.work()
    message = bench.client.run_pipeline(pipeline)
    execute_and_die(bench.dsn, bench.asked(message), "begun")
    bench.client.drop_queue("orders", force=True)
    bench.client.create_queue("orders")
    with pytest.raises(InvalidPipeline, match="was dropped"):
        bench.execute(message)
    assert bench.client.cancel_pipeline(pipeline)
    bench.execute(message)
    shop.expected, shop.open = Counter(), []
    shop.work()
    bench.run(pipeline)
    assert lake() == shop.expected


def test_the_taker_goes_with_its_pipeline_and_with_its_source(bench: Bench, shop: Shop) -> None:
    bench.client.create_queue("mail")
    pipeline = make(bench)
    shop.work()
    bench.run(pipeline)
    source = {"format": "history", "queue": "mail"}
    bench.make(source, {"format": "delta", "path": "lake"}, name=pipeline)
    bench.run(pipeline)
    assert [row.queue for row in bench.client.list_takers()] == ["mail"]
    before = dict(shop.expected)
    bench.make({"format": "history", "queue": "orders"}, {"format": "delta", "path": "lake"}, name=pipeline)
    bench.client.create_taker("orders", pipeline)
    bench.run(pipeline)
    assert lake() == before, "what it has does not come again"
    bench.client.drop_pipeline(pipeline)
    assert bench.client.list_takers() == []


def test_whether_there_is_more_is_told_without_a_trace(bench: Bench, shop: Shop) -> None:
    pipeline = make(bench)
    made = read_definition(pipeline, bench.client.list_pipelines()[0].definition)
    source = HistorySource(made, bench.dsn, bench.executor.control)
    assert source.has_new({}), "nobody has looked yet"
    assert bench.client.list_takers() == []
    bench.client.subscribe("orders", "mail")
    shop.work()
    bench.client.ack(bench.client.lease("orders", "mail", "m", 1000))
    slice = source.plan({}).slice
    assert slice is not None
    shares = source.shares(slice, 4)
    assert [len(share["parts"]) for share in shares] == [1, 1]
    assert sum(batch.num_rows for share in shares for batch in source.read(share, Context("p", 1))) == sum(
        batch.num_rows for batch in source.read(slice, Context("p", 1))
    )
    bench.run(pipeline)
    state = bench.client.list_pipelines()[0].state
    assert not source.has_new(state)
    shop.work(3)
    assert source.has_new(state)


def test_a_range_of_it_cannot_be_read_again(bench: Bench, shop: Shop) -> None:
    pipeline = bench.make(
        {"format": "history", "queue": "orders"},
        {"format": "table", "table": "t", "mode": "upsert", "key": ["id"], "newest": "finished_at"},
    )
    message = bench.client.backfill_pipeline(pipeline, {"from": 1})
    with pytest.raises(InvalidPipeline, match="emptied when it is taken"):
        bench.execute(message)
