"""The part of a walk (model/walk.py) in which messages wait for the outside."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from calling import Lease
from engine import Engine
from model.matrix import Fate, Reader


class Parking:
    """Messages that are parked under tokens, and resumed."""

    work: Engine
    readers: dict[str, Reader]
    tokens: dict[str, Fate]
    chance: random.Random
    now: int

    if TYPE_CHECKING:

        def lease(self, **more: Any) -> Lease | None: ...

    def park(self) -> None:
        if held := self.lease(lease_time="1 day"):
            tokens = [f"{held.subscription} {id} {self.now}" for id in held.ids]
            more = {"tokens": tokens, "delays": ["10 years"] * len(tokens)}
            assert self.work.answer("park", held, **more) == len(held.ids)
            for token, id in zip(tokens, held.ids, strict=True):
                fate = self.readers[held.subscription].fates[id]
                fate.end("park")
                # A token of before is of no use once its message is parked again.
                self.tokens = {old: other for old, other in self.tokens.items() if other is not fate}
                self.tokens[token] = fate

    def resume(self) -> None:
        if self.tokens:
            token = self.chance.choice(sorted(self.tokens))
            fate = self.tokens.pop(token)
            did = self.work.ask("resume", token=token, value={"by": token})
            assert did == ("resumed" if fate.may_be == ("parked",) else "noted"), f"{did}: {fate}"
            if did == "resumed":
                fate.resume()
