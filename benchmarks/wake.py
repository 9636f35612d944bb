"""What waking the workers costs publishers.

Eight connections publish single messages as fast as they can (INSERT by pgbench, a transaction each), while
two worker processes handle them, go to sleep whenever they have caught up, and are woken. The baseline is
the same with the trigger on the log disabled; workers look every tenth of a second in all arms, so that
about the same is handled in the same time. The contrast is what a trigger costs that notifies at every
insert: NOTIFY takes a global lock at commit.
"""

from __future__ import annotations

import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing.synchronize import Event
from pathlib import Path
from threading import Thread
from typing import Any

import psycopg

from _bench import (
    KIND,
    QUEUE,
    Options,
    Table,
    a_second,
    at_least,
    connect,
    in_turn,
    main,
    median_ratio,
    new_database,
    payload,
    pgbench,
    server,
    settle,
)
from trunq import Message
from trunq.embedded import Embedded
from trunq.worker import Worker

TARGET = 0.85
PUBLISHERS, WORKERS = 8, 2
LOG = f"trunq_log.{QUEUE}"
INSERT = f"insert into {LOG} (kind, payload) values ('{KIND}', '{payload()}');"

ALWAYS = f"""
create function ring() returns trigger language plpgsql as $$
begin
  perform pg_notify('ring', '');
  return null;
end $$;
create trigger ring after insert on {LOG} for each statement execute function ring();
"""
ARMS = {
    "no trigger": ("disable trigger wake", "disable trigger ring"),
    "trunq: a bell": ("enable trigger wake", "disable trigger ring"),
    "NOTIFY at every insert": ("disable trigger wake", "enable trigger ring"),
}


def measure(options: Options) -> Iterator[Table]:
    """One table, an arm a row."""
    length, rounds = options.size(6, 2), options.rounds(quick=1)
    with server(options) as running, tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        script = Path(folder, "insert.sql")
        script.write_text(INSERT)
        dsn = new_database(running)
        with connect(dsn) as connection, workers(dsn):
            connection.execute(ALWAYS.encode(), prepare=False)
            arms = {
                name: partial(one_arm, running, dsn, connection, script, length, triggers)
                for name, triggers in ARMS.items()
            }
            figures = in_turn(arms, rounds, warm_up=["trunq: a bell"])
    table = Table(
        f"wake-up, Postgres {options.postgres}",
        f"Single INSERTs of 200 bytes from {PUBLISHERS} connections for {length} s while {WORKERS} workers "
        f"handle them, sleep and "
        f"wake; median of {rounds} rounds in turn.",
        ["trigger", "messages/s", "ratio", "target"],
    )
    for name, rates in figures.items():
        ratio = median_ratio(figures, name, "no trigger")
        target = at_least(ratio, TARGET) if name == "trunq: a bell" else ""
        table.add(name, a_second(statistics.median(rates)), f"{ratio:.2f}", target)
    yield table


def one_arm(
    running: Embedded,
    dsn: str,
    connection: psycopg.Connection[Any],
    script: Path,
    length: int,
    triggers: tuple[str, str],
) -> float:
    """Publish for a while; before the next arm the workers have handled everything and sleep."""
    for trigger in triggers:
        connection.execute(f"alter table {LOG} {trigger}")
    settle(dsn)
    rate = pgbench(running, dsn, script, clients=PUBLISHERS, seconds=length)
    while connection.execute("select sum(ready + leased) from trunq.status()").fetchone() != (0,):
        time.sleep(0.2)
    return rate


@contextmanager
def workers(dsn: str) -> Iterator[None]:
    """Worker processes, until the block ends."""
    context = multiprocessing.get_context("spawn")
    over = context.Event()
    processes = [context.Process(target=work, args=(dsn, over), daemon=True) for _ in range(WORKERS)]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        over.set()
        for process in processes:
            process.join()


def work(dsn: str, over: Event) -> None:
    """In a worker's process: handle until told to stop."""
    worker = Worker(QUEUE, dsn=dsn, poll=0.1)

    @worker.handler(KIND)
    async def handle(_: Message) -> None:
        pass

    def wait() -> None:
        over.wait()
        worker.stop()

    Thread(target=wait, daemon=True).start()
    worker.run()


if __name__ == "__main__":
    main(__doc__, measure)
