"""A queue with some features, through every verb, compared after each with its model (model/matrix.py)."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from calling import Lease, call, move_clock, new_names
from engine import Engine
from model.aged import publish_of_old
from model.forwarding import Forwarding
from model.leftover import left_of
from model.matrix import MAX_ATTEMPTS, POLICY, QUEUE, Fate, Reader
from model.parking import Parking
from trunq.arrow import history

STEP = 5
"""Seconds between two verbs; a retry is due after one."""
SPAN = 60
RETENTION = f"{2 * SPAN} seconds"
TIMES = 3
"""How often each verb is called."""
GROUP = "ledgers"
ASKS: tuple[dict[str, Any], ...] = ({}, {"kinds": ["a"]}, {"not_kinds": ["a"]}, {"key_prefix": "x"})


class Walk(Forwarding, Parking):
    """One queue with some features, and the calls of one sequence."""

    def __init__(self, connection: psycopg.Connection[Any], names: tuple[str, ...]) -> None:
        self.names = names
        self.chance = random.Random("".join(names))
        self.now = 0
        self.places = 0
        self.held: list[Lease] = []
        self.taken: Counter[tuple[str, int]] = Counter()
        self.batched: list[tuple[int, str | None]] = []
        self.published: list[int] = []
        self.awaited: set[int] = set()
        self.deleted: set[int] = set()
        self.tokens: dict[str, Fate] = {}
        self.state: dict[str, Any] = {}
        self.table: str | None = None
        self.role: str | None = None
        self.group = False
        options = {key: value for name in names for key, value in QUEUE.get(name, {}).items()}
        if {"priority", "lanes"} <= set(names):
            options["lanes"] = "priority,key"
        self.work = Engine(connection, next(new_names("matrix"))).create(retention=RETENTION, **options)
        self.readers = {"default": Reader(), "audit": Reader()}
        for name, reader in self.readers.items():
            reader.in_order = "in_order" in names
            order = {each: True for each in ("in_order", "due_first") if each in names}
            self.work.ask("subscribe", subscription=name, **POLICY, **order)
        for name in names:
            getattr(self, f"start_{name}", lambda: None)()

    # What some features need

    def start_limits(self) -> None:
        """Of each lane where there are lanes, else of the subscription."""
        for name, reader in self.readers.items():
            if {"lanes", "in_order"} & set(self.names):
                self.work.ask("set_lanes", subscription=name, max_running=2)
                reader.per_lane = 2
            else:
                self.work.ask("subscribe", subscription=name, max_running=3)
                reader.max_running = 3

    def start_filter(self) -> None:
        self.work.ask("subscribe", subscription="audit", filter={"not_kinds": ["b"]})

    def start_archive(self) -> None:
        self.work.ask("create_archive")

    def start_at_once(self) -> None:
        self.work.ask("create_archive", at_once=True)

    def start_taker(self) -> None:
        self.work.ask("create_taker", taker="lake")

    def start_tenant(self) -> None:
        self.work.ask("set_tenancy")
        self.role = f"tenant_{self.work.connection.info.dbname}_{self.work.queue}"
        self.work.run(f"create role {self.role}")
        self.work.ask("grant_role", role="publisher", grantee=self.role)

    def start_capture(self) -> None:
        self.table = f"rows_of_{self.work.queue}"
        self.work.run(f"create table {self.table} (id integer primary key, n integer)")
        call(self.work.connection, "capture", table=self.table, queue=self.work.queue)

    def start_group(self) -> None:
        self.group = True
        self.work.ask("create_group", group=GROUP, slots=2)

    # What publishers do

    def note(self, id: int, key: str | None, kind: str | None, unique_key: str | None, *states: str) -> None:
        self.published.append(id)
        self.places += 1
        for name, reader in self.readers.items():
            if name == "audit" and "filter" in self.names and kind == "b":
                continue
            if unique_key is not None and "replace" in self.names:
                for fate in reader.fates.values():
                    if fate.unique_key == unique_key:
                        fate.doom.add("replaced")
            fate = Fate(key, kind, unique_key, self.places, states or ("ready",))
            fate.is_loose = bool(states)
            reader.fates[id] = fate

    def publish(self, delay: str | None = None, max_age: str | None = None) -> None:
        if self.table and self.chance.random() < 0.4:
            self.change()
            return
        key, kind = self.chance.choice("xyz"), self.chance.choice("ab")
        options: dict[str, Any] = {"key": key, "kind": kind, "payload": {"n": self.places}}
        if "priority" in self.names:
            options["priority"] = self.chance.choice([0, 5])
        if "awaited" in self.names and self.chance.random() < 0.5:
            options["options"] = {"awaited": True}
        if delay or max_age:
            options |= {"delay": delay, "max_age": max_age}
        is_unique = bool({"refuse", "replace"} & set(self.names)) and self.chance.random() < 0.7
        unique_key = self.chance.choice(["u1", "u2", "u3"]) if is_unique else None
        with self.as_publisher(key):
            id = self.put(unique_key, options)
        if id is None:
            return
        self.note(id, key, kind, unique_key, *(("scheduled", "ready") if delay else ()))
        if "options" in options:
            self.awaited.add(id)
        if max_age:
            for reader in self.readers.values():
                if id in reader.fates:
                    reader.fates[id].doom.add("dead")

    def put(self, unique_key: str | None, options: dict[str, Any]) -> int | None:
        """Publish one message; None when it was left out."""
        if unique_key is None:
            return int(self.work.ask("publish", **options))
        ((id, is_new),) = self.work.call("publish_unique", unique_key=unique_key, **options)
        return id if is_new else None

    def publish_later(self) -> None:
        self.publish(delay="1 second")

    def publish_in_vain(self) -> None:
        with self.work.connection.transaction(force_rollback=True):
            self.work.ask("publish", payload={}, key="x")

    def publish_too_late(self) -> None:
        self.publish(max_age="1 millisecond")

    def change(self) -> None:
        """A change of a captured table: its message has the key of the row."""
        row = self.chance.choice([1, 2])
        self.work.run(
            f"insert into {self.table} values (%s, 1) on conflict (id) do update set n = {self.table}.n + 1",
            row,
        )
        changes = "select id, key, kind from {log} where subscription_id is null and payload ? 'op'"
        ids = {id: (key, kind) for id, key, kind in self.work.run(changes).fetchall()}
        for id in sorted(ids.keys() - set(self.published)):
            self.note(id, *ids[id], None)

    @contextmanager
    def as_publisher(self, key: str) -> Iterator[None]:
        """Where the queue has tenants, a role of theirs, which works for the tenant `key`."""
        if self.role is None:
            yield
            return
        self.work.run(f"set role {self.role}")
        self.work.run("select set_config('trunq.tenant', %s, false)", key)
        try:
            yield
        finally:
            self.work.run("reset role")

    # What workers do

    def lease(self, **more: Any) -> Lease | None:
        name, reader = self.chance.choice(list(self.readers.items()))
        if "asks" in self.names and (asks := self.chance.choice(ASKS)):
            more["asks"] = asks
        held = self.work.lease(
            self.chance.randint(1, 4), subscription=name, worker=f"w{self.places}.{self.now}", **more
        )
        reader.lease(held.ids)
        for message in held.messages:
            assert message.attempt == reader.fates[message.id].attempt
            assert message.max_attempts == MAX_ATTEMPTS
        return held or None

    def take(self) -> None:
        if held := self.lease(lease_time="1 day"):
            self.held.append(held)

    def answer(self, verb: str) -> None:
        if not self.held:
            self.take()
        if self.held:
            self.give(verb, self.held.pop(self.chance.randrange(len(self.held))))

    def give(self, verb: str, held: Lease) -> None:
        assert self.work.answer(verb, held) == len(held.ids)
        for id in held.ids:
            self.readers[held.subscription].fates[id].end(verb)

    def ack(self) -> None:
        self.answer("ack")

    def retry(self) -> None:
        """Of both subscriptions before the next promotion: their rows enter the log in one transaction."""
        for name, reader in self.readers.items():
            held = self.work.lease(2, subscription=name, worker=f"again {self.now}")
            reader.lease(held.ids)
            if held:
                self.give("retry", held)

    def reject(self) -> None:
        self.answer("reject")

    def release(self) -> None:
        self.answer("release")

    def cancel(self) -> None:
        known = sorted({id for reader in self.readers.values() for id in reader.fates})
        if not known:
            return
        ids = self.chance.sample(known, min(2, len(known)))
        aside = self.aside()
        with self.work.connection.transaction():
            rows = self.work.call("cancel", ids=ids)
        for row in rows:
            if row.subscription in self.readers:
                fate = self.readers[row.subscription].fates[row.id]
                assert row.state in fate.states, f"cancel: {row.state}: {fate}"
                fate.cancel(is_aside=row.id in aside[row.subscription])

    def lapse(self) -> None:
        """A lease runs out."""
        held = self.lease(lease_time="1 second")
        self.now += STEP
        move_clock(self.work.connection, f"{self.now} s")
        self.work.ask("reap")
        if held:
            for id in held.ids:
                self.readers[held.subscription].fates[id].end("lapse")

    # What operators and duties do

    def requeue(self) -> None:
        name, reader = self.chance.choice(list(self.readers.items()))
        before = {row.id for row in self.work.call("list_dead", subscription=name)}
        count = self.work.ask("requeue", subscription=name)
        after = {row.id for row in self.work.call("list_dead", subscription=name)}
        assert count == len(before - after)
        assert after <= self.deleted or {"refuse", "replace"} & set(self.names), "only a key keeps one dead"
        assert not (before - after) & self.deleted
        for id in sorted(before - after):
            self.places += 1
            fate = reader.fates.setdefault(id, reader.gone.pop(id)) if id in reader.gone else reader.fates[id]
            fate.requeue(self.places)
            if fate.unique_key is not None and "replace" in self.names:
                for other in [each for each in self.readers.values() for each in each.fates.values()]:
                    if other is not fate and other.unique_key == fate.unique_key:
                        other.doom.add("replaced")

    def upgrade(self) -> None:
        self.work.connection.execute(
            "select trunq._define_queue(trunq._find_queue(%s::text))", (self.work.queue,)
        )

    def rotate(self) -> None:
        """A span goes by, and whatever stands in the way of rotation is done."""
        self.now += SPAN + STEP
        move_clock(self.work.connection, f"{self.now} s")
        self.work.ask("promote")
        if self.group:
            self.read_group()
        self.keep_history()
        for _ in range(30):
            if self.work.ask("rotate") != 1:
                return
        raise AssertionError("rotation never comes to an end")

    def keep_history(self) -> None:
        while self.work.ask("roll_up"):
            pass
        if {"archive", "at_once"} & set(self.names):
            while self.work.ask("archive"):
                pass
        if "taker" in self.names:
            self.take_history()

    @contextmanager
    def begin(self) -> Iterator[psycopg.Connection[Any]]:
        yield self.work.connection

    def take_history(self) -> None:
        while True:
            slice, self.state = history.plan(self.begin, self.work.queue, "lake", self.state, 1000)
            if not slice:
                break
            for batch in history.read(self.begin, self.work.queue, slice):
                for row in batch.to_pylist():
                    assert row["outcome"] is not None
                    self.taken[row["subscription"], row["id"]] += 1
            history.take(self.begin, self.work.queue, "lake", self.state)

    def read_group(self) -> None:
        self.work.ask("tick", force=True)
        while batches := self.work.call("next_batch", subscription=GROUP, worker="ada"):
            (batch,) = batches
            for row in self.work.call("read_batch", subscription=GROUP, batch_id=batch.batch_id):
                self.batched.append((row.id, row.key))
            self.work.ask("finish_batch", subscription=GROUP, batch_id=batch.batch_id, token=batch.token)

    # What everybody sees

    def check(self) -> None:
        for name, reader in self.readers.items():
            rows = self.work.call("list_messages", subscription=name)
            listed = {row.id: (row.state, row.attempt) for row in rows}
            assert len(listed) == len(rows), "a message is listed twice"
            reader.see(listed)
            self.check_status(name, Counter(state for state, _ in listed.values()))
        in_view: dict[str, dict[int, str]] = {name: {} for name in self.readers}
        for name, id, state in self.work.run(
            "select subscription, id, state from trunq_queue.{queue}_messages"
        ).fetchall():
            if name in in_view:
                in_view[name][id] = state
        for name, reader in self.readers.items():
            for id, state in in_view[name].items():
                assert id in reader.gone or state in reader.fates[id].states, (
                    f"the view: {state}: {reader.fates[id]}"
                )
        self.check_message()

    def check_status(self, name: str, states: Counter[str]) -> None:
        status = self.work.status(name)
        told = {state: getattr(status, state) for state in ("ready", "leased", "delayed", "dead")}
        delayed = states["retrying"] + states["scheduled"] + states["parked"]
        assert status.parked == states["parked"]
        assert told == {**{state: states[state] for state in told}, "delayed": delayed}, f"{name}: {states}"

    def check_message(self) -> None:
        """One message as show_message tells it, with all its attempts."""
        id = self.chance.choice(self.published)
        if not any(id in reader.fates for reader in self.readers.values()):
            return
        for row in self.work.call("show_message", id=id):
            if row.subscription in self.readers and id in self.readers[row.subscription].fates:
                fate = self.readers[row.subscription].fates[id]
                assert row.state in fate.states, f"show_message: {row.state}: {fate}"
                assert row.attempt == fate.attempt
                ended = [each["outcome"] for each in row.attempts if each["outcome"] is not None]
                assert len(ended) <= fate.ended, f"{ended}: {fate}"

    def statistics(self) -> None:
        for row in self.work.call("statistics"):
            assert row.outcome is not None, row
            assert row.messages > 0, row

    def run(self) -> None:
        for _ in range(4):
            self.publish()
        verbs = [verb for verb in VERBS for _ in range(TIMES)]
        self.chance.shuffle(verbs)
        for number, verb in enumerate(verbs):
            try:
                verb(self)
                self.now += STEP
                move_clock(self.work.connection, f"{self.now} s")
                self.work.ask("promote")
                self.check()
            except BaseException as error:
                error.add_note(
                    f"{'+'.join(self.names)}: after {[each.__name__ for each in verbs[: number + 1]]}"
                )
                raise
        self.drain()
        self.count()
        self.start_again()
        self.drop()

    def drain(self) -> None:
        while self.tokens:
            self.resume()
        for held in self.held:
            self.work.ack(held)
            for id in held.ids:
                self.readers[held.subscription].fates[id].end("ack")
        for _ in range(3):
            self.now += 1000
            move_clock(self.work.connection, f"{self.now} s")
            self.work.ask("promote")
            for name, reader in self.readers.items():
                while held := self.work.lease(100, subscription=name, worker="drain"):
                    reader.lease(held.ids)
                    self.work.ack(held)
                    for id in held.ids:
                        reader.fates[id].end("ack")
        self.check()
        for name, reader in self.readers.items():
            assert all(fate.is_over for fate in reader.fates.values()), name
            assert self.work.status(name).ready == self.work.status(name).leased == 0

    def count(self) -> None:
        """Each attempt is in the archive and with the taker, once; and members read each message once."""
        if self.group:
            self.read_group()
            assert Counter(id for id, _ in self.batched) == Counter(self.published)
        self.rotate()
        self.keep_history()
        ended = Counter({
            (name, id): fate.ended
            for name, reader in self.readers.items()
            for id, fate in {**reader.fates, **reader.gone}.items()
        })  # fmt: skip
        if {"archive", "at_once"} & set(self.names):
            rows = self.work.run("select subscription, id, outcome from trunq_archive.{queue}").fetchall()
            assert all(outcome is not None for _, _, outcome in rows)
            assert Counter((name, id) for name, id, _ in rows) == +ended
        if "taker" in self.names:
            assert self.taken == +ended
        for row in (
            self.work.call("list_replies", ids=sorted(self.awaited), check=False) if self.awaited else ()
        ):
            assert row.outcome is not None

    def start_again(self) -> None:
        """A subscription that is reset to the earliest hands out what is still kept, each message once."""
        before = len(self.published)
        for _ in range(3):
            self.publish()
        self.work.ask("reset", subscription="audit", start="earliest")
        ids = []
        while held := self.work.lease(100, subscription="audit", worker="again"):
            ids += held.ids
            self.work.ack(held)
        assert len(ids) == len(set(ids))
        assert set(ids) <= set(self.published) - self.deleted
        reader = self.readers["audit"]
        fresh = [id for id in self.published[before:] if id in reader.fates and not reader.fates[id].doom]
        assert set(fresh) <= set(ids), f"{fresh} and {ids}"

    def drop(self) -> None:
        """Nothing of the queue is left, whatever it had, but its archive."""
        id = self.work.queue_id
        self.work.ask("drop_queue", force=True)
        if self.beyond is not None:
            self.beyond.ask("drop_queue", force=True)
        assert left_of(self.work.connection, self.work.queue, id) == []
        if {"archive", "at_once"} & set(self.names):
            call(self.work.connection, "drop_archive", queue=self.work.queue)
        for statement in (
            self.table and f"drop table {self.table}",
            self.role and f"drop owned by {self.role}; drop role {self.role}",
        ):
            if statement:
                self.work.connection.execute(statement.encode())


VERBS = (
    Walk.publish,
    Walk.publish_later,
    Walk.publish_in_vain,
    *(Walk.publish_too_late, publish_of_old),
    Walk.take,
    Walk.ack,
    Walk.retry,
    Walk.reject,
    Walk.release,
    Walk.park,
    Walk.resume,
    Walk.cancel,
    Walk.delete,
    Walk.lapse,
    Walk.forward,
    Walk.come_back,
    Walk.requeue,
    Walk.rotate,
    Walk.upgrade,
    Walk.statistics,
)
