"""A member of a group that finds nothing pays for what is new, not for the slots that there are."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from counting import cost_of
from engine import Engine


@pytest.mark.parametrize("slots", [4, 16, 64])
def test_an_empty_poll_of_a_group_reads_as_few_pages_with_many_slots(
    connection: psycopg.Connection[Any], slots: int
) -> None:
    work = Engine(connection, f"group_{slots}").create(default_subscription=False)
    work.ask("create_group", group="crew", slots=slots)
    for _ in range(3):
        work.publish(5 * slots)
        work.ask("tick", force=True)
        read_all(work)
    poll = f"select * from trunq_queue.{work.queue}_next_batch('crew', 'ada')"
    # It looked at all slots; from then on, and again after a while, at what came since.
    with work.clock("11 s"):
        assert cost_of(connection, poll).rows == 0
        for _ in range(2):
            idle = cost_of(connection, poll)
        assert (idle.rows, idle.rows_inserted, idle.rows_changed) == (0, 0, 0)
        assert idle.pages <= 40
        # One slot is in hand: the others are not looked at.
        work.publish(keys=["k"])
        assert cost_of(connection, poll.replace("ada", "bob")).rows == 1
        for _ in range(2):
            beside = cost_of(connection, poll)
        assert beside.rows == 0
        assert beside.pages <= 80
    with work.clock("2 min"):
        every = cost_of(connection, poll)
        assert every.rows == 1, "that of bob, whose time is over"


def test_a_look_at_all_slots_reads_each_once(connection: psycopg.Connection[Any]) -> None:
    slots = 16
    work = Engine(connection, "all_slots").create(default_subscription=False)
    work.ask("create_group", group="crew", slots=slots)
    for _ in range(3):
        work.publish(5 * slots)
        read_all(work)
    polls = [
        cost_of(connection, f"select * from trunq_queue.{work.queue}_next_batch('crew', '{member}')")
        for member in ("bob", "cat", "dan")  # new ones, who have noted nothing
    ]
    assert polls[-1].rows == 0
    assert polls[-1].pages <= 16 * slots


def read_all(work: Engine) -> None:
    while rows := work.call("next_batch", subscription="crew", worker="ada"):
        (batch,) = rows
        work.ask("finish_batch", subscription="crew", batch_id=batch.batch_id, token=batch.token)
