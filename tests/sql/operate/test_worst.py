"""What an operator of many queues sees first: the worst, and how bad it is."""

from __future__ import annotations

from typing import Any

import pytest

from calling import ask, call, move_clock
from diagnosing import Connection, dba, follow, healthy
from engine import Engine
from trunq.record import Finding

__all__ = ["dba", "healthy"]


@pytest.fixture
def queues(dba: Connection) -> Any:
    """Makes queues, which are gone in the end."""
    made: list[str] = []

    def make(name: str, **options: Any) -> Engine:
        made.append(name)
        return Engine(dba, name).create(**options)

    yield make
    move_clock(dba, "0")
    for name in made:
        ask(dba, "drop_queue", queue=name, force=True)


def test_of_warnings_the_worst_comes_first_then_the_oldest_and_each_says_how_bad_it_is(
    dba: Connection, queues: Any
) -> None:
    died = queues("a_died")
    died.publish(100)
    held = died.lease(100)
    died.answer("reject", held, errors=["KeyError: 'iban'"] * 100)
    # In one transaction, both would wait since its beginning.
    for name in ("c_old", "b_young"):
        queues(name).publish()
    lost = queues("d_lost", retention="2000 days", hold_at_most="2000 days")
    lost.publish(3)
    lost.rotate("3000 days")
    move_clock(dba, "10 minutes")
    told = call(dba, "list_warnings")
    assert [(row.severity, row.queue) for row in told] == [
        ("error", "d_lost"),
        ("warning", "c_old"),
        ("warning", "b_young"),
        ("warning", "a_died"),
    ]
    assert told[-1].warning == (
        'a hundred or more messages of subscription "default" of queue "a_died" have died within a day'
    )
    found = [row for row in call(dba, "diagnose") if row.area == "warnings"]
    assert [(row.severity, row.queue) for row in found] == [(row.severity, row.queue) for row in told]
    assert died.ask("purge") == 100
    assert [row.queue for row in call(dba, "list_warnings")] == ["d_lost", "c_old", "b_young"]


def test_that_a_queue_holds_for_too_long_is_said_once(dba: Connection, queues: Any) -> None:
    queues("held", retention="30 minutes", hold_at_most="1 hour").publish()
    move_clock(dba, "55 minutes")
    (row,) = call(dba, "list_warnings", queue="held")
    assert "of the time for which the queue holds messages for it" in row.warning


def test_a_lane_that_is_paused_without_an_end_is_named_when_messages_wait_and_nobody_is_to_read(
    dba: Connection, queues: Any
) -> None:
    laned = queues("laned", lanes="key")
    laned.ask("pause_lane", lane="ada")
    move_clock(dba, "10 minutes")
    assert call(dba, "diagnose") == []
    laned.publish(keys=["ada"])
    move_clock(dba, "20 minutes")
    (row,) = call(dba, "diagnose")
    assert (row.area, row.severity, row.queue, row.subscription) == ("pauses", "warning", "laned", "default")
    assert row.finding.startswith(
        'lane "ada" of subscription "default" of queue "laned" is paused without an end'
    )
    laned.publish(keys=["bob"])
    move_clock(dba, "30 minutes")
    assert {row.area for row in call(dba, "diagnose")} == {"pauses", "warnings"}
    follow(dba, row.hint)
    assert {row.area for row in call(dba, "diagnose")} == {"warnings"}


def test_of_many_queues_those_in_trouble_are_looked_at_each_minute(dba: Connection, queues: Any) -> None:
    for n in range(6):
        queues(f"of_many_{n}")
    Engine(dba, "of_many_5").publish()
    for minute in range(10, 17):
        move_clock(dba, f"{minute} minutes")
        ask(dba, "sample")
        rows = [Finding(*row) for row in dba.execute("select * from trunq.diagnose(2)")]
        assert "of_many_5" in {row.queue for row in rows if row.area == "warnings"}
