"""What became of messages, and the one table of words for it: functions/ground/outcome.sql."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import psycopg
import pytest

from calling import call, fetch, new_names, refused
from engine import Engine
from trunq.arrow import history

ANSWERS = {
    "ack": "success",
    "retry": "failed",
    "time_out": "timed_out",
    "reject": "rejected",
    "release": "released",
    "park": "parked",
}


@pytest.fixture
def work(session: psycopg.Connection[Any]) -> Engine:
    made = Engine(session, next(new_names("outcome"))).create(unique="replace", retention="2000 days")
    made.ask("subscribe", subscription="default", lease_time="1 minute", max_age="2000 days")
    return made


def replace(work: Engine, count: int) -> list[int]:
    """Messages of one key. The next lease replaces all but the last."""
    return [work.call("publish_unique", unique_key="k")[0].id for _ in range(count)]


def end_in_every_way(work: Engine) -> dict[str, int]:
    """A message for each outcome, by it; the lease that handed them out is over."""
    ids = dict(zip([*ANSWERS.values(), "lease_expired", "cancelled"], work.publish(8), strict=True))
    (ids["expired"],) = work.publish(options={"expires_at": "2020-01-01T00:00:00Z"})
    ids["replaced"], newest = replace(work, 2)
    work.ask("cancel", ids=[ids["cancelled"]])
    ids["outdated"] = work.fetch(
        "insert into {log} (payload, created_at) values ('1', now() - interval '2001 days') returning id"
    )
    held = work.lease(20)
    assert held.ids == [*(ids[outcome] for outcome in ANSWERS.values()), ids["lease_expired"], newest]
    for verb, outcome in ANSWERS.items():
        later = {"delays": ["1000 days"]} if verb in ("retry", "release", "park") else {}
        if verb == "park":
            later["tokens"] = ["t"]
        work.answer(verb, held, [ids[outcome]], **later)
    work.ack(held, [newest])
    with work.clock("1 hour"):
        work.ask("reap")
    return ids


def history_of(work: Engine) -> list[dict[str, Any]]:
    """All that a taker of the queue takes."""
    slice, _ = history.plan(lambda: nullcontext(work.connection), work.queue, "lake", {}, 1000)
    assert slice is not None
    batches = history.read(lambda: nullcontext(work.connection), work.queue, slice)
    return [row for batch in batches for row in batch.to_pylist()]


def test_an_outcome_has_one_word_wherever_it_is_told(work: Engine) -> None:
    work.ask("create_archive")
    work.ask("create_taker", taker="lake")
    ids = end_in_every_way(work)
    assert {*ids} == {row.outcome for row in call(work.connection, "_outcomes")}
    expected = {id: outcome for outcome, id in ids.items()}
    assert {id: work.message(id).attempts[0]["outcome"] for id in expected} == expected
    work.ask("archive")
    kept = dict(work.run("select id, outcome from trunq_archive.{queue}").fetchall())
    taken = {row["id"]: row["outcome"] for row in history_of(work)}
    assert kept == taken == {**expected, **dict.fromkeys({*kept} - {*expected}, "success")}
    with work.clock("2 hours"):
        while work.ask("roll_up"):
            pass
        counted = {row.outcome: row.messages for row in work.call("statistics", last="1 day")}
    assert counted == {**dict.fromkeys(ids, 1), "success": 2}


def test_an_archive_keeps_what_was_replaced_and_its_queue_can_be_dropped(work: Engine) -> None:
    work.ask("create_archive")
    ids = replace(work, 3)
    work.ack(work.lease(10))
    assert [row.error for row in call(work.connection, "perform_duty", duty="archive", queue=work.queue)] == [
        None
    ]
    work.ask("drop_queue", force=True)
    rows = work.connection.execute(
        f"select id, outcome, error from trunq_archive.{work.queue} order by id".encode()
    ).fetchall()
    assert rows == [
        *((id, "replaced", f"replaced by message {ids[-1]}") for id in ids[:-1]),
        (ids[-1], "success", None),
    ]


def test_an_outcome_that_nobody_knows_is_refused_by_its_letter(session: psycopg.Connection[Any]) -> None:
    assert fetch(session, "select trunq._outcome(null)") is None
    for letter in ("q", "b"):
        with refused("XX001", f'ended with "{letter}"', "trunq db upgrade"):
            fetch(session, 'select trunq._outcome(u.l::"char") from unnest(array[%s]) u(l)', letter)


def test_messages_in_every_state_are_listed(work: Engine) -> None:
    ids = replace(work, 3)
    (dead,) = work.publish()
    held = work.lease(2)
    work.answer("reject", held, [dead])
    work.ask("purge")
    found = {row.state: work.listed(state=row.state) for row in call(work.connection, "_states")}
    assert {state: ids for state, ids in found.items() if ids} == {
        "leased": ids[2:], "replaced": ids[1::-1], "purged": [dead],
    }  # fmt: skip
    assert work.listed(state="replaced", limit=1, before=ids[1]) == ids[:1]
    with refused("TQ005", 'no state "gone"', "done, outdated, dead, replaced or purged"):
        work.listed(state="gone")
