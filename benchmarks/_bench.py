"""What the benchmarks share: a server, payloads, runs in turn, tables.

The method is the same everywhere. Each figure stands beside a baseline measured in the same run on the same
server; the two run in turn (A B A B), each in a state made the same way, and the median (or the best) of
at least nine rounds counts: of three, one and the same thing came to 0.57 and 1.35. Figures of different
runs, or of a machine with other work, are not comparable; the ratios nearly are. A table says when other
work took part of the machine meanwhile.

    def measure(options: Options) -> Iterator[Table]: ...

    if __name__ == "__main__":
        main(__doc__, measure)
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import multiprocessing
import os
import platform
import random
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, Final, TypeVar

import psycopg
from psycopg.conninfo import make_conninfo
from rich.console import Console
from rich.table import Table as RichTable

from _load import Watch, watched
from trunq import embedded, install
from trunq.embedded import Embedded

T = TypeVar("T")
K = TypeVar("K")

SETTINGS: Final = {"shared_buffers": "2GB", "max_wal_size": "8GB", "checkpoint_timeout": "15min"}
"""Beside these the server runs as it comes: fsync, synchronous_commit and full_page_writes are on."""

LEAST_ROUNDS: Final = 9
"""Fewer tell more of the machine's other work than of ours."""

LOADED: Final = 0.15
"""From this share of the machine on, other work is told with the figures."""

QUEUE: Final = "q"
KIND: Final = "email"

_databases = count(1)


@dataclass(frozen=True)
class Options:
    """What the command line asked for. `extra` has the arguments only one benchmark knows."""

    postgres: int = 18
    quick: bool = False
    extra: argparse.Namespace = field(default_factory=argparse.Namespace)

    def size(self, full: int, quick: int) -> int:
        """A number of messages or seconds."""
        return quick if self.quick else full

    def rounds(self, full: int = LEAST_ROUNDS, quick: int = 2) -> int:
        """A number of rounds. Where nine take too long, each round is to do less."""
        if full < LEAST_ROUNDS:
            raise ValueError(f"{full} rounds are too few for figures: take {LEAST_ROUNDS}, of less work each")
        return quick if self.quick else full


@dataclass
class Table:
    """One result: what was measured, how, and the figures as they are printed."""

    title: str
    method: str
    columns: Sequence[str]
    rows: list[Sequence[str]] = field(default_factory=list)
    others: float = 0
    """The share of the machine that other work took while it was measured."""

    def add(self, *cells: str) -> None:
        """One row more."""
        self.rows.append(cells)

    @property
    def how(self) -> str:
        """The method, and whether the machine was under load."""
        if self.others < LOADED:
            return self.method
        return f"{self.method} Under load: other work took {self.others:.0%} of the machine."

    def markdown(self) -> str:
        """As RESULTS.md has it."""
        lines = [f"### {self.title}", "", self.how, ""]
        lines += [
            f"| {' | '.join(cells)} |" for cells in (self.columns, ["---"] * len(self.columns), *self.rows)
        ]
        return "\n".join(lines) + "\n"

    def show(self, console: Console) -> None:
        """On the terminal."""
        table = RichTable(title=self.title, title_justify="left", caption=self.how, caption_justify="left")
        for number, column in enumerate(self.columns):
            table.add_column(column, justify="right" if number else "left")
        for row in self.rows:
            table.add_row(*row)
        console.print(table)


Measure = Callable[[Options], Iterable[Table]]


def main(about: str | None, measure: Measure, *arguments: tuple[str, dict[str, Any]]) -> None:
    """Run one benchmark as a program: print its tables, and append them to a file for `run_all.py`."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--postgres", type=int, default=18, help="version of the embedded server (18)")
    parser.add_argument(
        "--quick", action="store_true", help="small sizes: to see that it works, not for figures"
    )
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="append the tables to a file")
    for flag, options in arguments:
        parser.add_argument(flag, **options)
    given = parser.parse_args()
    console = Console(width=None if os.isatty(1) else 140)
    console.print(environment())
    watch = Watch()
    for table in measure(Options(given.postgres, given.quick, given)):
        table.others = watch.share()
        table.show(console)
        if given.markdown:
            with given.markdown.open("a") as file:
                file.write(table.markdown() + "\n")


# Servers


@contextmanager
def server(options: Options, **settings: str | int) -> Iterator[Embedded]:
    """A server of one's own in a temporary directory."""
    with (
        embedded.start(major=options.postgres, settings={**SETTINGS, **settings}) as running,
        watched(running),
    ):
        yield running


def new_database(running: Embedded, *, queue: bool = True) -> str:
    """A fresh database with trunq, and the queue in it. Returns its dsn."""
    name = f"bench_{next(_databases)}"
    with psycopg.connect(running.dsn, autocommit=True) as connection:
        connection.execute(f"create database {name}")
    dsn = make_conninfo(running.dsn, dbname=name)
    install.install(dsn)
    if queue:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("select trunq.create_queue(%s)", (QUEUE,))
    return dsn


def drop_database(running: Embedded, dsn: str) -> None:
    """Make room on the disk."""
    name = psycopg.conninfo.conninfo_to_dict(dsn)["dbname"]
    with psycopg.connect(running.dsn, autocommit=True) as connection:
        connection.execute(f"drop database {name} with (force)")


