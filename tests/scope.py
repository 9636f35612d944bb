"""How much of the suite runs: what a push needs, or with TRUNQ_TEST_ALL all of it, as `make test-all` does.

A push runs on the newest Postgres, calls the generated client once in each shape, and takes one order, one
seed and the smallest load that shows a fault. What is left out differs from what runs in numbers alone.

Tests take turns: `make test` runs a quarter of those with the mark `slow`, and half of the others; the commit
decides which. So one push of four runs each test. TRUNQ_TEST_TURN asks for another quarter (0 to 3). Without
it, as when you name tests to run, none is left out.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final, TypeVar

T = TypeVar("T")

ALL = os.environ.get("TRUNQ_TEST_ALL", "") not in {"", "0"}
KILLS = int(os.environ.get("TRUNQ_KILLS") or 0)
"""How many processes are killed a sink, where somebody asked for a number."""

EVERY = ALL or KILLS > 0
"""Whether tests that kill take every point, sink and engine."""


def some(push: T, everything: T) -> T:
    """One of the two: a number of rounds, a list of orders."""
    return everything if ALL else push


def share(cases: Sequence[T], number: int, of: int) -> Sequence[T]:
    """Every so manieth case, from this one on: those who share cases run each of them once together."""
    return cases if ALL else cases[number % of :: of]


TURNS: Final = 4


def turn() -> int | None:
    """Whose turn of the slow tests it is: the commit's, or the one that somebody asked for; None: all run."""
    asked = os.environ.get("TRUNQ_TEST_TURN", "")
    if not asked or ALL:
        return None
    return int(_commit(), 16) % TURNS if asked == "commit" else int(asked) % TURNS


def _commit() -> str:
    """The hash of the commit that is tested; outside of a repository, the first turn's."""
    done = subprocess.run(
        ["git", "rev-parse", "HEAD"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() if done.returncode == 0 else "0"
