"""A bench for each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pipeline.attempting import CHANGES, SINKS
from pipeline.piping import Bench


@pytest.fixture
def bench(database: str, connection: psycopg.Connection[Any]) -> Iterator[Bench]:
    """A database of its own, and what runs pipelines in it."""
    made = Bench(database, connection)
    yield made
    made.close()


@pytest.fixture
def made(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """A pipeline into a sink of a kind, whose rows come from the test."""
    monkeypatch.chdir(tmp_path)

    def make(kind: str) -> str:
        bench.sql("create table source (id int, word text, run text)")
        if kind == "queue":
            bench.client.create_queue("moved")
        source = {"format": "table", "table": "source"}
        return bench.make({**source, **CHANGES.get(SINKS[kind].get("mode", ""), {})}, SINKS[kind])

    return make