def settle(dsn: str) -> None:
    """Write out what earlier work left dirty, so that no arm pays for another."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("checkpoint")


def connect(dsn: str, **settings: str) -> psycopg.Connection[Any]:
    """A connection in autocommit that prepares every statement at its first use."""
    connection = psycopg.connect(dsn, autocommit=True, prepare_threshold=0)
    for name, value in settings.items():
        connection.execute(f"set {name} = {value}")
    return connection


def pgbench(
    running: Embedded,
    dsn: str,
    script: Path,
    *,
    clients: int,
    seconds: int | None = None,
    transactions: int | None = None,
) -> float:
    """Transactions a second by pgbench, which takes less of the machine than any client of ours.

    It runs for `seconds`, or until each client has done its `transactions`.
    """
    length = f"--time={seconds}" if transactions is None else f"--transactions={transactions}"
    output = running._run(  # it knows how to drop root
        "pgbench", "--no-vacuum", "--protocol=prepared", f"--client={clients}", f"--jobs={min(clients, 2)}",
        length, f"--file={script}", dsn,
    )  # fmt: skip
    line = next(line for line in output.splitlines() if line.startswith("tps = "))
    return float(line.split()[2])


# Messages


def payload(number: int = 0) -> str:
    """A JSON payload of 200 bytes."""
    start = json.dumps(
        {
            "user_id": 10_000_000 + number % 90_000_000,
            "action": "send_email",
            "to": "someone@example.com",
            "template": "welcome",
            "vars": {"name": "Some One", "n": 42},
            "pad": "",
        }
    )
    return start[:-2] + "x" * (200 - len(start)) + start[-2:]


def copy_in(connection: psycopg.Connection[Any], table: str, messages: int, chunk: int = 1000) -> None:
    """COPY messages into a table's columns kind and payload, `chunk` a transaction, as fast as it goes."""
    with connection.cursor() as cursor:
        for first in range(0, messages, chunk):
            with cursor.copy(f"copy {table} (kind, payload) from stdin") as copy:
                copy.write(_copy_text(min(chunk, messages - first)))


@cache
def _copy_text(messages: int) -> bytes:
    return "".join(f"{KIND}\t{payload(number)}\n" for number in range(messages)).encode()


# Measuring


def in_turn(
    arms: Mapping[K, Callable[[], float]], rounds: int, warm_up: Iterable[K] = ()
) -> dict[K, list[float]]:
    """Run each arm once a round, in changing order. An arm returns its own figure."""
    for name in warm_up:
        arms[name]()
    figures: dict[K, list[float]] = {name: [] for name in arms}
    order = list(arms)
    for _ in range(rounds):
        for name in order:
            figures[name].append(arms[name]())
        order.reverse()
    return figures


def median_ratio(figures: Mapping[str, Sequence[float]], name: str, baseline: str) -> float:
    """The median of the rounds' ratios: what disturbed a whole round does not count."""
    return statistics.median(a / b for a, b in zip(figures[name], figures[baseline], strict=True))


def seconds(work: Callable[[], object]) -> float:
    """How long it takes."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def server_time(connection: psycopg.Connection[Any], work: Callable[[], object]) -> float:
    """Seconds of a processor that the connection's server process takes: others disturb it less (Linux)."""
    file = Path(f"/proc/{connection.info.backend_pid}/schedstat")
    before = int(file.read_text().split()[0])
    work()
    return (int(file.read_text().split()[0]) - before) / 1e9


def apart(function: Callable[..., T], *arguments: object) -> T:
    """Call a function in a process of its own and return what it returns."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def percentile(values: Sequence[float], share: float) -> float:
    """The value that `share` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def moments(rate: float, length: float, seed: int = 1) -> Iterator[float]:
    """Moments of arrival (seconds from the start) of `rate` independent messages a second."""
    chance, at = random.Random(seed), 0.0
    while (at := at + chance.expovariate(rate)) < length:
        yield at


# Printing


def a_second(figure: float) -> str:
    """A rate."""
    return f"{figure:,.0f}/s" if figure >= 100 else f"{figure:,.1f}/s"


def milliseconds(figure: float) -> str:
    """A time, given in seconds."""
    return f"{figure * 1e3:.2f} ms"


def microseconds(figure: float) -> str:
    """A time, given in seconds."""
    return f"{figure * 1e6:,.0f} µs"


def at_least(figure: float, target: float) -> str:
    """A target and whether it was met."""
    return f"≥ {target:g}: {'met' if figure >= target else 'MISSED'}"


def at_most(figure: float, target: float, unit: str = "") -> str:
    """A target and whether it was met."""
    return f"≤ {target:g}{unit}: {'met' if figure <= target else 'MISSED'}"


def environment() -> str:
    """Hardware, versions, settings, date."""
    cpu = "unknown processor"
    info = Path("/proc/cpuinfo")
    if info.exists():
        models = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        cpu = models[0].partition(":")[2].strip() if models else cpu
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    names = ("trunq", "psycopg", "uvloop", "pgqueuer", "asyncpg")
    settings = ", ".join(f"{name} {value}" for name, value in SETTINGS.items())
    return "\n".join(
        [
            f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, load {os.getloadavg()[0]:.2f}",
            f"{os.cpu_count()} x {cpu}, {memory:.0f} GB, {platform.system()} {platform.release()}",
            f"Python {platform.python_version()}, " + ", ".join(filter(None, map(_version, names))),
            f"Postgres embedded, durable (fsync, synchronous_commit, full_page_writes on), {settings}",
        ]
    )


def _version(name: str) -> str:
    try:
        return f"{name} {importlib.metadata.version(name)}"
    except importlib.metadata.PackageNotFoundError:
        return ""
