"""What falls due: promotion, ticks, all duties at once: functions/delayed.sql, tick.sql, leader.sql."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import psycopg
import pytest

from calling import call, new_names
from conftest import Connect
from engine import Engine


@pytest.fixture
def work(session: psycopg.Connection[Any]) -> Engine:
    return Engine(session, next(new_names("duty"))).create()


def test_messages_are_promoted_as_they_fall_due(work: Engine) -> None:
    ids = [work.publish(delay=f"{minutes} minutes")[0] for minutes in (3, 1, 2)]
    assert work.ask("promote") == 0
    for minutes, id in ((1, ids[1]), (2, ids[2]), (3, ids[0])):
        with work.clock(f"{minutes} minutes 1 second"):
            assert work.ask("promote") == 1
        assert work.drain() == [id]


def test_a_promotion_in_parts_misses_nothing(work: Engine) -> None:
    ids = work.publish(50, delay="1 minute")
    with work.clock("2 minutes"):
        assert [work.ask("promote", max=20) for _ in range(4)] == [20, 20, 10, 0]
    assert work.drain() == ids


def test_messages_due_at_one_moment_are_promoted_in_parts_too(work: Engine) -> None:
    ids = work.publish(50, due_at="2300-01-01")
    with work.clock("300 years"):
        assert [work.ask("promote", max=20) for _ in range(4)] == [20, 20, 10, 0]
    assert work.drain() == ids


def test_what_committed_late_is_found_within_a_minute(work: Engine, open_session: Connect) -> None:
    late = work.on(open_session(autocommit=False))
    (id,) = late.publish(delay="1 second")
    with work.clock("10 seconds"):
        assert work.ask("promote") == 0
    late.connection.commit()
    with work.clock("30 seconds"):
        assert work.ask("promote") == 0, "it lies behind the mark"
    with work.clock("71 seconds"):
        assert work.ask("promote") == 1
    assert work.drain() == [id]


def test_what_committed_a_little_late_is_found_at_once(work: Engine, open_session: Connect) -> None:
    late = work.on(open_session(autocommit=False))
    (id,) = late.publish(delay="1 second")
    with work.clock("4 seconds"):
        assert work.ask("promote") == 0
    late.connection.commit()
    with work.clock("5 seconds"):
        assert work.ask("promote") == 1
    assert work.drain() == [id]


@pytest.mark.parametrize("delay", [{"delay": "-1 hour"}, {"due_at": "2001-01-01"}])
def test_a_time_that_is_over_means_now(work: Engine, delay: dict[str, str]) -> None:
    assert work.ask("promote") == 0
    (id,) = work.publish(**delay)
    assert work.ask("promote") == 1
    assert work.drain() == [id]


def test_a_clock_that_went_back_promotes_what_is_due_again(work: Engine) -> None:
    with work.clock("1 day"):
        assert work.ask("promote") == 0
    (id,) = work.publish(delay="1 second")
    with work.clock("2 seconds"):
        assert work.ask("promote") == 1
    assert work.drain() == [id]


def test_a_queue_with_little_new_is_ticked_after_the_lag(work: Engine) -> None:
    work.publish()
    assert work.ask("tick") is None
    with work.clock("2 seconds"):
        assert work.ask("tick") is None
    with work.clock("4 seconds"):
        assert work.ask("tick") == 2
        assert work.ask("tick") is None


def test_a_queue_with_much_new_is_ticked_at_once(session: psycopg.Connection[Any]) -> None:
    work = Engine(session, next(new_names("duty"))).create(tick_max_count=100)
    work.publish(50)
    assert work.ask("tick") is None
    work.publish(100)
    assert work.ask("tick") == 2
    assert work.ask("tick") is None


def test_an_idle_queue_is_ticked_ever_less_often(work: Engine) -> None:
    ticked = []
    for second in range(400):
        with work.clock(f"{second} seconds"):
            if work.ask("tick"):
                ticked.append(second)
    gaps = [after - before for before, after in pairwise(ticked)]
    assert gaps[-1] in (60, 61)
    assert all(later >= earlier - 1 for earlier, later in pairwise(gaps))
    assert len(ticked) < 15


def test_ids_a_session_had_in_stock_do_not_hide_a_message(work: Engine) -> None:
    work.publish()
    for second in (4, 13, 35):
        with work.clock(f"{second} seconds"):
            assert work.ask("tick")
    (id,) = work.publish()
    assert work.fetch("select last_value from trunq_data.{queue}_message_id") > id
    with work.clock("37 seconds"):
        assert work.ask("tick") is None
    with work.clock("39 seconds"):
        assert work.ask("tick") == 5, "by now an idle queue would wait longer, a message does not"


def test_a_forced_tick_is_always_cut(work: Engine) -> None:
    assert [work.ask("tick", force=True) for _ in range(3)] == [2, 3, 4]
    assert [tick.tick_id for tick in work.call("list_ticks")] == [1, 2, 3, 4]
    assert [tick.tick_id for tick in work.call("list_ticks", **{"from": 2, "to": 3})] == [2, 3]


def test_all_duties_are_done_in_one_call(connection: psycopg.Connection[Any]) -> None:
    work = Engine(connection, "work").create()
    work.publish(delay="1 second")
    work.publish()
    work.lease()
    with work.clock("2 minutes"):
        rows = call(work.connection, "perform_duties")
    done = {"promote": 1, "reap": 1, "tick": 1, "forget": 0, "summarize": 0, "rotate": 0}
    assert {row.duty: row.done for row in rows} == done
    assert len(work.drain()) == 2


def test_one_call_empties_one_segment(connection: psycopg.Connection[Any]) -> None:
    """Its lock lasts to the end of the call: another's segment must not wait for it."""
    queues = [Engine(connection, name).create(retention="2000 days") for name in ("one", "two", "three")]
    for queue in queues:
        queue.publish()
        queue.drain()
    with queues[0].clock("3000 days"):
        for _ in range(3 * len(queues)):
            assert sum(row.done for row in call(connection, "perform_duties") if row.duty == "rotate") == 1
        assert all(queue.is_empty("log") and queue.is_empty("receipt") for queue in queues)
