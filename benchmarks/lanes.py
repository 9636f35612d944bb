"""What lanes cost: lease and ack of 500 with lanes and from a plain queue, and publishing into them.

Each arm is a queue of its own with the same number of messages (200 bytes), all waiting before it is read;
rounds in turn, each reads the same number on. Counted is the time of a processor that the server process
takes, which other work on the machine disturbs less than it does the clock. Two more questions are answered
by the clock: how long another lane's message waits behind a million of one, and behind a commit of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

import psycopg

from _bench import (
    Options,
    Table,
    a_second,
    at_least,
    at_most,
    connect,
    in_turn,
    main,
    median_ratio,
    milliseconds,
    new_database,
    payload,
    seconds,
    server,
    server_time,
    settle,
)

Connection = psycopg.Connection[Any]

SIZE = 500

ARMS: dict[str, tuple[str | None, int, dict[str, Any], float | None]] = {
    "plain": (None, 1000, {}, None),
    "fair, one lane": ("key", 1, {}, None),
    "fair, 1,000 keys": ("key", 1000, {}, 0.5),
    "fair, 10,000 keys": ("key", 10_000, {}, 0.3),
    "priority only": ("priority", 1, {"policy": "priority"}, 0.75),
    "limit of 20 on each of 1,000 keys": ("key", 1000, {"max_running": 20}, 0.3),
    "in order, 1,000 keys": ("key", 1000, {"in_order": True}, 0.1),
}
"""Lanes, keys, settings, and the target: the share of a plain queue's messages a second."""


def measure(options: Options) -> Iterator[Table]:
    """Leases, few of many lanes, publishing, and waiting."""
    with server(options, synchronous_commit="off") as running:
        dsn = new_database(running, queue=False)
        with connect(dsn) as connection:
            yield leases(options, connection)
            yield few_of_many(options, connection)
            yield publishing(options, dsn, connection)
            yield waiting(options, connection)


def make(connection: Connection, queue: str, lanes: str | None, settings: dict[str, Any]) -> None:
    """A queue, and what its subscription says of its lanes."""
    connection.execute("select trunq.create_queue(%s, p_lanes => %s)", (queue, lanes), prepare=False)
    if settings.get("in_order"):
        connection.execute(
            "select trunq.subscribe(%s, 'default', p_in_order => true)", (queue,), prepare=False
        )
    elif settings:
        connection.execute(
            "select trunq.set_lanes(%s, 'default', %s, %s)",
            (queue, settings.get("policy", "fair"), settings.get("max_running")),
            prepare=False,
        )


def fill(connection: Connection, queue: str, messages: int, keys: int) -> None:
    """Messages of so many keys, one after the other."""
    connection.execute(
        f"insert into trunq_log.{queue} (key, payload)"
        f" select 'key ' || n %% {keys}, %s::jsonb from generate_series(1, {messages}) n".encode(),
        (payload(),),
        prepare=False,
    )


def pair(connection: Connection, queue: str, size: int) -> int:
    """A lease and the ack of what it gave."""
    rows = connection.execute(
        f"select lease_id, token, id from trunq_queue.{queue}_lease('default', 'w', %s)".encode(), (size,)
    ).fetchall()
    if rows:
        connection.execute(
            f"select trunq_queue.{queue}_ack('default', %s, %s, %s)".encode(),
            (rows[0][0], rows[0][1], [row[2] for row in rows]),
        )
    return len(rows)


def work_off(connection: Connection, queue: str, size: int, messages: int) -> float:
    """Messages a second of a processor."""
    done = 0

    def work() -> None:
        nonlocal done
        while done < messages and (count := pair(connection, queue, size)):
            done += count

    taken = server_time(connection, work)
    return done / taken


def leases(options: Options, connection: Connection) -> Table:
    """All lanes have messages waiting."""
    rounds, messages = options.rounds(), options.size(8_000, 2_000)
    table = Table(
        f"lease + ack of {SIZE} with lanes, Postgres {options.postgres}",
        f"Everything waits before; {rounds} rounds of {messages:,} messages in turn; median of the rounds' "
        "ratios. Time of a processor.",
        ["queue", "messages a second of a processor", "ratio", "target"],
    )
    works: dict[str, Callable[[], float]] = {}
    for number, (name, (lanes, keys, settings, _)) in enumerate(ARMS.items()):
        queue = f"arm_{number}"
        make(connection, queue, lanes, settings)
        fill(connection, queue, (rounds + 2) * messages, keys)
        works[name] = partial(work_off, connection, queue, SIZE, messages)
    figures = in_turn(works, rounds, warm_up=works)
    for name, (*_, target) in ARMS.items():
        ratio = median_ratio(figures, name, "plain")
        table.add(
            name, a_second(median(figures[name])), f"{ratio:.2f}", at_least(ratio, target) if target else ""
        )
    return table


