"""What falls due: promotion, ticks, all duties at once: functions/log/delayed.sql, tick.sql, leader.sql."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Any

import psycopg
import pytest

from calling import call, come_back, new_names, refused
from conftest import Connect
from engine import Engine


@pytest.fixture
def work(session: psycopg.Connection[Any]) -> Engine:
    return Engine(session, next(new_names("duty"))).create()


def test_messages_are_promoted_as_they_fall_due(work: Engine) -> None:
    ids = [work.publish(delay=f"{minutes} minutes")[0] for minutes in (3, 1, 2)]
    assert work.ask("promote") == 0
    for minutes, id in ((1, ids[1]), (2, ids[2]), (3, ids[0])):
        with work.clock(f"{minutes} minutes 1 second"):
            assert work.ask("promote") == 1
        assert work.drain() == [id]


def test_a_promotion_in_parts_misses_nothing(work: Engine) -> None:
    ids = work.publish(50, delay="1 minute")
    with work.clock("2 minutes"):
        assert [work.ask("promote", max=20) for _ in range(4)] == [20, 20, 10, 0]
    assert work.drain() == ids


def test_messages_due_at_one_moment_are_promoted_in_parts_too(work: Engine) -> None:
    ids = work.publish(50, due_at="2300-01-01")
    with work.clock("300 years"):
        assert [work.ask("promote", max=20) for _ in range(4)] == [20, 20, 10, 0]
    assert work.drain() == ids


def test_what_committed_late_is_found_within_a_minute(work: Engine, open_session: Connect) -> None:
    late = work.on(open_session(autocommit=False))
    (id,) = late.publish(delay="1 second")
    with work.clock("10 seconds"):
        assert work.ask("promote") == 0
    late.connection.commit()
    with work.clock("30 seconds"):
        assert work.ask("promote") == 0, "it lies behind the mark"
    with work.clock("71 seconds"):
        assert work.ask("promote") == 1
    assert work.drain() == [id]


def test_what_committed_a_little_late_is_found_at_once(work: Engine, open_session: Connect) -> None:
    late = work.on(open_session(autocommit=False))
    (id,) = late.publish(delay="1 second")
    with work.clock("4 seconds"):
        assert work.ask("promote") == 0
    late.connection.commit()
    with work.clock("5 seconds"):
        assert work.ask("promote") == 1
    assert work.drain() == [id]


@pytest.mark.parametrize("delay", [{"delay": "0"}, {"due_at": "2001-01-01"}])
def test_a_time_that_is_over_means_now(work: Engine, delay: dict[str, str]) -> None:
    assert work.ask("promote") == 0
    (id,) = work.publish(**delay)
    assert work.ask("promote") == 1
    assert work.drain() == [id]


def test_a_clock_that_went_back_promotes_what_is_due_again(work: Engine) -> None:
    with work.clock("1 day"):
        assert work.ask("promote") == 0
    (id,) = work.publish(delay="1 second")
    with work.clock("2 seconds"):
        assert work.ask("promote") == 1
    assert work.drain() == [id]


def test_a_queue_with_little_new_is_ticked_after_the_lag(work: Engine) -> None:
    work.publish()
    assert work.ask("tick") is None
    with work.clock("2 seconds"):
        assert work.ask("tick") is None
    with work.clock("4 seconds"):
        assert work.ask("tick") == 2
        assert work.ask("tick") is None


def test_a_queue_with_much_new_is_ticked_at_once(session: psycopg.Connection[Any]) -> None:
    work = Engine(session, next(new_names("duty"))).create(tick_max_count=100)
    work.publish(50)
    assert work.ask("tick") is None
    work.publish(100)
    assert work.ask("tick") == 2
    assert work.ask("tick") is None


def test_an_idle_queue_is_ticked_ever_less_often(work: Engine) -> None:
    ticked, begun = [], time.monotonic()
    work.ask("set_queue", tick_idle_period="1 min")
    for second in range(400):
        with work.clock(f"{second} seconds"):
            if work.ask("tick"):
                ticked.append(second)
    gaps = [after - before for before, after in pairwise(ticked)]
    # The clock goes on by itself, too, on a busy machine for seconds.
    went = 1 + int(time.monotonic() - begun)
    assert 60 - went <= gaps[-1] <= 61
    assert all(later >= earlier - went for earlier, later in pairwise(gaps))
    assert len(ticked) < 15


def test_ids_a_session_had_in_stock_do_not_hide_a_message(work: Engine) -> None:
    work.ask("set_queue", tick_idle_period="1 min")
    work.publish()
    for second in (4, 13, 35):
        with work.clock(f"{second} seconds"):
            assert work.ask("tick")
    (id,) = work.publish()
    assert work.fetch("select last_value from trunq_data.{queue}_message_id") > id
    with work.clock("37 seconds"):
        assert work.ask("tick") is None
    with work.clock("39 seconds"):
        assert work.ask("tick") == 5, "by now an idle queue would wait longer, a message does not"


def test_a_forced_tick_is_always_cut(work: Engine) -> None:
    assert [work.ask("tick", force=True) for _ in range(3)] == [2, 3, 4]
    assert [tick.tick_id for tick in work.call("list_ticks")] == [1, 2, 3, 4]
    assert [tick.tick_id for tick in work.call("list_ticks", **{"from": 2, "to": 3})] == [2, 3]


def test_all_duties_are_done_in_one_call(connection: psycopg.Connection[Any]) -> None:
    work = Engine(connection, "work").create()
    work.publish(delay="1 second")
    work.publish()
    work.lease()
    with work.clock("2 minutes"):
        rows = call(work.connection, "perform_duties")
    done = {row.duty: row.done for row in rows}
    assert done.pop("roll_up") in (1, 2), "minutes"
    assert {duty for duty, number in done.items() if number} == {"promote", "reap", "tick", "sample"}
    assert set(done) == {"promote", "reap", "tick", "forget", "summarize", "archive", "rotate"} | {
        "fire",
        "remind",
        "sweep",
        "sample",
        "forget_memos",
        "forget_audit",
    }
    assert len(work.drain()) == 2


def test_one_call_empties_one_segment(connection: psycopg.Connection[Any]) -> None:
    """Its lock lasts to the end of the call: another's segment must not wait for it."""
    queues = [Engine(connection, name).create(retention="2000 days") for name in ("one", "two", "three")]
    for queue in queues:
        queue.publish()
        queue.drain()
    with queues[0].clock("3000 days"):
        for _ in range(4 * len(queues)):
            assert sum(row.done for row in call(connection, "perform_duties") if row.duty == "rotate") == 1
        assert all(queue.is_empty("log") and queue.is_empty("receipt") for queue in queues)


