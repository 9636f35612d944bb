"""PgQ's calls and trunq's own meet in one queue, in whatever order, and several sessions at one place."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg

from calling import ask, call, fetch, refused
from conftest import Connect

Connection = psycopg.Connection[Any]


def read(pgq: Connection, name: str, consumer: str = "reader") -> list[tuple[Any, ...]]:
    """The events of the next batch, which is finished: id, type and data of each."""
    batch = fetch(pgq, "select pgq.next_batch(%s, %s)", name, consumer)
    if batch is None:
        return []
    rows = pgq.execute("select ev_id, ev_type, ev_data from pgq.get_batch_events(%s)", (batch,)).fetchall()
    assert fetch(pgq, "select pgq.finish_batch(%s)", batch) == 1
    return rows


def insert(pgq: Connection, name: str, data: str) -> int:
    event: int = fetch(pgq, "select pgq.insert_event(%s, 'kind', %s)", name, data)
    return event


def test_all_who_ask_for_one_consumer_s_batch_at_once_get_the_same(
    pgq: Connection, open_pgq: Connect, name: str
) -> None:
    insert(pgq, name, "one")
    fetch(pgq, "select pgq.ticker(%s)", name)
    with ThreadPoolExecutor() as pool:
        asked = pool.map(
            lambda session: fetch(session, "select pgq.next_batch(%s, 'reader')", name),
            [open_pgq() for _ in range(4)],
        )
        batches = set(asked)
    assert len(batches) == 1
    (batch,) = batches
    # And of two that finish it, one does.
    with ThreadPoolExecutor() as pool:
        done = pool.map(
            lambda session: fetch(session, "select pgq.finish_batch(%s)", batch), [open_pgq(), open_pgq()]
        )
        assert sorted(done) == [0, 1]


def test_what_is_written_beside_ticks_is_read_once(pgq: Connection, open_pgq: Connect, name: str) -> None:
    writers = [open_pgq(autocommit=False) for _ in range(3)]
    found = []
    for turn in range(12):
        writer = writers[turn % 3]
        # Its transaction has seen two ticks go by, and another one comes between its two events.
        insert(writer, name, "before")
        fetch(pgq, "select pgq.ticker(%s)", name)
        insert(writer, name, "after")
        insert(writers[(turn + 1) % 3], name, "early")
        if turn % 4 == 3:
            writer.rollback()
        else:
            writer.commit()
        found += read(pgq, name)
    for writer in writers:
        writer.commit()
    fetch(pgq, "select pgq.ticker(%s)", name)
    while rows := read(pgq, name):
        found += rows
    kept = pgq.execute(f"select ev_id from pgq.event_{number(pgq, name)}".encode()).fetchall()
    assert sorted(event for event, _, _ in found) == sorted(event for (event,) in kept)
    assert len(kept) > 24


def test_workers_lease_what_pgq_s_calls_publish(pgq: Connection, name: str) -> None:
    ask(pgq, "subscribe", queue=name, subscription="workers")
    event = insert(pgq, name, 'text, not {"json": 1}')
    extra = "select pgq.insert_event(%s, 'kind', null, 'a key', 'two', null, 'four')"
    other = fetch(pgq, extra, name)
    rows = call(pgq, "lease", queue=name, subscription="workers", worker="w", max_messages=10)
    assert [(row.id, row.kind, row.key, row.payload, row.headers) for row in rows] == [
        (event, "kind", None, 'text, not {"json": 1}', None),
        (other, "kind", "a key", None, {"extra2": "two", "extra4": "four"}),
    ]


def test_pgq_s_consumers_read_what_trunq_s_publishers_publish(pgq: Connection, name: str) -> None:
    published = [
        ask(pgq, "publish", queue=name, payload={"n": 1}, kind="native", key="k"),
        fetch(pgq, f"insert into trunq_log.{name} (payload) values ('[2]') returning id"),
        ask(pgq, "publish", queue=name, body=b"bytes"),
    ]
    fetch(pgq, "select pgq.force_tick(%s)", name)
    fetch(pgq, "select pgq.ticker(%s)", name)
    batch = fetch(pgq, "select pgq.next_batch(%s, 'reader')", name)
    rows = "select ev_id, ev_type, ev_data, ev_extra1, ev_retry from pgq.get_batch_events(%s)"
    assert pgq.execute(rows, (batch,)).fetchall() == [
        (published[0], "native", '{"n": 1}', "k", None),
        (published[1], None, "[2]", None, None),
        (published[2], None, None, None, None),
    ]
    # Retried, a message stays what it was, and natively promoted it comes back all the same.
    assert fetch(pgq, "select pgq.batch_retry(%s, 0)", batch) == 3
    assert fetch(pgq, "select pgq.finish_batch(%s)", batch) == 1
    assert ask(pgq, "promote", queue=name) == 3
    ask(pgq, "tick", queue=name, force=True)
    again = fetch(pgq, "select pgq.next_batch(%s, 'reader')", name)
    assert [row[2:] for row in pgq.execute(rows, (again,))] == [
        ('{"n": 1}', "k", 1),
        ("[2]", None, 1),
        (None, None, 1),
    ]
    log = f"select payload, body from trunq_log.{name} where attempt = 2 order by id"
    assert pgq.execute(log.encode()).fetchall() == [({"n": 1}, None), ([2], None), (None, b"bytes")]


def test_a_stream_and_a_consumer_share_one_subscription(pgq: Connection, name: str) -> None:
    stream = {"queue": name, "subscription": "reader"}
    events = [insert(pgq, name, str(n)) for n in range(4)]
    ask(pgq, "tick", queue=name, force=True)
    (native,) = call(pgq, "next_batch", **stream, worker="native")
    # What a native reader has in hand is not PgQ's to take; what it left over is next.
    assert fetch(pgq, "select pgq.next_batch(%s, 'reader')", name) is None
    rows = call(pgq, "read_batch", **stream, batch_id=native.batch_id)
    ask(
        pgq, "finish_batch", **stream, batch_id=native.batch_id, token=native.token,
        upto_txid=rows[1].txid, upto_id=rows[1].id,
    )  # fmt: skip
    assert [event for event, _, _ in read(pgq, name)] == events[2:]
    # And a number ends when trunq's own calls move the subscription.
    insert(pgq, name, "more")
    ask(pgq, "tick", queue=name, force=True)
    batch = fetch(pgq, "select pgq.next_batch(%s, 'reader')", name)
    ask(pgq, "seek", **stream, start="earliest")
    assert fetch(pgq, "select pgq.finish_batch(%s)", batch) == 0
    assert [event for event, _, _ in read(pgq, name)] == events


def test_a_batch_of_pgq_s_is_no_native_reader_s(pgq: Connection, name: str) -> None:
    insert(pgq, name, "one")
    ask(pgq, "tick", queue=name, force=True)
    batch = fetch(pgq, "select pgq.next_batch(%s, 'reader')", name)
    assert call(pgq, "next_batch", queue=name, subscription="reader", worker="native") == []
    (stream,) = call(pgq, "list_streams", queue=name)
    assert (stream.worker, stream.batches) == ("pgq", 1)
    assert fetch(pgq, "select pgq.finish_batch(%s)", batch) == 1


def test_a_consumer_waits_while_its_queue_is_paused(pgq: Connection, name: str) -> None:
    insert(pgq, name, "one")
    fetch(pgq, "select pgq.ticker(%s)", name)
    ask(pgq, "pause_queue", queue=name)
    assert fetch(pgq, "select pgq.next_batch(%s, 'reader')", name) is None
    ask(pgq, "resume_queue", queue=name)
    assert fetch(pgq, "select pgq.next_batch(%s, 'reader')", name) is not None


def test_a_consumer_that_lost_messages_hears_of_it_until_that_is_accepted(pgq: Connection, name: str) -> None:
    insert(pgq, name, "one")
    fetch(pgq, "select pgq.ticker(%s)", name)
    pgq.execute(
        "update trunq.subscription s set lost_at = now() from trunq.queue q"
        " where q.queue_id = s.queue_id and q.name = %s and s.name = 'reader'",
        (name,),
    )
    with refused("TQ026", "accept_loss"):
        pgq.execute("select pgq.next_batch(%s, 'reader')", (name,))
    ask(pgq, "accept_loss", queue=name, subscription="reader")
    assert len(read(pgq, name)) == 1


def test_either_side_drops_the_queue_whole(pgq: Connection, name: str) -> None:
    before = fetch(pgq, "select count(*) from pg_class where relnamespace = 'pgq'::regnamespace")
    pgq.execute(
        "select pgq.create_queue('made'), pgq.register_consumer('made', 'c'),"
        " pgq.insert_event('made', 'a', 'b')"
    )
    ask(pgq, "drop_queue", queue="made", force=True)
    assert fetch(pgq, "select pgq.create_queue('made')") == 1
    assert fetch(pgq, "select pgq.drop_queue('made')") == 1
    assert fetch(pgq, "select count(*) from pg_class where relnamespace = 'pgq'::regnamespace") == before
    assert fetch(pgq, "select count(*) from trunq.queue where name = 'made'") == 0
    # Another queue's calls work on.
    assert insert(pgq, name, "still here") > 0


def number(pgq: Connection, name: str) -> int:
    found: int = fetch(pgq, "select queue_id from pgq.queue where queue_name = %s", name)
    return found


def test_events_read_in_an_open_transaction_keep_rotation_from_no_segment(
    pgq: Connection, open_pgq: Connect, name: str
) -> None:
    insert(pgq, name, "one")
    insert(pgq, name, "x" * 20000)
    fetch(pgq, "select pgq.ticker(%s)", name)
    consumer = open_pgq(autocommit=False)
    batch = fetch(pgq, "select pgq.next_batch(%s, 'reader')", name)
    rows = consumer.execute("select length(ev_data) from pgq.get_batch_events(%s)", (batch,)).fetchall()
    assert rows == [(3,), (20000,)]
    held = fetch(
        pgq,
        "select count(*) from pg_locks l join pg_class c on c.oid = l.relation"
        " where l.pid = %s and c.relnamespace = 'trunq_data'::regnamespace and c.relkind = 'r'",
        consumer.info.backend_pid,
    )
    assert held == 0
    assert fetch(consumer, "select pgq.finish_batch(%s)", batch) == 1
    consumer.commit()
