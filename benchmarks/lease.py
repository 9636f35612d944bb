"""What one lease and the ack of its messages cost, by how many are leased at a time, and what a batch costs.

The two calls as the worker makes them, each on its own connection (leases do not wait for the disk, acks
do), with nothing else of a worker: fetched rows are counted, not decoded. Beside it the classic way with a
table that is updated and deleted from: claim by UPDATE ... FOR UPDATE SKIP LOCKED, finish by DELETE, with
no history, in its best case: nothing holds the horizon, and the table is vacuumed before every round. Pairs
of both kinds alternate; the median of a round's pairs counts. The write-ahead log is measured on a server
of its own that does not vacuum by itself, and without a checkpoint before: no full page images, which would
be added to the classic table's alone (it changes old pages).

One message at a time is also measured in one round trip: the ack of the last message and the lease of the
next travel together, on one connection whose leases do not wait for the disk; the ack asks for the wait.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from time import perf_counter
from typing import Any

import psycopg
from psycopg.types.string import ByteaBinaryLoader

from _bench import (
    QUEUE,
    Options,
    Table,
    a_second,
    at_least,
    at_most,
    connect,
    copy_in,
    main,
    median_ratio,
    microseconds,
    new_database,
    percentile,
    seconds,
    server,
    server_time,
    settle,
)

SIZES = {1: 800, 10: 400, 100: 150, 1000: 30}
"""Messages at a time: pairs a round."""

TIME_TARGET, LOG_TARGET = 0.9, 1.2
"""One message at a time: the classic time by ours, and our write-ahead log by the classic table's."""

LEASE = (
    f"select * from trunq_queue.{QUEUE}_lease(p_subscription => 'default', p_worker => 'w',"
    " p_max_messages => %s)"
)
ACK = (
    f"select trunq_queue.{QUEUE}_ack(p_subscription => 'default', p_lease_id => %s, p_token => %s,"
    " p_ids => %s::bigint[])"
)
WAIT = ", set_config('synchronous_commit', 'on', true)"
"""Beside an ack: its transaction waits for the disk, those after it do not."""

CLASSIC = """
create table classic (id bigserial primary key, state smallint not null default 0, kind text, payload jsonb);
create index classic_waiting on classic (id) where state = 0;
"""
CLAIM = """
update classic set state = 1 where ctid = any(array(
  select ctid from classic where state = 0 order by id limit %s for update skip locked))
returning id, kind, payload
"""
FINISH = "delete from classic where id = any(%s::bigint[])"
FINISH_AND_WAIT = (
    f"with done as ({FINISH} returning 1) "
    "select count(*), set_config('synchronous_commit', 'on', true) from done"
)

READER = "reader"
NEXT = f"select * from trunq_queue.{QUEUE}_next_batch('{READER}', 'w')"
END = f"select trunq_queue.{QUEUE}_finish_batch('{READER}', %s, %s)"

Connection = psycopg.Connection[Any]
Row = tuple[Any, ...]
Pair = Callable[[int], None]


def measure(options: Options) -> Iterator[Table]:
    """Times by messages at a time, the write-ahead log, then batches."""
    with server(options) as running:
        dsn = new_database(running)
        with connect(dsn, synchronous_commit="off") as lease, connect(dsn) as answer:
            answer.execute(CLASSIC.encode(), prepare=False)
            for connection in (lease, answer):
                connection.adapters.register_loader("jsonb", ByteaBinaryLoader)
            yield pairs(options, dsn, lease, answer)
            yield batches(options, dsn, answer)
    with server(options, autovacuum="off") as running:
        dsn = new_database(running)
        with connect(dsn, synchronous_commit="off") as connection:
            connection.execute(CLASSIC.encode(), prepare=False)
            yield written(options, connection)
            yield by_processor(options, connection)


