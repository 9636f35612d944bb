"""A queue with two shared subscriptions against its model: whatever is called in whatever order."""

from __future__ import annotations

from itertools import count
from operator import attrgetter, itemgetter
from typing import Any, ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from calling import Lease, call, move_clock, new_names, refused
from conftest import Connect
from engine import Engine
from model.machine import run_machine
from model.reference import BACKOFF, LEASE_TIME, MAX_ATTEMPTS, Held, Moment, Reader

SUBSCRIPTIONS = ("default", "mail")
STATES = ("scheduled", "ready", "leased", "retrying", "done", "dead")
VIEWED = (
    "id", "state", "kind", "key", "payload", "headers", "attempt", "published_at", "due_at", "worker",
    "leased_at", "expires_at", "finished_at", "result",
)  # fmt: skip
WORKERS = ("ada", "bob", "eve")
WRITERS = (0, 1)

some = st.integers(1, 4)
subscriptions = st.sampled_from(SUBSCRIPTIONS)
workers = st.sampled_from(WORKERS)
writers = st.sampled_from(WRITERS)
# Steps of time are hundreds of seconds, and what waits lasts fifty more or less: real seconds do not matter.
any_lease = st.integers(0, 5)
spans = st.sampled_from([50, 150])
which = st.sets(st.integers(0, 3), min_size=1)


