"""The connection from Spark's driver to the database, reopened when it is lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict

from trunq.connection._sync.link import Link
from trunq.connection._sync.opening import open_lent
from trunq.connection.address import complete
from trunq.connection.backoff import first_line, is_retryable
from trunq.errors import translate
from trunq.spark.errors import DatabaseAway

T = TypeVar("T")

Connection = psycopg.Connection[tuple[Any, ...]]

APPLICATION: Final = "trunq spark"
AT_FIRST: Final = 2.0
"""Seconds to wait for a database that never answered: most likely the address is wrong."""
LATER: Final = 60.0
"""Seconds to wait for a database that has answered before: it restarts, or a standby takes over."""


class Database:
    """One connection, opened at its first use; a pickled copy in another process opens its own."""

    def __init__(self, address: Callable[[], str], patience: float = AT_FIRST) -> None:
        self._address = address
        self._patience = patience
        self._link: Link | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_link": None}

    def run(self, work: Callable[[Connection], T]) -> T:
        """Runs `work` in a transaction, and again on a new connection when the database went away.

        The work must therefore be idempotent. Raises the errors of trunq, and `DatabaseAway` when the
        database does not come back.
        """

        def transact(connection: Connection) -> T:
            with connection.transaction():
                return work(connection)

        try:
            self._link = self._link or Link(self._address(), APPLICATION, lends=True)
            done = self._link.run(transact, self._patience)
        except psycopg.Error as error:
            if (ours := translate(error)) is not None:
                raise ours from error
            if is_retryable(error):
                raise away(error, self._address()) from error
            raise
        self._patience = LATER
        return done

    def close(self) -> None:
        """Closes the connection; the next `run` opens another."""
        if self._link is not None:
            self._link.close()


def connect(dsn: str) -> Connection:
    """A connection whose transactions are READ COMMITTED, whatever the database's default is.

    Under a stricter level, a reader whose snapshot is older than the TRUNCATE of a segment finds no rows in
    it.
    """
    # What a sink takes in one commit may last.
    return open_lent(complete(dsn, APPLICATION))


def away(error: Exception, dsn: str) -> DatabaseAway:
    """The error to raise when the database does not answer."""
    if isinstance(error, DatabaseAway):
        return error
    return DatabaseAway(
        f"the database cannot be reached: {redact(first_line(error), dsn)}",
        "is it running, and is the address (TRUNQ_DSN, trunq.toml, or the option service or dsn) right?",
    )


def redact(text: str, dsn: str) -> str:
    """The text without the password of the address, in case a library repeated it."""
    try:
        password = conninfo_to_dict(dsn).get("password")
    except psycopg.ProgrammingError:
        # libpq cannot parse the address and quotes the part it stumbled over, which may be the password.
        return text.replace(dsn, "***") if len(dsn) > 3 and dsn in text else "the address is not one"
    return text.replace(str(password), "***") if password else text
