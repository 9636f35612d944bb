"""Rotation keeps the history of a queue until its takers have it, and hands each attempt out once:
functions/keep/taker.sql."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from calling import come_back, new_names, refused, set_policy
from engine import Engine
from trunq.arrow import history

OLD = "3000 days"
"""Three spans on, with a retention of 2000 days."""


@dataclass
class Taking:
    """A taker of a queue, whose state lies here."""

    work: Engine
    name: str = "lake"
    state: dict[str, Any] = field(default_factory=dict)

    @contextmanager
    def transaction(self) -> Iterator[psycopg.Connection[Any]]:
        yield self.work.connection

    def plan(self, most: int = 1000) -> dict[str, Any] | None:
        """The next slice; the state moves."""
        slice, self.state = history.plan(self.transaction, self.work.queue, self.name, self.state, most)
        return slice

    def read(self, slice: dict[str, Any] | None, **more: Any) -> list[dict[str, Any]]:
        batches = history.read(self.transaction, self.work.queue, slice, **more) if slice else []
        return [row for batch in batches for row in batch.to_pylist()]

    def release(self) -> None:
        history.take(self.transaction, self.work.queue, self.name, self.state)

    def take(self, most: int = 1000, **more: Any) -> list[dict[str, Any]]:
        """A whole run."""
        rows = self.read(self.plan(most), **more)
        self.release()
        return rows

    def ids(self, most: int = 1000) -> list[int]:
        return [row["id"] for row in self.take(most)]

    @property
    def listed(self) -> Any:
        (row,) = self.work.call("list_takers")
        return row


@pytest.fixture
def work(session: psycopg.Connection[Any]) -> Engine:
    return Engine(session, next(new_names("told"))).create(retention="2000 days")


@pytest.fixture
def lake(work: Engine) -> Taking:
    assert work.ask("create_taker", taker="lake") is True
    return Taking(work)


def test_an_attempt_tells_what_happened(work: Engine, lake: Taking) -> None:
    (id,) = work.publish(kinds=["mail"], keys=["anna"], headers=[{"trace": "1"}])
    set_policy(work.connection, work.queue, keep_results=True)
    work.ack(work.lease(worker="w7"), results=[{"sent": True}], took=[0.5])
    (row,) = lake.take(payload=True)
    assert row["published_at"] <= row["leased_at"] <= row["finished_at"]
    assert row["day"] == row["finished_at"].date()
    assert row["waited"] == pytest.approx((row["leased_at"] - row["published_at"]).total_seconds(), abs=1e-6)
    told = {name: row[name] for name in ("id", "queue", "subscription", "kind", "key", "attempt", "outcome")}
    assert told == {
        "id": id, "queue": work.queue, "subscription": "default", "kind": "mail", "key": "anna",
        "attempt": 1, "outcome": "success",
    }  # fmt: skip
    assert (row["worker"], row["took"], row["error"]) == ("w7", 0.5, None)
    assert (row["payload"], row["headers"], row["result"]) == ('{"n": 0}', '{"trace": "1"}', '{"sent": true}')


def test_each_attempt_comes_once_whatever_becomes_of_it(work: Engine, lake: Taking) -> None:
    ids = work.publish(4)
    held = work.lease(4)
    work.ack(held, ids[:1])
    work.answer("retry", held, ids[1:2], errors=["busy\nat line 7"], delays=["0"])
    work.answer("reject", held, ids[2:3], errors=["wrong"])
    assert lake.take() == [], "a part of it is open"
    with work.clock("1 hour"):
        work.ask("reap")
    told = [(row["id"], row["outcome"], row["error"]) for row in lake.take()]
    assert sorted(told) == sorted(
        [
            (ids[0], "success", None),
            (ids[1], "failed", "busy"),
            (ids[2], "rejected", "wrong"),
            (ids[3], "lease_expired", None),
        ]
    )
    come_back(work.connection, work.queue)
    work.drain()
    again = lake.take()
    assert sorted((row["id"], row["attempt"], row["waited"]) for row in again) == [
        (ids[1], 2, None), (ids[3], 2, None),
    ]  # fmt: skip
    assert lake.take() == []


def test_a_lease_that_was_open_comes_when_it_is_over(work: Engine, lake: Taking) -> None:
    ids = work.publish(3)
    first = work.lease()
    work.drain()
    assert lake.ids() == ids[1:]
    assert lake.listed.open == 1
    assert lake.ids() == []
    work.ack(first)
    assert lake.ids() == ids[:1]
    assert lake.listed.open == 0


def test_a_slice_has_the_same_rows_whenever_it_is_read(work: Engine, lake: Taking) -> None:
    ids = work.publish(3)
    open = work.lease()
    work.drain()
    slice = lake.plan()
    before = lake.read(slice)
    work.ack(open)
    work.publish(2)
    work.drain()
    assert work.rotate(OLD) == 0, "until it is written"
    assert lake.read(slice) == before
    assert [row["id"] for row in before] == ids[1:]


def test_slices_are_as_large_as_they_may_be(work: Engine, lake: Taking) -> None:
    ids = work.publish(10)
    while held := work.lease(2):
        work.ack(held)
    assert [lake.ids(4) for _ in range(4)] == [ids[:4], ids[4:8], ids[8:], []]


@pytest.mark.parametrize("table", ["log", "lease"])
def test_rotation_waits_for_a_taker(work: Engine, lake: Taking, table: str) -> None:
    work.publish(3)
    work.drain()
    if table == "lease":
        # Somebody emptied the log by hand: its leases are still to be taken.
        for segment in range(4):
            work.run(f"truncate trunq_data.{{queue}}_log_{segment}")
    assert work.rotate(OLD) == 0
    rows = lake.read(lake.plan())
    assert len(rows) == 3
    assert work.rotate(OLD) == 0, "read, and not written"
    lake.release()
    assert work.rotate(OLD) > 0
    assert work.is_empty("log")


def test_rotation_waits_for_archive_and_takers_all(work: Engine, lake: Taking) -> None:
    work.ask("create_archive")
    other = Taking(work, "other")
    other.plan()
    work.publish(3)
    work.drain()
    lake.take()
    assert work.rotate(OLD) == 0
    work.ask("archive")
    assert work.rotate(OLD) == 0
    assert len(other.take()) == 3
    assert work.rotate(OLD) > 0
    assert work.is_empty("log")


def test_rotation_waits_for_a_subscription_that_a_taker_has_not_begun_with(
    work: Engine, lake: Taking
) -> None:
    work.ask("subscribe", subscription="mail")
    work.publish(2)
    work.drain()
    work.drain("mail")
    lake_of_one = dict(lake.state)
    assert lake_of_one == {}
    assert work.rotate(OLD) == 0
    assert sorted(row["subscription"] for row in lake.take()) == ["default", "default", "mail", "mail"]
    assert work.rotate(OLD) > 0


def test_a_queue_without_one_waits_for_nothing_and_has_the_same_functions(work: Engine) -> None:
    functions = (
        "select string_agg(prosrc, '' order by proname) from pg_proc where proname like '{queue}\\_%%'"
    )
    before = work.fetch(functions)
    work.publish(3)
    work.drain()
    work.ask("create_taker", taker="lake")
    assert work.fetch(functions) == before
    assert work.rotate(OLD) == 0
    work.ask("drop_taker", taker="lake")
    assert work.rotate(OLD) > 0
    assert work.is_empty("log")
    with refused("TQ005", work.queue, "lake"):
        work.ask("drop_taker", taker="lake")


def test_how_far_it_is_behind_is_said_and_warned_of(work: Engine, lake: Taking) -> None:
    assert lake.listed.behind is None
    work.publish(2)
    with work.clock("-2100 days"):
        work.drain()
    assert timedelta(days=2099) < lake.listed.behind < timedelta(days=2101)
    (warned,) = work.call("list_warnings")
    assert "waits for its taker" in warned.warning
    assert f"drop_taker('{work.queue}', 'lake')" in warned.hint
    lake.take()
    assert (lake.listed.behind, work.call("list_warnings")) == (None, [])
    assert lake.listed.taken_at is not None


def test_a_clock_that_went_back_hides_no_attempt(work: Engine, lake: Taking) -> None:
    ids = work.publish(3)
    with work.clock("30 days"):
        work.ack(work.lease())
        assert lake.ids() == ids[:1]
    work.drain()
    assert lake.ids() == ids[1:]


@pytest.mark.parametrize("end", ["unsubscribe", "reset"])
def test_attempts_of_a_subscription_that_ends_come_too(work: Engine, lake: Taking, end: str) -> None:
    work.ask("subscribe", subscription="mail")
    ids = work.publish(3)
    work.ack(work.lease(subscription="mail"))
    held = work.lease(2, subscription="mail")
    work.ack(held, ids[1:2])
    work.ask(end, subscription="mail")
    assert [(row["subscription"], row["id"]) for row in lake.take()] == [("mail", ids[0]), ("mail", ids[1])]
    with refused("TQ003" if end == "reset" else "TQ002"):
        work.ack(held, ids[2:])
    assert lake.take() == []
    readers = 1 if end == "unsubscribe" else 2
    assert work.fetch("select count(*) from trunq.taker_mark where queue_id = {id}") == readers
    lake.take()
    assert len(lake.state) == readers, "the former one is forgotten"


def test_a_queue_made_again_is_another_one(work: Engine, lake: Taking) -> None:
    work.publish(2)
    work.drain()
    slice = lake.plan()
    with refused("TQ009", "still to be taken", "lake"):
        work.ask("drop_queue")
    work.ask("drop_queue", force=True)
    work.create()
    ids = work.publish(3)
    work.drain()
    with refused("TQ031", "was dropped"):
        lake.read(slice)
    assert lake.ids() == ids, "from its beginning"
    work.ask("drop_queue")


def test_a_queue_is_emptied_when_its_history_is_taken(work: Engine, lake: Taking) -> None:
    ids = work.publish(3)
    work.ack(work.lease())
    held = work.lease()
    with refused("TQ009", "still to be taken"):
        work.ask("empty_queue")
    assert lake.ids() == ids[:1]
    work.ask("empty_queue")
    with refused("TQ003"):
        work.ack(held)
    (id,) = work.publish()
    work.drain()
    assert lake.ids() == [id]


def test_a_taker_that_was_dropped_is_made_by_hand_and_goes_on(work: Engine, lake: Taking) -> None:
    ids = work.publish(2)
    work.ack(work.lease())
    assert lake.ids() == ids[:1]
    work.ask("drop_taker", taker="lake")
    with refused("TQ031", "its taker was dropped"):
        lake.plan()
    work.ask("create_taker", taker="lake")
    work.drain()
    assert lake.ids() == ids[1:], "what it has does not come again"


def test_history_that_is_gone_is_missed(work: Engine, lake: Taking) -> None:
    work.publish(2)
    work.drain()
    slice = lake.plan()
    work.ask("drop_taker", taker="lake")
    assert work.rotate(OLD) > 0
    with pytest.raises(ValueError, match="1 of 1 leases"):
        lake.read(slice)


def test_a_state_that_was_set_back_begins_there_again(work: Engine, lake: Taking) -> None:
    ids = work.publish(2)
    work.drain()
    assert lake.ids() == ids
    lake.state = {}
    slice = lake.plan()
    assert work.rotate(OLD) == 0, "it is kept again"
    assert [row["id"] for row in lake.read(slice)] == ids


def test_a_place_ahead_of_the_queue_is_refused(work: Engine, lake: Taking) -> None:
    lake.plan()
    (reader,) = lake.state
    lake.state = {reader: {"lease": 1000, "open": []}}
    with refused("TQ031", "was set back"):
        lake.plan()


def test_what_is_released_late_moves_nothing_back(work: Engine, lake: Taking) -> None:
    work.publish(2)
    work.ack(work.lease())
    lake.plan()
    early = dict(lake.state)
    work.drain()
    lake.take()
    late = Taking(work, state=early)
    late.release()
    assert lake.listed.behind is None
    assert lake.take() == []


def test_lanes_have_a_history_too(session: psycopg.Connection[Any]) -> None:
    work = Engine(session, next(new_names("laned"))).create(lanes="key")
    lake = Taking(work)
    ids = work.publish(4, keys=["a", "b", "a", "b"])
    while held := work.lease(2):
        work.ack(held)
    assert sorted(lake.ids()) == ids


def test_readers_of_batches_have_no_attempts(work: Engine, lake: Taking) -> None:
    work.ask("subscribe", subscription="audit", mode="exclusive")
    work.publish(2)
    work.ask("tick", force=True)
    (batch,) = work.call("next_batch", subscription="audit", worker="r")
    work.ask("finish_batch", subscription="audit", batch_id=batch.batch_id, token=batch.token)
    assert lake.take() == []


def test_a_time_that_is_none_is_left_out(work: Engine, lake: Taking) -> None:
    work.publish()
    held = work.lease()
    work.rewrite("update {log} set created_at = 'infinity'")
    work.ack(held, took=[float("nan")])
    (row,) = lake.take()
    assert (row["published_at"], row["waited"], row["took"]) == (None, None, None)


def test_what_cannot_be_is_refused(work: Engine) -> None:
    with refused("TQ001", "nowhere"):
        Engine(work.connection, "nowhere").ask("create_taker", taker="lake")
    with refused("TQ004", "La ke"):
        work.ask("create_taker", taker="La ke")
    with refused("TQ001", "nowhere"):
        Engine(work.connection, "nowhere").call("list_takers")