def pairs(options: Options, dsn: str, lease: Connection, answer: Connection) -> Table:
    """Lease and ack, claim and finish."""
    rounds = options.rounds(quick=1)
    table = Table(
        f"lease + ack, Postgres {options.postgres}",
        f"A lease and the ack of all its messages (200 bytes each), one after the other; median pair of each "
        f"of {rounds} rounds, kinds of pairs in turn. "
        "Beside it UPDATE ... SKIP LOCKED and DELETE at their best: vacuumed before each "
        "round, no history. In one round trip: the ack and the next lease travel together.",
        [
            "messages at a time",
            "a pair",
            "messages/s",
            "classic pair",
            "classic messages/s",
            "ratio",
            "target",
        ],
    )
    for size, full in SIZES.items():
        number = options.size(full, 10)
        works: dict[str, Pair] = {
            "trunq": partial(trunq_pair, lease, answer),
            "classic": partial(classic_pair, lease, answer),
        }
        if size == 1:
            works["trunq, one trip"] = OneTrip(lease, take, LEASE, ACK + WAIT, answered)
            works["classic, one trip"] = OneTrip(lease, claim, CLAIM, FINISH_AND_WAIT, finished)
        figures: dict[str, list[float]] = {name: [] for name in works}
        for _ in range(rounds + 1):
            # One more of each: the first call of a round trip takes before it answers.
            fill(dsn, answer, size * (number + 1) * len(works) // 2)
            for name, figure in alternated(works, size, number).items():
                figures[name].append(figure)
        figures = {name: medians[1:] for name, medians in figures.items()}
        add_row(table, f"{size:,}", figures, size, "trunq", "classic")
        if size == 1:
            add_row(table, "1, in one round trip", figures, 1, "trunq, one trip", "classic")
            add_row(
                table, "1, both in one round trip", figures, 1, "trunq, one trip", "classic, one trip", ""
            )
    return table


def add_row(
    table: Table,
    title: str,
    figures: dict[str, list[float]],
    size: int,
    ours: str,
    theirs: str,
    target: str | None = None,
) -> None:
    """Medians, and the ratio of the rounds."""
    own, classic = (statistics.median(figures[name]) for name in (ours, theirs))
    ratio = median_ratio(figures, theirs, ours)
    if target is None:
        target = at_least(ratio, TIME_TARGET) if size == 1 else ""
    table.add(
        title,
        microseconds(own),
        a_second(size / own),
        microseconds(classic),
        a_second(size / classic),
        f"{ratio:.2f}",
        target,
    )


def written(options: Options, connection: Connection) -> Table:
    """Bytes of write-ahead log."""
    table = Table(
        f"write-ahead log of lease + ack, Postgres {options.postgres}",
        "Bytes by which the log grew, a message, without full page images; the mean of all pairs of a run.",
        ["messages at a time", "lease", "ack", "claim", "delete", "ratio", "target"],
    )
    for size, full in SIZES.items():
        number = options.size(full, 10)
        copy_in(connection, f"trunq_log.{QUEUE}", size * number)
        ours = bytes_of(connection, number, partial(take, connection, size), partial(ack, connection))
        copy_in(connection, "classic", size * number)
        connection.execute("vacuum analyze classic")
        theirs = bytes_of(connection, number, partial(claim, connection, size), partial(finish, connection))
        ratio = sum(ours) / sum(theirs)
        table.add(
            f"{size:,}",
            *(f"{figure / size:,.0f}" for figure in (*ours, *theirs)),
            f"{ratio:.2f}",
            at_most(ratio, LOG_TARGET) if size == 1 else "",
        )
    return table


def by_processor(options: Options, connection: Connection) -> Table:
    """What one message at a time costs the server."""
    pairs = options.size(1500, 20)
    table = Table(
        f"lease + ack: processor time of the server, Postgres {options.postgres}",
        f"One message at a time, {pairs:,} pairs of each kind in turn, without the wait for the disk; the "
        "tenth percentile. The ratio is the classic pair's time to ours.",
        ["", "lease, claim", "ack, delete", "a pair", "ratio"],
    )
    copy_in(connection, f"trunq_log.{QUEUE}", pairs)
    connection.execute("truncate classic")
    copy_in(connection, "classic", pairs)
    connection.execute("vacuum analyze classic")
    kinds = {"trunq": (take, ack), "classic": (claim, finish)}
    times: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in kinds}
    for _ in range(pairs):
        for name, (first, second) in kinds.items():
            found: list[list[Row]] = []
            times[name][0].append(server_time(connection, partial(keep, found, first, connection)))
            times[name][1].append(server_time(connection, partial(second, connection, *found)))
    typical = {name: [percentile(taken, 0.1) for taken in both] for name, both in times.items()}
    for name, both in typical.items():
        ratio = sum(typical["classic"]) / sum(both)
        table.add(name, *map(microseconds, both), microseconds(sum(both)), f"{ratio:.2f}")
    return table


def keep(
    found: list[list[Row]], take: Callable[[Connection, int], list[Row]], connection: Connection
) -> None:
    """Take one and remember it."""
    found.append(take(connection, 1))


def bytes_of(
    connection: Connection, number: int, first: Callable[[], list[Row]], second: Callable[[list[Row]], None]
) -> tuple[float, float]:
    """The mean of bytes that each of the two writes."""
    ends = [log_end(connection)]
    for _ in range(number):
        rows = first()
        ends.append(log_end(connection))
        second(rows)
        ends.append(log_end(connection))
    steps = [after - before for before, after in pairwise(ends)]
    return sum(steps[0::2]) / number, sum(steps[1::2]) / number


def log_end(connection: Connection) -> int:
    """How much was ever written."""
    row = connection.execute("select (pg_current_wal_insert_lsn() - '0/0')::bigint").fetchone()
    assert row is not None
    return int(row[0])


