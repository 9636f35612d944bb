"""The database a command works on: one that is given, or an embedded one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from trunq import Client
from trunq import embedded as embedding
from trunq.cli.failure import WAYS_TO_A_DATABASE, Mistake
from trunq.cli.option import embedded_directory


@contextmanager
def address(dsn: str | None, embedded: str | None) -> Iterator[str]:
    """Address of the database that the options name; an embedded one runs as long as the block."""
    if embedded is None:
        yield _given(dsn)
        return
    if dsn is not None:
        raise Mistake("Give --dsn or --embedded, not both.")
    with embedding.start(embedded_directory(embedded)) as server:
        yield server.dsn


@contextmanager
def client(dsn: str | None, embedded: str | None) -> Iterator[Client]:
    """A client of the database that the options name. An embedded one gets trunq if it has none."""
    with address(dsn, embedded) as database, Client(database, max_connections=2) as connected:
        if embedded is not None:
            _install_if_missing(database)
        yield connected


def _install_if_missing(database: str) -> None:
    from trunq import install  # noqa: PLC0415  # only a database of our own is changed unasked

    if install.version(database) is None:
        install.install(database)


def _given(dsn: str | None) -> str:
    found = dsn or os.environ.get("TRUNQ_DSN")
    if found:
        return found
    if any(os.environ.get(name) for name in ("PGHOST", "PGDATABASE", "PGSERVICE")):
        # libpq finds its own way then.
        return ""
    raise Mistake(f"No database is given. {WAYS_TO_A_DATABASE}")
