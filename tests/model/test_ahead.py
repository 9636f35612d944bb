"""Leases of given ids among everything else that may happen to a queue: functions/work/ahead.sql."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import rule

from conftest import Connect
from model.machine import run_machine
from model.test_filtered import FilterMachine
from model.test_queue import QueueMachine, subscriptions, workers

chosen = st.lists(st.integers(0, 40), min_size=1, max_size=6)


class AheadMachine(QueueMachine):
    @rule(subscription=subscriptions, worker=workers, at=chosen)
    def lease_ids(self, subscription: str, worker: str, at: list[int]) -> None:
        """Of any messages, also of those that nobody has committed."""
        reader = self.readers[subscription]
        states = reader.states() | dict.fromkeys(self.scheduled, ("scheduled", 1))
        known = sorted({*states, *(id for ids in self.written for id in ids)}, reverse=True)
        if not known:
            return
        ids = list(dict.fromkeys(known[each % len(known)] for each in at))
        free = set(ids) & self.eligible(subscription).keys()
        alone = {id for id in free if reader.expiries.get(id, 0) > 1}
        held, rest = self.work.lease_ids(*ids, subscription=subscription, worker=worker)
        if free - alone:
            self.must_have_taken(set(held.ids), free - alone)
        elif alone:
            assert len(held.ids) == 1
        for id, row in rest.items():
            state, _ = states.get(id, (None, None))
            assert row.state == state
            if state == "leased":
                lease = next(each for each in reader.leases.values() if id in each.open)
                assert row.worker == lease.worker
        if held:
            self.took(held, worker)

    def must_have_taken(self, taken: set[int], free: set[int]) -> None:
        assert taken == free


class AheadOfFilterMachine(AheadMachine, FilterMachine):
    """With filters, limits, pauses, and messages that expire or are cancelled while they wait."""

    def must_have_taken(self, taken: set[int], free: set[int]) -> None:
        assert taken <= free


@pytest.mark.slow
def test_whatever_is_leased_by_id_is_handed_out_once(connect: Connect) -> None:
    run_machine(lambda: AheadMachine(connect), 25, 16)


@pytest.mark.slow
def test_what_is_leased_by_id_keeps_filters_limits_and_pauses(connect: Connect) -> None:
    run_machine(lambda: AheadOfFilterMachine(connect), 12, 16)
