"""A fleet on a queue with unique keys, and the judge of who held them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from chaos.fleet import Fleet
from trunq.embedded import Embedded
from waiting import wait_until

KEYS = [f"key {n}" for n in range(30)]
KINDS = ["outside", "once", "once_sync"]

DONE = "select unnest(ids) from trunq_data.q_receipt where outcome = 'a'"


class KeyedFleet(Fleet):
    """A fleet whose publisher asks for the same thing again and again: one message of each key a round."""

    def __init__(self, server: Embedded, folder: Path, unique: str) -> None:
        super().__init__(server, folder, unique=unique)
        self.unique = unique
        self.rounds = 0
        self.newest: dict[str, int] = {}
        self.refused = 0

    def publish(self, count: int) -> None:
        """Publish so many rounds, and see that each key was free of its former message, or held by it."""
        for _ in range(count):
            self.rounds += 1
            kinds = [KINDS[(n + self.rounds) % len(KINDS)] for n in range(len(KEYS))]
            with self.connect() as connection:
                rows = connection.execute(
                    "select id, is_new"
                    " from trunq.publish_many_unique('q', array_fill('{}'::jsonb, array[%s::int]), %s, %s)",
                    (len(KEYS), KEYS, kinds),
                ).fetchall()
                done = {id for (id,) in connection.execute(DONE)}
            for key, kind, (id, is_new) in zip(KEYS, kinds, rows, strict=True):
                former = self.newest.get(key)
                if not is_new:
                    self.refused += 1
                    assert id == former, f"{key}: {id} is said to hold it, {former} was the last"
                    continue
                if former is not None and self.unique == "refuse":
                    assert former in done, f"{key}: {id} took it from {former}"
                self.newest[key] = id
                self.ids.setdefault(kind, []).append(id)

    def press(self, handled: int) -> None:
        """Publish round after round until so many were handled, and go while messages wait and run."""
        while (before := self.handled()) < handled:
            self.publish(1)
            wait_until(lambda before=before: self.handled() > before, 120, "work goes on")  # type: ignore[misc]
        self.publish(1)

    def feed(self) -> None:
        self.publish(1)

    def check_keys(self) -> None:
        """No key is held by a message that is over; that of the newest message was not lost."""
        assert self.unique == "replace" or self.refused > 0, "nobody was refused"
        before = dict(self.newest)
        self.publish(1)
        assert all(self.newest[key] != before[key] for key in KEYS)

    def check_replaced(self) -> None:
        """The newest message of each key is done. Of the others, those are replaced that had no effect."""
        with self.connect() as connection:
            states = dict(connection.execute("select id, state from trunq_queue.q_messages").fetchall())
            written = Counter(id for (id,) in connection.execute("select id from effect"))
        assert set(states) == {id for ids in self.ids.values() for id in ids}
        assert set(states.values()) == {"done", "replaced"}
        assert {states[id] for id in self.newest.values()} == {"done"}
        outside = {id for id, _ in self.outside_effects()}
        for kind, ids in self.ids.items():
            for id in ids:
                if kind == "outside":
                    assert states[id] == "replaced" or id in outside
                else:
                    assert written[id] == (states[id] == "done"), (id, kind, states[id])
