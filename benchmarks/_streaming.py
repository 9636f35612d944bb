"""Of streams what needs no cycle of PgQ's: fan-out, an open transaction, capture, latency."""

from __future__ import annotations

import asyncio
import multiprocessing
import statistics
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

import psycopg

from _bench import (
    Options,
    Table,
    at_most,
    in_turn,
    median_ratio,
    milliseconds,
    moments,
    payload,
    percentile,
    server_time,
)
from _pgq import OPENED, OURS, THEIRS, Side
from trunq import AsyncClient
from trunq.embedded import Embedded

RATE, MEDIAN = 100, 0.020


def fan_out(options: Options, side: Side) -> Table:
    """What publishers pay for subscriptions."""
    rounds, count = options.rounds(15, 4), options.size(300, 100)

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
                else "select trunq.unsubscribe('q', s.name) from trunq.subscription s"
                f" where name = 'fan_{name}'"
            )
        return published()

    # The disk is waited for outside of what is compared.
    side.run("set synchronous_commit = off")
    figures = in_turn({"1": partial(subscribed, 1), "10": partial(subscribed, 10)}, rounds, warm_up=["1"])
    subscribed(1)
    side.run("reset synchronous_commit")
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
            schema = "trunq_data" if name == OURS else "pgq"
            pending = unfinished(side)
            dead_log = dead(
                side, "relname like 'event%'" if name == THEIRS else "relname like '%log%'", schema
            )
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
    # Since Postgres 15; else they are told once a second.
    side.run("select pg_stat_force_next_flush()")
    side.run("select 1")
    ((count,),) = side.run(
        "select coalesce(sum(n_dead_tup), 0) from pg_stat_all_tables"
        f" where schemaname = '{schema}' and {condition}"
    )
    return int(count)


CAPTURED = {
    "none": "",
    "captured": "select trunq.capture('captured', 'q')",
    "row trigger, INSERT": """
        create function write_row() returns trigger language plpgsql as $$ begin
          insert into trunq_log.q (kind, key, payload) values ('public.row.insert', new.id::text,
            jsonb_build_object('op', 'insert', 'table', 'public.row', 'at', statement_timestamp(),
              'after', to_jsonb(new)));
          return null;
        end $$;
        create trigger write_row after insert on "row trigger, INSERT"
        for each row execute function write_row()""",
    "PgQ's jsontriga (C)": """
        create trigger write_row after insert on "PgQ's jsontriga (C)" for each row
        execute function pgq.jsontriga('q')""",
}


def capturing(options: Options, sides: Mapping[str, Side]) -> Table:
    """A bulk load into a captured table, beside row triggers."""
    rows, rounds = options.size(300_000, 50_000), options.rounds()
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
        statement = (
            f"insert into \"{arm}\" select n, 'customer ' || n %% 1000, 'new', n / 7.0"
            " from generate_series(1, %s) n"
        )
        return server_time(side.connection, lambda: side.run(statement, rows)) / rows

    figures = in_turn({arm: partial(load, arm) for arm in CAPTURED}, rounds)
    bare = statistics.median(figures["none"])
    table = Table(
        f"INSERT of {rows:,} rows in a statement",
        f"{rounds} rounds in turn, medians. Microseconds of the server a row, beyond the bare table's"
        f" {bare * 1e6:.1f}.",
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
