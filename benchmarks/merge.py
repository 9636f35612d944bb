"""What it takes to merge changed rows into a Delta table, beside dlt.

A table of Postgres is in a Delta table; 5 % of its rows change, and a run brings them there by their key.
Ours is a run of a pipeline with `mode = "upsert"`, in one process without Spark; dlt's has its SQL source
with a cursor (pyarrow) and its filesystem destination with table_format = "delta" and the strategy upsert.
Both merge by the library deltalake. Each run is a process of its own. Counted are seconds of a processor,
with those of its children and without its imports, and its memory at the peak; those of the server are not
counted. Needs the dependency group `bench`.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any, Final

import psycopg
import pyarrow.compute as pc
from deltalake import DeltaTable
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from _bench import Options, Table, at_least, at_most, connect, in_turn, main, new_database, server
from trunq import Client
from trunq.pipeline import Pipeline

_MADE: Final = """
create table {name} (
  id bigint primary key, customer text not null, status text not null, total double precision not null,
  note text, changed_at timestamptz not null)
"""
_FILLED: Final = """
insert into {name} select n, 'customer ' || n % 1000, 'new', n, md5(n::text) || md5((n + 1)::text),
  timestamptz '2026-01-01 00:00Z' + n * interval '1 microsecond'
from generate_series(1, {rows}) n
"""
# Each time differs: dlt keeps a hash of each row that has the newest.
_CHANGED: Final = """
update {name} set status = 'paid', total = total + 1,
  changed_at = timestamptz '2026-01-01 00:00Z' + {round} * interval '1 hour' + id * interval '1 microsecond'
where {which}
"""
_SHARE: Final = 20
"""One row of so many changes."""
_WHERE: Final[dict[str, str]] = {
    "everywhere": "id % {share} = {round} % {share}",
    "the last rows": "id > {rows} - {rows} / {share}",
}
_CPU, _MEMORY = 2.0, 1.0
"""Targets: dlt's seconds are so many times ours; our memory is so much of dlt's."""


@dataclass(frozen=True)
class Arms:
    """A table, and both ways to a lake."""

    connection: psycopg.Connection[Any]
    name: str
    rows: int
    which: str
    places: dict[str, Path]
    given: dict[str, dict[str, str]]

    def change(self, round: int) -> None:
        """One row of twenty changes."""
        which = _WHERE[self.which].format(share=_SHARE, rows=self.rows, round=round)
        self.connection.execute(_CHANGED.format(name=self.name, round=round, which=which).encode())

    def run(self, arm: str) -> dict[str, float]:
        """One run of an arm, and what it took."""
        program = [sys.executable, str(Path(__file__).with_name("_merging.py")), arm]
        done = subprocess.run(
            [*program, json.dumps(self.given[arm])], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{arm} failed: {done.stderr[-4000:]}")
        took: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        return took

    def check(self) -> None:
        """Both lakes have the rows that the table has."""
        row = self.connection.execute(f"select count(*), sum(total) from {self.name}".encode()).fetchone()
        for arm, place in self.places.items():
            found = DeltaTable(str(place)).to_pyarrow_table(columns=["id", "total"])
            there = (pc.count_distinct(found["id"]).as_py(), pc.sum(found["total"]).as_py())
            assert found.num_rows == self.rows, arm
            assert there == row, (arm, there, row)


def measure(options: Options) -> Iterator[Table]:
    """Each size, and where its changes are."""
    cases = (
        [(6_000, "everywhere")]
        if options.quick
        else [(300_000, "everywhere"), (300_000, "the last rows"), (1_200_000, "everywhere")]
    )
    rounds = options.rounds(quick=1)
    table = Table(
        f"5 % of the rows change, merged into a Delta table (deltalake {version('deltalake')})",
        f"{rounds} rounds in turn, medians, each run a process of its own; dlt {version('dlt')}. Seconds of a"
        " processor without imports; MiB at the peak with them.",
        (
            "rows, changed", "ours, s", "dlt, s", "dlt's to ours", "target",
            "ours, MiB", "dlt, MiB", "ours to dlt's", "target",
        ),
    )  # fmt: skip
    with _placed(options) as (dsn, directory):
        for number, (rows, which) in enumerate(cases):
            found = _measured(dsn, directory / str(number), f"orders_{number}", rows, which, rounds)
            _add(table, f"{rows:,}, {which}", found)
    yield table


def _add(table: Table, what: str, found: dict[str, list[dict[str, float]]]) -> None:
    middle = {
        arm: {name: median(each[name] for each in taken) for name in ("run", "peak")}
        for arm, taken in found.items()
    }
    cpu = middle["dlt"]["run"] / middle["ours"]["run"]
    memory = middle["ours"]["peak"] / middle["dlt"]["peak"]
    seconds = [f"{middle[arm]['run']:.2f}" for arm in ("ours", "dlt")]
    peaks = [f"{middle[arm]['peak']:.0f}" for arm in ("ours", "dlt")]
    table.add(
        what, *seconds, f"{cpu:.2f}", at_least(cpu, _CPU), *peaks, f"{memory:.2f}", at_most(memory, _MEMORY)
    )


def _measured(
    dsn: str, directory: Path, name: str, rows: int, which: str, rounds: int
) -> dict[str, list[dict[str, float]]]:
    found: dict[str, list[dict[str, float]]] = {"ours": [], "dlt": []}
    with connect(dsn) as connection:
        arms = _made(dsn, connection, directory, name, rows, which)
        for arm in found:
            arms.run(arm)
        # The first merge finds the files of the first load, later ones those of a merge.
        for round in range(1, rounds + 2):
            arms.change(round)
            taken: dict[str, Callable[[], float]] = {
                arm: lambda arm=arm: _kept(found[arm], arms.run(arm)) for arm in found
            }
            in_turn(dict(reversed(taken.items())) if round % 2 else taken, 1)
        arms.check()
    return {arm: each[1:] for arm, each in found.items()}


def _kept(known: list[dict[str, float]], took: dict[str, float]) -> float:
    known.append(took)
    return took["run"]


def _made(
    dsn: str, connection: psycopg.Connection[Any], directory: Path, name: str, rows: int, which: str
) -> Arms:
    for statement in (_MADE, _FILLED, "create index on {name} (changed_at)", "vacuum analyze {name}"):
        connection.execute(statement.format(name=name, rows=rows).encode())
    address = conninfo_to_dict(dsn)
    # It wants a password, which the server does not.
    url = f"postgresql://{address['user']}:none@{address['host']}:{address['port']}/{address['dbname']}"
    lake = directory / "ours"
    sink = {
        "format": "delta", "path": str(lake), "mode": "upsert", "key": ["id"], "newest": "changed_at",
        "compact": False,
    }  # fmt: skip
    made = Pipeline(name, source={"format": "table", "table": name}, sink=sink, engine="process")
    with Client(dsn) as client:
        client.create_pipeline(name, made.definition)
    given = {
        "ours": {"dsn": dsn, "pipeline": name},
        "dlt": {"url": url, "table": name, "directory": str(directory / "dlt")},
    }
    places = {"ours": lake, "dlt": directory / "dlt" / "tables" / "by_dlt" / name}
    return Arms(connection, name, rows, which, places, given)


@contextmanager
def _placed(options: Options) -> Iterator[tuple[str, Path]]:
    """A database over TCP, and a directory."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with (
        server(options, listen_addresses="127.0.0.1", port=port) as running,
        tempfile.TemporaryDirectory() as made,
    ):
        yield make_conninfo(new_database(running), host="127.0.0.1", port=port), Path(made)


if __name__ == "__main__":
    main(__doc__, measure)
