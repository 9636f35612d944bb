"""Which rows of a table were committed between two snapshots of its database.

A row has only the lower half of its transaction's id, as `xmin`. Its distance from now (`age`) gives the
whole id, if that is not further away than 2^31 transactions; for most rows the distance alone decides, and
costs a comparison. A row that Postgres froze keeps its old `xmin`, whose distance may have gone around: what
seems to come from the future is old.

Postgres' snapshots list transactions in progress without their subtransactions, whose ids rows carry that
were written after a savepoint. So a state lists every id in progress, of subtransactions too:
`pg_xact_status` knows them. It is asked after the snapshot was taken: what has ended by then is seen by
whoever reads the slice, later.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg import sql

from trunq.errors import InvalidPipeline
from trunq.pipeline.errors import SourceChanged
from trunq.pipeline.source import timeline

Connection = psycopg.Connection[tuple[Any, ...]]

_FURTHEST: Final = 2**31
_FUTURE: Final = 1_000_000
"""A statement may see rows of this many transactions that began after it asked how late it is."""

_SNAPSHOT: Final = """select pg_snapshot_xmin(s)::text::bigint, pg_snapshot_xmax(s)::text::bigint,
pg_is_in_recovery(), (select system_identifier::text from pg_control_system()) from pg_current_snapshot() s"""

# Ids up to the last snapshot that were over then are over now.
_IN_PROGRESS: Final = """select coalesce(pg_catalog.array_agg(x order by x), '{}') from (
  select x from generate_series(greatest(%(from)s::bigint, %(xmin)s::bigint), %(xmax)s::bigint - 1) x
  union select x from pg_catalog.unnest(%(known)s::bigint[]) x where x < %(xmax)s::bigint) i
where pg_xact_status(x::text::xid8) = 'in progress'"""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What was over: all below `xmin`, nothing from `xmax` on, and between them all but `open_ids`."""

    xmin: int
    xmax: int
    open_ids: tuple[int, ...]

    @classmethod
    def parse(cls, text: str) -> Snapshot:
        """From text as Postgres writes it."""
        xmin, xmax, open_ids = text.split(":")
        return cls(int(xmin), int(xmax), tuple(int(each) for each in open_ids.split(",") if each))

    def __str__(self) -> str:
        return f"{self.xmin}:{self.xmax}:{','.join(map(str, self.open_ids))}"


class Clock:
    """Snapshots of a source, one after the other.

    One in another database than the state (`is_elsewhere`) may fail over to a server that lacks the newest
    transactions, which gives their ids to others: timeline.py.
    """

    def __init__(self, pipeline: str, *, is_elsewhere: bool = False) -> None:
        self._name = pipeline
        self._is_elsewhere = is_elsewhere

    def take(self, connection: Connection, before: dict[str, Any]) -> dict[str, Any]:
        """The state now: the snapshot, and of which server it is. Raises InvalidPipeline."""
        row = connection.execute(_SNAPSHOT).fetchone()
        assert row is not None
        xmin, xmax, is_standby, system = row
        if is_standby:
            raise InvalidPipeline(
                f"pipeline {self._name}: its source is a standby, which does not tell what is in progress",
                "read from the primary",
            )
        start, known = 0, list[int]()
        if (text := before.get("snapshot")) is not None:
            lo = Snapshot.parse(text)
            start, known = lo.xmax, list(lo.open_ids)
            if before.get("system", system) != system or lo.xmax > xmax:
                raise InvalidPipeline(
                    f"pipeline {self._name}: its source was restored or set back, or is another database: the"
                    f" state of the last run lies ahead of it, or elsewhere",
                    f"trunq pipeline state {self._name} --reset begins anew, and reads all of it",
                )
            self._require_near(lo, xmax)
        place = timeline.find(connection) if self._is_elsewhere else {}
        timeline.require_same(self._name, connection, before, place)
        found = connection.execute(
            _IN_PROGRESS, {"from": start, "xmin": xmin, "xmax": xmax, "known": known}
        ).fetchone()
        assert found is not None
        open_ids = tuple(found[0])
        snapshot = str(Snapshot(min((xmax, *open_ids)), xmax, open_ids))
        return {"snapshot": snapshot, "system": system, **place}

    def check(self, connection: Connection, slice: dict[str, Any]) -> None:
        """Whether a slice can still be read: rows do not tell for ever when they were written."""
        row = connection.execute("select pg_snapshot_xmax(pg_current_snapshot())::text::bigint").fetchone()
        assert row is not None
        for lo in (slice.get("lo") or slice["hi"], *slice.get("back", {}).values()):
            self._require_near(Snapshot.parse(lo), row[0])
        if (after := slice.get("after", {})).get("timeline") is not None:
            timeline.require_same(self._name, connection, after, timeline.find(connection))

    def verify(self, cursor: Any) -> None:
        """What was read is of a primary: a standby may lack some of it. Raises SourceChanged."""
        cursor.execute("select pg_is_in_recovery()")
        if cursor.fetchone()[0]:
            raise SourceChanged(
                f"pipeline {self._name}: its source is a standby, which may lack rows that the primary has",
                "give the address of the primary, or several hosts with target_session_attrs=read-write",
            )

    def _require_near(self, lo: Snapshot, xmax: int) -> None:
        if not is_near(lo, xmax):
            raise InvalidPipeline(
                f"pipeline {self._name}: its source had more than 2^31 transactions since the last run, or"
                f" one that is open for so long: rows do not say any more when they were written",
                f"trunq pipeline state {self._name} --reset begins anew, and reads all of it",
            )


def is_near(lo: Snapshot, xmax: int) -> bool:
    """Whether rows still say whether they were written after a snapshot."""
    return xmax - lo.xmin < _FURTHEST - _FUTURE


def between(lo: str | None, hi: str) -> sql.Composed:
    """The condition: a row is visible in one snapshot and not in an earlier one, if there is one."""
    end = Snapshot.parse(hi)
    # A subquery is asked once; a function of literals alone once a row.
    xid = sql.SQL("greatest(3, {} + (select age({}::xid)::bigint) - age(xmin)::bigint)::text::xid8").format(
        sql.Literal(end.xmax), _short(end.xmax)
    )
    seen = "pg_visible_in_snapshot({}, {}::pg_snapshot)"
    sooner = sql.SQL("age(xmin) > (select age({}::xid))").format(_short(end.xmin))
    seen_by_hi = sql.SQL(seen).format(xid, sql.Literal(hi))
    future = sql.SQL(str(-_FUTURE))
    if lo is None:
        return sql.SQL("({} or age(xmin) < {} or {})").format(sooner, future, seen_by_hi)
    oldest = _short(Snapshot.parse(lo).xmin)
    return sql.SQL(
        "(age(xmin) <= (select age({}::xid)) and age(xmin) >= {} and not {} and ({} or {}))"
    ).format(oldest, future, sql.SQL(seen).format(xid, sql.Literal(lo)), sooner, seen_by_hi)


def _short(xid: int) -> sql.Literal:
    return sql.Literal(str(xid & 0xFFFFFFFF))
