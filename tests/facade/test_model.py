"""In whatever order things come, a committed event is in one batch of each consumer, and in one more a retry.

Writers with long transactions, rollbacks and savepoints; consumers who leave batches open and send events
back; a group whose members die; PgQ's rotation and trunq's, through several rounds of the ring.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import psycopg

from calling import ask, fetch, move_clock
from conftest import Connect

Connection = psycopg.Connection[Any]

STEPS = 250
MEMBERS = ("one", "two")


class Writer:
    """A session with a transaction that goes on over many steps."""

    def __init__(self, connection: Connection, queue: str) -> None:
        self.connection = connection
        self.queue = queue
        self.written: list[str] = []

    def insert(self, data: str) -> None:
        fetch(self.connection, "select pgq.insert_event(%s, 'kind', %s)", self.queue, data)
        self.written.append(data)

    def insert_and_take_back(self, data: str) -> None:
        """Under a savepoint, with which it goes."""
        self.connection.execute("savepoint s")
        fetch(self.connection, "select pgq.insert_event(%s, 'kind', %s)", self.queue, data)
        self.connection.execute("rollback to s")

    def end(self, commit: bool) -> list[str]:
        """Returns what was committed."""
        written, self.written = self.written, []
        if commit:
            self.connection.commit()
            return written
        self.connection.rollback()
        return []


class Run:
    """One run: what was committed, and what each reader has done."""

    def __init__(self, seed: int, connect: Connect, pgq: Connection, queue: str) -> None:
        self.random = random.Random(seed)
        self.pgq = pgq
        self.queue = queue
        self.writers = [Writer(connect(autocommit=False), queue) for _ in range(3)]
        self.sessions = [pgq, *(writer.connection for writer in self.writers)]
        self.readers = ["reader", "other", *(f"group.{member}" for member in MEMBERS)]
        self.committed: list[str] = []
        self.done: dict[str, Counter[str]] = {name: Counter() for name in ("reader", "other", "group")}
        self.retried: dict[str, Counter[str]] = {name: Counter() for name in self.done}
        self.minutes = 0
        self.rounds = 0

    def call(self, function: str, *arguments: Any) -> Any:
        marks = ", ".join(["%s"] * len(arguments))
        return fetch(self.pgq, f"select {function}({marks})", *arguments)

    def next_batch(self, reader: str) -> Any:
        group, _, member = reader.partition(".")
        if member:
            return self.call("pgq_coop.next_batch", self.queue, group, member, "1 hour")
        return self.call("pgq.next_batch", self.queue, reader)

    def events(self, batch: int) -> list[tuple[int, str]]:
        rows = self.pgq.execute("select ev_id, ev_data from pgq.get_batch_events(%s)", (batch,)).fetchall()
        assert len({id for id, _ in rows}) == len(rows), "no event is twice in a batch"
        return rows

    def read(self, reader: str, to_the_end: bool = False) -> int:
        """Take a batch, and finish it, or not. Returns how many events were done."""
        batch = self.next_batch(reader)
        if batch is None:
            return 0
        events = self.events(batch)
        assert self.next_batch(reader) == batch
        assert self.events(batch) == events, "the same every time"
        if not to_the_end and self.random.random() < 0.3:
            return 0
        group = reader.partition(".")[0]
        if not to_the_end and self.random.random() < 0.3:
            for id, data in events[: self.random.randrange(3)]:
                assert self.call("pgq.event_retry", batch, id, 0) == 1
                self.retried[group][data] += 1
        assert self.call("pgq_coop.finish_batch" if "." in reader else "pgq.finish_batch", batch) == 1
        self.done[group].update(data for _, data in events)
        return len(events)

    def kill_a_member(self) -> None:
        """The next who asks takes over what it has; asking again, it is a new one."""
        self.pgq.execute(
            "update pgq.subscription s set sub_active = now() - interval '2 hours' from pgq.consumer c"
            " where c.co_id = s.sub_consumer and c.co_name = %s",
            (f"group.{self.random.choice(MEMBERS)}",),
        )

    def rotate(self) -> None:
        """Half an hour later: PgQ's tables, and the segments that are old by then."""
        self.minutes += 30
        for session in self.sessions:
            if session.info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
                move_clock(session, f"{self.minutes} minutes")
                if not session.autocommit:
                    session.commit()
        self.call("pgq.maint_rotate_tables_step1", self.queue)
        self.call("pgq.maint_rotate_tables_step2")
        while ask(self.pgq, "rotate", queue=self.queue):
            self.rounds += 1

    def step(self, number: int) -> None:
        writer = self.random.choice(self.writers)
        step = self.random.choices(
            ["insert", "take back", "commit", "roll back", "tick", "read", "retry", "rotate", "kill"],
            [30, 5, 10, 4, 15, 25, 8, 15, 3],
        )[0]
        match step:
            case "insert":
                writer.insert(f"event {number}")
            case "take back":
                writer.insert_and_take_back(f"event {number}")
            case "commit" | "roll back":
                self.committed += writer.end(step == "commit")
            case "tick":
                self.call("pgq.ticker", self.queue)
            case "read":
                reader = self.random.choice(self.readers)
                for _ in range(self.random.randrange(1, 10)):
                    self.read(reader)
            case "retry":
                self.call("pgq.maint_retry_events")
            case "rotate":
                self.rotate()
            case "kill":
                self.kill_a_member()

    def finish(self) -> None:
        """All writers end, and readers read what there is until there is no more."""
        for writer in self.writers:
            self.committed += writer.end(commit=True)
        newest = 0
        while self.call("pgq.maint_retry_events") or not newest:
            newest = self.call("pgq.ticker", self.queue)
            for reader in self.readers:
                while self.position(reader) < newest:
                    self.read(reader, to_the_end=True)
        for reader in self.readers:
            self.read(reader, to_the_end=True)

    def position(self, reader: str) -> int:
        tick: int = fetch(
            self.pgq,
            "select last_tick from pgq.get_consumer_info(%s, %s)",
            self.queue,
            reader.partition(".")[0],
        )
        return tick


def put_rows_where_the_moved_clock_says(pgq: Connection, queue: str) -> None:
    pgq.execute(
        f"create function public.{queue}() returns smallint language sql as"
        f" $$ select trunq._segment_at(trunq._find_queue('{queue}'), trunq.clock()) $$".encode()
    )
    for table in (f"trunq_log.{queue}", f"trunq_data.{queue}_lease", f"trunq_data.{queue}_receipt"):
        pgq.execute(f"alter table {table} alter segment set default public.{queue}()".encode())


def test_nothing_is_lost_or_doubled_for_any_consumer(open_pgq: Connect, pgq: Connection, name: str) -> None:
    pgq.execute("select pgq.register_consumer(%s, 'other')", (name,))
    pgq.execute("update pgq.queue set queue_rotation_period = '0' where queue_name = %s", (name,))
    for member in MEMBERS:
        pgq.execute("select pgq_coop.register_subconsumer(%s, 'group', %s)", (name, member))
    put_rows_where_the_moved_clock_says(pgq, name)
    run = Run(7, open_pgq, pgq, name)
    for number in range(STEPS):
        run.step(number)
    run.finish()
    expected = Counter(run.committed)
    assert len(expected) > STEPS // 10
    assert run.rounds > 0, "segments were emptied meanwhile"
    assert sum(retried.total() for retried in run.retried.values()) > 3
    for reader, done in run.done.items():
        assert done == expected + run.retried[reader], reader
