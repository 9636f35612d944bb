"""A queue's functions are the specimen's with other names; columns a user adds stay with the messages."""

from __future__ import annotations

import re
from itertools import product
from typing import Any

import psycopg
import pytest

from calling import answer, ask, call, come_back, fetch, lease, new_names, publish, refused
from conftest import Connect
from trunq import install

Connection = psycopg.Connection[Any]

FUNCTIONS = """
    select substr(p.proname, length(%s) + 2), pg_get_functiondef(p.oid), obj_description(p.oid, 'pg_proc')
    from pg_proc p where p.pronamespace = 'trunq_queue'::regnamespace and p.proname like %s order by 1
"""

TABLES = """
    select case when c.relname = %s then 'log' else substr(c.relname, length(%s) + 2) end, c.relkind
    from pg_class c join pg_namespace n on n.oid = c.relnamespace
    where n.nspname in ('trunq_log', 'trunq_data') and (c.relname = %s or c.relname like %s)
      and c.relkind in ('p', 'S', 'r')
"""


def of_queue(session: Connection, queue: str) -> list[tuple[str, str, str]]:
    return session.execute(FUNCTIONS.encode(), (queue, queue.replace("_", r"\_") + r"\_%")).fetchall()


def test_a_queue_has_every_function_of_the_specimen(session: Connection, queue: str) -> None:
    queue_id = fetch(session, "select queue_id from trunq.queue where name = %s", queue)
    segment = fetch(session, "select trunq._segment(q) from trunq.queue q where name = %s", queue)
    ours, specimen = of_queue(session, queue), of_queue(session, "_specimen")
    assert [verb for verb, _, _ in ours] == [verb for verb, _, _ in specimen]
    for (_, definition, comment), (verb, original, original_comment) in zip(ours, specimen, strict=True):
        expected = original.replace("0 /*queue_id*/", str(queue_id)).replace("0 /*segment*/", segment)
        expected = expected.replace("'refuse' /*unique_policy*/", "null").replace(" /*own_columns*/", "")
        assert definition == re.sub("_(lane)?specimen", queue, expected)
        assert comment == original_comment, verb
        assert "_specimen" not in definition
    assert {"publish", "publish_many", "lease", "ack", "next_batch", "finish_batch"} <= {
        verb for verb, _, _ in ours
    }


def test_a_queue_with_unique_keys_has_its_own_in_the_place_of_some(session: Connection) -> None:
    """Each function once: what a lease asks about keys is answered by those of sql/unique."""
    ask(session, "create_queue", queue="keyed", unique="replace")
    ours = of_queue(session, "keyed")
    queue_id = fetch(session, "select queue_id from trunq.queue where name = 'keyed'")
    own = {verb: definition for verb, definition, _ in of_queue(session, "_uniquespecimen")}
    both = own.keys() & {verb for verb, _, _ in of_queue(session, "_specimen")}
    assert {"key_hold", "note_keys", "replaced_by", "replaces"} <= both
    assert len({verb for verb, _, _ in ours}) == len(ours)
    for verb, definition, _ in ours:
        if verb in both:
            expected = own[verb].replace("'refuse' /*unique_policy*/", "'replace'")
            expected = expected.replace("0 /*queue_id*/", str(queue_id))
            assert definition == re.sub("_(unique)?specimen", "keyed", expected)


def test_no_name_of_one_queue_can_be_another_s(session: Connection, queue: str) -> None:
    suffixes = {verb for verb, _, _ in of_queue(session, queue)}
    like = queue.replace("_", r"\_") + r"\_%"
    tables = {name for name, _ in session.execute(TABLES.encode(), (queue, queue, queue, like))} - {"log"}
    for names in (suffixes, tables):
        assert names
        for one, other in product(names, names):
            assert not one.endswith(f"_{other}"), "a queue could be called so that these two are one"


@pytest.mark.parametrize("name", ["order", "user", "select", "a" * 48, "x"])
def test_any_name_of_a_queue_will_do(session: Connection, name: str) -> None:
    ask(session, "create_queue", queue=name)
    id = fetch(session, f"select trunq_queue.{name}_publish('1')")
    held = lease(session, name)
    assert held.ids == [id]
    assert (
        fetch(
            session, f"select trunq_queue.{name}_ack('default', %s, %s, %s)", held.lease_id, held.token, [id]
        )
        == 1
    )
    names = session.execute("select relname from pg_class where relname like %s", (name + "%",)).fetchall()
    assert all(len(relname) <= 63 for (relname,) in names)
    ask(session, "drop_queue", queue=name)
    assert of_queue(session, name) == []
    assert (
        fetch(
            session,
            "select count(*) from pg_class c join pg_namespace n on n.oid = c.relnamespace"
            " where nspname like 'trunq%%' and relname like %s",
            # Of this queue: in the database that tests share, another may be called orders.
            name + r"\_%",
        )
        == 0
    )


