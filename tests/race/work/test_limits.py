"""A running limit, with many workers at once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from calling import answer, ask, lease, new_names, publish
from conftest import Connect

WORKERS = 8
MESSAGES = 200
LIMIT = 3


class Running:
    """How many messages run, counted between their lease and their answer."""

    def __init__(self) -> None:
        self.now = self.most = self.done = 0
        self._one = threading.Lock()

    def change(self, by: int) -> None:
        with self._one:
            self.now += by
            self.most = max(self.most, self.now)
            self.done += max(0, -by)


@pytest.mark.parametrize("lanes", [None, "key"])
@pytest.mark.parametrize("count", [1, 2, 10])
def test_no_more_run_than_may_whoever_leases(
    session: psycopg.Connection[Any], open_session: Connect, lanes: str | None, count: int
) -> None:
    queue = next(new_names("limited"))
    ask(session, "create_queue", queue=queue, lanes=lanes)
    publish(session, queue, MESSAGES, keys=list("abcde") * (MESSAGES // 5))
    ask(session, "subscribe", queue=queue, subscription="default", max_running=LIMIT)
    running = Running()

    def work(own: psycopg.Connection[Any], verbs: list[str]) -> None:
        while running.done < MESSAGES:
            if held := lease(own, queue, count):
                running.change(len(held.ids))
                # Long enough for others to lease meanwhile.
                own.execute("select count(*) from generate_series(1, 30000)")
                # Half of it at a time: a lease that is partly answered counts as far as it is not.
                for ids in (held.ids[::2], held.ids[1::2]):
                    running.change(-len(ids))
                    answer(own, verbs[running.done % len(verbs)], held, ids)

    with ThreadPoolExecutor(WORKERS) as threads:
        for future in [threads.submit(work, open_session(), ["ack", "reject"]) for _ in range(WORKERS)]:
            future.result()
    assert 1 < running.most <= LIMIT
    assert running.done == MESSAGES
