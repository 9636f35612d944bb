"""What a list says of messages that move while it reads."""

from __future__ import annotations

import re
import threading
from collections import Counter

import psycopg
import pytest

from calling import answer, ask, call, lease, publish
from conftest import Connect
from waiting import wait_until_blocked

Connection = psycopg.Connection[tuple[object, ...]]


def test_a_message_that_is_retried_over_and_over_is_never_shown_as_dead(
    session: Connection, open_session: Connect, queue: str
) -> None:
    """A list finds rows by one statement and tells what became of them by others."""
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


@pytest.mark.parametrize("brief", [False, True])
def test_a_message_that_falls_due_while_a_list_reads_is_listed_where_it_was(
    session: Connection, open_session: Connect, queue: str, brief: bool
) -> None:
    """It has looked at what is delayed, and waits for a table, when the message goes to the log."""
    id = ask(session, "publish", queue=queue, payload={"n": 1}, delay="1 hour")
    reader, gate, states = open_session(), open_session(), []
    call(reader, "list_messages", queue=queue)

    def read() -> None:
        states.extend(
            row.state for row in call(reader, "list_messages", queue=queue, brief=brief) if row.id == id
        )

    thread = threading.Thread(target=read)
    with gate.transaction():
        gate.execute("lock table trunq.tick in access exclusive mode")
        thread.start()
        wait_until_blocked(session, reader)
        session.execute("update trunq.delayed set due_at = now() where id = %s", (id,))
        assert ask(session, "promote", queue=queue) == 1
    thread.join()
    assert states == ["scheduled"]


def test_all_that_a_look_calls_sees_what_the_look_sees(session: Connection) -> None:
    """What a volatile function reads is a later state than that of the statement which calls it."""
    functions = {
        str(name): (str(source), volatility)
        for name, source, volatility in session.execute(
            "select proname, string_agg(prosrc, ' '), max(provolatile) from pg_proc"
            " where pronamespace = 'trunq'::regnamespace group by 1"
        )
    }
    called, more = set[str](), {"list_messages", "show_message"}
    while more:
        called |= more
        more = {
            found for name in more for found in re.findall(r"trunq\.(_\w+|clock)\(", functions[name][0])
        } - called
        more &= functions.keys()
    assert {"_position", "_first_leases", "_delayed_or_dead"} <= called
    # A sequence knows no snapshots, and the offset of tests' clocks is one of a database that lets it move.
    volatile = {"clock", "_clock_offset", "_fail", "_last_message_id"}
    assert {name for name in called if functions[name][1] == "v"} == volatile
