"""A queue that gets lanes, unique keys or a longer retention in the middle of everything, and its models."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from conftest import Connect
from engine import Engine
from model.machine import run_machine
from model.test_laned import LaneMachine
from model.test_queue import SUBSCRIPTIONS, WRITERS, QueueMachine
from model.test_unique import UniqueMachine
from scope import some

LANES = ("key", "kind", "priority", "priority,key")


class ConvertedMachine(QueueMachine):
    """A plain queue, until it is told otherwise: what it hands out, to whom and how often, stays the same."""

    is_converted = False

    @precondition(lambda self: not self.is_converted)
    @rule(
        lanes=st.sampled_from([None, *LANES]),
        retention=st.sampled_from([None, "9000 days"]),
        are_late=st.booleans(),
    )
    def convert(self, lanes: str | None, retention: str | None, are_late: bool) -> None:
        for writer in WRITERS:
            self.end_writing(writer, commits=True)
            if are_late:
                # It has begun, and will publish: what leases have read meanwhile lies behind it.
                self.writers[writer].connection.execute("select pg_current_xact_id()")
        asked = {"lanes": lanes, "retention": retention}
        assert self.work.ask("convert_queue", **asked) is (any(asked.values()))
        self.is_converted = True


class LateLaneMachine(LaneMachine):
    """A queue with lanes that was a plain one, had half of its retention, and has something of everything."""

    OPTIONS: ClassVar[dict[str, Any]] = {}
    RETENTION = "700 days"

    def __init__(self, connect: Connect) -> None:
        super().__init__(connect)
        for n in range(3):
            self.publish(4)
            self.publish_later(1, 50)
            for subscription in SUBSCRIPTIONS[n % 2 :]:
                self.took(held := self.work.lease(3 - n, subscription=subscription), "w")
                if held:
                    # All of it: a limit counts what is handed out after it was set.
                    self.answer(held, ["ack", "retry", "release"][n], set(range(4)))
        assert self.work.ask("convert_queue", lanes="key", retention="2000 days") is True


class LateKeyMachine(UniqueMachine):
    """A queue with unique keys that was a plain one."""

    def create(self, work: Engine, **options: Any) -> Engine:
        work.create()
        assert work.ask("convert_queue", **options) is True
        return work


@pytest.mark.slow
def test_a_queue_that_is_converted_does_what_its_model_does(connect: Connect) -> None:
    run_machine(lambda: ConvertedMachine(connect), some(10, 60), 40)


@pytest.mark.slow
def test_lanes_that_came_later_do_what_their_model_does(connect: Connect) -> None:
    run_machine(lambda: LateLaneMachine(connect), some(6, 40), 30)


@pytest.mark.slow
@pytest.mark.parametrize(("policy", "lanes"), [("refuse", None), ("replace", None), ("refuse", "key")])
def test_unique_keys_that_came_later_do_what_their_model_does(
    connect: Connect, policy: str, lanes: str | None
) -> None:
    run_machine(lambda: LateKeyMachine(connect, policy, lanes), some(4, 15), 30)