@pytest.fixture
def failing(connection: psycopg.Connection[Any]) -> Engine:
    """The second of three queues with a lease that ran out; its log refuses the messages that come back."""
    for name in ("one", "three", "two"):
        queue = Engine(connection, name).create()
        queue.publish(2)
        queue.lease(2)
    connection.execute(
        "create function refuse() returns trigger language plpgsql as"
        " $$ begin raise 'the log is full'; end $$"
    )
    connection.execute(
        "create trigger refuse before insert on trunq.delayed for each row when (new.queue_id = "
        f"{queue.queue_id}) execute function refuse()"
    )
    return queue


def failures(connection: psycopg.Connection[Any]) -> list[Any]:
    return connection.execute("select duty, queue, error from trunq.duty_failure").fetchall()


def test_a_lease_that_cannot_be_ended_leaves_the_others_their_turn(failing: Engine) -> None:
    failing.run("drop trigger refuse on trunq.delayed")
    failing.rewrite("delete from {log}")
    failing.publish(4)
    held = [failing.lease(2, worker="a"), failing.lease(2, worker="b")]
    failing.run(
        "create trigger refuse before insert on trunq.delayed for each row when"
        f" (new.id = {held[0].ids[0]}) execute function refuse()"
    )
    with failing.clock("2 minutes"):
        # The first lease of the queue holds nothing any more: what is gone is gone.
        assert failing.ask("reap") == 2
        assert failing.ask("reap") == 0
    with failing.clock("4 minutes"):
        failing.run("drop trigger refuse on trunq.delayed")
        assert failing.ask("reap") == 1
    come_back(failing.connection, failing.queue)
    assert sorted(failing.drain()) == sorted(held[0].ids + held[1].ids)


def test_a_duty_that_fails_stops_no_other(failing: Engine) -> None:
    connection = failing.connection
    connection.execute(
        "create or replace function trunq.tick(p_queue text, p_force boolean default false)"
        " returns bigint"
        " language plpgsql as $$ begin"
        " if p_queue = 'three' then raise 'no tick today'; end if; return 1; end $$"
    )
    rows = call(connection, "perform_duties")
    assert [(row.duty, row.queue) for row in rows if row.error] == [("tick", "three")]
    assert [row.error for row in rows if row.error] == ["no tick today"]
    assert len([row for row in rows if row.duty == "tick" and row.done == 1]) == 2
    assert failures(connection) == [("tick", "three", "no tick today")]
    connection.execute(
        "create or replace function trunq.tick(p_queue text, p_force boolean default false)"
        " returns bigint"
        " language sql as 'select 1::bigint'"
    )
    call(connection, "perform_duties")
    assert failures(connection) == []


