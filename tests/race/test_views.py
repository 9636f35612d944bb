"""What a list says of messages that move while it reads."""

from __future__ import annotations

import threading
from collections import Counter

import psycopg

from calling import answer, ask, call, lease, publish
from conftest import Connect

Connection = psycopg.Connection[tuple[object, ...]]


def test_a_message_that_is_retried_over_and_over_is_never_shown_as_dead(
    session: Connection, open_session: Connect, queue: str
) -> None:
    """A list finds rows by one statement and tells what became of them by the next."""
    ask(session, "subscribe", queue=queue, subscription="default", max_attempts=0)
    (id,) = publish(session, queue)
    worker, is_over, retried = open_session(), threading.Event(), []

    def retry() -> None:
        while not is_over.is_set():
            if held := lease(worker, queue):
                retried.append(answer(worker, "retry", held, delays=["0"]))

    thread = threading.Thread(target=retry)
    thread.start()
    shown: Counter[str] = Counter()
    try:
        while len(retried) < 200 or sum(shown.values()) < 20:
            shown.update(row.state for row in call(session, "list_messages", queue=queue) if row.id == id)
    finally:
        is_over.set()
        thread.join()
    assert set(shown) <= {"ready", "leased"}
