"""A fleet that leases one message at a time on one subscription, against the classic table with SKIP LOCKED.

Leases of a subscription take turns: each holds the subscription's lock from before it reads the position to
the end of its transaction, which does not wait for the disk. Claims with SKIP LOCKED take no turns, but each
walks over the rows that others hold and over those that were deleted. The workers are clients of pgbench:
they do nothing but lease and ack (or claim and delete), and leave most of the machine to the server. Where
they wait is sampled from pg_stat_activity in rounds of their own, because sampling takes part of the machine.
"""

from __future__ import annotations

import statistics
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from psycopg.conninfo import make_conninfo

from _bench import (
    QUEUE,
    Options,
    Table,
    a_second,
    connect,
    copy_in,
    in_turn,
    main,
    median_ratio,
    new_database,
    pgbench,
    server,
    settle,
)
from lease import CLAIM, CLASSIC, WAIT

WORKERS = (1, 5, 20)
MESSAGES = 5_000
"""A round."""
SAMPLES_APART = 0.005

# The connections do not wait for the disk; the transaction of an answer asks for it.
SCRIPTS = {
    "trunq": f"""
select lease_id, token, id from trunq_queue.{QUEUE}_lease('default', 'w') \\gset
select trunq_queue.{QUEUE}_ack('default', :lease_id, :token, array[:id]::bigint[]){WAIT};
""",
    "classic": f"""
{CLAIM.replace("%s", "1").strip()} \\gset
with done as (delete from classic where id = :id returning 1) select count(*){WAIT} from done;
""",
}
TABLES = {"trunq": f"trunq_log.{QUEUE}", "classic": "classic"}

ACTIVITY = """
select state, wait_event_type, wait_event from pg_stat_activity where application_name = 'pgbench'
"""


def measure(options: Options) -> Iterator[Table]:
    """Rates by the number of workers, then where the largest fleet waits."""
    with server(options, max_connections=100) as running, tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        dsn = new_database(running)
        address = make_conninfo(dsn, options="-c synchronous_commit=off")
        paths = {name: Path(folder, name) for name in SCRIPTS}
        for name, path in paths.items():
            path.write_text(SCRIPTS[name])
        with connect(dsn) as connection:
            connection.execute(CLASSIC.encode(), prepare=False)

            def arm(name: str, workers: int) -> float:
                messages = options.size(MESSAGES, 400)
                copy_in(connection, TABLES[name], messages)
                connection.execute("vacuum analyze classic")
                settle(dsn)
                each = messages // workers
                return pgbench(running, address, paths[name], clients=workers, transactions=each)

            yield rates(options, arm)
            yield waits(options, dsn, arm)


def rates(options: Options, arm: Callable[[str, int], float]) -> Table:
    """Messages a second."""
    rounds = options.rounds(quick=1)
    table = Table(
        f"a fleet that leases one message at a time, Postgres {options.postgres}",
        f"Lease and ack, or claim and delete, one message at a time on one subscription: "
        f"{options.size(MESSAGES, 400):,} messages of 200 bytes shared by all workers, pgbench, prepared; "
        f"median of {rounds} rounds in turn. The classic table is vacuumed before each round and keeps no "
        "history.",
        ["workers", "messages/s", "classic messages/s", "ratio"],
    )
    for workers in WORKERS:
        figures = in_turn({name: partial(arm, name, workers) for name in SCRIPTS}, rounds)
        table.add(
            f"{workers}",
            *(a_second(statistics.median(figures[name])) for name in SCRIPTS),
            f"{median_ratio(figures, 'trunq', 'classic'):.2f}",
        )
    return table


def waits(options: Options, dsn: str, arm: Callable[[str, int], float]) -> Table:
    """What the sessions of the largest fleet do."""
    workers, rounds = max(WORKERS), options.rounds(quick=1)
    counts = {name: Counter[str]() for name in SCRIPTS}
    for _ in range(rounds):
        for name, counted in counts.items():
            with sampled(dsn, counted):
                arm(name, workers)
    table = Table(
        f"where {workers} workers wait, Postgres {options.postgres}",
        f"Sessions in each state on average, of {workers}; pg_stat_activity each "
        f"{SAMPLES_APART * 1e3:g} ms through {rounds} rounds.",
        ["state", "trunq", "classic"],
    )
    totals = {name: sum(counted.values()) for name, counted in counts.items()}
    shares = {
        state: [workers * counts[name][state] / totals[name] for name in SCRIPTS]
        for state in counts["trunq"] | counts["classic"]
    }
    for state, share in sorted(shares.items(), key=lambda pair: -max(pair[1])):
        if max(share) >= 0.05:
            table.add(state, *(f"{figure:.1f}" for figure in share))
    return table


@contextmanager
def sampled(dsn: str, counted: Counter[str]) -> Iterator[None]:
    """While the block runs, what the sessions of pgbench do is counted."""
    ended = threading.Event()

    def sample() -> None:
        with connect(dsn) as connection:
            while not ended.wait(SAMPLES_APART):
                counted.update(state(*row) for row in connection.execute(ACTIVITY))

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def state(state: str | None, kind: str | None, event: str | None) -> str:
    """In words."""
    if state != "active":
        return "between two statements"
    if kind is None:
        return "on a processor, or waiting for one"
    return f"{kind}: {event}"


if __name__ == "__main__":
    main(__doc__, measure)
