"""The database of a command: the one that the user names, or an embedded one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

from trunq import Client, install, settings
from trunq import embedded as embedding
from trunq.cli.ground.failure import Mistake, in_shell
from trunq.cli.ground.option import EMBEDDED_DIRECTORY, Database
from trunq.connection.backoff import first_line
from trunq.diagnosis import rights
from trunq.explanation import WAYS_TO_A_DATABASE, explain_connection, is_connection_trouble, sentence
from trunq.record.look import LOOKED_TO


@contextmanager
def address(named: Database) -> Iterator[str]:
    """The address of the database that options or settings name; starts an embedded one and stops it."""
    if named.dsn is not None and named.embedded:
        raise Mistake("Give --dsn or --embedded, not both.")
    if named.directory is not None and not named.embedded:
        raise Mistake("--directory says where an embedded Postgres keeps its files: give --embedded too.")
    known = settings.load()
    dsn = named.dsn if named.is_given else known.dsn
    directory = (
        (named.directory or known.embedded or Path(EMBEDDED_DIRECTORY)) if named.embedded else known.embedded
    )
    if dsn is not None:
        yield dsn
    elif directory is not None:
        with embedding.start(directory) as server:
            # Install into an embedded database unasked; the user decides when to change another database.
            if install.version(server.dsn) is None:
                install.install(server.dsn)
            yield server.dsn
    else:
        with _default_address():
            yield ""


@contextmanager
def client(named: Database, queue: str | None = None) -> Iterator[Client]:
    """A client of the database that the options or the settings name; `queue`: the one that is looked at."""
    with address(named) as database, Client(database, max_connections=2) as connected:
        try:
            yield connected
        except psycopg.errors.InsufficientPrivilege as error:
            if error.diag.message_hint is not None:
                raise
            raise Mistake(_may_not(connected, error, queue)) from error


def _may_not(connected: Client, error: psycopg.Error, queue: str | None) -> str:
    """What the role lacks for a command, and which grants give it that."""
    with connected.transaction() as connection:
        held = rights(connection, queue)
    if held is not None and queue is not None:
        return f"This role may not look at queue {queue}: {in_shell(held.way_out)}."
    said = sentence(first_line(error))
    if held is None:
        return said
    return f"{said} The role lacks a right: {held.grant} gives it all, trunq role grant those to one queue."


def looked_to(connection: psycopg.Connection[Any]) -> int | None:
    """Where the list goes on that this transaction asked for; None: it looked at all there was."""
    row = connection.execute(LOOKED_TO).fetchone()
    return row and row[0]


@contextmanager
def _default_address() -> Iterator[None]:
    """Turns libpq's error at its default address into one that says how to name a database."""
    try:
        yield
    except psycopg.Error as error:
        if not is_connection_trouble(error):
            raise
        reason = explain_connection(str(error)).reason
        raise Mistake(
            f"No database is given, and there is none at the usual place ({reason}). {WAYS_TO_A_DATABASE}"
        ) from None
