"""A bench for each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pipeline.attempting import CHANGES, SINKS
from pipeline.databases import ENVIRONMENT as OF_DATABASES
from pipeline.piping import Bench
from pipeline.storages import ENVIRONMENT, S3Server, SftpServer


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


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    """A server of S3."""
    server = S3Server()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def sftp(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SftpServer]:
    """A server of SFTP."""
    server = SftpServer(tmp_path_factory.mktemp("sftp"))
    yield server
    server.stop()


@pytest.fixture
def _secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """What pipelines name is in the environment, of processes that die too."""
    monkeypatch.setattr("pipeline.killing.ENVIRONMENT", ENVIRONMENT)
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def _jdbc(monkeypatch: pytest.MonkeyPatch) -> None:
    """What pipelines of other databases name is in the environment, of processes that die too."""
    monkeypatch.setattr("pipeline.killing.ENVIRONMENT", OF_DATABASES)
    for name, value in OF_DATABASES.items():
        monkeypatch.setenv(name, value)
