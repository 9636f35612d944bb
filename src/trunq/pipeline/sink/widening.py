"""Columns of a table get a type that holds what they have and what comes, or the name that rows have for
them, where the pipeline asks for it.

Only what loses no value is a widening. The table is locked before its types are read: two pipelines that
widen one column at once would else leave it with the narrower type.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from psycopg import errors, sql

from trunq.arrow import catalog, mark, table
from trunq.arrow.catalog import Connection
from trunq.arrow.statement import Target
from trunq.connection.backoff import first_line
from trunq.errors import InvalidArgument
from trunq.pipeline.definition.evolve import Evolve
from trunq.pipeline.errors import SinkUnwritable

_WIDER: Final[dict[str, dict[str, str]]] = {
    "smallint": {
        "integer": "integer",
        "bigint": "bigint",
        "numeric": "numeric",
        "real": "real",
        "double precision": "double precision",
    },
    "integer": {
        "bigint": "bigint",
        "numeric": "numeric",
        "real": "double precision",
        "double precision": "double precision",
    },
    "bigint": {"numeric": "numeric"},
    "real": {"double precision": "double precision"},
    "date": {"timestamp without time zone": "timestamp without time zone"},
}
"""By the type of the column and the type that comes: the type that holds all values of both."""

_MOST_DIGITS: Final = 1000
_WAIT: Final = "5s"
_STUCK: Final = (
    errors.DatatypeMismatch,
    errors.FeatureNotSupported,
    errors.InvalidTableDefinition,
    errors.WrongObjectType,
)
"""Of these DatatypeMismatch is told of a foreign key."""


def wider(there: str, given: str) -> str | None:
    """The type that holds all values of both; None: it is that of the column, or there is none."""
    if there.startswith("numeric("):
        return _wider_numeric(there, given)
    return _WIDER.get(there, {}).get(given.partition("(")[0])


def widen(connection: Connection, target: Target, kinds: table.Kinds, evolve: Evolve) -> None:
    """Widen what the pipeline lets be widened. Raises InvalidArgument, which names the column, for what it
    does not let, and SinkUnwritable while somebody holds the table.
    """
    if not widened(connection, target, kinds, evolve):
        return
    with _alone(connection, target, "widened"):
        for name, kind in widened(connection, target, kinds, evolve).items():
            _alter(connection, target, name, kind)


def rename(connection: Connection, target: Target, kinds: table.Kinds, evolve: Evolve) -> None:
    """Give columns the names that rows have for them. Raises SinkUnwritable while somebody holds the table.

    Indexes and views over a column go on with it.
    """

    def wanted() -> dict[str, str]:
        return evolve.renamed(catalog.columns(connection, target.quoted), kinds) if evolve.rename else {}

    if not wanted():
        return
    query = sql.SQL("alter table {} rename column {} to {}")
    with _alone(connection, target, "renamed"):
        for old, new in wanted().items():
            connection.execute(query.format(target.table, sql.Identifier(old), sql.Identifier(new)))


@contextmanager
def _alone(connection: Connection, target: Target, what: str) -> Iterator[None]:
    """A transaction in which nobody else has the table."""
    try:
        with connection.transaction():
            mark.bound(connection)
            connection.execute(sql.SQL("set local lock_timeout = {}").format(_WAIT))
            connection.execute(sql.SQL("lock table {} in access exclusive mode").format(target.table))
            yield
    except errors.LockNotAvailable as error:
        raise SinkUnwritable(
            f"a column of {target.name} is to be {what}, and others have held the table for {_WAIT}",
            "end what holds it, or wait: nothing of this run is in the sink, and it is tried again",
        ) from error


def widened(connection: Connection, target: Target, kinds: table.Kinds, evolve: Evolve) -> dict[str, str]:
    """Columns to be widened, with their new types. Raises InvalidArgument for one that may not be."""
    wanted = {}
    there = catalog.columns(connection, target.quoted)
    for name, kind in kinds.items():
        if kind is None or name not in there or (to := wider(there[name].kind, kind)) is None:
            continue
        if evolve.of_type(name) == "widen":
            wanted[name] = to
        elif not table.fits(connection, kind, there[name]):
            raise InvalidArgument(
                f'column "{name}" of {target.name} is {there[name].kind} and comes as {kind}',
                f'evolve = "widen" makes it {to}; or cast the column',
            )
    return wanted


def _alter(connection: Connection, target: Target, name: str, kind: str) -> None:
    query = sql.SQL("alter table {} alter column {} type {}")
    try:
        connection.execute(query.format(target.table, sql.Identifier(name), sql.SQL(kind)))
    except _STUCK as error:
        raise InvalidArgument(
            f'column "{name}" of {target.name} cannot become {kind}: {first_line(error)}',
            "drop what depends on the column, run the pipeline, and make it again; or cast the column",
        ) from None


def _wider_numeric(there: str, given: str) -> str | None:
    if given == "numeric":
        return given
    had, comes = (re.fullmatch(r"numeric\((\d+),(-?\d+)\)", each) for each in (there, given))
    if had is None or comes is None:
        return None
    digits, scale = int(had[1]), int(had[2])
    scales = max(scale, int(comes[2]))
    most = max(digits - scale, int(comes[1]) - int(comes[2])) + scales
    if (most, scales) == (digits, scale):
        return None
    return "numeric" if most > _MOST_DIGITS else f"numeric({most},{scales})"
