"""Runs every benchmark and writes RESULTS.md. For a machine that does nothing else.

    python benchmarks/run_all.py            about an hour and a half
    python benchmarks/run_all.py --quick    to see that everything works; writes RESULTS-quick.md

Each benchmark is a program of its own with a server of its own; one that fails is named and leaves the
others their turn.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _bench import environment

HERE = Path(__file__).parent

RUNS = (
    ("drain.py", "--postgres", "18"),
    ("drain.py", "--postgres", "16"),
    ("tracing.py",),
    ("watching.py",),
    ("publish.py", "--postgres", "18"),
    ("publish.py", "--postgres", "16"),
    ("wake.py", "--postgres", "18"),
    ("wake.py", "--postgres", "16"),
    ("latency.py", "--postgres", "18"),
    ("latency.py", "--postgres", "16"),
    ("lanes.py", "--postgres", "18"),
    ("customers.py", "--postgres", "18"),
    ("lease.py", "--postgres", "18"),
    ("lease.py", "--postgres", "16"),
    ("filters.py", "--postgres", "18"),
    ("unique.py", "--postgres", "18"),
    ("capture.py", "--postgres", "18"),
    ("archive.py", "--postgres", "18"),
    ("transactional.py", "--postgres", "18"),
    ("fleet.py", "--postgres", "18"),
    ("fleet.py", "--postgres", "16"),
    ("backlog.py", "--postgres", "18"),
    ("backlog.py", "--postgres", "16"),
    ("horizon.py", "--postgres", "18"),
    ("horizon.py", "--postgres", "16"),
    ("queues.py", "--postgres", "18"),
    ("queues.py", "--postgres", "16"),
    ("rotation.py", "--postgres", "18"),
    # Needs the original PgQ, and says so.
    ("stream.py", "--postgres", "15"),
    ("spark_source.py", "--postgres", "18"),
    ("spark_sink.py", "--postgres", "18"),
    ("pipeline.py", "--postgres", "18"),
    ("engine.py", "--postgres", "18"),
    ("jdbc.py", "--postgres", "18"),
    ("merge.py", "--postgres", "18"),
    ("cluster.py", "--postgres", "18"),
    ("web.py", "--postgres", "18"),
)

INTRODUCTION = """# Benchmarks: results

What each measures, and how, is the first text of its script; `python benchmarks/run_all.py` writes this page.
Figures belong to this machine and this day; the ratios are what counts, each to a baseline of the same run.
They are medians, or the best, of at least nine rounds. Where other work took part of the machine meanwhile, a
table says "Under load".
"""


def main() -> None:
    """Run all, or those named."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "only", nargs="*", metavar="NAME", help="benchmarks to run, such as drain; all if none"
    )
    parser.add_argument("--quick", action="store_true", help="small sizes: not for figures")
    given = parser.parse_args()
    names = {Path(name).stem for name in given.only}
    if unknown := names - {Path(run[0]).stem for run in RUNS}:
        parser.error(f"there is no benchmark {', '.join(sorted(unknown))}")
    runs = [run for run in RUNS if not names or Path(run[0]).stem in names]
    if not given.quick:
        wait_for_quiet()
    machine = environment()
    sections, failed = [], []
    for run in runs:
        print(f"== {' '.join(run)}", flush=True)
        tables = run_one([*run, *(["--quick"] if given.quick else [])])
        if tables is None:
            failed.append(" ".join(run))
        else:
            sections.append(tables)
    path = HERE / ("RESULTS-quick.md" if given.quick else "RESULTS.md")
    path.write_text("\n".join([INTRODUCTION, "```", machine, "```", "", *sections]).rstrip() + "\n")
    print(f"written: {path}")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


def run_one(command: list[str]) -> str | None:
    """The tables of one benchmark, as Markdown; None when it failed."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "tables.md")
        output.touch()
        done = subprocess.run(
            [sys.executable, str(HERE / command[0]), *command[1:], "--markdown", str(output)], check=False
        )
        return output.read_text() if done.returncode == 0 else None


def wait_for_quiet(patience: float = 120) -> None:
    """Let the load sink; say so when it does not."""
    deadline = time.monotonic() + patience
    while os.getloadavg()[0] > 0.5 and time.monotonic() < deadline:
        time.sleep(5)
    if os.getloadavg()[0] > 0.5:
        print(f"this machine is busy (load {os.getloadavg()[0]:.1f}): figures will be off", file=sys.stderr)


if __name__ == "__main__":
    main()
