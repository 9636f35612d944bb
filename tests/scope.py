"""How much of the suite runs: what a push needs, or with TRUNQ_TEST_ALL all of it, as `make test-all` does.

A push runs on the newest Postgres, calls the generated client once in each shape, and takes one order, one
seed and the smallest load that shows a fault. What is left out differs from what runs in numbers alone.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

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
