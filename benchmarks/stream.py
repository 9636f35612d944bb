"""Streams beside the original PgQ (Debian's postgresql-15-pgq3, in C), on one server in one run.

    python benchmarks/stream.py --postgres 15

Each has a database of its own on the same server; rounds in turn, medians of the rounds' ratios. Counted is
the time of a processor: of the server process, and where a client takes part of its own as well. PgQ's
payloads are text, which a consumer has to parse; ours are JSON, which the server has parsed. The arms named
facade run where `trunq db install --facade pgq` does.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any

import psycopg
import pyarrow as pa

from _bench import (
    KIND,
    Options,
    Table,
    at_least,
    at_most,
    connect,
    in_turn,
    main,
    median_ratio,
    milliseconds,
    moments,
    new_database,
    payload,
    percentile,
    server,
    server_time,
)
from trunq import AsyncClient, Client, fetch
from trunq._sync.columns import Columns
from trunq.embedded import Embedded

Connection = psycopg.Connection[Any]
Figures = Mapping[str, list[float]]

THEIRS, OURS, FACADE = "PgQ", "trunq", "facade"
RATE, MEDIAN = 100, 0.020

PGQ = """
select pgq.create_queue('q');
update pgq.queue set queue_ticker_max_lag = '0', queue_ticker_idle_period = '0', queue_ticker_max_count = 1;
"""
"""A tick at each look, so that one can be asked for."""

OPENED = "select batch_id from pgq.next_batch_info('q', 'c')"


class Side:
    """A database on the server, and a connection to it."""

    def __init__(self, running: Embedded, name: str) -> None:
        self.name = name
        self.dsn = new_database(running, queue=name == OURS)
        self.connection = connect(self.dsn)
        if name == OURS:
            self.run("select trunq.unsubscribe('q', 'default')")
            self.run("select trunq.subscribe('q', 'c', 'exclusive')")
            return
        if name == THEIRS:
            self.run("create extension pgq")
        else:
            command = [sys.executable, "-m", "trunq", "db", "install", "--facade", "pgq", "--dsn", self.dsn]
            subprocess.run(command, check=True, capture_output=True)
        self.run(PGQ)
        self.run("select pgq.register_consumer('q', 'c')")

    def run(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Execute without preparing, where there are no values several statements."""
        cursor = self.connection.execute(statement.encode(), values or None, prepare=False)
        return cursor.fetchall() if cursor.description else []

    def ask(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """A prepared statement that returns rows."""
        return self.connection.execute(statement.encode(), values).fetchall()

    def taken(self, work: Callable[[], object]) -> float:
        """Seconds of a processor of server and client."""
        begun = time.process_time()
        return server_time(self.connection, work) + time.process_time() - begun


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
                f"PgQ is not installed beside Postgres {options.postgres}: apt-get install postgresql-15-pgq3,"
                " and run this with --postgres 15"
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


def opened(running: Embedded, name: str) -> Side | None:
    """A side, or None where its software is not there."""
    try:
        return Side(running, name)
    except (psycopg.errors.UndefinedFile, psycopg.errors.FeatureNotSupported, subprocess.CalledProcessError):
        return None


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
    return in_turn(arms, options.size(9, 3), warm_up=arms)


# Publishing


def publishing(options: Options, sides: Mapping[str, Side], table: Table) -> None:
    """1,000 in a transaction from Python; COPY."""
    rounds, count = options.size(15, 4), 1000
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


@contextmanager
def batch_of(side: Side, rows: int) -> Iterator[Any]:
    """A batch of so many messages, to be finished; what came before is passed over."""
    drained = False
    while True:
        if side.name == OURS:
            if drained:
                side.connection.execute(
                    "insert into trunq_log.q (kind, payload) select %s, %s::jsonb from generate_series(1, %s)",
                    (KIND, payload(), rows),
                )
            side.ask("select trunq.tick('q', true)")
            ((batch, token),) = side.ask(
                "select batch_id, token from trunq_queue.q_next_batch('c', 'me', 1000)"
            )
            if drained:
                yield batch, token
                return
            side.ask("select trunq_queue.q_finish_batch('c', %s, %s)", batch, token)
        else:
            if drained:
                side.connection.execute(
                    "select count(pgq.insert_event('q', %s, %s)) from generate_series(1, %s)",
                    (KIND, payload(), rows),
                )
            side.ask("select pgq.ticker('q')")
            ((batch,),) = side.ask(OPENED)
            if drained:
                yield batch, None
                return
            side.ask("select pgq.finish_batch(%s)", batch)
            while (rest := side.ask(OPENED)[0][0]) is not None:
                side.ask("select pgq.finish_batch(%s)", rest)
        drained = True


def reading(options: Options, sides: Mapping[str, Side], table: Table) -> None:
    """Batches read and finished: as rows, as Arrow."""
    rows, rounds = options.size(50_000, 10_000), options.size(9, 3)
    columns = (
        "ev_id, ev_time, ev_txid, ev_retry, ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4"
    )

    def theirs(side: Side, *, parsed: bool) -> float:
        with batch_of(side, rows) as (batch, _):

            def work() -> None:
                found = side.ask(f"select {columns} from pgq.get_batch_events(%s)", batch)
                if parsed:
                    found = [(*row[:5], json.loads(row[5]), *row[6:]) for row in found]
                assert len(found) == rows
                side.ask("select pgq.finish_batch(%s)", batch)

            return side.taken(work) / rows

    with Client(sides[OURS].dsn) as client:

        def as_rows(side: Side) -> float:
            with batch_of(side, rows) as (batch, token):

                def work() -> None:
                    assert len(client.read_batch("q", "c", batch, connection=side.connection)) == rows
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
            name: partial(as_arrow, side) if name == OURS else partial(theirs, side, parsed=False)
            for name, side in sides.items()
            if name != FACADE
        }
        figures = in_turn(arms, rounds, warm_up=arms)
        add(
            table,
            f"read and finish {rows:,}: Arrow beside their rows, texts unparsed",
            figures,
            1.5,
            least=True,
        )
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
        return server_time(self._side.connection, lambda: None) + both(self._pid, self._side.connection, work)

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
        with open(f"/proc/{pid}/schedstat") as file:
            return int(file.read().split()[0])

    before = spent()
    taken = server_time(connection, work)
    return taken + (spent() - before) / 1e9


