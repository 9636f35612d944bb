"""A group with whole batches against its model: each window once, whoever dies, leaves or comes late."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from calling import move_clock, new_names, refused
from conftest import Connect
from engine import Engine
from model.machine import run_machine

GROUP = {"group": "crew"}
STREAM = {"subscription": "crew"}
MEMBERS = ("ada", "bob", "cat")
LEASE_TIME = 50

members = st.sampled_from(MEMBERS)


@dataclass
class Window:
    """What lies between two ticks; `member` None: nobody has it."""

    first: int
    last: int
    id: int
    token: int
    member: str | None
    expires_at: int


@dataclass
class Model:
    frontier: int
    newest: int
    windows: list[Window] = field(default_factory=list)
    late: list[Window] = field(default_factory=list)
    finished: list[tuple[int, int]] = field(default_factory=list)

    @property
    def position(self) -> int:
        return min((each.first for each in self.windows), default=self.frontier)


class GroupMachine(RuleBasedStateMachine):
    def __init__(self, connect: Connect) -> None:
        super().__init__()
        self.work = Engine(connect(), next(new_names("group"))).create(
            retention="2000 days", default_subscription=False
        )
        self.work.ask("create_group", **GROUP)
        self.work.ask("subscribe", **STREAM, mode="exclusive", lease_time=f"{LEASE_TIME} s", max_attempts=0)
        self.sought: int = self.work.ask("position", **STREAM)
        self.model = Model(self.sought, self.sought)
        self.messages: dict[int, list[int]] = {}
        self.now = 0

    @rule(count=st.integers(1, 3))
    def publish(self, count: int) -> None:
        ids = self.work.publish(count)
        tick = self.work.ask("tick", force=True)
        assert tick == self.model.newest + 1
        self.model.newest = tick
        self.messages[tick] = ids

    def free(self, window: Window) -> bool:
        return window.member is None or window.expires_at <= self.now

    @rule(member=members, most=st.integers(1, 2))
    def next_batch(self, member: str, most: int) -> None:
        model = self.model
        rows = self.work.call("next_batch", **STREAM, worker=member, max_ticks=most, cut=False)
        mine = [each for each in model.windows if each.member == member and not self.free(each)]
        free = sorted((each for each in model.windows if self.free(each)), key=lambda each: each.first)
        if not mine and not free and model.frontier == model.newest:
            assert rows == []
            return
        (row,) = rows
        if mine or free:
            (window, *_) = mine or free
            if not mine:
                window.expires_at = self.now + LEASE_TIME
            if window.member is not None:
                model.late.append(Window(**vars(window)))
        else:
            last = min(model.frontier + most, model.newest)
            window = Window(model.frontier, last, 0, 0, member, self.now + LEASE_TIME)
            model.windows.append(window)
            model.frontier = last
        assert (row.from_tick_id, row.to_tick_id) == (window.first, window.last)
        window.id, window.token, window.member = row.batch_id, row.token, member
        read = self.work.call("read_batch", **STREAM, batch_id=row.batch_id)
        assert [each.id for each in read] == [
            id for tick in range(window.first + 1, window.last + 1) for id in self.messages.get(tick, ())
        ]

    @rule(member=members)
    def finish(self, member: str) -> None:
        for window in [each for each in self.model.windows if each.member == member]:
            assert self.work.ask("finish_batch", **STREAM, batch_id=window.id, token=window.token) is True
            self.model.windows.remove(window)
            self.model.finished.append((window.first, window.last))

    @rule()
    def finish_late(self) -> None:
        for window in self.model.late[-2:]:
            with refused("TQ003"):
                self.work.ask("finish_batch", **STREAM, batch_id=window.id, token=window.token)

    @rule(member=members)
    def fail(self, member: str) -> None:
        for window in [each for each in self.model.windows if each.member == member][:1]:
            self.work.ask("fail_batch", **STREAM, batch_id=window.id, token=window.token, after="0")
            self.model.late.append(Window(**vars(window)))
            window.member = None

    @rule(member=members, finishes=st.booleans())
    def leave(self, member: str, finishes: bool) -> None:
        held = [each for each in self.model.windows if each.member == member]
        if held:
            with refused("TQ027"):
                self.work.ask("leave_group", **GROUP, member=member)
        self.work.ask("leave_group", **GROUP, member=member, batch="finish" if finishes else "give_back")
        for window in held:
            if finishes:
                self.model.windows.remove(window)
                self.model.finished.append((window.first, window.last))
            else:
                self.model.late.append(Window(**vars(window)))
                window.member = None

    @rule()
    def move_time(self) -> None:
        self.now += LEASE_TIME
        move_clock(self.work.connection, f"{self.now} s")

    @rule(turns=st.integers(3, 5))
    def rotate(self, turns: int) -> None:
        self.work.rotate(f"{turns * 1000} days")

    @rule(back=st.integers(0, 2))
    def seek(self, back: int) -> None:
        ticks = [row.tick_id for row in self.work.call("list_ticks") if row.reachable]
        tick = ticks[max(0, len(ticks) - 1 - back)]
        self.work.ask("seek", **STREAM, tick_id=tick)
        model = self.model
        model.late = [Window(**vars(each)) for each in model.windows if each.member]
        model.windows, model.finished, model.frontier = [], [], tick
        self.sought = tick

    @invariant()
    def it_stands_where_the_model_does(self) -> None:
        assert self.work.ask("position", **STREAM) == self.model.position
        (group,) = self.work.call("list_groups")
        assert group.batches == len(self.model.windows)
        done = {tick for first, last in self.model.finished for tick in range(first + 1, last + 1)}
        assert group.pending == sum(
            len(ids) for tick, ids in self.messages.items() if tick > self.sought and tick not in done
        )

    def teardown(self) -> None:
        self.move_time()
        while self.model.position < self.model.newest:
            self.next_batch("ada", 2)
            self.finish("ada")
        finished = [tick for first, last in self.model.finished for tick in range(first + 1, last + 1)]
        assert sorted(finished) == list(range(self.sought + 1, self.model.newest + 1)), "each once"
        self.work.ask("drop_queue", force=True)
        self.work.connection.close()


@pytest.mark.slow
def test_a_group_does_what_its_model_does(connect: Connect) -> None:
    run_machine(lambda: GroupMachine(connect), 12, 40)
