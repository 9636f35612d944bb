"""Leases that ask for a part of a subscription, among everything else that may happen to a queue."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import rule

from conftest import Connect
from model.machine import run_machine
from model.test_ahead import AheadOfFilterMachine
from model.test_filtered import KINDS
from model.test_queue import some, subscriptions, workers

ASKS: tuple[dict[str, Any], ...] = (
    {"kinds": ["a"]},
    {"kinds": ["a", "b"]},
    {"not_kinds": ["a"]},
    {"kinds": ["z"]},
)


def asked(asks: dict[str, Any], kind: str) -> bool:
    return kind in asks.get("kinds", KINDS) and kind not in asks.get("not_kinds", ())


class AskMachine(AheadOfFilterMachine):
    """With overlapping asks, leases of everything between them, filters, limits, expiry and leases by id."""

    asks: dict[str, Any] | None = None

    def eligible(self, subscription: str) -> dict[int, int]:
        found = super().eligible(subscription)
        return {
            id: attempt
            for id, attempt in found.items()
            if self.asks is None or asked(self.asks, self.kinds[id])
        }

    @rule(subscription=subscriptions, worker=workers, count=some, asks=st.sampled_from(ASKS))
    def lease_asked(self, subscription: str, worker: str, count: int, asks: dict[str, Any]) -> None:
        held = self.work.lease(count, subscription=subscription, worker=worker, asks=asks)
        assert all(asked(asks, self.kinds[id]) for id in held.ids)
        self.asks = asks
        try:
            self.took(held, worker)
        finally:
            self.asks = None


@pytest.mark.slow
def test_whatever_leases_ask_for_each_message_is_handed_out_once(connect: Connect) -> None:
    run_machine(lambda: AskMachine(connect), 25, 30)
