"""Streams of a queue that holds only so much: what one loses is told, and nothing else is lost."""

from __future__ import annotations

import os
from typing import Any, ClassVar

import pytest

from calling import refused
from conftest import Connect
from model.machine import run_machine
from model.test_streams import RETENTION, StreamsMachine, met

EXAMPLES = int(os.environ.get("TRUNQ_TEST_EXAMPLES", "2"))


class LosingMachine(StreamsMachine):
    OPTIONS: ClassVar[dict[str, Any]] = {"hold_at_most": RETENTION}
    ACTIONS: ClassVar = {**StreamsMachine.ACTIONS, "stand_still": 3, "do_duties": 3}

    def stand_still(self) -> None:
        """Nobody reads for a while, and the leader goes on."""
        for _ in range(3):
            self.put(2, self.chance.choice("ab"))
            if self.chance.random() < 0.7:
                self.tick()
            self.move_time(70)
        self.do_duties()

    def do_duties(self) -> None:
        # The worker keeps up, and no window is begun: parts that lie behind a tick are a test of their own.
        self.work_it_off()
        self.finish_windows()
        super().do_duties()
        self.note_losses()

    def work_it_off(self) -> None:
        for _ in range(1000):
            self.work.ask("reap")
            self.work.ask("promote")
            if not self.work.status().ready:
                return
            self.lease(100)

    def finish_windows(self) -> None:
        self.move_time(25)
        for name, stream in self.streams.items():
            while stream.rest is not None:
                assert self.take(name, "ada", cut=False)
                self.end(name, "finish", 1)

    def note_losses(self) -> None:
        self.note_ticks()
        losses = [loss for loss in self.work.call("list_losses") if loss.accepted_at is None]
        for name, stream in self.streams.items():
            mine = [loss for loss in losses if loss.subscription == name]
            to = self.work.ask("position", subscription=name)
            gone = {id for id in self.ticks[to] - self.ticks[stream.position] if self.is_for(name, id)}
            untold = sum(loss.messages for loss in mine) - len(gone)
            assert 0 <= untold <= len(stream.retried), "what is lost is told, and perhaps retries beside it"
            if mine:
                assert (mine[0].from_tick_id, mine[-1].to_tick_id) == (stream.position, to)
                with refused("TQ026", "accept_loss"):
                    self.work.call("next_batch", subscription=name, worker="ada")
                assert self.work.ask("accept_loss", subscription=name) == len(mine)
                self.move(name, to)
                met["lost"] += 1
            # Otherwise its filter passes nothing of what went.
            stream.position = to


@pytest.mark.slow
def test_what_streams_lose_is_told_and_nothing_else_is_lost(connect: Connect) -> None:
    met.clear()
    run_machine(lambda: LosingMachine(connect), EXAMPLES, 60)
    assert met["lost"] > EXAMPLES, met
