"""The part of a walk (model/walk.py) that leads out of its queue: into a second one, or nowhere."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from calling import Lease, new_names
from engine import Engine
from model.matrix import Reader


class Forwarding:
    """A second queue, into which messages go on, and from which they return."""

    work: Engine
    held: list[Lease]
    readers: dict[str, Reader]
    deleted: set[int]
    published: list[int]
    chance: random.Random
    beyond: Engine | None = None
    away: dict[int, tuple[str, int]]

    if TYPE_CHECKING:

        def take(self) -> None: ...

    def start_forward(self) -> None:
        self.beyond = Engine(self.work.connection, next(new_names("beyond"))).create()
        self.away = {}

    def forward(self) -> None:
        """Messages go on into the other queue, and are done here."""
        if self.beyond is None:
            return
        if not self.held:
            self.take()
        if self.held:
            held = self.held.pop()
            there = self.work.ask(
                "forward",
                subscription=held.subscription,
                lease_id=held.lease_id,
                token=held.token,
                ids=held.ids,
                into=self.beyond.queue,
            )
            for id, other in zip(held.ids, there, strict=True):
                fate = self.readers[held.subscription].fates[id]
                assert (other is None) == fate.is_cancelled
                fate.forward()
                if other is not None:
                    self.away[other] = (held.subscription, id)

    def come_back(self) -> None:
        """They fail there, and return as retries; what was cancelled meanwhile does not run again."""
        if self.beyond is None:
            return
        held = self.beyond.lease(100)
        if held:
            self.beyond.answer("retry", held, delays=["1 second"] * len(held.ids))
            given = {"subscription": "default", "into": self.work.queue}
            assert self.beyond.ask("forward_retries", **given) == len(held.ids)
        for other in held.ids:
            name, id = self.away.pop(other)
            reader = self.readers[name]
            fate = reader.fates.setdefault(id, reader.gone.pop(id)) if id in reader.gone else reader.fates[id]
            fate.come_back(is_deleted=id in self.deleted)

    def aside(self) -> dict[str, set[int]]:
        """What is set aside: it has no lease that would find it."""
        rows = self.work.run(
            "select s.name, d.id from trunq.delayed d join trunq.subscription s using (subscription_id)"
            " where d.queue_id = {id} and d.aside is not null"
        ).fetchall()
        return {name: {id for of, id in rows if of == name} for name in self.readers}

    def delete(self) -> None:
        ids, aside = self.chance.choices(self.published, k=2), self.aside()
        assert self.work.ask("delete", ids=ids) <= 2
        self.deleted.update(ids)
        for name, reader in self.readers.items():
            reader.delete(ids, aside[name])
