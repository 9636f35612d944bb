"""The connection of Spark's driver side to the database, which comes back when it is lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict
from tenacity import Retrying, stop_after_delay

from trunq.connection.address import complete
from trunq.connection.backoff import BACKOFF, WORTH_ANOTHER_TRY, first_line, is_away, is_passing
from trunq.errors import translate
from trunq.spark.errors import DatabaseAway

T = TypeVar("T")

Connection = psycopg.Connection[tuple[Any, ...]]

APPLICATION: Final = "trunq spark"
AT_FIRST: Final = 2.0
"""Seconds a database is waited for that was never reached: more likely the address is wrong."""
LATER: Final = 60.0
"""Seconds a database is waited for that has answered before: it is restarting, or another takes over."""


class Database:
    """One connection, opened when first needed; a copy sent to another process opens its own."""

    def __init__(self, address: Callable[[], str], patience: float = AT_FIRST) -> None:
        self._address = address
        self._patience = patience
        self._connection: Connection | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_connection": None}

    def run(self, work: Callable[[Connection], T]) -> T:
        """Does a piece of work in a transaction; again, on a new connection, when the database went away.

        So the work must bear being done twice.

        Raises trunq's errors as such, and `DatabaseAway` when the database does not come back.
        """
        tries = Retrying(
            retry=WORTH_ANOTHER_TRY, wait=BACKOFF, stop=stop_after_delay(self._patience), reraise=True
        )
        try:
            done: T = tries(self._attempt, work)
        except psycopg.Error as error:
            if (ours := translate(error)) is not None:
                raise ours from error
            if is_away(error) or is_passing(error):
                raise away(error, self._address()) from error
            raise
        self._patience = LATER
        return done

    def _attempt(self, work: Callable[[Connection], T]) -> T:
        try:
            with (connection := self._open()).transaction():
                return work(connection)
        except psycopg.Error as error:
            if is_away(error):
                self.close()
            raise

    def close(self) -> None:
        """Closes the connection; the next piece of work opens another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _open(self) -> Connection:
        if self._connection is None or self._connection.closed:
            self._connection = connect(self._address())
        return self._connection


def connect(dsn: str) -> Connection:
    """A connection whose transactions are READ COMMITTED, whatever the database's default is.

    Above it a reader whose snapshot is older than the emptying of a segment would find no rows in it.
    """
    connection = psycopg.connect(complete(dsn, APPLICATION), autocommit=True)
    connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
    # Prepared statements would stick to a pooler's connection, and none here runs often.
    connection.prepare_threshold = None
    return connection


def away(error: Exception, dsn: str) -> DatabaseAway:
    """What to tell when the database does not answer."""
    if isinstance(error, DatabaseAway):
        return error
    return DatabaseAway(
        f"the database cannot be reached: {redact(first_line(error), dsn)}",
        "is it running, and is the address (TRUNQ_DSN, trunq.toml, or the option service or dsn) right?",
    )


def redact(text: str, dsn: str) -> str:
    """The text without the address's password, should a library have repeated it."""
    try:
        password = conninfo_to_dict(dsn).get("password")
    except psycopg.ProgrammingError:
        # Not an address at all: libpq says which part of it it cannot read, and that may be the password.
        return text.replace(dsn, "***") if len(dsn) > 3 and dsn in text else "the address is not one"
    return text.replace(str(password), "***") if password else text
