"""What the archive and the statistics cost the leader, for each message.

Messages are published, leased and acked, then one duty does all of its work about them. Measured is the
processor time of the server process that performs the duty; beside it stands what it took to lease and ack,
and what that and the duty take where answers write the archive themselves (at once).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

import psycopg

from _bench import QUEUE, Options, Table, connect, main, microseconds, new_database, server, server_time

MINUTE = "date_trunc('minute', now() - interval '1 hour')"
LEASE = f"select lease_id, token, id from trunq_queue.{QUEUE}_lease('default', 'w', %s)"
ACK = f"select trunq_queue.{QUEUE}_ack('default', %s, %s, %s::bigint[], p_took => %s::real[])"
FILL = f"""
insert into trunq_log.{QUEUE} (kind, key, payload)
select 'kind_' || n %% 10, 'key_' || n, jsonb_build_object('n', n, 'text', repeat('x', 150))
from generate_series(1, %s) n
"""

Connection = psycopg.Connection[Any]


def measure(options: Options) -> Iterator[Table]:
    """Processor time a message, by how many are leased at a time."""
    rounds = options.rounds(quick=1)
    table = Table(
        f"archive and statistics, Postgres {options.postgres}",
        f"Processor time a message; those of one minute, 250 bytes each; median of {rounds} rounds.",
        [
            "leased at a time",
            "messages",
            "lease and ack",
            "archive",
            "statistics",
            "at once: ack",
            "its duty",
        ],
    )
    with server(options) as running:
        for at_a_time, full in ((500, 10_000), (500, 50_000), (1, 10_000)):
            messages = options.size(full, 1_000)
            with connect(new_database(running)) as connection, connect(new_database(running)) as other:
                connection.execute(f"select trunq.create_archive('{QUEUE}')".encode())
                other.execute(f"select trunq.create_archive('{QUEUE}', p_at_once => true)".encode())
                taken = [
                    one_round(connection, messages, at_a_time) + at_once(other, messages, at_a_time)
                    for _ in range(rounds)
                ]
            medians = (statistics.median(figures) / messages for figures in zip(*taken, strict=True))
            table.add(f"{at_a_time:,}", f"{messages:,}", *map(microseconds, medians))
    yield table


def one_round(connection: Connection, messages: int, at_a_time: int) -> tuple[float, float, float]:
    """Seconds of a processor for lease and ack, the archive and the statistics."""
    connection.execute(FILL.encode(), (messages,))
    worked = server_time(connection, lambda: work(connection, at_a_time))
    archived = server_time(connection, lambda: archive(connection))
    # All in one minute, and nothing of the rounds before.
    connection.execute(
        f"update trunq_data.{QUEUE}_receipt set finished_at = case"
        " when finished_at < now() - interval '1 hour'"
        f" then 'epoch' else {MINUTE} + random() * interval '59 seconds' end".encode()
    )
    connection.execute(b"delete from trunq.statistic")
    roll_up = f"select trunq._roll_up(q, {MINUTE}) from trunq.queue q".encode()
    return worked, archived, server_time(connection, lambda: connection.execute(roll_up))


def at_once(connection: Connection, messages: int, at_a_time: int) -> tuple[float, float]:
    """Seconds of a processor for lease and ack with the archive, and for the duty behind them."""
    connection.execute(FILL.encode(), (messages,))
    worked = server_time(connection, lambda: work(connection, at_a_time))
    return worked, server_time(connection, lambda: archive(connection))


def work(connection: Connection, at_a_time: int) -> None:
    """Lease and ack all there is."""
    while rows := connection.execute(LEASE.encode(), (at_a_time,)).fetchall():
        ids = [id for _, _, id in rows]
        connection.execute(ACK.encode(), (*rows[0][:2], ids, [0.01] * len(ids)))


def archive(connection: Connection) -> None:
    """Archive all there is."""
    call = f"select trunq.archive('{QUEUE}')".encode()
    while connection.execute(call).fetchone() != (0,):
        pass


if __name__ == "__main__":
    main(__doc__, measure)
