"""Backfills in shares: how a range is cut, and what is asked for when."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from calling import ask, call, refused

Connection = psycopg.Connection[Any]

UPSERT = {
    "source": {"format": "table", "table": "a"},
    "sink": {"format": "table", "table": "b", "mode": "upsert", "key": ["id"], "newest": "at"},
}
YEAR = {"column": "day", "from": "2030-01-01", "to": "2031-01-01"}


@pytest.mark.parametrize(
    ("bounds", "every", "cut"),
    [
        (
            ("2030-01-31", "2030-05-01"),
            "1 month",
            ["2030-01-31", "2030-02-28", "2030-03-31", "2030-04-30", "2030-05-01"],
        ),
        (("2030-01-01", "2030-01-04"), "P2D", ["2030-01-01", "2030-01-03", "2030-01-04"]),
        (("2030-01-01", "2030-01-02"), "12h", ["2030-01-01", "2030-01-01 12:00:00.000000", "2030-01-02"]),
        (
            ("2030-03-30T00:00+01:00", "2030-04-01T00:00+02:00"),
            "1 day",
            ["2030-03-30T00:00+01:00", "2030-03-30T23:00:00.000000Z", "2030-04-01T00:00+02:00"],
        ),
        (("1", "10"), "4", ["1", "5", "9", "10"]),
        (("-0.5", "0.5"), "0.5", ["-0.5", "0.0", "0.5"]),
        (("2030-01-01", "2030-01-02"), "1 year", ["2030-01-01", "2030-01-02"]),
    ],
)
def test_a_range_is_cut_from_its_beginning_and_what_is_left_is_the_last_share(
    session: Connection, bounds: tuple[str, str], every: str, cut: list[str]
) -> None:
    row = session.execute("select trunq._cut_range('it', %s, %s, %s)", (*bounds, every)).fetchone()
    assert row is not None
    assert row[0] == cut


@pytest.mark.parametrize(
    ("change", "arguments", "sqlstate", "words"),
    [
        ({}, {"range": {**YEAR, "to": "2030-01-01"}}, "TQ031", "nothing from 2030-01-01 to 2030-01-01"),
        ({}, {"range": {**YEAR, "to": "soon"}}, "TQ031", "cannot be cut into shares"),
        ({}, {"range": {**YEAR, "to": "infinity"}}, "TQ031", "neither is infinite"),
        ({}, {"every": "often"}, "TQ031", "cannot be cut into shares"),
        ({}, {"every": "7"}, "TQ031", "a share of 7 is not a length of time"),
        ({}, {"every": "1 second"}, "TQ031", "more than 10000 shares"),
        ({}, {"every": "0 days"}, "TQ031", "more than 10000 shares"),
        ({}, {"every": "-1 day"}, "TQ031", "more than 10000 shares"),
        ({}, {"range": {"path": "x"}}, "TQ031", "has from and to, as texts"),
        ({}, {"at_once": 0}, "TQ005", "at_once is 0"),
        ({}, {"at_once": 33}, "TQ005", "at_once is 33"),
        ({}, {"every": None, "at_once": 2}, "TQ005", "at_once is for a range in shares"),
        ({"source": {"format": "csv", "path": "x"}}, {}, "TQ031", "reads from csv: its ranges cannot be cut"),
        ({"sink": {"format": "table", "table": "b"}}, {}, "TQ031", "would be there twice"),
    ],
)  # fmt: skip
def test_a_range_that_cannot_be_cut_is_refused(
    connection: Connection, change: dict[str, Any], arguments: dict[str, Any], sqlstate: str, words: str
) -> None:
    ask(connection, "create_pipeline", pipeline="p", definition={**UPSERT, **change})
    with refused(sqlstate, words):
        ask(connection, "backfill_pipeline", pipeline="p", **{"range": YEAR, "every": "1 month", **arguments})


def asked(connection: Connection) -> list[str]:
    """Where the ranges begin that are asked for, in order."""
    query = "select payload->>'from' from trunq_log.pipelines where headers ? 'backfill' order by id"
    return [first for (first,) in connection.execute(query).fetchall()]


def finish(connection: Connection, pipeline: str, number: int, outcome: str = "done") -> None:
    """The run of a share, as if a runner had done it."""
    share = next(row for row in call(connection, "list_shares", pipeline=pipeline) if row.share == number)
    assert share.state == "running"
    if outcome == "failed":
        assert ask(connection, "_fail_share", pipeline=pipeline, message_id=share.message_id, error="no, why")
        return
    opened = ask(
        connection,
        "_open_run",
        pipeline=pipeline,
        message_id=share.message_id,
        payload=share.range,
        backfill=True,
    )
    begun = ask(
        connection, "_begin_run", pipeline=pipeline, message_id=share.message_id, slice={}, backfill=True,
        snapshot=opened["snapshot"], done=0,
    )  # fmt: skip
    attempt = 0
    if outcome == "done":
        attempt = ask(connection, "_try_run", run_id=begun["run_id"])
        connection.execute("select trunq._stage_run(%s, '{}', 3, 3, 0)", (attempt,))
    ask(connection, "_finish_run", run_id=begun["run_id"], attempt=attempt)


def begun(connection: Connection, **more: Any) -> int:
    ask(connection, "create_pipeline", pipeline="p", definition=UPSERT)
    id: int = ask(connection, "backfill_pipeline", pipeline="p", range=YEAR, every="3 months", **more)
    return id


def test_a_share_is_asked_for_when_the_one_before_has_ended(connection: Connection) -> None:
    id = begun(connection)
    assert asked(connection) == ["2030-01-01"]
    for number, shares in enumerate((2, 3, 4, 4), 1):
        finish(connection, "p", number)
        assert len(asked(connection)) == shares
    (row,) = call(connection, "list_backfills", pipeline="p")
    assert (row.backfill, row.shares, row.done, row.running, row.outcome) == (id, 4, 4, 0, "done")
    assert [(each.state, each.rows_out) for each in call(connection, "list_shares", pipeline="p")] == [
        ("done", 3)
    ] * 4
    (state,) = call(connection, "list_pipelines")
    assert (state.runs, state.state) == (0, {})


def test_so_many_shares_as_are_wanted_are_under_way_at_once(connection: Connection) -> None:
    begun(connection, at_once=2)
    assert len(asked(connection)) == 2
    finish(connection, "p", 2)
    assert len(asked(connection)) == 3
    (row,) = call(connection, "list_backfills")
    assert (row.done, row.running, row.outcome) == (1, 2, None)
    assert row.remaining is not None


def test_a_share_that_fails_is_left_out_and_named_and_runs_again(connection: Connection) -> None:
    id = begun(connection)
    for number, outcome in ((1, "done"), (2, "failed"), (3, "done"), (4, "done")):
        finish(connection, "p", number, outcome)
    (row,) = call(connection, "list_backfills")
    assert (row.done, row.failed, row.outcome, row.error) == (3, 1, "failed", "no, why")
    (warning,) = [each for each in call(connection, "list_warnings") if "backfill" in each.warning]
    assert "3 of 4 shares are done: share 2 (2030-04-01 to 2030-07-01): no, why" in warning.warning
    assert f"trunq pipeline shares p {id} --rerun" in warning.hint
    assert ask(connection, "rerun_shares", pipeline="p", backfill=id) == 1
    assert asked(connection)[-1] == "2030-04-01"
    finish(connection, "p", 2)
    (row,) = call(connection, "list_backfills")
    assert (row.done, row.failed, row.outcome, row.error) == (4, 0, "done", None)
    assert not [each for each in call(connection, "list_warnings") if "backfill" in each.warning]
    # One that was done, too.
    assert ask(connection, "rerun_shares", pipeline="p", share=3) == 1
    with refused("TQ031", "share 3", "is under way", "trunq pipeline cancel p --backfill"):
        ask(connection, "rerun_shares", pipeline="p", share=3)
    finish(connection, "p", 3)
    assert call(connection, "list_backfills")[0].outcome == "done"


def test_three_shares_that_fail_in_a_row_stop_a_backfill(connection: Connection) -> None:
    id = begun(connection)
    for number in (1, 2, 3):
        finish(connection, "p", number, "failed")
    assert len(asked(connection)) == 3
    (row,) = call(connection, "list_backfills")
    assert (row.done, row.failed, row.running, row.outcome) == (0, 3, 0, "failed")
    assert ask(connection, "rerun_shares", pipeline="p") == 4
    finish(connection, "p", 1)
    assert asked(connection)[-1] == "2030-04-01"
    # Left so, it is warned of no more.
    for number in (2, 3, 4):
        finish(connection, "p", number, "failed")
    assert ask(connection, "cancel_pipeline", pipeline="p", backfill=id)
    assert call(connection, "list_backfills")[0].outcome == "cancelled"
    assert not [each for each in call(connection, "list_warnings") if "backfill" in each.warning]


def test_cancelled_a_backfill_asks_for_no_more_shares(connection: Connection) -> None:
    id = begun(connection, at_once=2)
    finish(connection, "p", 1)
    first = call(connection, "list_shares", pipeline="p")[1].message_id
    opened = ask(connection, "_open_run", pipeline="p", message_id=first, payload=YEAR, backfill=True)
    ask(
        connection, "_begin_run", pipeline="p", message_id=first, slice={}, backfill=True,
        snapshot=opened["snapshot"], done=0, hold_for="0 s",
    )  # fmt: skip
    assert ask(connection, "cancel_pipeline", pipeline="p", backfill=id)
    assert not ask(connection, "cancel_pipeline", pipeline="p", backfill=id)
    (row,) = call(connection, "list_backfills")
    assert (row.done, row.cancelled, row.running, row.outcome) == (1, 2, 0, "cancelled")
    states = [each.state for each in call(connection, "list_shares", pipeline="p")]
    assert states == ["done", "cancelled", "cancelled", "cancelled"]
    assert len(asked(connection)) == 3
    # Its message finds nothing to do any more.
    waiting = call(connection, "list_shares", pipeline="p")[2].message_id
    assert ask(connection, "_open_run", pipeline="p", message_id=waiting, backfill=True)["action"] == "answer"


def test_one_share_is_cancelled_and_the_next_begins(connection: Connection) -> None:
    begun(connection)
    finish(connection, "p", 1)
    finish(connection, "p", 2, "cancelled")
    for number in (3, 4):
        finish(connection, "p", number)
    (row,) = call(connection, "list_backfills")
    assert (row.done, row.cancelled, row.outcome) == (3, 1, "cancelled")


def test_a_pipeline_that_appends_by_now_is_filled_no_further(connection: Connection) -> None:
    begun(connection)
    ask(
        connection,
        "create_pipeline",
        pipeline="p",
        definition={**UPSERT, "sink": {"format": "table", "table": "b"}},
    )
    with refused("TQ031", "would be there twice"):
        finish(connection, "p", 1)
    finish(connection, "p", 1, "failed")
    assert asked(connection) == ["2030-01-01"]
    (row,) = call(connection, "list_backfills")
    assert row.outcome == "failed"
    assert "would be there twice" in row.error
    with refused("TQ031", "would be there twice"):
        ask(connection, "rerun_shares", pipeline="p")


def test_a_share_whose_message_is_gone_is_named_and_runs_again(connection: Connection) -> None:
    id = begun(connection)
    ask(connection, "cancel", queue="pipelines", ids=[id])
    assert call(connection, "lease", queue="pipelines", subscription="default", worker="w") == []
    connection.execute("update trunq.pipeline_share set asked_at = asked_at - interval '1 hour'")
    (warning,) = [each for each in call(connection, "list_warnings") if "gone, or dead" in each.warning]
    assert warning.warning.startswith(f'share 1 of backfill {id} of pipeline "p"')
    assert ask(connection, "rerun_shares", pipeline="p") == 4
    finish(connection, "p", 1)
    assert len(asked(connection)) == 3


def test_where_the_queue_has_priorities_shares_come_behind_the_usual_runs(connection: Connection) -> None:
    ask(connection, "create_queue", queue="pipelines", lanes="priority")
    begun(connection)
    ask(connection, "run_pipeline", pipeline="p")
    query = "select priority from trunq_log.pipelines order by id"
    assert connection.execute(query).fetchall() == [(1,), (0,)]


def test_what_there_is_not_is_refused(connection: Connection) -> None:
    ask(connection, "create_pipeline", pipeline="p", definition=UPSERT)
    for function in ("list_shares", "rerun_shares"):
        with refused("TQ031", "has no backfill", "trunq.list_backfills"):
            call(connection, function, pipeline="p")
        with refused("TQ030", '"nothing"'):
            call(connection, function, pipeline="nothing")
    with refused("TQ030", '"nothing"'):
        call(connection, "list_backfills", pipeline="nothing")
    begun(connection)
    with refused("TQ031", "has no share 9", "1 to 4"):
        call(connection, "rerun_shares", pipeline="p", share=9)
    assert connection.execute("select trunq._fail_share('p', 0, 'x')").fetchone() == (False,)
    connection.execute("select trunq.backfill_pipeline('p', %s)", (Jsonb(YEAR),))


def test_a_share_that_was_cancelled_while_it_was_planned_begins_no_run(connection: Connection) -> None:
    begun(connection)
    share = call(connection, "list_shares", pipeline="p")[0]
    asks = {"pipeline": "p", "message_id": share.message_id, "payload": share.range, "backfill": True}
    opened = ask(connection, "_open_run", **asks)
    assert opened["action"] == "plan"
    assert ask(connection, "cancel_pipeline", pipeline="p", backfill=share.message_id)
    assert ask(connection, "_begin_run", **asks, slice={}, snapshot=opened["snapshot"], done=0) is None
    assert ask(connection, "_open_run", **asks)["run"]["outcome"] == "cancelled"


@pytest.mark.parametrize("mode", ["append", "replace", "apply"])
def test_no_header_of_a_message_brings_a_range_that_its_sink_does_not_take(
    connection: Connection, mode: str
) -> None:
    definition = {**UPSERT, "sink": {"format": "table", "table": "b", "mode": mode}}
    ask(connection, "create_pipeline", pipeline="p", definition=definition)
    message = ask(
        connection, "publish", queue="pipelines", payload=YEAR, kind="p", headers={"backfill": True}
    )
    with refused("TQ031", 'pipeline "p"'):
        ask(connection, "_open_run", pipeline="p", message_id=message, payload=YEAR, backfill=True)


def test_no_header_of_a_message_sends_older_rows_to_a_sink_that_applies_changes(
    connection: Connection,
) -> None:
    definition = {**UPSERT, "sink": {"format": "table", "table": "b", "mode": "apply"}}
    ask(connection, "create_pipeline", pipeline="p", definition=definition)
    with refused("TQ031", "applies changes"):
        ask(connection, "_find_quarantined", pipeline="p")


def test_shares_push_no_usual_run_out_of_the_thousand_that_stay(connection: Connection) -> None:
    """What was brought last, the limit of a rate, and what is still to be settled, are read from these."""
    ask(connection, "create_pipeline", pipeline="p", definition=UPSERT)
    connection.execute(
        "insert into trunq.pipeline_run (pipeline_id, backfill, number, message_id, chain, slice, snapshot,"
        " begun_at, ended_at, outcome, is_settled)"
        " select p.pipeline_id, case when g > 2 then g else 0 end, case when g > 2 then 1 else g end, -g,"
        " gen_random_uuid(), '{}', pg_current_snapshot(), now(), now(),"
        " case g when 1 then 'done' else 'cancelled' end, g <> 2"
        " from trunq.pipeline p, generate_series(1, 1005) g"
    )
    id = ask(connection, "backfill_pipeline", pipeline="p", range=YEAR)
    opened = ask(connection, "_open_run", pipeline="p", message_id=id, payload=YEAR, backfill=True)
    begun = ask(
        connection, "_begin_run", pipeline="p", message_id=id, slice={"range": YEAR}, done=0, backfill=True,
        snapshot=opened["snapshot"], plan_hash=opened["plan_hash"],
    )  # fmt: skip
    ask(connection, "_finish_run", run_id=begun["run_id"], attempt=0)
    counted = "select count(*) filter (where backfill = 0), count(*) from trunq.pipeline_run"
    assert connection.execute(counted).fetchone() == (2, 1002)
    (row,) = call(connection, "list_pipelines")
    assert row.fresh_at is not None
