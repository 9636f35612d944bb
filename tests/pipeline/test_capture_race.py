"""Whatever several sessions do to a table at once, its replica is what the table is: with transactions that
commit late, roll back, and set savepoints, keys that change and change places, rows that triggers change
again, TRUNCATE, and slices at any moment.

TRUNQ_TEST_SECONDS says how long a race is.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from deltalake import DeltaTable
from psycopg import errors

from pipeline.piping import Bench
from scope import some

Connect = Callable[..., psycopg.Connection[Any]]

SECONDS = float(os.environ.get("TRUNQ_TEST_SECONDS", "2"))
WRITERS = 4
KEYS = 12
SOURCE = {"format": "table", "table": "raced", "changes": "capture"}
SINKS: dict[str, dict[str, Any]] = {
    "table": {"format": "table", "table": "copy", "mode": "apply"},
    "soft table": {"format": "table", "table": "copy", "mode": "apply", "deletes": "soft"},
    "delta": {"format": "delta", "path": "copy", "mode": "apply"},
    "soft delta": {"format": "delta", "path": "copy", "mode": "apply", "deletes": "soft"},
    "queue": {"format": "queue", "queue": "copy", "mode": "apply"},
    "spark table": {"format": "table", "table": "copy", "mode": "apply"},
    "spark delta": {"format": "delta", "path": "copy", "mode": "apply"},
}

_REFUSED = (errors.IntegrityError, errors.DeadlockDetected, errors.LockNotAvailable)

# The trigger changes what a statement has just written: its message comes before that of the statement.
TABLE = """create table raced (id int, other int, n numeric, word text, primary key (id) deferrable);
create function again() returns trigger language plpgsql as $$
begin
  update raced set word = word || '!' where id = new.id and length(word) < 4;
  return null;
end $$;
create trigger again after insert or update on raced for each row when (new.n % 3 = 0)
  execute function again();
"""


def statement(chance: random.Random) -> tuple[str, list[Any]]:
    """A change of a few rows, or of all."""
    key, other, n = chance.randrange(KEYS), chance.randrange(KEYS), chance.randrange(4)
    kinds: list[tuple[int, str, list[Any]]] = [
        (30, "insert into raced values (%s, %s, %s, 'a')", [key, other, n]),
        (30, "update raced set n = %s where id = %s", [n, key]),
        (20, "delete from raced where id = %s", [key]),
        (10, "update raced set id = %s where id = %s", [other, key]),
        (10, "update raced set id = case id when %s then %s else %s end where id in (%s, %s)",
            [key, other, key, key, other]),
        (5, "update raced set n = n + 1, id = (id + 1) %% %s", [KEYS]),
        (4, "delete from raced where n = %s", [n]),
        (2, "truncate raced", []),
    ]  # fmt: skip
    (chosen,) = chance.choices(kinds, [weight for weight, *_ in kinds])
    return chosen[1], chosen[2]


def write(connection: psycopg.Connection[Any], chance: random.Random, until: threading.Event) -> None:
    """Transactions until the end; those that fail are rolled back."""
    while not until.is_set():
        is_undone = chance.random() < 0.1
        with suppress(*_REFUSED), connection.transaction(force_rollback=is_undone):
            connection.execute("set local lock_timeout = '300ms'")
            if chance.random() < 0.3:
                # Its number is older than those of others that commit before it.
                connection.execute("select pg_current_xact_id()")
                until.wait(chance.random() * 0.05)
            for _ in range(chance.randrange(1, 4)):
                is_undone = chance.random() < 0.2
                with suppress(errors.IntegrityError), connection.transaction(force_rollback=is_undone):
                    query, values = statement(chance)
                    connection.execute(query.encode(), values)
        until.wait(chance.random() * 0.01)


def rows(bench: Bench, kind: str) -> list[Any]:
    """What the replica has."""
    if "delta" in kind:
        table = DeltaTable("copy").to_pyarrow_table().to_pylist()
        found = [row for row in table if row.pop("deleted_at", None) is None]
        return sorted((row["id"], row["other"], float(row["n"]), row["word"]) for row in found)
    if kind == "queue":
        return told(bench)
    alive = "where deleted_at is null" if "soft" in kind else ""
    return bench.sql(f"select id, other, n::float, word from copy {alive} order by id")


def told(bench: Bench) -> list[Any]:
    """What a reader of the messages has."""
    known: dict[int, Any] = {}
    for (message,) in bench.sql("select payload from trunq_log.copy order by id"):
        if message["op"] == "snapshot":
            known.clear()
        elif message["op"] == "delete":
            known.pop(message["key"]["id"], None)
        else:
            row = message["row"]
            known[row["id"]] = (row["id"], row["other"], float(row["n"]), row["word"])
    return sorted(known.values())


@pytest.mark.slow
@pytest.mark.parametrize("kind", some(["table", "soft delta", "queue"], list(SINKS)))
def test_whatever_sessions_do_at_once_the_replica_is_what_the_table_is(
    bench: Bench,
    connect: Connect,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    kind: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    seed = random.randrange(2**32)
    bench.sql(TABLE)
    bench.sql("insert into raced select g, g, g, 'a' from generate_series(0, 5) g")
    if kind == "queue":
        bench.client.create_queue("copy")
    engine = {}
    if "spark" in kind:
        request.getfixturevalue("spark")
        engine = {"engine": "spark"}
    name = bench.make(SOURCE, SINKS[kind], **engine)
    ends, slices, keys = time.monotonic() + SECONDS, 0, set[int]()
    while time.monotonic() < ends or not (slices and keys):
        until = threading.Event()
        threads = [
            threading.Thread(
                target=write, args=(connect(autocommit=True), random.Random(f"{seed} {slices} {at}"), until)
            )
            for at in range(WRITERS)
        ]
        for thread in threads:
            thread.start()
        for _ in range(3):
            slices += "number" in bench.run(name)
        until.set()
        for thread in threads:
            thread.join()
        bench.run(name)
        expected = bench.sql("select id, other, n::float, word from raced order by id")
        assert rows(bench, kind) == expected, seed
        keys |= {id for id, *_ in expected}
    assert keys
