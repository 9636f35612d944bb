"""Worker and leader processes on a server that dies now and then, and the ledger of what they did."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg

from trunq.embedded import Embedded
from waiting import wait_until

HERE = Path(__file__).parent

LEADER = "import sys; from trunq.leader import Leader; Leader(sys.argv[1], sys.argv[2], 2.0).run()"

OF_WORKER = """
select l.reaped_at from trunq_data.q_lease l where strpos(l.worker, '{}') > 0
  and l.size > (select coalesce(sum(r.size), 0) from trunq_data.q_receipt r
                where r.lease_id = l.lease_id and r.outcome <> 'x')
"""
"""Leases of which something was not answered by the worker."""

LEASING = (
    "select count(distinct application_name) from pg_stat_activity where query ~ 'trunq_queue.q_lease\\('"
)
"""Workers that were seen to lease."""

ANSWERED = (
    "select count(*) from pg_stat_activity"
    " where state = 'idle in transaction' and query ~ 'trunq_queue.q_(ack|retry|reject|release)\\('"
    " and state_change < clock_timestamp() - interval '3 s'"
)
"""Transactions of handlers that have answered, and do not commit."""

STANDING = (
    "select count(*) from pg_stat_activity"
    " where application_name like 'trunq leader%' and query ~ 'trunq.(elect|_note_duties)\\('"
)
"""Leaders that were seen to stand for election: one session of each does, whatever its lines are at."""


class Fleet:
    """Worker and leader processes on one queue, and what they did to the world."""

    def __init__(
        self, server: Embedded, folder: Path, lanes: str | None = None, unique: str | None = None
    ) -> None:
        self.server = server
        self.dsn = server.dsn
        self.folder = folder
        self.workers: dict[str, subprocess.Popen[bytes]] = {}
        self.leaders: list[subprocess.Popen[bytes]] = []
        self.ids: dict[str, list[int]] = {}
        self.was_frozen = False
        with self.connect() as connection:
            connection.execute(
                "select trunq.create_queue('q', p_lanes => %s, p_unique => %s)", (lanes, unique)
            )
            connection.execute(
                "select trunq.subscribe('q', 'default', p_max_attempts => 0, p_backoff => 'constant',"
                " p_backoff_base => '0.1 s', p_jitter => 0::real)"
            )
            connection.execute("create table effect (id bigint, attempt int)")

    def connect(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self.dsn, autocommit=True)

    def publish(self, count: int) -> None:
        """Publish `count` messages of each kind, mixed."""
        kinds = ["outside", "once", "once_sync", "once_batch"] * count
        with self.connect() as connection:
            row = connection.execute(
                "select trunq.publish_many('q', array_fill('{}'::jsonb, array[%s::int]), %s, %s)",
                (len(kinds), kinds, self.keys(len(kinds))),
            ).fetchone()
        assert row is not None
        for id, kind in zip(row[0], kinds, strict=True):
            self.ids.setdefault(kind, []).append(id)

    def keys(self, count: int) -> list[str | None]:
        """The keys of so many messages."""
        return [None] * count

    def start_worker(self, name: str) -> None:
        """Start a worker; one whose name begins with `-` tells nobody its name."""
        shown = "-" if name.startswith("-") else name
        self.workers[name] = self._start([str(HERE / "ledger.py"), self.dsn, shown, str(self.folder)])

    def start_leader(self, name: str) -> None:
        self.leaders.append(self._start(["-c", LEADER, self.dsn, name]))

    def kill_worker(self, name: str) -> None:
        """Kill -9, and wait until the session that leased is gone: the next of this name has its own."""
        worker = self.workers[name]
        worker.kill()
        worker.wait()
        shown = f"-{worker.pid}-" if name.startswith("-") else f"trunq worker {name}"
        left = f"{LEASING} and strpos(application_name, '{shown}') > 0"
        wait_until(lambda: self._number(left, 1) == 0, 120, f"{name} is gone")

    def terminate_connections(self) -> None:
        """Terminate every connection to the server."""
        with self.connect() as connection:
            connection.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity"
                " where pid <> pg_backend_pid() and backend_type = 'client backend'"
            )

    def freeze_worker(self, name: str) -> None:
        """Stop a worker where it is, with a lease in its hand, and wake it when that has run out."""
        pid = self.workers[name].pid
        told = "-" + str(pid) + "-" if name.startswith("-") else name
        before = self._expired_of(told)
        while self._expired_of(told) == before:
            self.feed()
            self.workers[name].send_signal(signal.SIGSTOP)
            wait_until(
                lambda: (
                    self._expired_of(told) > before
                    or not self._open_of(told)
                    # Stopped between an ack and its commit, it keeps the lease from the reaper.
                    or self._number(f"{ANSWERED} and strpos(application_name, '{told}') > 0")
                ),
                120,
                f"the lease of {name} has run out",
            )
            self.workers[name].send_signal(signal.SIGCONT)
        self.was_frozen = True

    def feed(self) -> None:
        """See that there is something to lease."""

    def _expired_of(self, worker: str) -> int:
        return self._number(
            f"select count(*) from ({OF_WORKER.format(worker)}) l where l.reaped_at is not null"
        )

    def _open_of(self, worker: str) -> int:
        return self._number(
            f"select count(*) from ({OF_WORKER.format(worker)}) l where l.reaped_at is null", 1
        )

    def kill_leader(self, number: int) -> None:
        """Kill -9."""
        leader = self.leaders.pop(number)
        leader.kill()
        leader.wait()

    def handled(self) -> int:
        """Messages answered so far; none while the database is away."""
        return self._number("select coalesce(sum(size), 0) from trunq_data.q_receipt where outcome = 'a'")

    def expired(self) -> int:
        """Messages whose lease was reaped or reclaimed."""
        return self._number("select coalesce(sum(size), 0) from trunq_data.q_receipt where outcome = 'x'")

    def wait_for(self, handled: int) -> None:
        wait_until(lambda: self.handled() >= handled, 120, f"{handled} messages handled")

    def wait_until_all_run(self) -> None:
        """Wait until each process was seen to do its work: to lease, or to stand for election. One that has
        yet to connect ends when the database is away, as it should.
        """
        wait_until(
            lambda: (
                self._number(LEASING) >= len(self.workers) and self._number(STANDING) >= len(self.leaders)
            ),
            120,
            "all run",
        )

    def wait_for_end(self) -> None:
        """Wait until nothing waits, runs or is delayed, all processes alive."""

        def is_over() -> bool:
            dead = self.ended()
            assert not dead, f"ended by itself: {dead}\n{(self.folder / 'log').read_text()[-8000:]}"
            with suppress(psycopg.OperationalError), self.connect() as connection, connection.transaction():
                # At one moment: between two counts a message may move.
                connection.execute("set transaction isolation level repeatable read, read only")
                left = connection.execute("select sum(ready + leased + delayed) from trunq.status('q')")
                return left.fetchone() == (0,)
            return False

        wait_until(is_over, 120, "everything is handled")

    def ended(self) -> list[str]:
        """The processes that ended by themselves, and how."""
        processes = {f"worker {name}": process for name, process in self.workers.items()}
        processes |= {f"leader {number}": process for number, process in enumerate(self.leaders)}
        return [
            f"{name} (process {process.pid}) with code {process.returncode}"
            for name, process in processes.items()
            if process.poll() is not None
        ]

    def stop(self) -> None:
        """Stop all in good order."""
        processes = [*self.workers.values(), *self.leaders]
        for process in processes:
            process.send_signal(signal.SIGTERM)
        for process in processes:
            assert process.wait(120) == 0
        self.workers.clear()
        self.leaders.clear()

    def kill(self) -> None:
        """Kill -9 all that still runs."""
        for process in (*self.workers.values(), *self.leaders):
            process.kill()
            process.wait()

    def outside_effects(self) -> list[tuple[int, int]]:
        """(message, attempt) for each line in the books of all workers, dead ones too."""
        lines = [line for book in self.folder.glob("effects-*") for line in book.read_text().splitlines()]
        return [(int(id), int(attempt)) for id, attempt in map(str.split, lines)]

    def check_ledger(self, *, crashed: bool = False) -> None:
        """Nothing lost; transactional effects exactly once; others doubled only where a lease was lost."""
        with self.connect() as connection:
            written = [id for (id,) in connection.execute("select id from effect")]
            once = [id for kind, ids in self.ids.items() if kind.startswith("once") for id in ids]
            assert sorted(written) == sorted(once)
            effects = self.outside_effects()
            times = Counter(id for id, _ in effects)
            assert set(times) == set(self.ids["outside"])
            attempts = Counter(effects)
            for id, count in times.items():
                if count > 1:
                    rows = connection.execute(
                        "select attempts from trunq.show_message('q', %s)", (id,)
                    ).fetchone()
                    assert rows is not None
                    outcomes = [attempt["outcome"] for attempt in rows[0]]
                    # After a crash of the server, leases that had not reached the disk never were: the very
                    # same attempt comes again.
                    again = max(attempts[id, attempt["attempt"]] for attempt in rows[0])
                    assert outcomes.count("lease_expired") >= count - 1 or (crashed and again > 1), (
                        id,
                        rows[0],
                    )
            dead = connection.execute("select count(*) from trunq.list_dead('q')").fetchone()
            assert dead == (0,)

    def _start(self, arguments: list[str]) -> subprocess.Popen[bytes]:
        log = (self.folder / "log").open("ab")
        with log:
            return subprocess.Popen([sys.executable, *arguments], stderr=log, env=dict(os.environ))

    def _number(self, query: str, otherwise: int = 0) -> int:
        with suppress(psycopg.OperationalError), self.connect() as connection:
            row = connection.execute(query.encode()).fetchone()
            return int(row[0]) if row is not None and row[0] is not None else otherwise
        return otherwise