# What does not stand beside PgQ


def fan_out(options: Options, side: Side) -> Table:
    """What publishers pay for subscriptions."""
    rounds, count = options.size(15, 4), options.size(300, 100)

    def published() -> float:
        def work() -> None:
            for number in range(count):
                side.ask("select trunq_queue.q_publish(%s::jsonb)", payload(number))

        return server_time(side.connection, work) / count

    def subscribed(number: int) -> float:
        for name in range(1, 10):
            side.run(
                f"select trunq.subscribe('q', 'fan_{name}', 'exclusive')"
                if number > 1
                else f"select trunq.unsubscribe('q', 'fan_{name}') from trunq.subscription where name = 'fan_{name}'"
            )
        return published()

    figures = in_turn({"1": partial(subscribed, 1), "10": partial(subscribed, 10)}, rounds, warm_up=["1"])
    subscribed(1)
    table = Table(
        "What subscriptions cost a publisher",
        f"{count} publishes a round, {rounds} rounds in turn; microseconds of the server for each.",
        ["1 subscription", "10 subscriptions", "ratio", "target"],
    )
    ratio = median_ratio(figures, "10", "1")
    table.add(
        *(f"{statistics.median(figures[n]) * 1e6:.0f}" for n in ("1", "10")),
        f"{ratio:.2f}",
        at_most(ratio, 1.1),
    )
    return table


