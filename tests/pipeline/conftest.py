"""A bench for each test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from pipeline.piping import Bench


@pytest.fixture
def bench(database: str, connection: psycopg.Connection[Any]) -> Iterator[Bench]:
    """A database of its own, and what runs pipelines in it."""
    made = Bench(database, connection)
    yield made
    made.close()