def test_a_duty_that_runs_into_a_time_out_stops_no_other(failing: Engine) -> None:
    connection = failing.connection
    connection.execute(
        "create or replace function trunq.promote(p_queue text, p_max integer default 1000)"
        " returns integer"
        " language plpgsql as $$ begin"
        " if p_queue = 'one' then perform pg_sleep(100); end if; return 7; end $$"
    )
    connection.execute("set statement_timeout = '300ms'")
    rows = call(connection, "perform_duties")
    assert [(row.duty, row.queue) for row in rows if row.error] == [("promote", "one")]
    assert len([row for row in rows if row.done == 7]) == 2
    assert [row[:2] for row in failures(connection)] == [("promote", "one")]


def test_somebody_who_cancels_is_heard(failing: Engine, connect: Connect) -> None:
    connection = failing.connection
    connection.execute(
        "create or replace function trunq.promote(p_queue text, p_max integer default 1000)"
        " returns integer"
        " language plpgsql as $$ begin"
        " perform pg_cancel_backend(pg_backend_pid()), pg_sleep(9); return 1; end $$"
    )
    with pytest.raises(psycopg.errors.QueryCanceled):
        call(connection, "perform_duties")


def test_there_is_no_duty_of_that_name(connection: psycopg.Connection[Any]) -> None:
    for duty, queue in (("drop_queue", "work"), ("reap", None), (None, None)):
        with refused("TQ005", "list_duties"):
            call(connection, "perform_duty", duty=duty, queue=queue)


def test_the_duty_of_a_queue_that_was_dropped_is_done(connection: psycopg.Connection[Any]) -> None:
    connection.execute("insert into trunq.duty_failure values ('reap', 'gone', now(), 'no such thing')")
    assert call(connection, "perform_duty", duty="reap", queue="gone") == [("reap", "gone", 0, None)]
    assert failures(connection) == []


def test_each_duty_commits(failing: Engine) -> None:
    connection = failing.connection
    for queue in ("one", "three"):
        Engine(connection, queue).publish(3000, delay="0")
    connection.execute("drop trigger refuse on trunq.delayed")
    connection.execute("create table seen (locks bigint, xid xid8)")
    connection.execute(
        "create function note() returns trigger language plpgsql as $$ begin"
        " insert into public.seen select count(*), pg_current_xact_id()"
        " from pg_locks where pid = pg_backend_pid(); return new; end $$"
    )
    connection.execute(
        "create trigger note after insert or update on trunq.mark for each row execute function note()"
    )
    connection.execute("set trunq.clock_offset = '2 minutes'")
    connection.execute("call trunq.perform_each_duty()")
    assert failures(connection) == []
    assert Engine(connection, "one").status().delayed <= 2
    assert Engine(connection, "one").status().ready >= 3000
    seen = connection.execute("select count(distinct xid), max(locks) from seen").fetchone()
    assert seen is not None
    assert seen[0] >= 6
    assert seen[1] < 150


def test_only_what_is_new_is_summarized(work: Engine) -> None:
    work.run("insert into {log} (payload) select to_jsonb(repeat('x', 500)) from generate_series(1, 2000)")
    first = work.ask("summarize")
    assert first > 0
    assert work.ask("summarize") == 0
    work.run("insert into {log} (payload) select to_jsonb(repeat('x', 500)) from generate_series(1, 2000)")
    assert 0 < work.ask("summarize") <= first + 1
    unsummarized = "select sum(brin_summarize_new_values(i.indexrelid)) from pg_index i join pg_class c on"
    unsummarized += " c.oid = i.indexrelid join pg_am a on a.oid = c.relam where a.amname = 'brin'"
    unsummarized += " and c.relkind = 'i' and i.indrelid::regclass::text like 'trunq_data.{queue}%'"
    # The range that messages come into: a summary would change with each.
    assert work.fetch(unsummarized) == 1


def test_a_message_changes_no_summary(work: Engine) -> None:
    def least_bytes() -> int:
        """Of a message, with its lease and ack; whatever else the server writes meanwhile."""
        found = []
        for _ in range(9):
            before = work.fetch("select pg_current_wal_insert_lsn()")
            work.publish()
            work.ack(work.lease())
            found.append(
                work.fetch("select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), %s)::integer", before)
            )
        return min(found)

    work.run("insert into {log} (payload) select to_jsonb(repeat('x', 500)) from generate_series(1, 2000)")
    assert len(work.drain()) == 2000
    new = least_bytes()
    assert work.ask("summarize") > 0
    assert least_bytes() <= new + 16
    assert new < 1200


