"""Calling trunq's SQL functions from tests, by name, on a connection of the test's own: no client between."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from itertools import count
from typing import Any, Final, cast

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo
from psycopg.rows import namedtuple_row
from psycopg.types.json import Jsonb

Connection = psycopg.Connection[Any]

OUTDATED = "comment on schema trunq_data is 'trunq: functions of an older release. Schema 1, functions 0.'"
"""After this an install applies the functions again."""

_later = count(1)
_signatures: dict[str, dict[str, str]] = {}
_PARAMETERS: Final = """
    select p.proname, coalesce(p.proargnames[:p.pronargs], '{}'), array(
      select format_type(u.type, null) from unnest(p.proargtypes) with ordinality u(type, n) order by u.n)
    from pg_proc p where p.pronamespace = 'trunq'::regnamespace"""


def call(connection: Connection, function: str, /, **arguments: Any) -> list[Any]:
    """Rows of `trunq.<function>(p_<name> => value, ...)`, as named tuples; dicts are sent as jsonb."""
    types = _parameters(connection, function)
    given = [
        sql.SQL(f"p_{name} => {{}}::{types.get(f'p_{name}', 'text')}").format(sql.Placeholder(name))
        for name in arguments
    ]
    query = sql.SQL("select * from trunq.{}({})").format(sql.Identifier(function), sql.SQL(", ").join(given))
    with connection.cursor(row_factory=namedtuple_row) as cursor:
        return cursor.execute(query, {name: _sendable(value) for name, value in arguments.items()}).fetchall()


def ask(connection: Connection, function: str, /, **arguments: Any) -> Any:
    """The one value that `trunq.<function>` returns."""
    ((value, *_),) = call(connection, function, **arguments)
    return value


def fetch(connection: Connection, query: str, *parameters: Any) -> Any:
    """The first column of the first row of a query; None when there is no row."""
    row = connection.execute(query.encode(), parameters or None).fetchone()
    return row and row[0]


@contextmanager
def refused(sqlstate: str, *words: str) -> Iterator[None]:
    """What runs in here fails with this SQLSTATE, and its message and hint hold these words."""
    with pytest.raises(psycopg.Error) as caught:
        yield
    told = f"{caught.value.diag.message_primary} {caught.value.diag.message_hint}"
    assert caught.value.sqlstate == sqlstate, told
    for word in words:
        assert word in told


@dataclass(frozen=True)
class Lease:
    """What one call of `trunq.lease` gave; false when it gave nothing."""

    queue: str
    subscription: str
    messages: list[Any]

    def __bool__(self) -> bool:
        return bool(self.messages)

    @property
    def lease_id(self) -> int:
        return int(self.messages[0].lease_id)

    @property
    def token(self) -> int:
        return int(self.messages[0].token)

    @property
    def ids(self) -> list[int]:
        return [message.id for message in self.messages]

    @property
    def named(self) -> dict[str, Any]:
        """The arguments that name it in an answer."""
        return {
            "queue": self.queue,
            "subscription": self.subscription,
            "lease_id": self.lease_id,
            "token": self.token,
        }


def publish(connection: Connection, queue: str, count: int = 1, **more: Any) -> list[int]:
    """Publish `count` messages; their ids."""
    payloads = [{"n": n} for n in range(count)]
    return cast("list[int]", ask(connection, "publish_many", queue=queue, payloads=payloads, **more))


def lease(
    connection: Connection,
    queue: str,
    max_messages: int = 1,
    *,
    subscription: str = "default",
    worker: str = "w",
    **more: Any,
) -> Lease:
    """Lease up to `max_messages`."""
    rows = call(
        connection,
        "lease",
        queue=queue,
        subscription=subscription,
        worker=worker,
        max_messages=max_messages,
        **more,
    )
    return Lease(queue, subscription, rows)


def lease_ids(
    connection: Connection,
    queue: str,
    *ids: int,
    subscription: str = "default",
    worker: str = "w",
    **more: Any,
) -> tuple[Lease, dict[int, Any]]:
    """Lease messages by their ids: those it got, and what each of the others is."""
    rows = call(
        connection,
        "lease_ids",
        queue=queue,
        subscription=subscription,
        worker=worker,
        ids=list(ids),
        **more,
    )
    taken = [row for row in rows if row.lease_id is not None]
    return Lease(queue, subscription, taken), {row.id: row for row in rows if row.lease_id is None}


def answer(
    connection: Connection, verb: str, held: Lease, ids: Sequence[int] | None = None, **more: Any
) -> int:
    """Answer messages of a lease (all of them, unless told) with ack, retry, reject or release."""
    return int(ask(connection, verb, **held.named, ids=list(held.ids if ids is None else ids), **more))


def drain(connection: Connection, queue: str, subscription: str = "default") -> list[int]:
    """Lease and ack until there is nothing; the ids in the order they came."""
    ids: list[int] = []
    while held := lease(connection, queue, 1000, subscription=subscription, worker="drain"):
        ids += held.ids
        answer(connection, "ack", held)
    return ids


def move_clock(connection: Connection, by: str | timedelta) -> None:
    """Set the database's time, as this session sees it, so far from the real one."""
    connection.execute("select trunq.let_clock_move() where to_regclass('trunq.moving_clock') is null")
    connection.execute("select set_config('trunq.clock_offset', %s, false)", (str(by),))