class QueueMachine(RuleBasedStateMachine):
    """A plain queue. What differs in others is said by the methods that they have in place of these."""

    OPTIONS: ClassVar[dict[str, Any]] = {}
    RETENTION = "2000 days"

    def __init__(self, connect: Connect) -> None:
        super().__init__()
        self.work = Engine(connect(), next(new_names("model"))).create(
            retention=self.RETENTION, **self.OPTIONS
        )
        for subscription in SUBSCRIPTIONS:
            self.work.ask(
                "subscribe", subscription=subscription, max_attempts=MAX_ATTEMPTS,
                lease_time=f"{LEASE_TIME} s", backoff="constant", backoff_base=f"{BACKOFF} s", jitter=0,
            )  # fmt: skip
        self.other = self.work.on(connect())
        self.writers = [self.work.on(connect(autocommit=False)) for _ in WRITERS]
        self.written: list[list[int]] = [[] for _ in WRITERS]
        self.leases: list[Lease] = []
        self.readers = {subscription: Reader() for subscription in SUBSCRIPTIONS}
        self.scheduled: dict[int, int] = {}
        self.logged: set[int] = set()
        self.now = 0
        self.moments = count()

    @property
    def moment(self) -> Moment:
        return self.now, next(self.moments)

    def put(self, engine: Engine, count: int = 1, **options: Any) -> list[int]:
        """Publish."""
        return engine.publish(count, **options)

    def eligible(self, subscription: str) -> dict[int, int]:
        """Of what is ready, what a lease may hand out; when it is none, a lease gives nothing."""
        return self.readers[subscription].ready

    def free(self) -> None:
        """Let everything that is ready be handed out."""

    # Publishing

    def arrive(self, ids: list[int]) -> None:
        self.logged |= set(ids)
        for reader in self.readers.values():
            reader.ready |= dict.fromkeys(ids, 1)

    @initialize()
    def begin(self) -> None:
        self.publish(8)

    @rule(count=some)
    def publish(self, count: int) -> None:
        self.arrive(self.put(self.work, count))

    @rule(count=some, delay=spans)
    def publish_later(self, count: int, delay: int) -> None:
        ids = self.put(self.work, count, delay=f"{delay} s")
        self.scheduled |= dict.fromkeys(ids, self.now + delay)

    @rule(writer=writers, count=some)
    def write(self, writer: int, count: int) -> None:
        """In a transaction that stays open."""
        self.written[writer] += self.put(self.writers[writer], count)

    @rule(writer=writers, commits=st.booleans())
    def end_writing(self, writer: int, commits: bool) -> None:
        if commits:
            self.writers[writer].connection.commit()
            self.arrive(self.written[writer])
        else:
            self.writers[writer].connection.rollback()
        self.written[writer] = []

    # Leases and answers

    def took(self, held: Lease, worker: str) -> None:
        reader, eligible = self.readers[held.subscription], self.eligible(held.subscription)
        if not held:
            assert not eligible
            return
        assert {row.id: row.attempt for row in held.messages}.items() <= eligible.items()
        assert len(set(held.ids)) == len(held.ids)
        assert len({(row.lease_id, row.token) for row in held.messages}) == 1
        reader.take(held.lease_id, worker, held.ids, self.moment)
        self.leases.insert(0, held)

    def known(self, held: Lease) -> Held | None:
        return self.readers[held.subscription].leases.get(held.lease_id)

    def chosen(self, at: int) -> Lease:
        """One of the leases: those that still hold messages come first."""
        order = sorted(self.leases, key=lambda held: not ((known := self.known(held)) and known.open))
        return order[at % len(order)]

    @rule(subscription=subscriptions, worker=workers, count=some)
    def lease(self, subscription: str, worker: str, count: int) -> None:
        self.took(self.work.lease(count, subscription=subscription, worker=worker), worker)

    @rule(subscription=subscriptions, count=some, commits=st.booleans())
    def write_and_lease(self, subscription: str, count: int, commits: bool) -> None:
        """All in one transaction: what it publishes comes later, to everyone."""
        with self.work.connection.transaction(force_rollback=not commits):
            ids = self.put(self.work)
            # Somebody with a later transaction id, so that the own one lies below the snapshot's end.
            self.arrive(self.put(self.other))
            held = self.work.lease(count, subscription=subscription, worker="ada")
            ids += self.put(self.work)
        if commits:
            self.took(held, "ada")
            self.arrive(ids)

    @precondition(lambda self: self.leases)
    @rule(at=any_lease, which=which)
    def ack(self, at: int, which: set[int]) -> None:
        self.answer(self.chosen(at), "ack", which)

    @precondition(lambda self: self.leases)
    @rule(at=any_lease, which=which)
    def release(self, at: int, which: set[int]) -> None:
        self.answer(self.chosen(at), "release", which)

    @precondition(lambda self: self.leases)
    @rule(at=any_lease, which=which)
    def put_off(self, at: int, which: set[int]) -> None:
        """By a worker that has no handler for their kind."""
        self.answer(self.chosen(at), "put off", which)

    @precondition(lambda self: self.leases)
    @rule(at=any_lease, which=which)
    def reject(self, at: int, which: set[int]) -> None:
        self.answer(self.chosen(at), "reject", which)

    @precondition(lambda self: self.leases)
    @rule(at=any_lease, which=which, delay=st.sampled_from([0, 50, None, 150]))
    def retry(self, at: int, which: set[int], delay: int | None) -> None:
        self.answer(self.chosen(at), "retry", which, delay)

    def answer(self, held: Lease, verb: str, which: set[int], delay: int | None = None) -> None:
        ids = [id for at, id in enumerate(held.ids) if at in which] or held.ids
        more = {} if delay is None else {"delays": [f"{delay} s"] * len(ids)}
        function = verb
        if verb == "put off":
            function, more = "release", {"errors": ["no handler"] * len(ids)}
        reader = self.readers[held.subscription]
        known = reader.leases.get(held.lease_id)
        if known is None or (known.lost and not known.answered.issuperset(ids)):
            with refused("TQ003"):
                self.work.answer(function, held, ids, **more)
            return
        fresh = [id for id in ids if id in known.open]
        assert self.work.answer(function, held, ids, **more) == len(fresh)
        reader.answer(held.lease_id, fresh, verb, BACKOFF if delay is None else delay, self.now)

    @precondition(lambda self: self.leases)
    @rule(at=any_lease, other=any_lease)
    def answer_for_another(self, at: int, other: int) -> None:
        held, foreign = self.chosen(at), self.chosen(other)
        if foreign.token == held.token:
            return
        with refused("TQ003"):
            call(self.work.connection, "ack", **held.named | {"token": foreign.token}, ids=held.ids)

    @precondition(lambda self: self.leases)
    @rule(at=any_lease, span=spans, waits=st.booleans())
    def extend(self, at: int, span: int, waits: bool) -> None:
        held = self.chosen(at)
        known = self.known(held)
        if known is None or known.lost:
            with refused("TQ003"):
                call(self.work.connection, "extend", **held.named, lease_time=f"{span} s")
            return
        call(self.work.connection, "extend", **held.named, lease_time=f"{span} s")
        known.expires_at = self.now + span
        if waits:
            self.move_time(1)
            self.reap()

    # Duties

    @rule(steps=st.sampled_from([-1, 1, 1, 1, 2]))
    def move_time(self, steps: int) -> None:
        if steps < 0 and self.is_soon(self.now + 100 * steps):
            return
        self.now += 100 * steps
        for engine in (self.work, self.other, *self.writers):
            move_clock(engine.connection, f"{self.now} s")
        if steps < 0:
            # Duties look every second: there is one that sees the earlier time. What falls due behind the
            # back of all of them waits for the full look of each minute.
            self.promote()

    @rule(steps=st.sampled_from([1, -1]))
    def time_passes_and_duties_are_done(self, steps: int) -> None:
        self.move_time(steps)
        if not self.is_soon(self.now):
            self.promote()
        self.reap()
        self.work.ask("tick")

    @rule()
    def reap(self) -> None:
        ended = 0
        for reader in self.readers.values():
            ended += reader.end(self.expired(reader), self.moment)
        assert self.work.ask("reap") == ended

    def expired(self, reader: Reader) -> list[Held]:
        return [held for held in reader.leases.values() if held.expires_at <= self.now]

    @rule(subscription=subscriptions, worker=workers)
    def reclaim(self, subscription: str, worker: str) -> None:
        reader = self.readers[subscription]
        own = [held for held in reader.leases.values() if held.worker == worker]
        ended = reader.end(own, self.moment)
        assert self.work.ask("reclaim", subscription=subscription, worker=worker) == ended

    @precondition(lambda self: not self.is_soon(self.now))
    @rule()
    def promote(self) -> None:
        due = [id for id, due_at in self.scheduled.items() if due_at <= self.now]
        self.arrive(due)
        count = len(due)
        for id in due:
            del self.scheduled[id]
        for reader in self.readers.values():
            for id, (attempt, due_at) in list(reader.retrying.items()):
                if due_at <= self.now:
                    reader.ready[id] = attempt
                    self.logged.add(id)
                    del reader.retrying[id]
                    count += 1
        assert self.work.ask("promote") == count

    def is_soon(self, now: int) -> bool:
        """Whether it depends on real seconds what is due at that time."""
        times = [due_at for reader in self.readers.values() for _, due_at in reader.retrying.values()]
        return any(now < due_at < now + BACKOFF for due_at in times)

    @precondition(lambda self: any(reader.dead for reader in self.readers.values()))
    @rule(
        verb=st.sampled_from(["requeue", "purge"]),
        subscription=subscriptions | st.none(),
        which=st.none() | which,
    )
    def raise_dead(self, verb: str, subscription: str | None, which: set[int] | None) -> None:
        readers = [reader for name, reader in self.readers.items() if subscription in (name, None)]
        dead = sorted({id for reader in readers for id in reader.dead})
        ids = None if which is None else [id for at, id in enumerate(dead) if at in which]
        count = 0
        for reader in readers:
            for id in dead if ids is None else ids:
                if id in reader.dead:
                    attempt = reader.dead.pop(id)
                    reader.expiries.pop(id, None)
                    if verb == "requeue":
                        reader.ready[id] = 1
                        reader.expires.pop(id, None)
                        self.logged.add(id)
                    elif id in self.logged:
                        reader.purged[id] = attempt
                    count += 1
        assert self.work.ask(verb, subscription=subscription, ids=ids) == count

    @rule(how=st.sampled_from(["as it is", "held", "done"]))
    def rotate(self, how: str) -> None:
        """When three spans have passed: everything goes, if nobody needs anything."""
        self.reap()
        if how != "as it is":
            for writer in WRITERS:
                self.end_writing(writer, commits=True)
            for subscription in SUBSCRIPTIONS:
                self.take_everything(subscription, acks=how == "done")
        self.work.rotate("3000 days")
        if any(self.written) or any(reader.ready or reader.leased() for reader in self.readers.values()):
            return
        assert self.work.is_empty("log")
        self.logged = set()
        for reader in self.readers.values():
            reader.done, reader.purged, reader.leases = {}, {}, {}

    @precondition(lambda self: any(reader.purged for reader in self.readers.values()))
    @rule()
    def empty(self) -> None:
        for writer in WRITERS:
            self.end_writing(writer, commits=True)
        self.work.ask("empty_queue")
        self.scheduled, self.logged = {}, set()
        for reader in self.readers.values():
            reader.forget()

    def take_everything(self, subscription: str, *, acks: bool) -> None:
        held = None
        while held is None or held:
            # The last one too: it hands out nothing, and may have found what expired.
            self.took(held := self.work.lease(4, subscription=subscription, worker="eve"), "eve")
            if held and acks:
                self.answer(held, "ack", {0, 1, 2, 3})
        assert not self.eligible(subscription)

    # What must be so

    @invariant()
    def status_agrees(self) -> None:
        for row in self.work.call("status"):
            reader = self.readers[row.subscription]
            assert (row.ready, row.leased) == (len(reader.ready), len(reader.leased()))
            assert (row.delayed, row.dead) == (len(self.scheduled) + len(reader.retrying), len(reader.dead))
            assert (row.oldest_ready is None, row.oldest_dead is None) == (not reader.ready, not reader.dead)
            assert row.estimated == []

    @invariant()
    def lists_agree(self) -> None:
        for subscription in SUBSCRIPTIONS:
            self.every_message_is_where_it_should_be(subscription)

    def every_message_is_where_it_should_be(self, subscription: str) -> None:
        rows = self.work.call("list_messages", subscription=subscription, limit=1000)
        scheduled = dict.fromkeys(self.scheduled, ("scheduled", 1))
        expected = self.readers[subscription].states() | scheduled
        assert {row.id: (row.state, row.attempt) for row in rows} == expected
        assert rows == sorted(rows, key=lambda row: (row.published_at, row.id), reverse=True)
        assert len(rows) == len(expected)
        seen = self.work.run(
            f"select {', '.join(VIEWED)} from trunq_queue.{{queue}}_messages where subscription = %s",
            subscription,
        ).fetchall()
        assert sorted(seen, key=itemgetter(0)) == sorted(map(attrgetter(*VIEWED), rows), key=itemgetter(0))
        dead = self.work.call("list_dead", subscription=subscription, limit=1000)
        assert {row.id: row.attempts for row in dead} == self.readers[subscription].dead

    @rule(subscription=subscriptions, state=st.sampled_from(STATES), limit=some)
    def a_page_of_a_state_is_of_the_newest(self, subscription: str, state: str, limit: int) -> None:
        scheduled = dict.fromkeys(self.scheduled, ("scheduled", 1))
        states = self.readers[subscription].states() | scheduled
        left = sorted((id for id, (each, _) in states.items() if each == state), reverse=True)
        before = None
        while True:
            page = self.work.call(
                "list_messages", subscription=subscription, state=state, limit=limit, before=before
            )
            assert {row.id for row in page} == set(left[:limit])
            if not page:
                break
            left, before = left[limit:], left[: len(page)][-1]

    @precondition(lambda self: self.leases)
    @rule(at=any_lease)
    def a_message_is_shown_where_it_is(self, at: int) -> None:
        id = self.chosen(at).ids[0]
        expected = {name: state for name in SUBSCRIPTIONS if (state := self.readers[name].states().get(id))}
        if expected:
            rows = self.work.call("show_message", id=id)
            assert {row.subscription: (row.state, row.attempt) for row in rows} == expected
            for row in rows:
                listed = self.work.call("list_messages", subscription=row.subscription, limit=1000)
                assert row in listed
        else:
            with refused("TQ013"):
                self.work.call("show_message", id=id)

    def teardown(self) -> None:
        """In the end every committed message comes to everyone, once."""
        for writer in WRITERS:
            self.end_writing(writer, commits=True)
        for _ in range(MAX_ATTEMPTS + 1):
            self.move_time(2)
            # Time may come back to where something was put off by a second, and that has passed or not.
            if not self.is_soon(self.now):
                self.promote()
            self.reap()
        self.move_time(20)
        self.promote()
        self.free()
        for subscription in SUBSCRIPTIONS:
            self.every_message_is_where_it_should_be(subscription)
            self.take_everything(subscription, acks=True)
            self.every_message_is_where_it_should_be(subscription)
        self.work.ask("drop_queue", force=True)
        for engine in (self.work, self.other, *self.writers):
            engine.connection.close()


@pytest.mark.slow
def test_a_queue_does_what_its_model_does(connect: Connect) -> None:
    run_machine(lambda: QueueMachine(connect), 40, 40)