def test_limits_and_locks_are_the_numbers_they_are_named_by(session: Connection) -> None:
    """Hot functions write numbers, with their names beside them."""
    text = "".join(sql for _, sql in install.function_files())
    named = re.findall(r"(\d+) /\*(lock|limit) (\w+)\*/", text)
    assert named
    for number, what, name in named:
        function = "trunq._lock_class" if what == "lock" else "trunq._limit"
        assert fetch(session, f"select {function}(%s)", name) == int(number), name
    assert not re.findall(r"19536564\d\d(?! /\*lock| *--)", re.sub(r"when '\w+' then \d+ +--.*", "", text))


def test_the_files_can_be_run_one_by_one(session: Connection) -> None:
    """As `psql -f` does, for whoever edits one."""
    session.execute("set check_function_bodies = on")
    before = of_queue(session, "_specimen")
    for _, sql in install.function_files():
        session.execute(sql.encode())
    assert of_queue(session, "_specimen") == before


@pytest.fixture
def wide(connect: Connect) -> Connection:
    """A queue whose log has columns of the user's."""
    session = connect()
    ask(session, "create_queue", queue="wide")
    session.execute(
        "alter table trunq_log.wide add column tenant text default 'nobody',"
        ' add column "At" numeric, add column document jsonb'
    )
    return session


EXTRA = 'select tenant, "At"::text, document from trunq_log.wide where id = %s order by txid desc limit 1'


@pytest.mark.parametrize("way", ["at once", "delayed", "released", "expired", "dead and requeued"])
def test_columns_a_user_added_stay_with_the_message(wide: Connection, way: str) -> None:
    (id,) = wide.execute(
        'insert into trunq_log.wide (kind, tenant, "At", document) values (%s, %s, 1.5, %s) returning id',
        ("k", "acme", '{"a": null}'),
    ).fetchone() or (0,)
    (bare,) = wide.execute(
        "insert into trunq_log.wide (kind, tenant) values ('k', null) returning id"
    ).fetchone() or (0,)
    held = lease(wide, "wide", 10)
    assert held.ids == [id, bare]
    if way == "at once":
        answer(wide, "retry", held, delays=["0", "0"])
    elif way == "delayed":
        answer(wide, "retry", held, delays=["1 ms", "1 ms"])
    elif way == "released":
        answer(wide, "release", held)
    elif way == "expired":
        ask(wide, "extend", **held.named, lease_time="0")
        assert ask(wide, "reap", queue="wide") == 1
    else:
        answer(wide, "reject", held)
        assert ask(wide, "requeue", queue="wide") == 2
    wide.execute("set trunq.clock_offset = '10 seconds'")
    ask(wide, "promote", queue="wide")
    assert sorted(lease(wide, "wide", 10).ids) == [id, bare]
    assert wide.execute(EXTRA.encode(), (id,)).fetchone() == ("acme", "1.5", {"a": None})
    assert wide.execute(EXTRA.encode(), (bare,)).fetchone() == (None, None, None)


def test_a_delayed_message_gets_the_defaults_of_added_columns(wide: Connection) -> None:
    ask(wide, "publish", queue="wide", delay="1 ms")
    wide.execute("set trunq.clock_offset = '10 seconds'")
    ask(wide, "promote", queue="wide")
    (id,) = lease(wide, "wide").ids
    assert wide.execute(EXTRA.encode(), (id,)).fetchone() == ("nobody", None, None)


def test_publishers_of_delayed_messages_lock_no_row_of_another(connect: Connect) -> None:
    """A foreign key would: each of its checks, beside another, is a MultiXact."""
    publishers = [connect(autocommit=False) for _ in range(3)]
    session = connect()
    ask(session, "create_queue", queue="orders")
    before = fetch(session, "select next_multixact_id from pg_control_checkpoint()")
    for publisher in publishers:
        ask(publisher, "publish", queue="orders", delay="1 hour")
    for publisher in publishers:
        publisher.commit()
    session.execute("checkpoint")
    assert fetch(session, "select next_multixact_id from pg_control_checkpoint()") == before


