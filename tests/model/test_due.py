"""Subscriptions that hand out first what fell due, against their model: functions/work/due.sql."""

from __future__ import annotations

import pytest
from hypothesis.stateful import precondition, rule

from calling import Lease
from conftest import Connect
from model.machine import run_machine
from model.test_filtered import FilterMachine
from model.test_queue import SUBSCRIPTIONS, QueueMachine


class DueMachine(QueueMachine):
    def __init__(self, connect: Connect) -> None:
        super().__init__(connect)
        self.first: dict[str, set[int]] = {subscription: set() for subscription in SUBSCRIPTIONS}
        for subscription in SUBSCRIPTIONS:
            self.work.ask("subscribe", subscription=subscription, due_first=True)

    @precondition(lambda self: not self.is_soon(self.now))
    @rule()
    def promote(self) -> None:
        before = {subscription: set(reader.ready) for subscription, reader in self.readers.items()}
        super().promote()
        for subscription, reader in self.readers.items():
            self.first[subscription] |= set(reader.ready) - before[subscription]

    def took(self, held: Lease, worker: str) -> None:
        first, ready = self.first[held.subscription], self.readers[held.subscription].ready
        if first & self.eligible(held.subscription).keys():
            assert set(held.ids) <= first, "what waits came before what fell due"
        super().took(held, worker)
        first.intersection_update(ready)

    @rule()
    def forget(self) -> None:
        self.work.ask("forget")


class DueFilterMachine(DueMachine, FilterMachine):
    """With filters, limits, pauses, and messages that expire while they wait."""


@pytest.mark.slow
@pytest.mark.parametrize("has_filters", [False, True], ids=["plain", "filters"])
def test_what_fell_due_comes_first_whatever_is_called(connect: Connect, has_filters: bool) -> None:
    run_machine(lambda: DueFilterMachine(connect) if has_filters else DueMachine(connect), 20, 30)
