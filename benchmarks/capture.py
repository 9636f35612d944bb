"""What it costs to capture a table: changes of many rows in a statement, and of one.

The same table five times: without anything, captured, and with triggers for each row written by hand, which
insert into the queue's log, call `trunq_queue.<queue>_publish`, or insert into a plain table for auditors.
Each arm has a queue of its own; rounds in turn. Counted is the time of a processor that the server process
takes, and what an arm takes more than the bare table. The triggers written by hand do not say which columns
an UPDATE changed.

Beside it a server with wal_level = logical: what a table costs its writer whose old rows are whole in the
log (replica identity full), how many bytes of log each arm writes, and what decoding takes of a process of
its own (pgoutput).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from typing import Any

import psycopg

from _bench import (
    LEAST_ROUNDS,
    Options,
    Table,
    at_most,
    connect,
    in_turn,
    main,
    new_database,
    server,
    server_time,
)

Connection = psycopg.Connection[Any]

ARMS = ("none", "capture", "row_insert", "row_publish", "audit")
NAMES = {
    "none": "bare table",
    "capture": "captured",
    "row_insert": "row trigger, INSERT",
    "row_publish": "row trigger, publish",
    "audit": "row trigger, audit table",
}

TABLE = """
create table {arm} (
  id integer primary key, customer text not null, status text not null, total numeric not null, note text,
  placed_at timestamptz not null default now())
"""

ROW_TRIGGER = """
create function write_{arm}() returns trigger language plpgsql as $$
declare
  v_payload jsonb := jsonb_build_object(
    'op', lower(tg_op), 'table', 'public.{arm}', 'at', statement_timestamp(),
    'before', case when tg_op <> 'INSERT' then to_jsonb(old) end,
    'after', case when tg_op <> 'DELETE' then to_jsonb(new) end);
begin
  {publish}
  return null;
end $$;
create trigger write_{arm} after insert or update or delete on {arm}
  for each row execute function write_{arm}()
"""

KEY = "coalesce(new.id, old.id)::text"
KIND = "'public.{arm}.' || lower(tg_op)"
PUBLISH = {
    "row_insert": f"insert into trunq_log.q_{{arm}} (kind, key, payload) values ({KIND}, {KEY}, v_payload);",
    "row_publish": f"perform trunq_queue.q_{{arm}}_publish(v_payload, {KIND}, {KEY});",
    "audit": "insert into audited (change) values (v_payload);",
}

AUDITED = """
create table audited (
  id bigint generated always as identity primary key, change jsonb not null,
  changed_at timestamptz not null default now())
