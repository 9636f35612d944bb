"""Streams beside the original PgQ (Debian's postgresql-15-pgq3, in C), on one server in one run.

    python benchmarks/stream.py --postgres 15

Each has a database of its own on the same server; rounds in turn, medians of the rounds' ratios. Counted is
the time of a processor: of the server process, and where a client takes part of its own as well. PgQ's
payloads are text, which a consumer has to parse; ours are JSON, which the server has parsed. The arms named
facade run where `trunq db install --facade pgq` does.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa

from _bench import (
    KIND,
    Options,
    Table,
    at_least,
    at_most,
    in_turn,
    main,
    median_ratio,
    payload,
    server,
    server_time,
)
from _pgq import FACADE, OPENED, OURS, THEIRS, Side, batch_of, opened
from _streaming import capturing, fan_out, latency, pinned
from trunq import Client, fetch
from trunq.client._sync.stream.columns import PAGE, Columns

Connection = psycopg.Connection[Any]
Figures = Mapping[str, list[float]]


def measure(options: Options) -> Iterator[Table]:
    """Everything; says so where PgQ is not installed."""
    with server(options) as running:
        sides = {
            THEIRS: opened(running, THEIRS),
            OURS: opened(running, OURS),
            FACADE: opened(running, FACADE),
        }
        if sides[THEIRS] is None:
            sys.exit(
                f"PgQ is not installed beside Postgres {options.postgres}:"
                " apt-get install postgresql-15-pgq3, and run this with --postgres 15"
            )
        here = {name: side for name, side in sides.items() if side is not None}
        table = Table(
            f"Streams beside the original PgQ, Postgres {options.postgres}",
            "Microseconds of a processor, server and client; medians. Ratios are medians of each round's.",
            ["", THEIRS, OURS, "ratio", "target", FACADE, "facade's ratio", "its target"],
        )
        add(table, "an empty cycle: tick, next, read, finish", cycle(options, here), 1.0, facade=3.0)
        publishing(options, here, table)
        reading(options, here, table)
        yield table
        yield fan_out(options, here[OURS])
        yield pinned(options, running)
        yield capturing(options, here)
        yield latency(options, running)


def add(
    table: Table,
    what: str,
    figures: Figures,
    target: float,
    *,
    least: bool = False,
    facade: float | None = None,
) -> None:
    """A line: ours at most that share of theirs, or theirs at least so many times ours."""

    def shown(name: str) -> str:
        return f"{statistics.median(figures[name]) * 1e6:,.1f}" if name in figures else "–"

    def ratio(name: str) -> float:
        return median_ratio(figures, THEIRS, name) if least else median_ratio(figures, name, THEIRS)

    ours = ratio(OURS)
    judged = (at_least if least else at_most)(ours, target)
    theirs = ["–", "–"]
    if FACADE in figures and facade is not None:
        of_facade = median_ratio(figures, FACADE, THEIRS)
        theirs = [f"{of_facade:.2f}", at_most(of_facade, facade)]
    table.add(
        what, shown(THEIRS), shown(OURS), f"{ours:.2f}{'x' if least else ''}", judged, shown(FACADE), *theirs
    )


# An empty batch


def cycle(options: Options, sides: Mapping[str, Side]) -> Figures:
    """Seconds of the server for a cycle."""
    times = options.size(500, 100)

    def pgq(side: Side) -> None:
        side.ask("select pgq.ticker('q')")
        ((batch,),) = side.ask(OPENED)
        side.ask("select * from pgq.get_batch_events(%s)", batch)
        side.ask("select pgq.finish_batch(%s)", batch)

    def trunq(side: Side) -> None:
        side.ask("select trunq.tick('q', true)")
        ((batch, token),) = side.ask("select batch_id, token from trunq_queue.q_next_batch('c', 'me')")
        side.ask("select * from trunq.read_batch('q', 'c', %s)", batch)
        side.ask("select trunq_queue.q_finish_batch('c', %s, %s)", batch, token)

    def many(side: Side, one: Callable[[Side], None]) -> float:
        return server_time(side.connection, lambda: [one(side) for _ in range(times)]) / times

    arms = {name: partial(many, side, trunq if name == OURS else pgq) for name, side in sides.items()}
    return in_turn(arms, options.rounds(quick=3), warm_up=arms)


# Publishing


def publishing(options: Options, sides: Mapping[str, Side], table: Table) -> None:
    """1,000 in a transaction from Python; COPY."""
    rounds, count = options.rounds(15, 4), 1000
    payloads = [json.loads(payload(number)) for number in range(count)]

    def pgq(side: Side) -> None:
        with side.connection.transaction(), side.connection.cursor() as cursor:
            cursor.executemany(
                "select pgq.insert_event('q', %s, %s)", [(KIND, json.dumps(each)) for each in payloads]
            )

    with Client(sides[OURS].dsn) as client:

        def trunq(side: Side) -> None:
            with side.connection.transaction():
                client.publish_many("q", payloads, kind=KIND, connection=side.connection)

        def of(side: Side, work: Callable[[Side], None]) -> float:
            return side.taken(lambda: [work(side) for _ in range(5)]) / 5 / count

        arms = {name: partial(of, side, trunq if name == OURS else pgq) for name, side in sides.items()}
        figures = in_turn(arms, rounds, warm_up=arms)
    add(table, "publish 1,000 in a transaction, a message", figures, 2.5, least=True, facade=1.7)

    rows = options.size(50_000, 10_000)
    ours = "".join(f"{KIND}\t{payload(number)}\n" for number in range(rows)).encode()
    # The time has no default there.
    theirs = ours.replace(KIND.encode() + b"\t", f"{datetime.now(UTC)}\t{KIND}\t".encode())

    def copied(side: Side) -> float:
        if side.name == OURS:
            target, text = "trunq_log.q (kind, payload)", ours
        else:
            ((name,),) = side.ask("select pgq.current_event_table('q')")
            target, text = f"{name} (ev_time, ev_type, ev_data)", theirs

        def work() -> None:
            with side.connection.cursor().copy(f"copy {target} from stdin".encode()) as copy:
                copy.write(text)

        return side.taken(work) / rows

    arms = {name: partial(copied, side) for name, side in sides.items()}
    add(table, f"COPY of {rows:,}, a message", in_turn(arms, rounds, warm_up=arms), 0.7, least=True)


# Reading


def reading(options: Options, sides: Mapping[str, Side], table: Table) -> None:
    """Batches read and finished: as rows, as Arrow."""
    rows, rounds = options.size(50_000, 10_000), options.rounds(quick=3)
    columns = (
        "ev_id, ev_time, ev_txid, ev_retry, ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4"
    )

    def theirs(side: Side, *, parsed: bool = False, arrow: bool = False) -> float:
        with batch_of(side, rows) as (batch, _):

            def work() -> None:
                found = side.ask(f"select {columns} from pgq.get_batch_events(%s)", batch)
                if parsed:
                    found = [(*row[:5], json.loads(row[5]), *row[6:]) for row in found]
                elif arrow:
                    pa.table(
                        [pa.array(column) for column in zip(*found, strict=True)], names=columns.split(", ")
                    )
                assert len(found) == rows
                side.ask("select pgq.finish_batch(%s)", batch)

            return side.taken(work) / rows

    with Client(sides[OURS].dsn) as client:

        def as_rows(side: Side) -> float:
            with batch_of(side, rows) as (batch, token):

                def work() -> None:
                    count, place = 0, (None, None)
                    # As `for message in batch` reads it.
                    while page := client.read_batch(
                        "q", "c", batch, *place, PAGE, connection=side.connection
                    ):
                        count, place = count + len(page), (page[-1].txid, page[-1].id)
                    assert count == rows
                    side.ask("select trunq_queue.q_finish_batch('c', %s, %s)", batch, token)

                return side.taken(work) / rows

        arms = {
            name: partial(as_rows, side) if name == OURS else partial(theirs, side, parsed=True)
            for name, side in sides.items()
        }
        add(
            table,
            f"read and finish {rows:,} as rows, JSON parsed, a message",
            in_turn(arms, rounds, warm_up=arms),
            1.1,
            least=True,
        )

        kept = Kept(client, sides[OURS])

        def as_arrow(side: Side) -> float:
            with batch_of(side, rows) as (batch, token):
                begun = time.process_time()
                taken = kept.server_time(lambda: kept.read(batch, rows))
                taken += server_time(
                    side.connection,
                    lambda: side.ask("select trunq_queue.q_finish_batch('c', %s, %s)", batch, token),
                )
                return (taken + time.process_time() - begun) / rows

        arms = {
            OURS: partial(as_arrow, sides[OURS]),
            THEIRS: partial(theirs, sides[THEIRS], arrow=True),
            "rows": partial(theirs, sides[THEIRS]),
        }
        figures = in_turn(arms, rounds, warm_up=arms)
        add(table, "the same, as Arrow (theirs: rows that are made into Arrow)", figures, 1.5, least=True)
        unmade = {OURS: figures[OURS], THEIRS: figures["rows"]}
        add(table, "as Arrow, beside their rows as they come", unmade, 1.5, least=True)
        kept.close()


class Kept:
    """`to_arrow`, with the time that its sessions take: the client's, and that of ADBC."""

    def __init__(self, client: Client, side: Side) -> None:
        self._side = side
        self._columns = Columns(client)
        self._pid = 0

    def read(self, batch: int, rows: int) -> None:
        """A whole batch."""
        table: pa.Table = self._columns.table(Batch(batch), None, self._side.connection)  # type: ignore[arg-type]
        assert table.num_rows == rows

    def server_time(self, work: Callable[[], object]) -> float:
        """Seconds of both sessions."""
        kept: fetch.Kept | None = self._columns._kept
        if kept is None or kept._connection is None:
            work()  # the connection is opened once for a stream
            kept = self._columns._kept
        assert kept is not None, "ADBC is not installed"
        if not self._pid:
            with kept._connection.cursor() as cursor:
                cursor.execute("select pg_backend_pid()")
                (self._pid,) = cursor.fetchone()
            kept._connection.rollback()
        return both(self._pid, self._side.connection, work)

    def close(self) -> None:
        """Its connection."""
        self._columns.close()


class Batch:
    """As much of a batch as its columns ask for."""

    def __init__(self, batch_id: int) -> None:
        self.queue, self.subscription, self.batch_id = "q", "c", batch_id


def both(pid: int, connection: Connection, work: Callable[[], object]) -> float:
    """Seconds of a processor that two sessions take."""

    def spent() -> int:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])

    before = spent()
    taken = server_time(connection, work)
    return taken + (spent() - before) / 1e9


if __name__ == "__main__":
    main(__doc__, measure)
