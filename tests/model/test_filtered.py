"""Subscriptions with filters, limits and pauses, and messages that expire, against their model."""

from __future__ import annotations

from itertools import count
from typing import Any, ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from calling import Lease
from conftest import Connect
from engine import Engine
from model.machine import run_machine
from model.test_queue import QueueMachine, some, subscriptions

KINDS = ("a", "b", "c")
FILTERS: dict[str, dict[str, Any]] = {"default": {"not_kinds": ["c"]}, "mail": {"kinds": ["a", "c"]}}
MAX_RUNNING = {"mail": 3}

spans = st.sampled_from([50, 150])


def passes(subscription: str, kind: str) -> bool:
    filter = FILTERS[subscription]
    return kind in filter.get("kinds", KINDS) and kind not in filter.get("not_kinds", ())


class FilterMachine(QueueMachine):
    OPTIONS: ClassVar[dict[str, Any]] = {}

    def __init__(self, connect: Connect) -> None:
        super().__init__(connect)
        self.numbers = count()
        self.kinds: dict[int, str] = {}
        self.paused_until: dict[str, float] = {}
        self.asked = 0
        for subscription, filter in FILTERS.items():
            self.work.ask(
                "subscribe",
                subscription=subscription,
                filter=filter,
                max_running=MAX_RUNNING.get(subscription, 0),
            )

    def put(self, engine: Engine, count: int = 1, **options: Any) -> list[int]:
        kinds = [KINDS[next(self.numbers) * 5 % 7 % 3] for _ in range(count)]
        ids = super().put(engine, count, kinds=kinds, **options)
        self.kinds |= dict(zip(ids, kinds, strict=True))
        return ids

    def arrive(self, ids: list[int]) -> None:
        self.logged |= set(ids)
        for subscription, reader in self.readers.items():
            reader.ready |= {id: 1 for id in ids if passes(subscription, self.kinds[id])}

    @rule(count=some, span=spans)
    def publish_for_a_while(self, count: int, span: int) -> None:
        ids = self.put(self.work, count, max_age=f"{span} s")
        self.arrive(ids)
        for reader in self.readers.values():
            reader.expires |= dict.fromkeys(ids, self.now + span)

    def is_over(self, subscription: str, id: int) -> bool:
        return self.readers[subscription].expires.get(id, self.now + 1) <= self.now

    def is_paused(self, subscription: str) -> bool:
        return self.paused_until.get(subscription, self.now) > self.now

    def room(self, subscription: str) -> int:
        return MAX_RUNNING.get(subscription, 1000) - len(self.readers[subscription].leased())

    def eligible(self, subscription: str) -> dict[int, int]:
        if self.is_paused(subscription) or self.room(subscription) <= 0:
            return {}
        ready = self.readers[subscription].ready
        return {id: attempt for id, attempt in ready.items() if not self.is_over(subscription, id)}

    def took(self, held: Lease, worker: str) -> None:
        assert len(held.ids) <= self.room(held.subscription)
        is_paused = self.is_paused(held.subscription)
        super().took(held, worker)
        reader = self.readers[held.subscription]
        dead = {row.id for row in self.work.call("list_dead", subscription=held.subscription, limit=1000)}
        over = {id for id in reader.ready if self.is_over(held.subscription, id)}
        assert not (is_paused and over & dead)
        for id in over & dead:
            reader.dead[id] = reader.ready.pop(id)
            reader.expiries.pop(id, None)

    @rule(subscription=subscriptions, span=st.sampled_from([50, None]))
    def pause(self, subscription: str, span: int | None) -> None:
        at = None if span is None else self.work.fetch("select trunq.clock() + %s::interval", f"{span} s")
        self.work.ask("pause_subscription", subscription=subscription, **({"until": at} if at else {}))
        self.paused_until[subscription] = float("inf") if span is None else self.now + span

    @precondition(lambda self: self.paused_until)
    @rule(subscription=subscriptions)
    def resume(self, subscription: str) -> None:
        is_paused = self.is_paused(subscription)
        assert self.work.ask("resume_subscription", subscription=subscription) == is_paused
        self.paused_until.pop(subscription, None)

    def free(self) -> None:
        for subscription in FILTERS:
            self.resume(subscription)


class LaneFilterMachine(FilterMachine):
    """The same of a queue whose lanes are the kinds."""

    OPTIONS: ClassVar[dict[str, Any]] = {"lanes": "kind"}


@pytest.mark.slow
@pytest.mark.parametrize("has_lanes", [False, True], ids=["plain", "lanes"])
def test_a_queue_with_filters_limits_and_expiry_does_what_its_model_does(
    connect: Connect, has_lanes: bool
) -> None:
    run_machine(lambda: LaneFilterMachine(connect) if has_lanes else FilterMachine(connect), 12, 30)
