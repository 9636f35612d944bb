"""Stages that are not dropped (dlt#2534): after success, failure and kill, and with a pipeline or a customer
that is dropped, none stays, and what others have staged is theirs.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.killing import execute_and_die
from pipeline.piping import Bench
from pipeline.storages import S3Server, SftpServer
from pipeline.test_instance import EACH
from pipeline.test_kill import SINKS
from pipeline.test_runner import running
from scope import ALL
from trunq.errors import InvalidPipeline
from trunq.pipeline.errors import Wait
from waiting import wait_until

pytestmark = pytest.mark.usefixtures("_secrets")

ROWS = {"format": "python", "function": "pipeline.customers:broken_off"}
MERGED = {"mode": "upsert", "key": ["id"]}
KINDS: dict[str, dict[str, Any]] = {
    "append": SINKS["append"],
    "queue": SINKS["queue"],
    "http": {"format": "http", "url": "http://127.0.0.1:9/rows"},
    "delta": SINKS["delta"],
    "delta upsert": {**SINKS["delta"], **MERGED},
    "parquet": SINKS["parquet"],
    "s3 delta": SINKS["delta"],
    "s3 delta upsert": {**SINKS["delta"], **MERGED},
    "s3 parquet": SINKS["parquet"],
    "sftp parquet": SINKS["parquet"],
}
WRITING = [kind for kind in KINDS if kind != "http"]
"""Those that take rows here; the API of the other never answers."""
FIRST = WRITING if ALL else ["append", "delta", "parquet", "s3 delta upsert", "s3 parquet"]


class Staging:
    """A sink in which something may lie that is staged."""

    def __init__(self, bench: Bench, kind: str, s3: S3Server, sftp: SftpServer, at: Path) -> None:
        self.bench, self.s3, self.at = bench, s3, at
        where = kind.partition(" ")[0]
        self.address = f"{s3.bucket()}/moved" if where == "s3" else None
        self.sink = dict(KINDS[kind])
        if kind == "queue":
            bench.client.create_queue("moved")
        if self.address is not None:
            self.sink |= {"path": self.address, "storage": s3.storage}
        elif where == "sftp":
            self.sink |= {"path": sftp.address(at / "moved"), "storage": sftp.storage}

    def make(self, **more: Any) -> str:
        return self.bench.make(ROWS, self.sink, **EACH, **more)

    def kill(self, pipeline: str, customer: str, point: str) -> int:
        """A run of a customer whose process dies at a point; the message."""
        message = self.bench.client.run_pipeline(pipeline, {"customer": customer})
        assert execute_and_die(self.bench.dsn, self.bench.asked(message), point) == -signal.SIGKILL
        return message

    def clean(self) -> None:
        """Have what asks for it removed, as a runner does."""
        held = self.bench.client.lease("pipelines", "default", "bench", 100)
        self.bench.client.release(held)
        for message in held:
            if message.headers is not None and "left" in message.headers:
                assert self.bench.execute(message.id) == {"outcome": "removed"}
        assert self.bench.one("select count(*) from trunq.pipeline_left") == 0

    def staged(self) -> list[str]:
        """All that is staged anywhere."""
        found = [
            name
            for (name,) in self.bench.sql(
                "select relname from pg_class where relname ~ '^stage_' and relkind = 'r'"
            )
        ]
        found += [path.name for path in (self.at / "moved" / "_trunq_stage").glob("*")]
        if self.address is not None:
            entries = [entry.path for entry in self.s3.files(f"{self.address}/_trunq_stage")]
            found += [path for path in entries if not path.endswith("/probe")]
        return found


@pytest.fixture
def staging(
    bench: Bench, s3: S3Server, sftp: SftpServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], Staging]:
    monkeypatch.setattr("pipeline.killing.DIRECTORY", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return lambda kind: Staging(bench, kind, s3, sftp, tmp_path)


@pytest.mark.parametrize("kind", WRITING)
def test_nothing_is_staged_after_success_nor_after_failure(
    staging: Callable[[str], Staging], kind: str
) -> None:
    place = staging(kind)
    name = place.make()
    assert place.bench.run(name, {"customer": "acme"})["rows_out"] == 2000
    assert place.staged() == []
    with pytest.raises(RuntimeError, match="broke off"):
        place.bench.run(name, {"customer": "other", "fails": True})
    assert place.staged() == []


@pytest.mark.parametrize("kind", FIRST)
def test_what_a_killed_run_staged_goes_with_the_next_run_of_its_customer(
    staging: Callable[[str], Staging], kind: str
) -> None:
    place = staging(kind)
    name = place.make()
    place.bench.execute(place.kill(name, "acme", "written"))
    place.bench.run(name, {"customer": "other"})
    assert place.staged(), "it is the next run's of its own customer"
    place.bench.run(name, {"customer": "acme", "again": True})
    assert place.staged() == []


@pytest.mark.parametrize("kind", FIRST)
def test_who_ends_a_run_that_another_committed_leaves_nothing_of_it(
    staging: Callable[[str], Staging], kind: str
) -> None:
    place = staging(kind)
    name = place.make()
    assert (
        place.bench.execute(place.kill(name, "acme", "marked" if "s3 parquet" in kind else "committed"))[
            "rows_out"
        ]
        == 2000
    )
    assert place.staged() == []


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind in (*FIRST, "http")])
def test_what_a_dropped_customer_had_staged_goes_and_that_of_others_stays(
    staging: Callable[[str], Staging], kind: str
) -> None:
    place = staging(kind)
    name = place.make()
    left = place.kill(name, "acme", "written")
    before = place.staged()
    other = place.kill(name, "other", "written")
    of_other = set(place.staged()) - set(before)
    assert before
    assert of_other
    place.bench.client.drop_pipeline(f"{name}/acme")
    place.clean()
    assert set(place.staged()) == of_other
    if kind != "http":
        # Both go on: the one that was dropped is another one from now on.
        assert place.bench.execute(other)["rows_out"] == 2000
        assert place.bench.execute(left)["rows_out"] == 2000


@pytest.mark.parametrize("kind", FIRST)
def test_what_a_dropped_pipeline_had_staged_goes_with_all_its_customers(
    staging: Callable[[str], Staging], kind: str
) -> None:
    place = staging(kind)
    name = place.make()
    place.bench.run(name, {"customer": "good"})
    for customer in ("acme", "other"):
        place.kill(name, customer, "written")
    place.bench.client.drop_pipeline(name)
    waiting = place.bench.sql("select name from trunq.pipeline_left order by 1")
    assert waiting == [(f"{name}/acme",), (f"{name}/other",)], "of the good one nothing can be left"
    place.clean()
    assert place.staged() == []


def test_a_runner_removes_it_and_until_then_it_is_named(staging: Callable[[str], Staging]) -> None:
    place = staging("append")
    name = place.make()
    place.kill(name, "acme", "written")
    place.bench.client.drop_pipeline(name)
    later = "set trunq.clock_offset = '6 minutes'"
    place.bench.sql(later)
    told = "select warning from trunq.list_warnings('pipelines') where warning like '%was dropped%'"
    assert f'pipeline "{name}/acme" was dropped' in place.bench.one(told)
    place.bench.sql("reset trunq.clock_offset")
    with running(place.bench):
        wait_until(lambda: place.bench.one("select count(*) from trunq.pipeline_left") == 0, 60)
    assert place.staged() == []
    place.bench.sql(later)
    assert place.bench.sql(told) == []


def test_a_stage_that_somebody_writes_into_waits(staging: Callable[[str], Staging]) -> None:
    place = staging("append")
    name = place.make()
    place.kill(name, "acme", "written")
    [stage] = place.staged()
    place.bench.client.drop_pipeline(name)
    with place.bench.connection.transaction():
        place.bench.sql(f"lock table trunq_sink.{stage} in row exclusive mode")
        message = place.bench.one("select max(id) from trunq_log.pipelines where headers ? 'left'")
        with pytest.raises(Wait):
            place.bench.execute(message)
    assert place.bench.execute(message) == {"outcome": "removed"}
    assert place.bench.execute(
        place.bench.client.publish("pipelines", None, kind=name, headers={"left": "x"})
    ) == {"outcome": "nothing left"}
    assert place.staged() == []


@pytest.mark.parametrize("times", [1, 2])
def test_a_subscription_to_the_queue_that_was_read_goes_with_its_customer(bench: Bench, times: int) -> None:
    for customer in ("acme", "other"):
        bench.client.create_queue(f"orders_{customer}")
        bench.client.publish(f"orders_{customer}", {"id": 1})
    source = {"format": "queue", "queue": "orders_${message.customer}"}
    name = bench.make(source, SINKS["append"], **EACH)
    for _ in range(times):
        for customer in ("acme", "other"):
            assert bench.run(name, {"customer": customer})["rows_out"] == 1
        subscribed = [
            row for row in bench.client.list_subscriptions() if row.subscription.startswith("pipeline_")
        ]
        assert len(subscribed) == 2
        bench.client.drop_pipeline(f"{name}/acme")
        [left] = [
            row for row in bench.client.list_subscriptions() if row.subscription.startswith("pipeline_")
        ]
        assert left.queue == "orders_other"
        bench.client.drop_pipeline(name)
        assert [
            row for row in bench.client.list_subscriptions() if row.subscription.startswith("pipeline_")
        ] == []
        # It begins anew with what the queue still has.
        bench.make(source, SINKS["append"], **EACH, name=name)


def test_a_subscription_that_a_definition_names_is_its_users(bench: Bench) -> None:
    bench.client.create_queue("orders")
    bench.client.subscribe("orders", "mine", mode="exclusive", start="earliest")
    bench.client.publish("orders", {"id": 1})
    name = bench.make({"format": "queue", "queue": "orders", "subscription": "mine"}, SINKS["append"])
    assert bench.run(name)["rows_out"] == 1
    bench.client.drop_pipeline(name)
    assert "mine" in [row.subscription for row in bench.client.list_subscriptions("orders")]


def test_another_queue_is_refused_until_the_place_in_the_first_is_given_up(bench: Bench) -> None:
    """Ticks of one queue say nothing of another: messages would be left out, and the first queue kept for
    nobody.
    """
    for queue, messages in (("first", 3), ("second", 2)):
        bench.client.create_queue(queue)
        for each in range(messages):
            bench.client.publish(queue, {"id": each})
            bench.client.tick(queue, force=True)
    name = bench.make({"format": "queue", "queue": "first"}, SINKS["append"])
    assert bench.run(name)["rows_out"] == 3
    second = {"format": "queue", "queue": "second"}
    with pytest.raises(InvalidPipeline, match='would mean nothing in queue "second"') as told:
        bench.make(second, SINKS["append"], name=name)
    assert f"trunq pipeline state {name} --reset" in str(told.value.hint)
    bench.client.set_pipeline_state(name, {})
    bench.make(second, SINKS["append"], name=name)
    assert bench.run(name)["rows_out"] == 2
    mine = [row.queue for row in bench.client.list_subscriptions() if row.subscription == f"pipeline_{name}"]
    assert mine == ["second"]


def test_what_tables_of_a_dropped_pipeline_had_staged_goes(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.killing.DIRECTORY", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    bench.sql("create schema shop; create schema copy; create table shop.orders (id int primary key)")
    bench.sql("insert into shop.orders values (1)")
    source = {"format": "table", "tables": "shop.*"}
    sink = {"format": "table", "table": "copy.${table}", "mode": "upsert"}
    name = bench.make(source, sink, name="shop")
    bench.execute(bench.client.run_pipeline(name))
    message = bench.client.run_pipeline(f"{name}/shop.orders")
    assert execute_and_die(bench.dsn, bench.asked(message), "staged") == -signal.SIGKILL
    like = "select count(*) from pg_class where relname ~ '^stage_' and relkind = 'r'"
    assert bench.one(like) == 1
    bench.client.drop_pipeline(name)
    held = bench.client.lease("pipelines", "default", "bench", 100)
    bench.client.release(held)
    (left,) = (message for message in held if "left" in (message.headers or {}))
    assert bench.execute(left.id) == {"outcome": "removed"}
    assert bench.one(like) == 0
