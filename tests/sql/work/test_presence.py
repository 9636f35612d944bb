"""What workers say of themselves: functions/work/presence.sql."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from calling import ask, call, move_clock, new_names, refused
from engine import Engine


@pytest.fixture
def work(connection: psycopg.Connection[Any]) -> Engine:
    return Engine(connection, next(new_names("report"))).create()


def say(
    work: Engine, worker: str = "ada", last_word: str | None = None, pid: int = 7, **handling: int
) -> None:
    told = [
        {"queue": work.queue, "id": 5, "kind": kind, "seconds": since} for kind, since in handling.items()
    ]
    told.append({"queue": "another", "id": 6, "kind": "mail", "seconds": 1})
    ask(
        work.connection,
        "_report",
        worker=worker,
        queues=[work.queue, "nowhere"],
        subscription="default",
        host="shop-3",
        pid=pid,
        seconds=100.0,
        version="0.1.0",
        slots=4,
        handling=Jsonb(told),
        last_word=last_word,
    )


def test_the_newest_report_is_the_worker_and_says_what_it_handles(work: Engine) -> None:
    say(work, mail=1)
    say(work, paint=30, mail=2)
    (row,) = work.call("list_reports")
    assert (row.worker, row.state, row.host, row.pid, row.slots) == ("ada", "running", "shop-3", 7, 4)
    assert [each["kind"] for each in row.handling] == ["paint", "mail"]
    assert row.seen_at - row.began_at == timedelta(seconds=100)


@pytest.mark.parametrize("seconds", [float("inf"), float("nan"), -1.0, 1e11, None])
def test_a_time_that_nobody_can_read_keeps_nobody_from_the_other_workers(
    work: Engine, seconds: float | None
) -> None:
    say(work, mail=1)
    who = {"worker": "eve", "subscription": "default", "host": "shop-3", "pid": 8, "seconds": seconds}
    more = {"version": "0.1.0", "slots": 4, "handling": Jsonb([]), "last_word": None}
    with refused("TQ005", "does not run since"):
        ask(work.connection, "_report", queues=[work.queue], **who, **more)
    assert [row.worker for row in work.call("list_reports")] == ["ada"]


@pytest.mark.parametrize(
    "handling",
    [{}, 1, [1], [{"seconds": "x"}], [{"seconds": 1e300}], [{"seconds": 1, "kind": "x" * 300_000}]],
)
def test_what_is_no_report_is_refused(work: Engine, handling: Any) -> None:
    who = {"worker": "ada", "subscription": "default", "host": "shop-3", "pid": 7, "seconds": 1.0}
    more = {"version": "0.1.0", "slots": 4, "handling": Jsonb(handling), "last_word": None}
    with refused("TQ005"):
        ask(work.connection, "_report_queue", queue=work.queue, **who, **more)
    assert work.call("list_reports") == []


def test_who_is_gone_stays_for_an_hour_with_the_last_word(work: Engine) -> None:
    say(work, "drained", "drained")
    say(work, "killed", "killed", mail=9)
    say(work, "lost", mail=9)
    say(work, "twice")
    move_clock(work.connection, "1 minute")
    say(work, "twice", pid=8)
    states = {(row.worker, row.pid): row.state for row in work.call("list_reports")}
    assert states == {
        ("drained", 7): "drained",
        ("killed", 7): "killed",
        ("lost", 7): "lost",
        ("twice", 7): "lost",
        ("twice", 8): "running",
    }
    move_clock(work.connection, "59 minutes")
    (lost,) = [row for row in work.call("list_reports") if row.worker == "lost"]
    assert [each["kind"] for each in lost.handling] == ["mail"]
    move_clock(work.connection, "61 minutes")
    assert [row.worker for row in work.call("list_reports")] == []


def test_old_reports_go_by_segments(work: Engine) -> None:
    for n in range(20):
        move_clock(work.connection, timedelta(minutes=20 * n))
        say(work)
        work.fetch("select trunq.sample()")
    assert 4 <= work.fetch("select count(*) from trunq.worker_report") <= 9
    assert len(work.call("list_reports")) == 1
    move_clock(work.connection, "0")


def test_the_reports_of_a_queue_that_is_not_there_are_refused(work: Engine) -> None:
    with refused("TQ001"):
        call(work.connection, "list_reports", queue="nowhere")
