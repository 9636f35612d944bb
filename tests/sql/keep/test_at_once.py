"""An archive that answers write themselves: each attempt once, whenever that is turned on or off."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from calling import call, new_names, refused
from engine import Engine
from laning import EVERY_QUEUE, make_any
from streaming import LAKE, named, take

Connection = psycopg.Connection[Any]


@pytest.fixture(params=EVERY_QUEUE)
def work(session: Connection, request: pytest.FixtureRequest) -> Engine:
    work = make_any(session, request.param)
    assert work.ask("create_archive", at_once=True) is True
    return work


def rows(work: Engine, columns: str = "id, attempt, outcome") -> list[Any]:
    """What stands in the archive now, without any duty."""
    return work.run(
        f"select {columns} from trunq_archive.{{queue}} order by finished_at, lease_id, id, attempt"
    ).fetchall()


def catch_up(work: Engine) -> None:
    while work.ask("archive"):
        pass


def triggers(work: Engine) -> int:
    return int(
        work.fetch(
            "select count(*) from pg_trigger where tgname = 'archive'"
            " and tgrelid = 'trunq_data.{queue}_receipt'::regclass"
        )
    )


def test_a_row_is_there_with_its_answer_and_goes_with_it(work: Engine) -> None:
    (id,) = work.publish(kinds=["mail"], keys=["anna"], headers=[{"trace": "1"}], options={"max_attempts": 3})
    held = work.lease(worker="w7")
    with work.connection.transaction(force_rollback=True):
        work.ack(held)
        assert len(rows(work)) == 1
    assert rows(work) == []
    work.ack(held, took=[0.5])
    ((*row,),) = rows(
        work,
        "id, subscription, attempt, outcome, error, worker, took, kind, key, payload, headers, options,"
        " published_at <= leased_at and leased_at <= finished_at, extra",
    )
    assert row == [
        id, "default", 1, "success", None, "w7", 0.5,
        "mail", "anna", {"n": 0}, {"trace": "1"}, {"max_attempts": 3}, True, None,
    ]  # fmt: skip
    before = rows(work, "*")
    catch_up(work)
    assert rows(work, "*") == before


def test_it_is_the_row_that_the_leader_would_have_written(work: Engine) -> None:
    work.ask("subscribe", subscription="default", keep_results=True)
    work.publish(3, kinds=["mail"])
    held = work.lease(3)
    work.ack(held, results=[{"n": n} for n in range(3)], took=[0.1, None, 0.3])
    work.publish(2)
    work.answer("reject", work.lease(2), errors=["a", "b"])
    at_once = rows(work, "*")
    work.ask("drop_archive")
    assert work.ask("create_archive") is True
    catch_up(work)
    assert rows(work, "*") == at_once


def test_each_way_an_attempt_ends_is_there_at_once(work: Engine) -> None:
    done, again, wrong, back, gone = work.publish(5)
    (late,) = work.publish(max_age="1 hour")
    held = work.lease(5)
    work.ack(held, [done])
    work.answer("retry", held, [again], errors=["busy"], delays=["10 days"])
    work.answer("reject", held, [wrong], errors=["wrong"])
    work.answer("release", held, [back], delays=["10 days"])
    work.ask("cancel", ids=[gone])
    with work.clock("1 day"):
        work.ask("reap")
        work.lease(9)
    assert dict(rows(work, "id, outcome")) == {
        done: "success",
        again: "failed",
        wrong: "rejected",
        back: "released",
        gone: "lease_expired",
        late: "expired",
    }
    before = rows(work)
    catch_up(work)
    assert rows(work) == before


def test_many_answered_in_parts_have_a_row_each(work: Engine) -> None:
    ids = work.publish(100)
    while held := work.lease(100):
        work.ack(held, held.ids[::2])
        work.answer("time_out", held, held.ids[1::2], errors=["slow"] * len(held.ids[1::2]), max_attempts=1)
    assert sorted(row[0] for row in rows(work)) == ids
    catch_up(work)
    assert sorted(row[0] for row in rows(work)) == ids


def test_the_first_answer_alone_has_a_row(work: Engine) -> None:
    (id,) = work.publish()
    held = work.lease()
    assert [work.ack(held), work.answer("reject", held)] == [1, 0]
    assert rows(work, "id, outcome") == [(id, "success")]


def test_turned_on_and_off_and_on_again_each_attempt_is_there_once(session: Connection) -> None:
    work = Engine(session, next(new_names("turned"))).create()
    ids = work.publish(12)
    half = work.lease(4)
    work.ack(half, ids[:1])
    assert work.ask("create_archive", at_once=True) is True
    assert triggers(work) == 1
    assert rows(work, "id") == [], "what was over before is for the leader"
    work.ack(half, ids[1:2])
    work.ack(work.lease(2))
    assert rows(work, "id") == [(id,) for id in (ids[1], *ids[4:6])]
    assert work.ask("create_archive", at_once=False) is False
    assert triggers(work) == 0
    work.ack(half, ids[2:3])
    work.ack(work.lease(2))
    assert work.ask("create_archive", archive_for="1000 days", at_once=True) is False
    work.ack(half, ids[3:4])
    work.ack(work.lease(4))
    catch_up(work)
    assert sorted(row[0] for row in rows(work)) == ids
    work.ask("create_archive", archive_for="0")
    assert triggers(work) == 1, "it stays as it was said"


def test_it_is_listed_and_a_plain_one_has_no_trigger(session: Connection) -> None:
    plain, quick = (Engine(session, next(new_names("listed"))).create() for _ in range(2))
    plain.ask("create_archive")
    quick.ask("create_archive", at_once=True)
    listed = {row.queue: row.at_once for row in call(session, "list_archives")}
    assert (listed[plain.queue], listed[quick.queue]) == (False, True)
    assert (triggers(plain), triggers(quick)) == (0, 1)
    quick.ask("drop_archive")
    assert triggers(quick) == 0
    quick.publish()
    assert quick.ack(quick.lease()) == 1


def test_a_month_that_nobody_made_is_made_by_its_first_answer(work: Engine) -> None:
    for day in ("0 days", "45 days", "90 days"):
        work.publish()
        with work.clock(day):
            work.ack(work.lease())
    assert len(rows(work)) == 3
    catch_up(work)
    assert len(rows(work)) == 3


def test_the_leader_makes_the_month_that_comes(work: Engine) -> None:
    months = set()
    for day in range(0, 31, 5):
        with work.clock(f"{day} days"):
            work.ask("archive")
        (row,) = (row for row in call(work.connection, "list_archives") if row.queue == work.queue)
        months.add(row.last_month)
    assert len(months) >= 2


def test_an_answer_never_fails_for_a_month_that_was_taken_away(work: Engine) -> None:
    work.publish(2)
    work.ack(work.lease())
    (part,) = work.run(
        "select i.inhrelid::regclass::text from pg_inherits i"
        " where i.inhparent = 'trunq_archive.{queue}'::regclass order by 1 limit 1"
    ).fetchone()
    work.run(f"alter table trunq_archive.{{queue}} detach partition {part}")
    assert work.ack(work.lease()) == 1
    work.run(f"drop table {part}")
    catch_up(work)
    assert len(rows(work)) == 2, "the leader writes what an answer had to leave"
    work.run("drop table trunq_archive.{queue}")
    work.publish()
    assert work.ack(work.lease()) == 1


def test_a_queue_that_is_dropped_leaves_its_archive_and_nothing_else(work: Engine) -> None:
    ids = work.publish(3)
    held = work.lease(2)
    work.ack(held, held.ids[:1])
    number = work.queue_id
    work.ask("drop_queue", force=True)
    left = f"select array_agg(id), to_regproc('trunq_data.archive_{number}') from trunq_archive.{work.queue}"
    assert work.connection.execute(left.encode()).fetchone() == (ids[:1], None)
    work.create()
    assert work.ask("create_archive", at_once=True) is True
    work.publish()
    work.ack(work.lease())
    assert len(rows(work)) == 2
    work.ask("drop_archive")


def test_a_stream_has_no_attempts(session: Connection) -> None:
    work = Engine(session, next(new_names("at_once"))).create(default_subscription=False)
    work.ask("create_archive", at_once=True)
    work.ask("subscribe", **LAKE, mode="exclusive")
    work.publish(3)
    batch = take(work)
    assert work.ask("retry_batch", **named(batch)) == 3
    assert work.ask("finish_batch", **named(batch))
    assert rows(work) == []


def test_columns_of_the_user_come_along(work: Engine) -> None:
    work.run("alter table {log} add column region text")
    work.run("insert into {log} (payload, region) values ('{{}}', 'north')")
    work.ack(work.lease())
    assert rows(work, "extra->>'region'") == [("north",)]


def test_what_was_deleted_is_not_kept_by_an_answer(work: Engine) -> None:
    (id,) = work.publish()
    held = work.lease()
    work.ask("delete", ids=[id])
    work.ack(held)
    assert rows(work, "id, payload") == [(id, None)]
    with refused("TQ005"):
        work.ask("create_archive", archive_for="-1 day", at_once=True)


def test_a_worker_gets_no_right_on_it(work: Engine) -> None:
    role = f"hand_of_{work.queue}"
    work.run(f"create role {role}")
    try:
        work.ask("grant_role", role="worker", grantee=role)
        (id,) = work.publish()
        work.run(f"set role {role}")
        held = work.lease()
        assert work.ack(held) == 1
        for statement in (
            "select from trunq_archive.{queue}",
            "insert into trunq_archive.{queue} (id) values (1)",
            f"select trunq._make_month('{work.queue}', '2001-01-01')",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                work.run(statement)
        work.run("reset role")
        assert rows(work) == [(id, 1, "success")]
    finally:
        work.run("reset role")
        work.run(f"drop owned by {role}; drop role {role}")
