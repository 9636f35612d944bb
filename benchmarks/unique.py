"""What unique keys cost: publishing with fresh and with held keys, and lease and ack of 500.

Each arm has a queue of its own; rounds in turn. The base is the same work on a plain queue, in the same run.
Counted is the time of a processor that the server process takes, which other work on the machine disturbs
less than it does the clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import count
from statistics import median
from typing import Any

import psycopg

from _bench import (
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
    server,
    server_time,
)

Connection = psycopg.Connection[Any]
Arms = Mapping[str, tuple[Callable[[], float], float | None]]

SIZE = 500

_keys = count(1)


def measure(options: Options) -> Iterator[Table]:
    """Publishing, then leases."""
    with server(options, synchronous_commit="off") as running:
        dsn = new_database(running, queue=False)
        with connect(dsn) as connection:
            for queue, unique in (("plain", None), ("refuse", "refuse"), ("replace", "replace")):
                connection.execute(
                    "select trunq.create_queue(%s, p_unique => %s)", (queue, unique), prepare=False
                )
            yield from publishing(options, connection)
            yield leases(options, connection)


def table_of(title: str, options: Options, arms: Arms, rounds: int, base: str) -> Table:
    """The arms in turn, each with its ratio to the base."""
    table = Table(
        f"{title}, Postgres {options.postgres}",
        f"{rounds} rounds in turn, median of the rounds' ratios. Time of a processor.",
        ["what", "messages a second of a processor", "ratio", "target"],
    )
    figures = in_turn({name: work for name, (work, _) in arms.items()}, rounds, warm_up=arms)
    for name, (_, target) in arms.items():
        ratio = median_ratio(figures, name, base)
        table.add(
            name, a_second(median(figures[name])), f"{ratio:.2f}", at_least(ratio, target) if target else ""
        )
    return table


def fresh(number: int) -> list[str]:
    """Keys that nobody has used."""
    return [f"customer {next(_keys)}" for _ in range(number)]


def publishing(options: Options, connection: Connection) -> Iterator[Table]:
    """One at a time, many at a time, and by COPY."""
    rounds, singles, calls = options.rounds(), options.size(2_000, 200), options.size(20, 4)
    text = payload()
    held = fresh(SIZE)
    many(connection, "refuse", held)
    yield table_of(
        "publish, one message a transaction",
        options,
        {
            "plain": (partial(one, connection, "plain", singles, text), None),
            "fresh key": (partial(one, connection, "refuse", singles, text), 0.65),
            "held key, refused": (partial(one, connection, "refuse", singles, text, held[0]), None),
        },
        rounds,
        "plain",
    )
    yield table_of(
        f"publish_many of {SIZE}",
        options,
        {
            "plain": (partial(times, connection, calls, partial(many, connection, "plain", None)), None),
            "fresh keys": (partial(times, connection, calls, lambda: many(connection, "refuse", [])), 0.5),
            "all refused": (
                partial(times, connection, calls, partial(many, connection, "refuse", held)),
                0.2,
            ),
            "all replaced": (
                partial(times, connection, calls, partial(many, connection, "replace", held)),
                None,
            ),
        },
        rounds,
        "plain",
    )
    yield table_of(
        f"COPY of {SIZE}",
        options,
        {
            "plain": (partial(times, connection, calls, partial(copy, connection, "plain", False)), None),
            "without keys": (
                partial(times, connection, calls, partial(copy, connection, "refuse", False)),
                None,
            ),
            "fresh keys": (partial(times, connection, calls, partial(copy, connection, "refuse", True)), 0.1),
        },
        rounds,
        "plain",
    )


def one(connection: Connection, queue: str, messages: int, text: str, key: str | None = None) -> float:
    """Messages a second, one call each."""
    statement = (
        b"select trunq_queue.plain_publish(%s::jsonb)"
        if queue == "plain"
        else f"select id, is_new from trunq_queue.{queue}_publish_unique(%s::jsonb, %s)".encode()
    )

    def work() -> None:
        for own in fresh(messages):
            connection.execute(statement, (text,) if queue == "plain" else (text, key or own))

    return messages / server_time(connection, work)


def many(connection: Connection, queue: str, keys: list[str] | None) -> None:
    """One call; no keys at all: a plain publish_many; an empty list: fresh ones."""
    payloads = [payload()] * SIZE
    if keys is None:
        connection.execute("select trunq_queue.plain_publish_many(%s::jsonb[])", (payloads,))
        return
    connection.execute(
        "select id, is_new from trunq.publish_many_unique(%s, %s::jsonb[], %s::text[])",
        (queue, payloads, keys or fresh(SIZE)),
    ).fetchall()


def times(connection: Connection, calls: int, call: Callable[[], None]) -> float:
    """Messages a second of so many calls of SIZE."""

    def work() -> None:
        for _ in range(calls):
            call()

    return calls * SIZE / server_time(connection, work)


def copy(connection: Connection, queue: str, is_keyed: bool) -> None:
    """One COPY."""
    columns = "payload, unique_key" if is_keyed else "payload"
    lines = (f"{payload()}\t{key}" if is_keyed else payload() for key in fresh(SIZE))
    with connection.cursor().copy(f"copy trunq_log.{queue} ({columns}) from stdin".encode()) as into:
        into.write("".join(f"{line}\n" for line in lines))


def leases(options: Options, connection: Connection) -> Table:
    """Everything waits before, each message with a key of its own."""
    rounds, messages = options.rounds(), options.size(8_000, 2_000)
    arms = {
        "plain": ("plain", "done", None, None),
        "refuse, until done": ("refuse", "done", None, 0.5),
        "refuse, until leased": ("refuse", "leased", None, 0.5),
        "refuse, for a time": ("refuse", "done", "1 hour", 0.5),
        "replace, until done": ("replace", "done", None, 0.3),
    }
    works: dict[str, tuple[Callable[[], float], float | None]] = {}
    for number, (name, (policy, until, length, target)) in enumerate(arms.items()):
        queue = f"arm_{number}"
        connection.execute(
            "select trunq.create_queue(%s, p_unique => %s)",
            (queue, None if policy == "plain" else policy),
            prepare=False,
        )
        for _ in range((rounds + 1) * messages // SIZE):
            if policy == "plain":
                connection.execute("select trunq.publish_many(%s, %s::jsonb[])", (queue, [payload()] * SIZE))
            else:
                connection.execute(
                    "select count(*) from trunq.publish_many_unique(%s, %s::jsonb[], %s::text[],"
                    " p_unique_until => %s, p_unique_for => %s)",
                    (queue, [payload()] * SIZE, fresh(SIZE), until, length),
                )
        works[name] = (partial(work_off, connection, queue, messages), target)
    return table_of(f"lease and ack of {SIZE}", options, works, rounds, "plain")


def work_off(connection: Connection, queue: str, messages: int) -> float:
    """Messages a second."""

    def work() -> None:
        for _ in range(messages // SIZE):
            rows = connection.execute(
                f"select lease_id, token, id from trunq_queue.{queue}_lease('default', 'w', {SIZE})".encode()
            ).fetchall()
            connection.execute(
                f"select trunq_queue.{queue}_ack('default', %s, %s, %s)".encode(),
                (rows[0][0], rows[0][1], [row[2] for row in rows]),
            )

    return messages / server_time(connection, work)


if __name__ == "__main__":
    main(__doc__, measure)