def test_a_segment_that_was_emptied_is_summarized_anew(work: Engine) -> None:
    for _ in range(2):
        work.run(
            "insert into {log} (payload) select to_jsonb(repeat('x', 500)) from generate_series(1, 4000)"
        )
        assert work.ask("summarize") > 5
        work.run("truncate {log}")
        assert work.ask("summarize") == 0


def test_a_leader_elected_under_a_clock_that_was_ahead_is_not_waited_for(
    connection: psycopg.Connection[Any],
) -> None:
    with Engine(connection, "").clock("1 hour"):
        assert call(connection, "elect", name="ahead") == [(1,)]
        assert call(connection, "elect", name="other") == [(None,)]
    assert call(connection, "elect", name="other") == [(2,)]
    assert call(connection, "elect", name="ahead") == [(None,)]
    assert call(connection, "resign", name="ahead", term=1) == [(False,)]


def test_a_clock_that_went_back_a_little_changes_no_leader(connection: psycopg.Connection[Any]) -> None:
    with Engine(connection, "").clock("10 seconds"):
        assert call(connection, "elect", name="one") == [(1,)]
    assert call(connection, "elect", name="other") == [(None,)]
    assert call(connection, "elect", name="one") == [(1,)]


def test_a_long_election_is_believed(connection: psycopg.Connection[Any]) -> None:
    assert call(connection, "elect", name="one", lease_time="1 day") == [(1,)]
    assert call(connection, "elect", name="other") == [(None,)]
    with refused("TQ005", "positive"):
        call(connection, "elect", name="one", lease_time="0")


def test_a_duty_that_was_not_done_for_long_is_a_warning_that_says_where_to_look(
    connection: psycopg.Connection[Any],
) -> None:
    connection.execute("select trunq.create_queue('work'), trunq.create_queue('other')")
    note = "select trunq._note_duties(array['rotate', 'promote', 'fire'], array['work', 'other', ''], %s)"
    connection.execute(note, ([600, 61, 30],))
    assert call(connection, "list_warnings") == [], "nobody leads, which trunq.status says"
    connection.execute("select trunq.elect('me', '1 hour')")
    warnings = call(connection, "list_warnings")
    assert [(row.queue, row.warning.partition(" was last done at ")[0]) for row in warnings] == [
        ("other", 'duty promote of queue "other"'),
        ("work", 'duty rotate of queue "work"'),
    ]
    assert warnings[1].warning.endswith(", 00:10:00 ago")
    assert [row.queue for row in call(connection, "list_warnings", queue="work")] == ["work"]
    connection.execute(warnings[0].hint.partition(": ")[2])
    connection.execute("insert into trunq.duty_failure values ('rotate', 'work', now(), 'why')")
    assert [row.warning.partition(" at ")[0] for row in call(connection, "list_warnings", queue="work")] == [
        "duty rotate failed"
    ]
    connection.execute(note, ([6, 6, 6],))
    connection.execute("delete from trunq.duty_failure")
    assert call(connection, "list_warnings") == []


def test_calls_of_pg_cron_note_what_was_done_now_and_then(connection: psycopg.Connection[Any]) -> None:
    Engine(connection, "work").create()
    noted = "select duty, queue, xmin::text from trunq.duty_done order by duty"
    connection.execute("call trunq.perform_each_duty()")
    first = connection.execute(noted).fetchall()
    assert {duty for duty, _, _ in first} == {row.duty for row in call(connection, "list_duties")}
    assert {queue for _, queue, _ in first} == {""}
    connection.execute("call trunq.perform_each_duty()")
    assert connection.execute(noted).fetchall() == first
    connection.execute("update trunq.duty_done set done_at = done_at - interval '11 seconds'")
    connection.execute("call trunq.perform_each_duty()")
    assert all(later != before for later, before in zip(connection.execute(noted), first, strict=True))


def test_who_leads_when_each_duty_was_done_and_which_failed_is_listed(
    connection: psycopg.Connection[Any],
) -> None:
    Engine(connection, "work").create()
    duties = [row.duty for row in call(connection, "list_duties")]
    never = call(connection, "list_performed")
    assert [(row.duty, row.done_at, row.leader, row.term) for row in never] == [
        (duty, None, None, None) for duty in duties
    ]
    connection.execute("call trunq.perform_each_duty()")
    connection.execute("select trunq.elect('vm-7')")
    connection.execute("insert into trunq.duty_failure values ('rotate', 'work', now(), 'why')")
    rows = {row.duty: row for row in call(connection, "list_performed")}
    assert {(row.leader, row.term, row.done_at is None) for row in rows.values()} == {("vm-7", 1, False)}
    assert [(row.duty, row.queue, row.error) for row in rows.values() if row.failed_at] == [
        ("rotate", "work", "why")
    ]
