"""How a run grows on a standalone cluster of Spark: ten times the rows, on two executors of one core each.

A table of Postgres goes through a statement of Spark SQL and a check into a Delta table, with
`engine = "spark"`. Each run has a driver and executors of its own, so that the peak of each process is that
of this run alone. Counted are seconds from the beginning of the run to its end, as the database notes them,
without the start of Spark; and the largest memory (VmHWM) that any process of each kind reached. The master,
the workers, Postgres and the driver are on this machine.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from statistics import median
from typing import Final

import psutil

from _bench import Options, Table, at_most, connect, in_turn, main, new_database, server
from trunq import Client
from trunq.pipeline import Pipeline

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from spark.cluster import Cluster, master_in, program

_LINEAR: Final = 1.2
_FLAT: Final = 1.2
_EVERY: Final = 0.2
"""Seconds between two looks at the processes. A peak that is reached is seen at any later look."""
_PATIENCE: Final = 1_800
_FILLED: Final = """
create table source_{rows} as
select n::bigint as id, 'customer ' || n % 1000 as customer, n % 7 as kind,
  n / 7.0::double precision as total, md5(n::text) as note,
  timestamptz '2026-01-01 00:00Z' + n * interval '1 second' as placed_at
from generate_series(1, {rows}) n
"""
_SQL: Final = "select *, date(placed_at) as placed_on, upper(substr(note, 1, 8)) as code from input"
_names = count(1)


@dataclass
class Place:
    """A cluster, a database, a directory, and what runs took."""

    cluster: Cluster
    dsn: str
    directory: Path
    peaks: dict[tuple[int, str], list[float]]

    def run(self, rows: int) -> float:
        """Seconds of one run over so many rows."""
        name = f"cluster_{next(_names)}"
        sink = {"format": "delta", "path": str(self.directory / name)}
        source = {"format": "table", "table": f"source_{rows}"}
        check = {"column": "id", "not_null": True}
        made = Pipeline(name, source=source, sink=sink, sql=[_SQL], checks=[check], engine="spark")
        with Client(self.dsn) as client:
            client.create_pipeline(name, made.definition)
            driver = program(self.cluster, self.dsn, "-m", "trunq", "pipeline", "run", name)
            for kind, peak in self._watch(driver).items():
                self.peaks.setdefault((rows, kind), []).append(peak)
            (run,) = client.list_runs(name)
            client.drop_pipeline(name)
        shutil.rmtree(sink["path"])
        assert (run.outcome, run.rows_out, run.engine, run.attempts) == ("done", rows, "spark", 1), run
        assert run.ended_at is not None
        return (run.ended_at - run.begun_at).total_seconds()

    def _watch(self, driver: subprocess.Popen[str]) -> dict[str, float]:
        """Until the driver has ended: MiB at the peak by kind of process."""
        found: dict[str, float] = {}
        deadline = time.monotonic() + _PATIENCE
        while driver.poll() is None:
            if time.monotonic() > deadline:
                driver.kill()
                raise RuntimeError(f"a run took longer than {_PATIENCE} s: {driver.communicate()}")
            for kind, peak in self._seen(driver.pid):
                found[kind] = max(found.get(kind, 0), peak)
            time.sleep(_EVERY)
        told = driver.communicate()
        if driver.returncode:
            raise RuntimeError(f"a run failed: {told}")
        return found

    def _seen(self, driver: int) -> Iterator[tuple[str, float]]:
        try:
            under_driver = [psutil.Process(driver), *psutil.Process(driver).children(recursive=True)]
        except psutil.Error:
            return
        for process in under_driver:
            is_own = process.pid == driver
            yield from _peak("the runner" if is_own else _kind(process, "driver"), process)
        for executor in self.cluster.executors():
            yield from _peak("executor, Java", executor)
            try:
                below = executor.children(recursive=True)
            except psutil.Error:
                continue
            for process in below:
                yield from _peak("executor, Python", process)


def _kind(process: psutil.Process, whose: str) -> str:
    try:
        return f"{whose}, Java" if "java" in process.name() else f"{whose}, Python"
    except psutil.Error:
        return f"{whose}, Python"


def _peak(kind: str, process: psutil.Process) -> Iterator[tuple[str, float]]:
    """MiB; nothing of a process that has ended."""
    try:
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        if line.startswith("VmHWM:"):
            yield kind, int(line.split()[1]) / 1024


def measure(options: Options) -> Iterator[Table]:
    """Seconds and memory, of a tenth and of all."""
    small, large = (5_000, 50_000) if options.quick else (1_000_000, 10_000_000)
    rounds = options.rounds(quick=1)
    with server(options) as running, tempfile.TemporaryDirectory() as made:
        dsn, directory = new_database(running, queue=False), Path(made)
        with connect(dsn) as connection:
            for rows in (small, large):
                connection.execute(_FILLED.format(rows=rows).encode())
                connection.execute(f"vacuum analyze source_{rows}".encode())
        with master_in(directory) as cluster:
            for name in ("1", "2"):
                cluster.start_worker(name)
            place = Place(cluster, dsn, directory, {})
            arms = {rows: lambda rows=rows: place.run(rows) for rows in (small, large)}
            found = {rows: median(each) for rows, each in in_turn(arms, rounds).items()}
    growth = found[large] / found[small] / (large / small)
    table = Table(
        f"a pipeline on a cluster of two executors: {small:,} and {large:,} rows",
        f"{rounds} rounds in turn, medians, each run with a driver and executors of its own: seconds of the"
        " run, and MiB at the peak of the largest process of its kind.",
        ("what", f"{small:,} rows", f"{large:,} rows", "growth", "target"),
    )
    table.add(
        f"seconds (growth: to {large // small} times as long)",
        f"{found[small]:.1f}", f"{found[large]:.1f}", f"{growth:.2f}", at_most(growth, _LINEAR),
    )  # fmt: skip
    for kind in sorted({kind for _, kind in place.peaks}):
        few, many = (median(place.peaks.get((rows, kind), [0])) for rows in (small, large))
        grown = many / few if few else 0
        table.add(f"MiB, {kind}", f"{few:.0f}", f"{many:.0f}", f"{grown:.2f}", at_most(grown, _FLAT))
    yield table


if __name__ == "__main__":
    main(__doc__, measure)