def pinned(options: Options, running: Embedded) -> Table:
    """A transaction that stays open."""
    cycles, share = options.size(2000, 200), 10
    table = Table(
        f"A transaction that stays open through {cycles:,} batches of 10 messages",
        "Microseconds of the server for publish, tick, next, read and finish; first and last tenth. Pending:"
        " messages that are not finished in the end. Dead rows: of every table of the database.",
        [
            "",
            "first tenth",
            "last tenth",
            "last / first",
            "pending",
            "dead rows of the log",
            "dead rows",
            "target",
        ],
    )
    for name in (THEIRS, OURS):
        side = Side(running, name)
        with psycopg.connect(side.dsn) as old:
            old.execute("create table pin ()")
            figures = [server_time(side.connection, partial(turn, side)) for _ in range(cycles)]
            first, last = (
                statistics.median(each)
                for each in (figures[: cycles // share], figures[-(cycles // share) :])
            )
            schema, event = ("trunq_data", "trunq_log") if name == OURS else ("pgq", "pgq")
            pending = unfinished(side)
            dead_log = dead(
                side, "relname like 'event%'" if name == THEIRS else "relname like '%log%'", schema
            )
            assert event
            total = dead(side, "true", schema)
            if name == OURS:
                total += dead(side, "true", "trunq")
            judged = at_most(dead_log + pending, 0) if name == OURS else ""
            table.add(
                name,
                f"{first * 1e6:,.0f}",
                f"{last * 1e6:,.0f}",
                f"{last / first:.2f}",
                str(pending),
                str(dead_log),
                str(total),
                judged,
            )
            old.rollback()
        side.connection.close()
    return table


def turn(side: Side) -> None:
    """Ten messages, and the batch that has them."""
    for _ in range(10):
        if side.name == OURS:
            side.ask("select trunq_queue.q_publish('1')")
        else:
            side.ask("select pgq.insert_event('q', 'k', '1')")
    if side.name == OURS:
        ((batch, token),) = side.ask("select batch_id, token from trunq_queue.q_next_batch('c', 'me')")
        side.ask("select id from trunq.read_batch('q', 'c', %s)", batch)
        side.ask("select trunq_queue.q_finish_batch('c', %s, %s)", batch, token)
    else:
        side.ask("select pgq.ticker('q')")
        ((batch,),) = side.ask(OPENED)
        side.ask("select ev_id from pgq.get_batch_events(%s)", batch)
        side.ask("select pgq.finish_batch(%s)", batch)


def unfinished(side: Side) -> int:
    """How many messages a consumer has not finished."""
    query = (
        "select pending from trunq.list_streams('q')"
        if side.name == OURS
        else "select pending_events from pgq.get_consumer_info('q', 'c')"
    )
    ((count,),) = side.ask(query)
    return int(count)


def dead(side: Side, condition: str, schema: str) -> int:
    """Dead rows, as the server counts them."""
    side.run("select pg_stat_force_next_flush()")
    side.run("select 1")
    ((count,),) = side.run(
        f"select coalesce(sum(n_dead_tup), 0) from pg_stat_all_tables where schemaname = '{schema}' and {condition}"
    )
    return int(count)


CAPTURED = {
    "none": "",
    "captured": "select trunq.capture('captured', 'q')",
    "row trigger, INSERT": """
        create function write_row() returns trigger language plpgsql as $$ begin
          insert into trunq_log.q (kind, key, payload) values ('public.row.insert', new.id::text,
            jsonb_build_object('op', 'insert', 'table', 'public.row', 'at', statement_timestamp(), 'after', to_jsonb(new)));
          return null;
        end $$;
        create trigger write_row after insert on "row trigger, INSERT" for each row execute function write_row()""",
    "PgQ's jsontriga (C)": """
        create trigger write_row after insert on "PgQ's jsontriga (C)" for each row
        execute function pgq.jsontriga('q')""",
}


def capturing(options: Options, sides: Mapping[str, Side]) -> Table:
    """A bulk load into a captured table, beside row triggers."""
    rows, rounds = options.size(1_000_000, 50_000), options.size(3, 2)
    place = {arm: sides[THEIRS if "PgQ" in arm else OURS] for arm in CAPTURED}
    for arm, statement in CAPTURED.items():
        place[arm].run(
            f'create table "{arm}" (id integer primary key, customer text not null, status text not null,'
            " total numeric not null, placed_at timestamptz not null default now())"
        )
        if statement:
            place[arm].run(statement)

    def load(arm: str) -> float:
        side = place[arm]
        side.run(f'truncate "{arm}"')
        if side.name == OURS:
            side.run("select trunq.empty_queue('q')")
        else:
            side.run("truncate pgq.event_1_0, pgq.event_1_1, pgq.event_1_2")
        statement = f"insert into \"{arm}\" select n, 'customer ' || n %% 1000, 'new', n / 7.0 from generate_series(1, %s) n"
        return server_time(side.connection, lambda: side.run(statement, rows)) / rows

    figures = in_turn({arm: partial(load, arm) for arm in CAPTURED}, rounds)
    bare = statistics.median(figures["none"])
    table = Table(
        f"INSERT of {rows:,} rows in a statement",
        f"{rounds} rounds in turn, medians. Microseconds of the server a row, beyond the bare table's {bare * 1e6:.1f}.",
        ["", "adds", "capture adds, of that", "target"],
    )
    added = {arm: statistics.median(taken) - bare for arm, taken in figures.items() if arm != "none"}
    for arm, more in added.items():
        share = added["captured"] / more
        table.add(
            arm, f"{more * 1e6:.1f}", f"{share:.2f}", at_most(share, 0.5) if arm.endswith("INSERT") else ""
        )
    return table


def latency(options: Options, running: Embedded) -> Table:
    """From the moment before a publish to the batch in hand, and an idle queue."""
    side = Side(running, OURS)
    length = options.size(20, 5)
    context = multiprocessing.get_context("spawn")
    ready, times = context.Event(), context.Queue()
    reader = context.Process(target=read, args=(side.dsn, ready, times), daemon=True)
    reader.start()
    ready.wait()
    count = asyncio.run(publish(side.dsn, length))
    taken = [times.get(timeout=60) for _ in range(count)]
    time.sleep(1)  # what was committed last is on its way to the disk
    before = written(side)
    time.sleep(options.size(20, 4))
    idle = written(side)
    reader.terminate()
    reader.join()
    table = Table(
        f"From publish to batch in hand, {RATE} messages a second, wall clock",
        f"One process publishes for {length} s, one reads `client.stream`. Idle: what is written afterwards,"
        f" in {options.size(20, 4)} s.",
        ["median", "95 %", "longest", "target", "idle: ticks", "idle: transactions"],
    )
    median = statistics.median(taken)
    table.add(
        milliseconds(median),
        milliseconds(percentile(taken, 0.95)),
        milliseconds(max(taken)),
        at_most(median * 1e3, MEDIAN * 1e3, " ms"),
        *(str(after - earlier) for earlier, after in zip(before, idle, strict=True)),
    )
    return table


def written(side: Side) -> tuple[int, ...]:
    """How many ticks there are, and which transaction id comes next."""
    return side.run(
        "select (select count(*) from trunq.tick), pg_snapshot_xmax(pg_current_snapshot())::text::bigint"
    )[0]


async def publish(dsn: str, length: float) -> int:
    """Independent arrivals; how many."""
    count = 0
    async with AsyncClient(dsn) as client:
        begun = time.monotonic()
        for at in moments(RATE, length):
            await asyncio.sleep(max(0.0, begun + at - time.monotonic()))
            await client.publish("q", time.monotonic())
            count += 1
    return count


def read(dsn: str, ready: Any, times: Any) -> None:
    """The reader's process."""

    async def loop() -> None:
        async with AsyncClient(dsn) as client:
            ready.set()
            async for batch in client.stream("q", "c"):
                now = time.monotonic()
                async with batch.transaction():
                    async for message in batch:
                        times.put(now - message.payload)

    asyncio.run(loop())


if __name__ == "__main__":
    main(__doc__, measure)