def test_messages_deleted_by_hand_do_not_stop_the_others(connect: Connect) -> None:
    session = connect()
    ask(session, "create_queue", queue="orders")
    ids = publish(session, "orders", 3)
    held = lease(session, "orders", 3)
    with session.transaction():
        session.execute("set local trunq.rewrite = on")
        session.execute("delete from trunq_log.orders where id = %s", (ids[1],))
    ask(session, "extend", **held.named, lease_time="0")
    assert ask(session, "reap", queue="orders") == 1
    come_back(session, "orders")
    assert sorted(lease(session, "orders", 3).ids) == [ids[0], ids[2]]
    assert [row.state for row in call(session, "list_messages", queue="orders")] == ["leased", "leased"]


def test_names_of_new_queues_are_new(session: Connection) -> None:
    queue = next(new_names("named"))
    ask(session, "create_queue", queue=queue)
    row = session.execute(
        "select log_table, lease_table, receipt_table, id_sequence, lease_sequence"
        " from trunq.queue where name = %s",
        (queue,),
    ).fetchone()
    assert row == (
        queue,
        f"{queue}_lease",
        f"{queue}_receipt",
        f"trunq_data.{queue}_message_id",
        f"{queue}_lease_id",
    )


def test_a_column_added_while_a_message_waits_has_its_default(wide: Connection) -> None:
    (id,) = publish(wide, "wide")
    held = lease(wide, "wide")
    answer(wide, "retry", held, delays=["1 ms"])
    wide.execute("alter table trunq_log.wide add column region text not null default 'eu'")
    wide.execute("set trunq.clock_offset = '10 seconds'")
    ask(wide, "promote", queue="wide")
    assert lease(wide, "wide").ids == [id]
    regions = wide.execute("select region from trunq_log.wide where id = %s", (id,)).fetchall()
    assert regions == [("eu",), ("eu",)]


def test_a_message_that_the_log_refuses_holds_up_no_other(wide: Connection) -> None:
    wide.execute("alter table trunq_log.wide add check (kind is distinct from 'bad')")
    bad = ask(wide, "publish", queue="wide", kind="bad", delay="1 ms")
    good = ask(wide, "publish", queue="wide", kind="good", delay="2 ms")
    wide.execute("set trunq.clock_offset = '10 seconds'")
    for _ in range(2):
        ask(wide, "promote", queue="wide")
    assert lease(wide, "wide", 10).ids == [good]
    assert fetch(wide, "select id from trunq.delayed where due_at > trunq.clock()") == bad
    wide.execute("alter table trunq_log.wide drop constraint wide_kind_check")
    wide.execute("set trunq.clock_offset = '2 minutes'")
    ask(wide, "promote", queue="wide")
    assert lease(wide, "wide", 10).ids == [bad]


def test_a_full_disk_puts_no_message_off(wide: Connection) -> None:
    """It refuses all of them, and takes all when there is room: none waits for a minute."""
    held = ask(wide, "publish", queue="wide")
    lease(wide, "wide")
    due = ask(wide, "publish", queue="wide", delay="1 ms")
    wide.execute(
        "create function pg_temp.fill() returns trigger language plpgsql as"
        " $$ begin raise 'no space left on device' using errcode = 'disk_full'; end $$"
    )
    wide.execute("create trigger fill before insert on trunq_log.wide execute function pg_temp.fill()")
    wide.execute("set trunq.clock_offset = '10 minutes'")
    for duty in ("promote", "reap"):
        with refused("53100"), wide.transaction():
            ask(wide, duty, queue="wide")
    wide.execute("drop trigger fill on trunq_log.wide")
    assert (ask(wide, "promote", queue="wide"), ask(wide, "reap", queue="wide")) == (1, 1)
    ask(wide, "promote", queue="wide")
    assert lease(wide, "wide", 10).ids == [due, held]


@pytest.mark.parametrize("verb", ["ack", "retry"])
def test_an_array_that_does_not_begin_at_one_is_refused(session: Connection, queue: str, verb: str) -> None:
    ids = publish(session, queue, 2)
    held = lease(session, queue, 2)
    call_it = f"select trunq_queue.{queue}_{verb}('default', %s, %s, %s::text::bigint[])"
    with refused("TQ005", "do not begin at 1"):
        fetch(session, call_it, held.lease_id, held.token, f"[0:1]={{{ids[0]},{ids[1]}}}")
    with refused("TQ005", "do not begin at 1"):
        fetch(
            session,
            f"select trunq_queue.{queue}_publish_many(array['1','2']::jsonb[], '[0:0]={{a}}'::text[])",
        )
    assert answer(session, "ack", held) == 2
