"""When the table of a pipeline is due for compaction, who is at one, and what is noted of it."""

from __future__ import annotations

from typing import Any

import psycopg

from calling import ask, call, move_clock

Connection = psycopg.Connection[Any]

DEFINITION = {"source": {"format": "table", "table": "a"}, "sink": {"format": "delta", "path": "/lake"}}


def made(connection: Connection, runs: int = 0) -> None:
    ask(connection, "create_pipeline", pipeline="p", definition=DEFINITION)
    connection.execute("update trunq.pipeline set done = %s", (runs,))


def test_it_is_due_when_so_many_runs_have_ended_since_the_last(connection: Connection) -> None:
    made(connection, 4)
    assert ask(connection, "_begin_compaction", pipeline="p", after=5) is None
    assert call(connection, "show_compaction", pipeline="p") == []
    connection.execute("update trunq.pipeline set done = 5")
    holder = ask(connection, "_begin_compaction", pipeline="p", after=5)
    assert holder is not None
    ask(
        connection,
        "_end_compaction",
        pipeline="p",
        token=holder,
        files_merged=5,
        files_made=1,
        files_deleted=2,
    )
    (row,) = call(connection, "show_compaction", pipeline="p")
    assert (row.files_merged, row.files_made, row.files_deleted, row.failures, row.error) == (
        5,
        1,
        2,
        0,
        None,
    )
    assert ask(connection, "_begin_compaction", pipeline="p", after=5) is None
    # Whoever asks for it is not told to wait.
    assert ask(connection, "_begin_compaction", pipeline="p") is not None


def test_one_at_a_time_holds_it_and_one_that_died_for_an_hour(connection: Connection) -> None:
    made(connection, 9)
    first = ask(connection, "_begin_compaction", pipeline="p", after=5)
    assert first is not None
    for after in (5, None):
        assert ask(connection, "_begin_compaction", pipeline="p", after=after) is None
    move_clock(connection, "61 minutes")
    second = ask(connection, "_begin_compaction", pipeline="p", after=5)
    assert second not in (None, first)
    # The first one, which was only slow, has nothing to say any more.
    ask(connection, "_end_compaction", pipeline="p", token=first, error="late")
    assert call(connection, "show_compaction", pipeline="p")[0].error is None


def test_one_that_failed_is_tried_later_and_later_and_is_a_warning_from_the_third_on(
    connection: Connection,
) -> None:
    made(connection, 9)
    minutes = 0
    for failures in range(1, 15):
        holder = ask(connection, "_begin_compaction", pipeline="p", after=5)
        assert holder is not None
        ask(connection, "_end_compaction", pipeline="p", token=holder, error="no room\nat all")
        wait = min(2 ** (failures - 1), 1440)
        move_clock(connection, f"{minutes + wait - 0.5} minutes")
        assert ask(connection, "_begin_compaction", pipeline="p", after=5) is None
        minutes += wait
        move_clock(connection, f"{minutes} minutes")
        warned = [row for row in call(connection, "list_warnings") if "compaction" in row.warning]
        assert len(warned) == (failures >= 3)
    assert warned[0].warning == 'compaction of pipeline "p" fails: no room'
    assert warned[0].hint.endswith("trunq pipeline compact p")
    holder = ask(connection, "_begin_compaction", pipeline="p")
    ask(connection, "_end_compaction", pipeline="p", token=holder, files_merged=0)
    assert not [row for row in call(connection, "list_warnings") if "compaction" in row.warning]
