"""Whether a source has failed over since a state was noted, and what it lost by that.

A standby that takes over, and a backup that is restored up to some time, begin a timeline of their own. What
they lack of the old one, they do not know, and give the ids of its transactions to others: a state would take
these for read. The state says how far the log of the server was. Where the file is readable that says at
which place the new timeline left the old one, it tells whether the new one has all of that.
"""

from __future__ import annotations

import json
from typing import Any, Final

import psycopg

from trunq.errors import InvalidPipeline

Connection = psycopg.Connection[tuple[Any, ...]]

_PLACE: Final = """select ('x' || left(pg_walfile_name(l), 8))::bit(32)::bigint, l::text
from pg_current_wal_insert_lsn() l"""
_HISTORY: Final = "select pg_read_file('pg_wal/' || upper(lpad(to_hex(%s::bigint), 8, '0')) || '.history')"


def find(connection: Connection) -> dict[str, Any]:
    """The timeline of a server, and how far its log is; {}: it does not say."""
    try:
        with connection.transaction():
            row = connection.execute(_PLACE).fetchone()
    except psycopg.DatabaseError:
        if connection.broken:
            raise
        row = None
    return {} if row is None else {"timeline": row[0], "lsn": row[1]}


def require_same(pipeline: str, connection: Connection, before: dict[str, Any], now: dict[str, Any]) -> None:
    """Raise InvalidPipeline where the source may lack, by now, what it had when a state was noted."""
    if "timeline" not in before or "timeline" not in now or before["timeline"] == now["timeline"]:
        return
    left = _left(connection, before["timeline"], now["timeline"])
    if left is not None and _place(before["lsn"]) <= _place(left):
        return
    lost = "lost" if left is not None else "may have lost"
    state = json.dumps({**{name: before[name] for name in before if name != "written"}, **now})
    raise InvalidPipeline(
        f"pipeline {pipeline}: its source has failed over, or was restored, since the last run, and {lost}"
        " transactions that this had seen: rows written since may look as if they were read",
        f"trunq pipeline state {pipeline} --reset begins anew, and reads all of it; if nothing was lost:"
        f" trunq pipeline state {pipeline} --set '{state}'",
    )


def _left(connection: Connection, old: int, new: int) -> str | None:
    """At which place of its log the old timeline was left; None: nobody says, or it was never in there."""
    try:
        with connection.transaction():
            row = connection.execute(_HISTORY, (new,)).fetchone()
    except psycopg.DatabaseError:
        if connection.broken:
            raise
        return None
    lines = (line.split() for line in (row[0] if row else "").splitlines())
    return next((words[1] for words in lines if len(words) > 1 and words[0] == str(old)), None)


def _place(lsn: str) -> int:
    high, low = lsn.split("/")
    return int(high, 16) << 32 | int(low, 16)
