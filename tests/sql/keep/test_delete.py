"""Erasing messages for good, and logs that nobody changes by hand: functions/keep/delete.sql."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from calling import ask, call, drain, fetch, publish, refused
from conftest import Connect
from counting import cost_of
from engine import Engine
from waiting import wait_until_blocked

Connection = psycopg.Connection[Any]

SECRET = "the patient is called Zaphod"

TABLES = """
    select c.oid::regclass::text from pg_class c
    where c.relkind = 'r' and c.relnamespace::regnamespace::text ~ '^(trunq|pgq)' order by 1
"""


KEEP_NOTE = """
    create function keep_note() returns trigger language plpgsql as $$
    begin
      new.note := new.payload->>'name';
      return new;
    end $$
"""


def places(session: Connection) -> set[str]:
    """Every table in which the secret stands, by reading every row of every table."""
    return {
        table
        for (table,) in session.execute(TABLES.encode()).fetchall()
        if fetch(session, f"select count(*) from {table} t where t::text like %s", f"%{SECRET}%")
        # As bytes are shown.
        or fetch(
            session, f"select count(*) from {table} t where t::text like %s", f"%{SECRET.encode().hex()}%"
        )
    }


def confess(session: Connection, queue: str, count: int = 1, **more: Any) -> list[int]:
    """Publish messages with the secret in whatever holds content."""
    return [
        ask(
            session,
            "publish",
            queue=queue,
            payload={"name": SECRET},
            body=SECRET.encode(),
            headers={"of": SECRET},
            **more,
        )
        for _ in range(count)
    ]


@pytest.fixture(params=["plain", "lanes", "unique"])
def work(connect: Connect, request: pytest.FixtureRequest) -> Engine:
    """A queue with an archive, a second reader and a stream."""
    options = {"plain": {}, "lanes": {"lanes": "key"}, "unique": {"unique": "replace"}}[request.param]
    work = Engine(connect(), "work").create(**options)
    work.ask("create_archive")
    work.run("alter table trunq_log.work add column note text")
    work.ask("subscribe", subscription="other")
    work.ask("subscribe", subscription="stream", mode="exclusive")
    return work


def test_nothing_is_left_of_a_message_wherever_its_content_lay(work: Engine) -> None:
    session = work.connection
    session.execute(KEEP_NOTE.encode())
    session.execute(
        "create trigger keep_note before insert on trunq_log.work for each row execute function keep_note()"
    )
    (archived,) = confess(session, "work")
    work.ack(work.lease(), results=[{"is": SECRET}])
    done, dead, retrying, leased, ready, gone = confess(session, "work", 6)
    scheduled = confess(session, "work", delay="1 hour")
    awaited = confess(session, "work", options={"awaited": True})
    held = work.lease(7)
    assert held.ids == [done, dead, retrying, leased, ready, gone, *awaited]
    work.ack(held, [done, gone, *awaited], results=[{"is": SECRET}] * 3)
    work.answer("reject", held, [dead], errors=[SECRET])
    ask(session, "set_progress", **held.named, id=retrying, note=SECRET, checkpoint={"at": SECRET})
    work.answer("retry", held, [retrying], errors=[SECRET], delays=["1 hour"])
    work.answer("release", held, [ready])
    other = work.lease(7, subscription="other")
    work.answer("retry", other, other.ids[:2], errors=[SECRET, SECRET], delays=["0", "0"])
    work.ask("promote")
    work.ask("tick", force=True)
    (batch,) = work.call("next_batch", subscription="stream", worker="w")
    work.ask("fail_batch", subscription="stream", batch_id=batch.batch_id, token=batch.token, error=SECRET)
    while work.ask("archive"):
        pass
    found = {re.sub(r"_[0-9_]+$", "", table) for table in places(session)}
    assert {
        "trunq.dead",
        "trunq.delayed",
        "trunq.progress",
        "trunq.reply",
        "trunq_data.work_log",
        "trunq_data.work_receipt",
        "trunq_data.work_archive",
        "trunq_data.work_lease",
    } <= found
    ids = [archived, done, dead, retrying, leased, ready, gone, *scheduled, *awaited]
    assert work.ask("delete", ids=ids) == len(ids)
    assert places(session) == set()
    (row,) = work.call("list_deletions")
    assert (row.queue, row.messages, sorted(row.ids)) == ("work", len(ids), sorted(ids))
    assert row.deleted_by == session.info.user
    # The worker keeps what it has, and what it says is the last that is heard of it.
    assert row.running > 0
    assert work.answer("retry", held, [leased], errors=["late"], delays=["0"]) == 1
    for subscription in ("default", "other"):
        assert not work.lease(10, subscription=subscription)
    assert places(session) == set()
    assert work.ask("requeue") == 0
    later = work.publish(2)
    assert work.drain() == later


def test_a_message_that_waits_is_never_handed_out_again(connect: Connect) -> None:
    work = Engine(connect(), "work").create()
    first, second, third = confess(work.connection, "work", 3)
    assert work.ask("delete", ids=[second]) == 1
    held = work.lease(9)
    assert held.ids == [first, third]
    assert [message.payload for message in held.messages] == [{"name": SECRET}] * 2
    assert work.state(second) == "dead"
    assert work.ask("requeue") == 0
    assert work.status().dead == 1
    assert work.ask("purge") == 1


def test_what_is_nowhere_is_counted_as_nothing_and_its_id_stays_free(connect: Connect) -> None:
    work = Engine(connect(), "work").create()
    (id,) = work.publish()
    assert work.ask("delete", ids=[id, id + 1]) == 1
    assert work.ask("delete", ids=[id + 1]) == 0
    assert work.fetch("select count(*) from trunq.cancelled where id <> %s", id) == 0
    assert work.publish() == [id + 1] == work.drain()
    assert [row.messages for row in work.call("list_deletions")] == [0, 1]
    assert work.ask("delete", ids=[id]) == 1, "again, as when it was running before"


def test_an_id_that_was_nowhere_may_die_and_be_requeued_later(connect: Connect) -> None:
    work = Engine(connect(), "later").create()
    (first,) = work.publish()
    assert work.ask("delete", ids=[first, first + 1]) == 1
    (second,) = work.publish()
    assert second == first + 1
    work.answer("reject", work.lease())
    assert work.ask("requeue") == 1
    assert work.lease().ids == [second]


def test_a_message_that_is_being_requeued_is_waited_for_and_never_handed_out_again(connect: Connect) -> None:
    work = Engine(connect(), "dying").create()
    other = work.on(connect())
    (id,) = work.publish()
    work.answer("reject", work.lease())
    with ThreadPoolExecutor() as pool:
        with other.connection.transaction():
            assert other.ask("requeue") == 1
            deleting = pool.submit(work.ask, "delete", ids=[id])
            wait_until_blocked(other.connection, work.connection)
        assert deleting.result() == 1
    assert not work.lease()
    assert work.state(id) == "dead"
    assert work.fetch("select payload from trunq_log.dying where id = %s", id) is None


def test_a_stream_reads_an_empty_message(connect: Connect) -> None:
    work = Engine(connect(), "work").create()
    work.ask("subscribe", subscription="stream", mode="exclusive")
    ids = confess(work.connection, "work", 2)
    work.ask("delete", ids=ids[:1])
    work.ask("tick", force=True)
    (batch,) = work.call("next_batch", subscription="stream", worker="w")
    rows = work.call("read_batch", subscription="stream", batch_id=batch.batch_id)
    assert {row.id: row.payload for row in rows} == {ids[0]: None, ids[1]: {"name": SECRET}}


def test_an_answer_that_is_not_committed_is_waited_for(connect: Connect) -> None:
    work, other = Engine(connect(), "work").create(), connect(autocommit=False)
    (id,) = confess(work.connection, "work")
    held = work.lease()
    work.on(other).answer("retry", held, errors=[SECRET], delays=["1 hour"])
    with refused("TQ009", "open transaction"):
        work.ask("delete", ids=[id])
    assert work.call("list_deletions") == []
    # Nobody waited for us either: it gave back all it had.
    other.commit()
    assert work.ask("delete", ids=[id]) == 1
    assert places(work.connection) == set()
    with work.clock("2 hours"):
        work.ask("promote")
        assert not work.lease()


@pytest.mark.parametrize("verb", ["retry", "reject", "release"])
def test_an_answer_under_an_older_snapshot_brings_nothing_back(
    work: Engine, connect: Connect, verb: str
) -> None:
    (id,) = confess(work.connection, "work")
    held = work.lease()
    older = work.on(connect(autocommit=False))
    older.connection.execute("set transaction isolation level repeatable read")
    assert older.fetch("select count(*) from {log}") == 1
    assert work.ask("delete", ids=[id]) == 1
    with refused("40001"):
        older.answer(verb, held)
    older.connection.rollback()
    assert work.answer(verb, held) == 1, "under a snapshot of now"
    assert places(work.connection) == set()


def test_a_message_that_is_requeued_meanwhile_is_not_handed_out(connect: Connect) -> None:
    work, other = Engine(connect(), "work").create(), connect(autocommit=False)
    (id,) = confess(work.connection, "work")
    work.answer("reject", work.lease())
    assert work.on(other).ask("requeue") == 1
    with ThreadPoolExecutor() as pool:
        deleting = pool.submit(work.ask, "delete", ids=[id])
        wait_until_blocked(other, work.connection)
        other.commit()
        assert deleting.result() == 1
    assert not work.lease()
    assert places(work.connection) == set()
    assert work.ask("requeue") == 0


def test_who_starts_at_the_earliest_message_does_not_get_what_was_deleted(work: Engine) -> None:
    first, second, third = confess(work.connection, "work", 3)
    work.ack(work.lease())
    assert work.ask("delete", ids=[first, second]) == 2
    work.ask("subscribe", subscription="late", start="earliest")
    assert work.lease(9, subscription="late").ids == [third]
    work.ask("reset", subscription="other", start="earliest")
    assert work.lease(9, subscription="other").ids == [third]
    work.ask("forget")
    assert work.fetch("select count(*) from trunq.cancelled where id = %s", first) == 0


@pytest.mark.parametrize("verb", ["reject", "retry"])
def test_what_was_dead_or_waited_is_purged_and_not_done(work: Engine, verb: str) -> None:
    (id,) = confess(work.connection, "work")
    work.answer(verb, work.lease(), errors=[SECRET])
    work.ask("delete", ids=[id])
    assert work.state(id) == "purged"
    assert work.listed(state="purged") == [id]
    assert work.listed(state="done") == []


def test_a_column_that_can_hold_nothing_else_is_named_with_the_way_out(connect: Connect) -> None:
    work = Engine(connect(), "work").create()
    work.run("alter table {log} add column who text not null")
    work.run("insert into {log} (who) values (%s)", SECRET)
    (id,) = work.listed()
    with pytest.raises(psycopg.Error, match='column "who"') as caught:
        work.ask("delete", ids=[id])
    assert caught.value.sqlstate == "TQ005"
    (way_out,) = re.findall("alter table .*", str(caught.value.diag.message_hint))
    work.connection.execute(way_out.encode())
    assert work.ask("delete", ids=[id]) == 1
    assert places(work.connection) == set()


def test_deletions_outlive_their_queue_and_name_nobody_elses(connect: Connect) -> None:
    session = connect()
    for queue in ("one", "two"):
        ask(session, "create_queue", queue=queue)
        ask(session, "delete", queue=queue, ids=publish(session, queue))
    ask(session, "drop_queue", queue="one", force=True)
    ask(session, "create_queue", queue="one")
    assert [row.queue for row in call(session, "list_deletions")] == ["two", "one"]
    assert call(session, "list_deletions", queue="one") == []
    assert [row.queue for row in call(session, "list_deletions", queue="two")] == ["two"]
    (last, _) = call(session, "list_deletions")
    assert [row.queue for row in call(session, "list_deletions", before=last.deletion_id)] == ["one"]
    ids = publish(session, "one", 2)
    assert drain(session, "one") == ids, "the ids of the queue of before are not deleted here"


@pytest.mark.parametrize(
    "statement", ["delete from {}", "update {} set payload = '2'", "delete from {} where id = 0"]
)
def test_a_log_refuses_to_be_changed_by_hand_and_says_what_to_do(connect: Connect, statement: str) -> None:
    work = Engine(connect(), "work").create()
    ids = work.publish(5)
    with pytest.raises(psycopg.Error) as caught:
        work.connection.execute(statement.format("trunq_log.work").encode())
    assert caught.value.sqlstate == "TQ020"
    hint = str(caught.value.diag.message_hint)
    commands = re.findall(r"select .*?\)(?=[;,]|$)", hint)
    assert [re.findall(r"trunq\.(\w+)", command)[0] for command in commands] == [
        "empty_queue",
        "cancel",
        "delete",
    ]
    for command in reversed(commands):
        work.connection.execute(command.replace("42", str(ids[0])).encode())
    assert work.drain() == []


def test_what_the_system_does_to_a_log_it_may(connect: Connect) -> None:
    work = Engine(connect(), "work").create()
    work.run("insert into {log} (payload, due_at) values ('1', now() + interval '1 hour')")
    assert work.status().delayed == 1
    work.publish(3)
    assert work.ask("empty_queue") == 4
    work.publish(2)
    assert ask(work.connection, "rebase") == 2
    assert fetch(work.connection, "select current_setting('trunq.rewrite', true)") in (None, "", "off")


def test_the_trigger_costs_publishers_nothing(connect: Connect) -> None:
    work = Engine(connect(), "work").create()
    insert = "insert into trunq_log.work (payload) select '1' from generate_series(1, 100)"
    for _ in range(5):
        cost_of(work.connection, insert)
    guarded = cost_of(work.connection, insert)
    work.run("drop trigger keep on {log}")
    for _ in range(5):
        cost_of(work.connection, insert)
    bare = cost_of(work.connection, insert)
    assert guarded.pages <= bare.pages + 2
    assert guarded.rows_changed == 0


def test_nothing_is_left_of_a_message_that_asked_for_a_run(connection: Connection) -> None:
    table = {"format": "table", "table": "a"}
    ask(connection, "create_pipeline", pipeline="p", definition={"source": table, "sink": table})
    ids = []
    for is_ended in (True, False):
        (id,) = confess(connection, "pipelines", kind="p")
        ids.append(id)
        told = ask(connection, "_open_run", pipeline="p", message_id=id, payload={"name": SECRET})
        begun = ask(
            connection, "_begin_run", pipeline="p", message_id=id, slice={"message": {"of": id}},
            payload={"name": SECRET}, done=told["done"], snapshot=told["snapshot"],
            plan_hash=told["plan_hash"],
        )  # fmt: skip
        ask(connection, "_let_run_go", run_id=begun["run_id"], holder=id, error=SECRET)
        if is_ended:
            attempt = ask(connection, "_try_run", run_id=begun["run_id"])
            ask(connection, "_stage_run", attempt=attempt, parts=[], rows_in=0, rows_out=0, rows_bad=0)
            ask(connection, "_finish_run", run_id=begun["run_id"], attempt=attempt, number=1)
    assert "trunq.pipeline_run" in places(connection)
    assert ask(connection, "delete", queue="pipelines", ids=ids) == 2
    assert places(connection) == set()
