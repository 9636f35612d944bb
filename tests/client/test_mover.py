"""Moving a stream: once, whoever is killed when, and into the queues that a split says."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from calling import fetch, new_names
from conftest import TEMPLATE, opening
from trunq import (
    Client,
    InvalidArgument,
    InvalidName,
    MarkMismatch,
    Mover,
    QueueNotFound,
)
from trunq.embedded import Embedded
from trunq.process.mover import split_by
from trunq.record import MoverState
from waiting import async_wait_until, wait_until

Connection = psycopg.Connection[Any]
WORDS = ["ada", "é\t\n\\", "", "\\N", "bob"]


@dataclass(frozen=True)
class Pair:
    """A queue, and another database with a queue of that name."""

    queue: str
    source: str
    target: str
    here: Client
    there: Client
    look: Connection
    look_there: Connection

    def mover(self, to: str | None = None, **more: Any) -> Mover:
        given = {"database": self.source, "target": self.target, "name": "mover", "once": True, "worker": "w"}
        return Mover(self.queue, to or self.queue, **{**given, **more})

    def move(self, to: str | None = None, **more: Any) -> Mover:
        mover = self.mover(to, **more)
        asyncio.run(mover.run_async())
        return mover

    def publish(self, count: int, **more: Any) -> list[int]:
        return self.here.publish_many(self.queue, list(range(count)), **more)

    def ids_there(self, queue: str | None = None) -> list[int]:
        """Ids that its messages had in the source, in their order."""
        log = queue or self.queue
        query = f"select (headers ->> 'trunq_source_id')::bigint from trunq_log.{log} order by id"
        return [id for (id,) in self.look_there.execute(query.encode())]

    def state(self) -> MoverState | None:
        """Of its mover."""
        return next(iter(self.here.list_movers(self.queue)), None)


@pytest.fixture(scope="module")
def databases(server: Embedded) -> tuple[str, str]:
    """Two that all tests share, each with queues of its own: databases are dear."""
    made = []
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        for name in (next(new_names("moving")), next(new_names("moving"))):
            connection.execute(f"create database {name} template {TEMPLATE}".encode())
            made.append(make_conninfo(server.dsn, dbname=name))
    return made[0], made[1]


@pytest.fixture
def pair(databases: tuple[str, str]) -> Iterator[Pair]:
    source, target = databases
    queue = next(new_names("sales"))
    with (
        Client(source) as here,
        Client(target) as there,
        opening(source) as connect,
        opening(target) as connect_there,
    ):
        here.create_queue(queue, default_subscription=False)
        there.create_queue(queue)
        yield Pair(queue, source, target, here, there, connect(), connect_there())


@asynccontextmanager
async def running(*movers: Mover) -> AsyncIterator[list[asyncio.Task[None]]]:
    """Movers that run beside the test."""
    runs = [asyncio.create_task(mover.run_async()) for mover in movers]
    try:
        yield runs
        for mover in movers:
            mover.stop()
        async with asyncio.timeout(30):
            await asyncio.gather(*runs)
    finally:
        for run in runs:
            run.cancel()
        await asyncio.gather(*runs, return_exceptions=True)


def test_a_message_arrives_as_it_is_in_order_and_once(pair: Pair) -> None:
    ids = pair.publish(3)
    query = 'select trunq.publish(%s, \'{"sum": 1.10, "big": 12345678901234567890.5}\')'
    ids += [
        fetch(pair.look, query, pair.queue),
        *pair.here.publish_many(pair.queue, WORDS, kinds=WORDS, keys=WORDS, headers={"trace": "x"}),
    ]
    ids += pair.here.publish_many(pair.queue, bodies=[b"\x00\\\n\xff"], kind="raw")
    done = pair.move().statistics
    assert (done.messages, done.batches, done.failures) == (len(ids), 1, 0)
    assert pair.ids_there() == ids
    columns = "select kind, key, payload::text, body, headers - 'trunq_source_id', priority from trunq_log."
    rows = [
        (*row[:4], row[4] or {}, row[5])
        for row in pair.look.execute(f"{columns}{pair.queue} order by txid, id".encode()).fetchall()
    ]
    assert rows == pair.look_there.execute(f"{columns}{pair.queue} order by id".encode()).fetchall()
    assert pair.move().statistics.batches == 0
    assert pair.ids_there() == ids


def test_one_key_goes_to_one_queue_in_its_order(pair: Pair) -> None:
    keys = [f"k{n % 11}" for n in range(200)]
    ids = pair.publish(200, keys=keys)
    with pytest.raises(QueueNotFound, match="_0"):
        pair.move(f"{pair.queue}_{{slot}}", split="key", into=3)
    assert pair.state() is None
    pair.move(f"{pair.queue}_{{slot}}", split="key", into=3, create=True)
    found: dict[str, set[int]] = {}
    for slot in range(3):
        there = pair.ids_there(f"{pair.queue}_{slot}")
        assert there == sorted(there)
        for id in there:
            found.setdefault(keys[ids.index(id)], set()).add(slot)
    assert {len(slots) for slots in found.values()} == {1}
    assert sum(len(pair.ids_there(f"{pair.queue}_{slot}")) for slot in range(3)) == 200


def test_kinds_make_queues_and_what_has_none_moves_nothing(pair: Pair) -> None:
    pair.there.create_queue(f"{pair.queue}_mail_sent")
    pair.publish(1, kind="Mail.sent")
    pair.publish(1, kind="other")
    with pytest.raises(QueueNotFound, match="_other"):
        pair.move(f"{pair.queue}_{{kind}}", split="kind")
    assert pair.ids_there(f"{pair.queue}_mail_sent") == []
    state = pair.state()
    assert state is not None
    assert (state.worker, state.messages, "_other" in str(state.error)) == (None, 0, True)
    pair.move(f"{pair.queue}_{{kind}}", split="kind", create=True)
    assert [len(pair.ids_there(f"{pair.queue}_{kind}")) for kind in ("mail_sent", "other")] == [1, 1]


def test_filtered_and_within_one_database(pair: Pair) -> None:
    pair.publish(2, kind="a")
    pair.publish(3, kind="b")
    with pytest.raises(InvalidArgument, match="to itself"):
        pair.move(target=None)
    copy = f"{pair.queue}_copy"
    done = pair.move(copy, target=None, create=True, filter={"kinds": ["b"]}).statistics
    assert done.messages == len(pair.here.list_messages(copy)) == 3


def test_a_worker_of_the_queue_may_move_it(pair: Pair) -> None:
    ids = pair.publish(2)
    role = f"{pair.queue}_worker"
    pair.look.execute(f"create role {role}".encode())
    try:
        pair.here.grant_role(pair.queue, "worker", role)
        pair.here.subscribe(pair.queue, "mover", mode="exclusive", start="earliest", max_attempts=0)
        pair.move(database=make_conninfo(pair.source, options=f"-c role={role}"))
        assert pair.ids_there() == ids
    finally:
        pair.look.execute(f"drop owned by {role}; drop role {role}".encode())


def test_patterns_are_looked_at_in_their_order() -> None:
    patterns = {"^mail[.]": "mails", r"^(?P<region>eu|us)[.](\w)": "shop_{region}_{2}"}
    split = split_by("other", "pattern", patterns=patterns)
    kinds = ["mail.eu", "eu.Order", "asia", None]
    assert [split.target(1, kind, "k") for kind in kinds] == ["mails", "shop_eu_o", "other", "other"]
    assert set(split.known) == {"mails", "other"}
    assert split_by("other", "pattern", patterns={"k": "found"}, on="key").target(1, None, "k") == "found"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"to": "Orders"}, InvalidName),
        ({"to": "orders_{kind}"}, InvalidArgument),
        ({"to": "orders", "by": "kind"}, InvalidArgument),
        ({"to": "orders_{slot}", "by": "key"}, InvalidArgument),
        ({"to": "orders_{slot}", "by": "key", "into": 0}, InvalidArgument),
        ({"to": "orders", "into": 2}, InvalidArgument),
        ({"to": "orders", "by": "pattern"}, InvalidArgument),
        ({"to": "orders", "by": "pattern", "patterns": {"(": "x"}}, InvalidArgument),
        ({"to": "orders", "by": "pattern", "patterns": {"a": "x_{1}"}}, InvalidArgument),
        ({"to": "orders", "by": "pattern", "patterns": {"a": "X"}}, InvalidName),
        ({"to": "orders", "patterns": {"a": "x"}}, InvalidArgument),
        ({"to": "orders", "on": "key"}, InvalidArgument),
    ],
)
def test_splits_that_cannot_be_are_refused(arguments: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        split_by(**arguments)


def test_a_kind_that_makes_no_name_is_told(pair: Pair) -> None:
    pair.publish(1, kind="x" * 60)
    with pytest.raises(InvalidName, match="the kind"):
        pair.move(f"{pair.queue}_{{kind}}", split="kind", create=True)


def test_a_stream_that_was_moved_by_hand_is_refused_until_that_is_accepted(pair: Pair) -> None:
    ids = pair.publish(2)
    pair.move()
    ids += pair.publish(1)
    pair.move()
    pair.here.seek(pair.queue, "mover", start="earliest")
    with pytest.raises(MarkMismatch, match="the batch begins at"):
        pair.move(max_ticks=1)
    assert pair.ids_there() == ids
    assert "MarkMismatch" in str(pair.state())
    pair.move(accept=True)
    assert Counter(pair.ids_there()) == dict.fromkeys(ids, 2)


async def test_it_stops_when_it_is_asked_to_from_elsewhere(pair: Pair) -> None:
    async with running(pair.mover(once=False)) as (run,):
        await async_wait_until(pair.state, 30)
        ids = pair.publish(2)
        await async_wait_until(lambda: pair.ids_there() == ids, 30)
        assert pair.here.stop_mover(pair.queue, "mover")
        async with asyncio.timeout(30):
            await run
    state = pair.state()
    assert state is not None
    assert (state.worker, state.messages, state.pending) == (None, 2, 0)


async def test_of_two_of_one_name_each_batch_is_moved_by_one(pair: Pair) -> None:
    movers = [pair.mover(once=False, worker=worker, lease_time=1) for worker in ("v", "w")]
    ids = []
    async with running(*movers):
        for _ in range(15):
            ids += await asyncio.to_thread(pair.publish, 3)
        await async_wait_until(lambda: len(pair.ids_there()) >= len(ids), 30)
    assert pair.ids_there() == ids


async def test_a_target_that_is_closed_is_waited_for(pair: Pair) -> None:
    pair.there.close_queue(pair.queue)
    pair.here.subscribe(pair.queue, "mover", mode="exclusive", max_attempts=0, backoff_base=0)
    mover = pair.mover(once=False)
    async with running(mover):
        await async_wait_until(pair.state, 30)
        ids = pair.publish(2)
        await async_wait_until(lambda: mover.statistics.failures > 1, 30)
        assert "QueueClosed" in str(pair.state())
        pair.there.open_queue(pair.queue)
        await async_wait_until(lambda: pair.ids_there() == ids, 30)
        # Cut off from both databases it comes back.
        for look in (pair.look, pair.look_there):
            look.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity"
                " where datname = current_database() and pid <> pg_backend_pid()"
            )
        more = await async_wait_until(lambda: _published(pair), 30)
        await async_wait_until(lambda: pair.ids_there() == [*ids, *more], 30)


def _published(pair: Pair) -> list[int]:
    """Ids of messages, published on a connection that is not lost."""
    rows = pair.look.execute("select unnest(trunq.publish_many(%s, array['1', '2']::jsonb[]))", (pair.queue,))
    return [id for (id,) in rows]


GATES = {
    "before the mark": "select from trunq.received for update",
    "while messages are written": "lock table trunq_log.{} in share mode",
    "before the batch is finished": "select from trunq.mover for update",
}
"""What holds a mover up at a step; the last one in the source."""


@pytest.mark.parametrize("gate", GATES)
def test_killed_at_a_step_it_has_lost_and_doubled_nothing(pair: Pair, gate: str) -> None:
    ids = pair.publish(3)
    pair.move()
    is_done = gate == "before the batch is finished"
    watch = pair.look if is_done else pair.look_there
    named = ("--name", "mover", "--worker", "killed", "--dsn", pair.source, "--to-dsn", pair.target)
    process = subprocess.Popen(
        [sys.executable, "-m", "trunq.cli", "stream", "move", pair.queue, pair.queue, *named],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_until(lambda: "killed" in str(pair.state()), 60)
        with psycopg.connect(pair.source if is_done else pair.target) as holder:
            holder.execute(GATES[gate].format(pair.queue).encode())
            ids += pair.publish(400)
            waiting = f"{holder.info.backend_pid} = any (pg_blocking_pids(pid))"
            query = f"select pid from pg_stat_activity where datname = current_database() and {waiting}"
            (pid,) = wait_until(lambda: watch.execute(query.encode()).fetchone(), 60)
            process.kill()
            process.wait(60)
            # Before it is let go: what waits for a lock does not hear that its program has died.
            watch.execute("select pg_terminate_backend(%s, 60000)", (pid,))
    finally:
        process.kill()
        process.communicate()
    assert (pair.ids_there() == ids) == is_done
    done = pair.move(worker="killed").statistics
    assert (done.messages, done.skipped) == ((0, 1) if is_done else (400, 0))
    assert pair.ids_there() == ids
    assert pair.here.list_streams(pair.queue)[0].pending == 0


def test_columns_of_the_user_s_go_where_they_are_too(pair: Pair) -> None:
    for name, type in (("customer", "text"), ("tags", "text[]"), ("total", "numeric"), ("At", "timestamptz")):
        pair.here.add_column(pair.queue, name, type)
    for name, type in (("At", "timestamptz"), ("customer", "text"), ("total", "text"), ("tags", "text[]")):
        pair.there.add_column(pair.queue, name, type)
    at = "2030-01-31T10:00:00+00:00"
    given = {"customer": "a\tb\\N", "tags": ["x", "y,z"], "total": 1.5, "At": at}
    pair.here.publish(pair.queue, 1, columns=given)
    pair.here.publish(pair.queue, 2)
    pair.move()
    first, second = pair.there.lease(pair.queue, "default", "w", 10)
    assert first.columns == {"customer": "a\tb\\N", "tags": ["x", "y,z"], "total": None, "At": at}
    assert set(second.columns.values()) == {None}


def test_a_queue_that_a_mover_makes_has_the_columns(pair: Pair) -> None:
    pair.here.add_column(pair.queue, "customer", "text")
    pair.here.publish(pair.queue, 1, columns={"customer": "acme"})
    pair.move(f"{pair.queue}_made", create=True)
    (message,) = pair.there.lease(f"{pair.queue}_made", "default", "w")
    assert message.columns == {"customer": "acme"}


def test_a_queue_is_made_with_all_columns_or_not_at_all(pair: Pair) -> None:
    made = f"{pair.queue}_made"
    pair.look.execute(f"create domain public.{pair.queue}_sum as numeric".encode())
    pair.here.add_column(pair.queue, "customer", "text")
    pair.here.add_column(pair.queue, "sum", f"public.{pair.queue}_sum")
    pair.here.publish(pair.queue, 1, columns={"customer": "acme", "sum": 1.5})
    for _ in range(2):
        # A queue left behind would be taken for ready, and the columns for unwanted.
        with pytest.raises(InvalidArgument, match=f"{pair.queue}_sum"):
            pair.move(made, create=True)
        assert made not in {row.queue for row in pair.there.list_queues()}
    pair.look_there.execute(f"create domain public.{pair.queue}_sum as numeric".encode())
    pair.move(made, create=True)
    (message,) = pair.there.lease(made, "default", "w")
    assert message.columns == {"customer": "acme", "sum": 1.5}


def test_columns_that_no_target_has_stay_behind(pair: Pair) -> None:
    pair.here.add_column(pair.queue, "customer", "text")
    pair.here.publish(pair.queue, 1, columns={"customer": "acme"})
    pair.move()
    (message,) = pair.there.lease(pair.queue, "default", "w")
    assert (message.payload, message.columns) == (1, {})
