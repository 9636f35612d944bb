"""Rotation beside many busy subscriptions: which segments it empties, and how long a lease waits for it.

Thirty sessions lease and answer for a hundred subscriptions of one queue, in turn, while messages are
published and rotation is called as a leader calls it. Each segment of the queue is written to for four
seconds of sixteen, and should be emptied once in between. How long the sessions waited for a lock on a
table, which nobody but rotation takes from them, is what the server logs of waits over a millisecond.
"""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread

from _bench import (
    QUEUE,
    Options,
    Table,
    at_most,
    connect,
    main,
    milliseconds,
    new_database,
    percentile,
    server,
)
from trunq.embedded import Embedded

SUBSCRIPTIONS, SESSIONS = 100, 30
RETENTION, SPAN = 8, 4
LEASES, PUBLISHED = 300, 10
"""A second."""
TARGET = 0.020
TABLES = ("log", "lease", "receipt")
WAITED = re.compile(r"acquired (?!AccessExclusive)\w+ on relation \d+ of database \d+ after ([0-9.]+) ms")

WORK = rf"""
\set s random(1, {SUBSCRIPTIONS})
select count(*) as n, coalesce(max(lease_id), 0) as lease_id, coalesce(max(token), 0) as token,
  coalesce(array_agg(id), '{{}}')::text as ids
from trunq_queue.{QUEUE}_lease(concat('s', :s::integer), 'w', 10) \gset
\if :n
select trunq_queue.{QUEUE}_ack(concat('s', :s::integer),
  :lease_id::bigint, :token::bigint, :ids::text::bigint[]);
\endif
"""


@dataclass
class Seen:
    """Calls of rotation (begun, ended, result), and for each table in which spans a segment was emptied."""

    calls: list[tuple[float, float, int | None]] = field(default_factory=list)
    emptied: dict[str, set[int]] = field(default_factory=lambda: {table: set() for table in TABLES})


def measure(options: Options) -> Iterator[Table]:
    """One run."""
    length = options.size(84, 30)
    with server(options, log_lock_waits="on", deadlock_timeout="1ms") as running:
        dsn = new_database(running, queue=False)
        seen, done = run(running, dsn, length)
        waits = [float(found) / 1e3 for found in WAITED.findall(running.log_path.read_text())]
    spans = range(int(seen.calls[0][0] // SPAN) + 4, int(seen.calls[-1][1] // SPAN))
    table = Table(
        f"Rotation beside {SUBSCRIPTIONS} subscriptions, Postgres {options.postgres}",
        f"{SESSIONS} sessions, {LEASES} leases and answers a second, segments of {SPAN} s, {length} s.",
        ("", "figure", "target"),
    )
    for name in TABLES:
        found = len(seen.emptied[name] & set(spans))
        table.add(f"segments of {name} emptied", f"{found} of {len(spans)}", f"{len(spans)}")
    results = [result for _, _, result in seen.calls]
    table.add("calls that did something", f"{results.count(1)} of {len(results)}", "")
    longest = max(ended - begun for begun, ended, result in seen.calls if result == 1)
    table.add("longest call that did something", milliseconds(longest), "")
    table.add("leases and answers", f"{done:,}", "")
    table.add("of these waited for a table", f"{len(waits):,}", "")
    if waits:
        shown = " / ".join(milliseconds(percentile(waits, share)) for share in (0.5, 0.99, 1))
        table.add("waits: median / p99 / longest", shown, at_most(max(waits) * 1e3, TARGET * 1e3, " ms"))
    yield table


def run(running: Embedded, dsn: str, length: int) -> tuple[Seen, int]:
    """Lease, answer, publish and rotate for so long; how many leases were asked for."""
    with connect(dsn) as connection:
        connection.execute(f"select trunq.create_queue('{QUEUE}', '{RETENTION} s')")
        connection.execute(
            f"select trunq.subscribe('{QUEUE}', 's' || n) from generate_series(1, {SUBSCRIPTIONS}) n"
        )
        connection.execute(f"select trunq.unsubscribe('{QUEUE}', 'default')")
    seen, ended = Seen(), Event()
    helpers = [Thread(target=publish, args=(dsn, ended)), Thread(target=rotate, args=(dsn, ended, seen))]
    for helper in helpers:
        helper.start()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        script = Path(folder, "work.sql")
        script.write_text(WORK)
        output = running._run(
            "pgbench", "--no-vacuum", f"--client={SESSIONS}", "--jobs=1", f"--time={length}",
            f"--rate={LEASES}",
            "--protocol=prepared", f"--file={script}", dsn,
        )  # fmt: skip
    ended.set()
    for helper in helpers:
        helper.join()
    (done,) = re.findall(r"actually processed: (\d+)", output)
    return seen, int(done)


def publish(dsn: str, ended: Event) -> None:
    """A steady trickle."""
    with connect(dsn) as connection:
        while not ended.wait(1 / PUBLISHED):
            connection.execute(f"select trunq.publish('{QUEUE}', '1')")


def rotate(dsn: str, ended: Event, seen: Seen) -> None:
    """Call it a second after there was nothing to do, or somebody in the way; else again at once."""
    sizes = ", ".join(
        f"pg_relation_size('trunq_data.{QUEUE}_{table}_{n}')" for table in TABLES for n in range(4)
    )
    reaped = 0.0
    with connect(dsn) as connection:
        while not ended.is_set():
            before = connection.execute(f"select {sizes}".encode()).fetchone()
            begun = time.time()
            (result,) = connection.execute(f"select trunq.rotate('{QUEUE}')").fetchone() or (None,)
            seen.calls.append((begun, time.time(), result))
            after = connection.execute(f"select {sizes}".encode()).fetchone()
            assert before
            assert after
            for number, (old, new) in enumerate(zip(before, after, strict=True)):
                if new < old:
                    seen.emptied[TABLES[number // 4]].add(int(begun // SPAN))
            if time.monotonic() > reaped + 1:
                reaped = time.monotonic()
                connection.execute(f"select trunq.reap('{QUEUE}')")
            if result != 1:
                ended.wait(1.0)


if __name__ == "__main__":
    main(__doc__, measure)