"""

CHANGES = {
    "insert": "insert into {arm} select n, 'customer ' || n % 1000, 'new', n / 7.0, null"
    " from generate_series(1, {rows}) n",
    "update": "update {arm} set status = 'paid', total = total + 1 where id % 4 = 0",
    "delete": "delete from {arm} where id % 4 = 1",
}
"""What is done to each table, in this order."""

TARGETS = {"insert": 0.41, "update": 0.75, "delete": 0.4}
"""What capture adds, at most, as a share of what the row trigger with an INSERT adds."""


def measure(options: Options) -> Iterator[Table]:
    """Many rows a statement, then one."""
    with (
        server(options, synchronous_commit="off") as running,
        connect(new_database(running, queue=False)) as connection,
    ):
        for arm in ARMS:
            make(connection, arm)
        yield many(options, connection)
        yield one(options, connection)
    with (
        server(options, synchronous_commit="off", wal_level="logical") as running,
        connect(new_database(running, queue=False)) as connection,
    ):
        for arm in LOGGED:
            make(connection, arm)
        connection.execute(b"alter table whole replica identity full")
        yield decoded(options, connection)


LOGGED = ("none", "whole", "audit", "capture")

DECODING = b"""select count(*) from pg_logical_slot_get_binary_changes('reader', null, null,
'proto_version', '1', 'publication_names', 'changes')"""


def decoded(options: Options, connection: Connection) -> Table:
    """One statement for all rows, what it writes into the log, and what reads it back from there."""
    rounds, rows = options.rounds(quick=LEAST_ROUNDS), options.size(150_000, 40_000)
    figures: dict[tuple[str, str], dict[str, list[float]]] = {}
    connection.execute(b"create publication changes for table none, whole")
    connection.execute(b"select pg_create_logical_replication_slot('reader', 'pgoutput')")

    def once(change: str, arm: str) -> float:
        """Microseconds of the writer; bytes, and what decodes them, beside."""
        changed = rows if change == "insert" else rows // 4
        begin = _position(connection)
        taken = changing(connection, change, arm, rows)
        written = (_position(connection) - begin) / changed
        decoding = server_time(connection, lambda: connection.execute(DECODING, prepare=False))
        for what, figure in (("bytes", written), ("decoding", decoding / changed * 1e6)):
            figures.setdefault((change, what), {}).setdefault(arm, []).append(figure)
        return taken

    for _ in range(rounds):
        for arm in LOGGED:
            empty(connection, arm)
        connection.execute(DECODING, prepare=False)
        for change in CHANGES:
            arms = {arm: partial(once, change, arm) for arm in LOGGED}
            for arm, taken in in_turn(arms, 1).items():
                figures.setdefault((change, "writer"), {}).setdefault(arm, []).extend(taken)
    table = Table(
        f"Beside logical decoding (wal_level = logical), {rows:,} rows in a statement, Postgres"
        f" {options.postgres}",
        f"{rounds} rounds in turn, medians, a changed row. Microseconds of a processor, the writer's and"
        " the decoder's; bytes of WAL.",
        [
            "change, of the writer",
            "bare table",
            "replica identity full",
            "row trigger, audit table",
            "captured",
            "capture adds, of what the audit adds",
        ],
    )
    for (change, what), by_arm in sorted(figures.items(), key=lambda each: each[0][1], reverse=True):
        middle = {arm: median(each) for arm, each in by_arm.items()}
        share = (middle["capture"] - middle["none"]) / (middle["audit"] - middle["none"])
        digits = 0 if what == "bytes" else 1
        told = [f"{middle[arm]:.{digits}f}" for arm in LOGGED]
        table.add(f"{change}, {what}", *told, "" if what == "decoding" else f"{share:.2f}")
    return table


def _position(connection: Connection) -> int:
    """How many bytes of the log there have been."""
    row = connection.execute(b"select pg_current_wal_insert_lsn() - '0/0'", prepare=False).fetchone()
    assert row is not None
    return int(row[0])


def make(connection: Connection, arm: str) -> None:
    """A table, and what publishes its changes."""
    connection.execute(TABLE.format(arm=arm).encode(), prepare=False)
    connection.execute("select trunq.create_queue(%s)", (f"q_{arm}",), prepare=False)
    if arm == "audit":
        connection.execute(AUDITED.encode(), prepare=False)
    if arm == "capture":
        connection.execute("select trunq.capture('capture', 'q_capture')", prepare=False)
    elif arm in PUBLISH:
        text = ROW_TRIGGER.format(arm=arm, publish=PUBLISH[arm].format(arm=arm))
        connection.execute(text.encode(), prepare=False)


def empty(connection: Connection, arm: str) -> None:
    """As at the beginning."""
    connection.execute(f"truncate {arm}".encode())
    connection.execute("select trunq.empty_queue(%s)", (f"q_{arm}",))
    if arm == "audit":
        connection.execute(b"truncate audited")


def changing(connection: Connection, change: str, arm: str, rows: int) -> float:
    """Microseconds a changed row of one statement."""
    statement = CHANGES[change].format(arm=arm, rows=rows).encode()
    taken = server_time(connection, lambda: connection.execute(statement, prepare=False))
    return taken / (rows if change == "insert" else rows // 4) * 1e6


def many(options: Options, connection: Connection) -> Table:
    """One statement for all rows."""
    rounds, rows = options.rounds(quick=LEAST_ROUNDS), options.size(150_000, 40_000)
    figures: dict[str, dict[str, list[float]]] = {}
    for _ in range(rounds):
        for arm in ARMS:
            empty(connection, arm)
        for change in CHANGES:
            arms = {arm: partial(changing, connection, change, arm, rows) for arm in ARMS}
            for arm, taken in in_turn(arms, 1).items():
                figures.setdefault(change, {}).setdefault(arm, []).extend(taken)
    table = Table(
        f"{rows:,} rows in a statement, a quarter updated and deleted, Postgres {options.postgres}",
        f"{rounds} rounds in turn, medians. Microseconds of a processor for each changed row.",
        ["change", *NAMES.values(), "capture adds, of what the row trigger adds", "target"],
    )
    for change, taken in figures.items():
        middle = {arm: median(each) for arm, each in taken.items()}
        share = (middle["capture"] - middle["none"]) / (middle["row_insert"] - middle["none"])
        table.add(
            change,
            *(f"{middle[arm]:.1f}" for arm in ARMS),
            f"{share:.2f}",
            at_most(share, TARGETS[change]),
        )
    return table


def single(connection: Connection, arm: str, change: str, statements: int) -> float:
    """Microseconds a statement of one row, each in a transaction of its own."""
    text = {
        "insert": f"insert into {arm} values (%s, 'customer', 'new', 1.5, null)",
        "update": f"update {arm} set status = 'paid' where id = %s",
        "delete": f"delete from {arm} where id = %s",
    }[change].encode()

    def work() -> None:
        for number in range(statements):
            connection.execute(text, (number,))

    return server_time(connection, work) / statements * 1e6


def one(options: Options, connection: Connection) -> Table:
    """One row a statement."""
    rounds, statements = options.rounds(quick=LEAST_ROUNDS), options.size(2_000, 500)
    figures: dict[str, dict[str, list[float]]] = {}
    for _ in range(rounds):
        for arm in ARMS:
            empty(connection, arm)
        for change in CHANGES:
            arms: dict[str, Callable[[], float]] = {
                arm: partial(single, connection, arm, change, statements) for arm in ARMS
            }
            for arm, taken in in_turn(arms, 1).items():
                figures.setdefault(change, {}).setdefault(arm, []).extend(taken)
    table = Table(
        f"One row a statement, a transaction each, Postgres {options.postgres}",
        f"{rounds} rounds of {statements:,} in turn, medians. Microseconds of a processor a statement.",
        [
            "change",
            *NAMES.values(),
            "capture adds, of what the row trigger adds",
            "of what the audit adds",
        ],
    )
    for change, taken in figures.items():
        middle = {arm: median(each) for arm, each in taken.items()}
        shares = [
            (middle["capture"] - middle["none"]) / (middle[arm] - middle["none"])
            for arm in ("row_insert", "audit")
        ]
        table.add(change, *(f"{middle[arm]:.0f}" for arm in ARMS), *(f"{share:.2f}" for share in shares))
    return table


if __name__ == "__main__":
    main(__doc__, measure)