def fill(dsn: str, connection: Connection, messages: int) -> None:
    """So many messages and no others, in transactions of a thousand; nothing dirty, no dead rows."""
    while connection.execute(LEASE, (1000,), binary=True).fetchall():
        pass
    connection.execute("truncate classic")
    for table in (f"trunq_log.{QUEUE}", "classic"):
        copy_in(connection, table, messages)
    connection.execute("vacuum analyze classic")
    settle(dsn)


def alternated(works: Mapping[str, Pair], size: int, number: int) -> dict[str, float]:
    """The median time of `number` pairs of each kind: what disturbs one disturbs its neighbours too."""
    times: dict[str, list[float]] = {name: [] for name in works}
    order = list(works)
    for _ in range(number):
        for name in order:
            times[name].append(seconds(partial(works[name], size)))
        order.reverse()
    return {name: statistics.median(taken) for name, taken in times.items()}


def trunq_pair(lease: Connection, answer: Connection, size: int) -> None:
    """One lease and its ack."""
    ack(answer, take(lease, size))


def take(lease: Connection, size: int) -> list[Row]:
    """One lease."""
    rows = lease.execute(LEASE, (size,), binary=True).fetchall()
    assert len(rows) == size
    return rows


def ack(answer: Connection, rows: Sequence[Row]) -> None:
    """The ack of a whole lease."""
    answer.execute(ACK, answered(rows))


def answered(rows: Sequence[Row]) -> Row:
    """What an ack of these rows is given."""
    lease_id, token, *_ = rows[0]
    return lease_id, token, as_array([row[2] for row in rows])


def classic_pair(claiming: Connection, finishing: Connection, size: int) -> None:
    """One claim and the deletion. The claim does not wait for the disk either."""
    finish(finishing, claim(claiming, size))


def claim(claiming: Connection, size: int) -> list[Row]:
    """One claim."""
    rows = claiming.execute(CLAIM, (size,), binary=True).fetchall()
    assert len(rows) == size
    return rows


def finish(finishing: Connection, rows: Sequence[Row]) -> None:
    """The deletion."""
    finishing.execute(FINISH, finished(rows))


def finished(rows: Sequence[Row]) -> Row:
    """What a deletion of these rows is given."""
    return (as_array([row[0] for row in rows]),)


class OneTrip:
    """The answer to the last message and the lease of the next, in one round trip and two transactions."""

    def __init__(
        self, connection: Connection, take: Callable[[Connection, int], list[Row]], lease: str, answer: str,
        about: Callable[[Sequence[Row]], Row],
    ) -> None:  # fmt: skip
        self._connection, self._take, self._lease, self._answer = connection, take, lease, answer
        self._about = about
        self._rows: list[Row] = []

    def __call__(self, size: int) -> None:
        rows = self._rows or self._take(self._connection, size)
        answer = (self._answer, self._about(rows))
        self._rows = in_one_trip(self._connection, answer, (self._lease, (size,)))


def in_one_trip(connection: Connection, *statements: tuple[str, Row]) -> list[Row]:
    """Each statement in a transaction of its own, all sent before an answer is read. The last's rows."""
    with connection.pipeline() as pipeline:
        for number, (statement, values) in enumerate(statements):
            if number:
                pipeline._enqueue_sync()  # psycopg's own sync() would wait for the answers
            cursor = connection.execute(statement, values, binary=True)
    return cursor.fetchall()


def batches(options: Options, dsn: str, connection: Connection) -> Table:
    """A cycle of an exclusive reader."""
    cycles = options.size(1000, 10)
    connection.execute("select trunq.subscribe(%s, %s, 'exclusive')", (QUEUE, READER))
    table = Table(
        f"a batch, Postgres {options.postgres}",
        f"next_batch and finish_batch of {cycles:,} batches of one tick each, which were there before; one "
        "connection, both wait for the disk.",
        ["", "median", "95 %"],
    )
    for _ in range(cycles):
        copy_in(connection, f"trunq_log.{QUEUE}", 1)
        connection.execute("select trunq.tick(%s, true)", (QUEUE,))
    settle(dsn)
    times: dict[str, list[float]] = {"next_batch": [], "finish_batch": []}
    for _ in range(cycles):
        begun = perf_counter()
        batch = connection.execute(NEXT, binary=True).fetchone()
        opened = perf_counter()
        assert batch is not None
        connection.execute(END, batch[:2])
        times["finish_batch"].append(perf_counter() - opened)
        times["next_batch"].append(opened - begun)
    times["a cycle"] = [sum(cycle) for cycle in zip(*times.values(), strict=True)]
    for name, taken in times.items():
        table.add(name, microseconds(statistics.median(taken)), microseconds(percentile(taken, 0.95)))
    return table


def as_array(ids: list[int]) -> str:
    """As Postgres reads it; psycopg takes longer for a list."""
    return "{" + ",".join(map(str, ids)) + "}"


if __name__ == "__main__":
    main(__doc__, measure)