def few_of_many(options: Options, connection: Connection) -> Table:
    """Ten thousand lanes, of which at most a hundred have something waiting."""
    rounds, messages, size = options.rounds(), options.size(3_000, 1_000), 100
    table = Table(
        f"10,000 lanes, at most 100 with something waiting, Postgres {options.postgres}",
        f"Leases of {size}; {rounds} rounds of {messages:,} messages in turn, published before each. Time of "
        "a processor for each message, by that of a queue whose one lane has them all.",
        ["queue", "messages a second of a processor", "cost", "target"],
    )
    for queue, keys in (("many", 10_000), ("one", 1)):
        make(connection, queue, "key", {})
        fill(connection, queue, 10_000, keys)
        while pair(connection, queue, 1000):
            pass

    def work(queue: str, keys: int) -> float:
        fill(connection, queue, messages, keys)
        return work_off(connection, queue, size, messages)

    figures = in_turn(
        {"one lane": partial(work, "one", 1), "100 of 10,000": partial(work, "many", 100)}, rounds
    )
    cost = median_ratio(figures, "one lane", "100 of 10,000")
    table.add("one lane", a_second(median(figures["one lane"])), "1.00", "")
    table.add("100 of 10,000", a_second(median(figures["100 of 10,000"])), f"{cost:.2f}", at_most(cost, 2))
    return table


def publishing(options: Options, dsn: str, connection: Connection) -> Table:
    """COPY of many, and INSERT of one."""
    rounds, messages, singles = options.rounds(), options.size(20_000, 2_000), options.size(2_000, 200)
    queues = {"plain": None, "by priority": "priority", "by key": "key"}
    table = Table(
        f"publishing into lanes, Postgres {options.postgres}",
        f"{messages:,} messages by one COPY, and {singles:,} by INSERT, each a transaction; {rounds} rounds "
        "in turn, median of the rounds' ratios. Time of a processor for COPY; for INSERT that of the call, "
        "by the clock, which waits for no disk.",
        ["queue", "COPY", "ratio", "target", "INSERT", "ratio", "target"],
    )
    text = "".join(f"key {number % 1000}\t{payload()}\n" for number in range(messages)).encode()

    def copy(queue: str) -> float:
        def work() -> None:
            with connection.cursor().copy(f"copy trunq_log.{queue} (key, payload) from stdin") as into:
                into.write(text)

        return messages / server_time(connection, work)

    def insert(queue: str) -> float:
        statement = f"insert into trunq_log.{queue} (key, payload) values (%s, %s::jsonb)".encode()

        def work() -> None:
            for number in range(singles):
                connection.execute(statement, (f"key {number % 1000}", payload()))

        return singles / seconds(work)

    names = {name: f"publish_{number}" for number, name in enumerate(queues)}
    for name, lanes in queues.items():
        make(connection, names[name], lanes, {})
    settle(dsn)
    copied = in_turn({name: partial(copy, names[name]) for name in queues}, rounds, warm_up=queues)
    inserted = in_turn({name: partial(insert, names[name]) for name in queues}, rounds, warm_up=queues)
    for name in queues:
        many, one = median_ratio(copied, name, "plain"), median_ratio(inserted, name, "plain")
        table.add(
            name,
            a_second(median(copied[name])),
            f"{many:.2f}",
            at_least(many, 0.5) if name != "plain" else "",
            a_second(median(inserted[name])),
            f"{one:.2f}",
            at_least(one, 0.9) if name != "plain" else "",
        )
    return table


def waiting(options: Options, connection: Connection) -> Table:
    """How long a message of another lane waits behind many of one."""
    messages, tries = options.size(1_000_000, 50_000), options.size(40, 5)
    table = Table(
        f"another lane behind {messages:,} of one, Postgres {options.postgres}",
        f"From the commit of one message of a lane of its own until a free worker has it, leases of {SIZE} "
        f"one after the other; {tries} messages in the steady state, and the first after the commit of the "
        "many with 1,000 lanes among them. By the clock.",
        ["when", "median", "longest", "target"],
    )
    make(connection, "tenants", "key", {})

    def wait(number: int) -> float:
        connection.execute("insert into trunq_log.tenants (key) values (%s)", (f"other {number}",))
        begun = perf_counter()
        while True:
            rows = connection.execute(
                "select key from trunq_queue.tenants_lease('default', 'w', %s)", (SIZE,)
            ).fetchall()
            if (f"other {number}",) in rows:
                return perf_counter() - begun

    connection.execute(
        "insert into trunq_log.tenants (key)"
        " select case when n % 1000 = 0 then 'small ' || n / 1000 else 'big' end"
        f" from generate_series(1, {messages}) n".encode(),
        prepare=False,
    )
    begun = perf_counter()
    wait(0)
    first = perf_counter() - begun
    for _ in range(20):
        wait(0)
    steady = [wait(number) for number in range(1, tries + 1)]
    table.add("after the commit of all", milliseconds(first), "", at_most(first * 1000, 100, " ms"))
    longest = max(steady)
    table.add(
        "steady", milliseconds(median(steady)), milliseconds(longest), at_most(longest * 1000, 50, " ms")
    )
    return table


if __name__ == "__main__":
    main(__doc__, measure)