def come_back(connection: Connection, queue: str) -> None:
    """Promote what a lease that ran out has scattered, at a time when it is due."""
    before = fetch(connection, "select current_setting('trunq.clock_offset', true)") or "0"
    # Each time later: promotion does not look twice at one minute.
    move_clock(connection, f"1000 days {2 * next(_later)} minutes")
    ask(connection, "promote", queue=queue)
    move_clock(connection, before)


def set_policy(connection: Connection, queue: str, subscription: str = "default", **policy: Any) -> None:
    """Change the policy of a shared subscription."""
    ask(connection, "subscribe", queue=queue, subscription=subscription, **policy)


def state(connection: Connection, queue: str, id: int, subscription: str = "default") -> Any:
    """The message as `show_message` tells it for one subscription."""
    rows = call(connection, "show_message", queue=queue, id=id)
    return next(row for row in rows if row.subscription == subscription)


def burn(connection: Connection, count: int) -> None:
    """Use up transaction ids, each of a transaction of its own."""
    body = f"for n in 1..{count} loop perform pg_current_xact_id(); commit; end loop;"
    connection.execute(f"do $$ begin {body} end $$".encode())


def named(dsn: str, name: str) -> str:
    """The address of another database of the same server."""
    return make_conninfo(dsn, dbname=name)


def _sendable(value: Any) -> Any:
    if isinstance(value, dict):
        return Jsonb(value)
    if isinstance(value, list):
        return [_sendable(each) for each in value]
    return value


def learn(connection: Connection) -> None:
    """Look up the parameters of all functions now, for a session in which such a query fails later."""
    for function, names, types in connection.execute(_PARAMETERS):
        _signatures[function] = dict(zip(names, types, strict=True))


def _parameters(connection: Connection, function: str) -> dict[str, str]:
    """Types by parameter name: what Python has as int or float must become what the function takes."""
    if function not in _signatures:
        query = f"{_PARAMETERS} and p.proname = %s".encode()
        for _, names, types in connection.execute(query, (function,)):
            _signatures[function] = dict(zip(names, types, strict=True))
    return _signatures[function]


@cache
def new_names(prefix: str) -> Iterator[str]:
    """Names never used before in this run."""
    return (f"{prefix}_{n}" for n in range(1, 10**6))


def refresh(connection: Connection) -> list[str]:
    """Make the functions of every queue again, as an upgrade does; the queues' names."""
    connection.execute("select trunq._outdate_queues('[]')")
    return list(iter(lambda: fetch(connection, "select trunq._refresh_next()"), None))
