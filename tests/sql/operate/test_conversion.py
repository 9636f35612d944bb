"""Queues that are told later what they were not told at first: functions/operate/conversion.sql."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from calling import answer, ask, call, come_back, drain, fetch, lease, move_clock, new_names, publish, refused
from engine import Engine

Connection = psycopg.Connection[Any]

LANES = ("priority", "key", "kind", "priority,key", "priority,kind")


def publish_keyed(session: Connection, queue: str, count: int, keys: int = 3) -> list[int]:
    """Messages of some keys and kinds in turn, in one transaction."""
    names = [f"k{n % keys}" for n in range(count)]
    return publish(session, queue, count, keys=names, kinds=names)


@pytest.mark.parametrize(
    ("lanes", "taken"), [(lanes, 4) for lanes in LANES] + [("key", n) for n in (0, 1, 10)]
)
def test_what_waits_is_handed_out_once_by_lanes(
    session: Connection, queue: str, lanes: str, taken: int
) -> None:
    ids = publish_keyed(session, queue, 10)
    got = lease(session, queue, taken).ids if taken else []
    assert ask(session, "convert_queue", queue=queue, lanes=lanes) is True
    ids += publish_keyed(session, queue, 5)
    rest = drain(session, queue)
    assert got == ids[:taken]
    assert sorted(got + rest) == ids
    if lanes == "priority":
        assert rest == ids[taken:]


def test_no_lanes_while_messages_leased_by_their_ids_lie_ahead(session: Connection, queue: str) -> None:
    work = Engine(session, queue)
    ids = work.publish(5)
    taken, _ = work.lease_ids(ids[3])
    with refused("TQ009", "ahead of its position"):
        work.ask("convert_queue", lanes="key")
    assert work.ask("convert_queue", retention="14 days") is True
    work.ack(taken)
    assert work.drain() == [*ids[:3], ids[4]]
    assert work.ask("convert_queue", lanes="key") is True
    late = work.publish(2)
    assert work.drain() == late


def test_told_the_same_again_it_does_nothing(session: Connection, queue: str) -> None:
    told = {"queue": queue, "lanes": "key", "unique": "refuse", "retention": "14 days"}
    assert ask(session, "convert_queue", **told) is True
    assert ask(session, "convert_queue", **told) is False
    assert ask(session, "convert_queue", queue=queue) is False
    (row,) = [row for row in call(session, "list_queues") if row.queue == queue]
    assert (row.lanes, row.unique_policy, row.retention) == ("key", "refuse", timedelta(days=14))
    assert row.span == timedelta(days=7)


SHAPE = """
    select c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attstorage,
      pg_get_expr(d.adbin, d.adrelid)
    from pg_class c join pg_namespace n on n.oid = c.relnamespace
    join pg_attribute a on a.attrelid = c.oid and a.attnum > 0
    left join pg_attrdef d on d.adrelid = c.oid and d.adnum = a.attnum
    where n.nspname in ('trunq_log', 'trunq_data', 'trunq_queue') and c.relkind in ('r', 'p', 'v')
      and starts_with(c.relname, {0}) and a.attname not in ('unique_key', 'ahead')
      and not (a.attname = 'epoch' and c.relname like '%%lease%%')
    union all
    select t.tgrelid::regclass::text, t.tgname, pg_get_triggerdef(t.oid), null, null, null
    from pg_trigger t
    where t.tgrelid::regclass::text ~ ('^trunq_(log|data).' || {0}) and t.tgparentid = 0
    union all
    select i.indrelid::regclass::text, split_part(pg_get_indexdef(i.indexrelid), ' USING ', 2),
      i.indisvalid::text, i.indisunique, null, null
    from pg_index i where i.indrelid::regclass::text ~ ('^trunq_(log|data).' || {0})
    union all
    select p.proname, pg_get_functiondef(p.oid), obj_description(p.oid, 'pg_proc'), null, null,
      p.proacl::text
    from pg_proc p
    where p.pronamespace = 'trunq_queue'::regnamespace and starts_with(p.proname, {0} || '_')
    union all
    select c.relname, obj_description(c.oid, 'pg_class'), c.relacl::text, null, null, null
    from pg_class c
    where c.relnamespace in ('trunq_log'::regnamespace, 'trunq_data'::regnamespace)
      and starts_with(c.relname, {0}) and c.relkind in ('r', 'p')"""
"""All but two columns, which a conversion makes otherwise (functions/operate/conversion.sql)."""


def shape(session: Connection, queue: str) -> list[str]:
    """All that is made for a queue, as text that says nothing of its name."""
    rows = session.execute(psycopg.sql.SQL(SHAPE).format(psycopg.sql.Literal(queue))).fetchall()
    id = str(fetch(session, "select queue_id from trunq.queue where name = %s", queue))
    return sorted(re.sub(rf"\b{id}\b", "N", repr(row).replace(queue, "Q")) for row in rows)


@pytest.mark.parametrize(
    ("lanes", "unique"),
    [
        (None, None),
        (None, "refuse"),
        ("key", None),
        ("kind", "replace"),
        ("priority", "refuse"),
        ("priority,key", None),
    ],
)
def test_what_comes_of_it_is_like_a_queue_made_so(
    session: Connection, lanes: str | None, unique: str | None
) -> None:
    # Of seven digits: nothing else in the definitions looks like the number of a queue.
    session.execute(
        "select setval(c, 7000000 + nextval(c) % 1000000)"
        " from pg_get_serial_sequence('trunq.queue', 'queue_id') c"
    )
    made, told = next(new_names("made_so")), next(new_names("told_so"))
    ask(session, "create_queue", queue=made, retention="14 days", lanes=lanes, unique=unique)
    ask(session, "create_queue", queue=told)
    publish_keyed(session, told, 3)
    ask(session, "convert_queue", queue=told, retention="14 days", lanes=lanes, unique=unique)
    assert shape(session, told) == shape(session, made)


def test_what_was_there_stays_as_long_as_the_new_retention_says(session: Connection) -> None:
    work = Engine(session, next(new_names("longer"))).create(retention="4 seconds")
    ids = work.publish(3)
    work.drain()
    assert work.ask("convert_queue", retention="1 day") is True
    try:
        for after in ("10 seconds", "13 hours", "23 hours"):
            work.rotate(after)
            assert [row.id for row in work.call("list_messages", state="done", limit=10)] == ids[::-1]
        # Each segment is old for one span of the round.
        for hours in (36, 48, 60, 72, 84):
            work.rotate(f"{hours} hours")
        assert work.call("list_messages", limit=10) == []
    finally:
        move_clock(session, "0")


def test_the_oldest_goes_first_though_segments_have_other_numbers(session: Connection) -> None:
    """By size, the segment whose rows are the oldest, and not the one that the new count takes for it."""
    work = Engine(session, next(new_names("by_size"))).create(retention="4 seconds")
    for n in range(3):
        session.execute(
            f"insert into trunq_log.{work.queue} (segment, payload) values ({(1, 0, 3)[n]}, '{{}}')".encode()
        )
    work.drain()
    work.ask("convert_queue", retention="1 day")
    work.ask("set_queue", retain_size=1)
    order = [
        row[0]
        for row in session.execute(
            "select o.segment from trunq._old_segments(trunq._find_queue(%s::text)) o", (work.queue,)
        )
    ]
    now = work.fetch(
        "select trunq._segment_at(q, trunq.clock()) from trunq.queue q where q.name = %s", work.queue
    )
    assert [n for n in order if n in (1, 0, 3)] == [n for n in (1, 0, 3) if n != now]


def test_insert_and_copy_take_keys_and_priorities_from_then_on(session: Connection, queue: str) -> None:
    ask(session, "convert_queue", queue=queue, unique="refuse", lanes="priority")
    ask(session, "set_lanes", queue=queue, policy="priority")
    for n, key in ((5, "a"), (3, "b"), (4, "a")):
        session.execute(
            f"insert into trunq_log.{queue} (priority, unique_key, payload) values (%s, %s, '{{}}')".encode(),
            (n, key),
        )
    with refused("23514", "unique_key_at_most_1000_bytes"):
        session.execute(
            f"insert into trunq_log.{queue} (unique_key, payload) values (%s, '{{}}')".encode(), ("k" * 1001,)
        )
    # The third was left out: the first holds its key.
    assert drain(session, queue) == [2, 1]


def test_delayed_and_dead_messages_come_back_into_the_new_form(session: Connection, queue: str) -> None:
    later = ask(session, "publish", queue=queue, key="a", delay="1 hour")
    bad = ask(session, "publish", queue=queue, key="b")
    answer(session, "reject", lease(session, queue))
    ask(session, "convert_queue", queue=queue, lanes="key", unique="replace", retention="9 days")
    assert ask(session, "requeue", queue=queue) == 1
    assert lease(session, queue).ids == [bad]
    come_back(session, queue)
    assert lease(session, queue).ids == [later]


def test_a_stream_reads_on_from_its_tick(session: Connection, queue: str) -> None:
    stream = {"queue": queue, "subscription": "stream"}
    ask(session, "subscribe", **stream, mode="exclusive")
    first = publish(session, queue, 3)
    ask(session, "tick", queue=queue, force=True)
    (batch,) = call(session, "next_batch", **stream, worker="w")
    ask(session, "convert_queue", queue=queue, lanes="kind", unique="refuse", retention="9 days")
    read = call(session, "read_batch", **stream, batch_id=batch.batch_id)
    assert [row.id for row in read] == first
    ask(session, "finish_batch", **stream, batch_id=batch.batch_id, token=batch.token)
    second = publish(session, queue, 2)
    ask(session, "tick", queue=queue, force=True)
    (batch,) = call(session, "next_batch", **stream, worker="w")
    read = call(session, "read_batch", **stream, batch_id=batch.batch_id)
    assert [row.id for row in read] == second


def test_captures_roles_and_changes_by_hand_go_on(session: Connection, queue: str) -> None:
    session.execute(f"create table changed_{queue} (id integer primary key)".encode())
    call(session, "capture", table=f"changed_{queue}", queue=queue)
    role = f"role_{session.info.dbname}_{queue}"
    session.execute(f"create role {role}".encode())
    ask(session, "grant_role", queue=queue, role="publisher", grantee=role)
    ask(session, "grant_role", queue=queue, role="worker", grantee=role)
    session.execute(f"alter function trunq_queue.{queue}_lease set work_mem = '5MB'".encode())
    ask(session, "convert_queue", queue=queue, lanes="key", unique="refuse")
    assert "work_mem" in fetch(session, f"select pg_get_functiondef('trunq_queue.{queue}_lease'::regproc)")
    session.execute(f"insert into changed_{queue} values (1)".encode())
    session.execute(f"set role {role}".encode())
    try:
        session.execute(f"insert into trunq_log.{queue} (unique_key, payload) values ('k', '{{}}')".encode())
        assert len(lease(session, queue, 5).ids) == 2
    finally:
        session.execute("reset role")


def test_the_statements_of_preparation_are_taken_over(session: Connection, queue: str) -> None:
    publish_keyed(session, queue, 10)
    widen, row = call(session, "list_preparations", queue=queue, lanes="priority,key")
    session.execute(widen.statement.encode())
    session.execute(row.statement.encode())
    with refused("23514", "plain_queue_has_no_priority"):
        session.execute(f"insert into trunq_log.{queue} (priority) values (1)".encode())
    index = re.findall(r"concurrently (\w+)", row.statement)[0]
    assert call(session, "list_preparations", queue=queue, lanes="priority,key") == []
    session.execute(
        "update pg_index set indisvalid = false where indexrelid = %s::regclass", (f"trunq_data.{index}",)
    )
    assert [
        row.statement.split()[0]
        for row in call(session, "list_preparations", queue=queue, lanes="priority,key")
    ] == [
        "drop",
        "create",
    ]
    session.execute(
        "update pg_index set indisvalid = true where indexrelid = %s::regclass", (f"trunq_data.{index}",)
    )
    file = fetch(session, "select pg_relation_filenode(%s::regclass)", f"trunq_data.{index}")
    ask(session, "convert_queue", queue=queue, lanes="priority,key")
    assert fetch(session, "select pg_relation_filenode(%s::regclass)", f"trunq_data.{index}") == file
    assert fetch(
        session,
        "select inhparent::regclass::text from pg_inherits where inhrelid = %s::regclass",
        f"trunq_data.{index}",
    )
    assert call(session, "list_preparations", queue=queue, lanes="priority,key") == []


def test_a_large_log_without_its_index_is_refused(session: Connection, queue: str) -> None:
    publish_keyed(session, queue, 2000)
    with session.transaction(force_rollback=True):
        session.execute(
            "create or replace function trunq._most_indexed() returns bigint"
            " language sql immutable as 'select 65536::bigint'"
        )
        with refused("TQ009", "list_preparations", "p_at_once"), session.transaction():
            ask(session, "convert_queue", queue=queue, lanes="key")
        assert ask(session, "convert_queue", queue=queue, lanes="key", at_once=True) is True


def test_what_cannot_be_is_refused_with_the_way(session: Connection, queue: str) -> None:
    with refused("TQ001"):
        ask(session, "convert_queue", queue="nowhere", lanes="key")
    for told in (
        {"lanes": "size"},
        {"unique": "keep"},
        {"retention": "-1 day"},
        {"hold_at_most": "1 second"},
    ):
        with refused("TQ005"):
            ask(session, "convert_queue", queue=queue, **told)
    with refused("TQ005"):
        call(session, "list_preparations", queue=queue, lanes="size")
    session.execute(f"create view seen_{queue} as select priority from trunq_log.{queue}".encode())
    with refused("TQ009", "priority", "drop the view"):
        ask(session, "convert_queue", queue=queue, lanes="priority")
    session.execute(f"alter table trunq_log.{queue} add column unique_key integer".encode())
    with refused("TQ005", "rename it"):
        ask(session, "convert_queue", queue=queue, unique="refuse")
    session.execute(
        "insert into trunq.outdated (queue_id, changes)"
        " select queue_id, '[]' from trunq.queue where name = %s",
        (queue,),
    )
    with refused("TQ009", "trunq db upgrade"):
        ask(session, "convert_queue", queue=queue, lanes="key")
    session.execute("delete from trunq.outdated")
    ask(session, "convert_queue", queue=queue, lanes="key")
    with refused("TQ005", 'lanes by "key"'):
        ask(session, "convert_queue", queue=queue, lanes="kind")
    with session.transaction(), refused("TQ007"):
        session.execute("set transaction isolation level repeatable read")
        ask(session, "convert_queue", queue=queue, lanes="key")
