"""The tables that hold the rows of one: itself, its partitions, and what inherits from it.

They are known by their oids, whatever names they get. One that the last run did not know, as a partition that
was attached since, or another table that took the name, is read whole: its rows may be older than the last
run. One that was away meanwhile, and is back, is read from where it was last read.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from psycopg import sql

from trunq.pipeline.source import State
from trunq.pipeline.source.window import Connection, Snapshot, between, is_near

_THERE: Final = "select oid::bigint from pg_class where oid = any(%s::oid[]) order by oid"


def tell(connection: Connection, here: list[int], state: State, slice: dict[str, Any], after: State) -> None:
    """Note from where on each of the tables is read: the known ones as `tables`, the others as `new` and
    `back`; and which of them are known afterwards.
    """
    before = state.get("tables")
    hi = Snapshot.parse(after["snapshot"])
    away = {oid: lo for oid, lo in state.get("away", {}).items() if is_near(Snapshot.parse(lo), hi.xmax)}
    if before is not None:
        # What was away for too long is new.
        before = [oid for oid in before if str(oid) in away or str(oid) not in state.get("away", {})]
    if before is None or "snapshot" not in state:
        # A state of an older release does not say it of a table without others.
        slice["tables"], slice["new"] = here, []
    else:
        slice["tables"] = [oid for oid in here if oid in before and str(oid) not in away]
        slice["new"] = [oid for oid in here if oid not in before]
        if back := {str(oid): away.pop(str(oid)) for oid in here if oid in before and str(oid) in away}:
            slice["back"] = back
    # With those that are away: they may come back.
    known = {*here, *(before or ())}
    after["tables"] = [row[0] for row in connection.execute(_THERE, (list(known),)).fetchall()]
    if (gone := [oid for oid in after["tables"] if oid not in here]) and "snapshot" in state:
        after["away"] = {str(oid): away.get(str(oid), state["snapshot"]) for oid in gone}


def alone(slice: dict[str, Any]) -> bool:
    """Have the slice of a table without others say no more of it than from where on it is read; whether that
    is where the last run was.
    """
    tables, new, back = slice.pop("tables"), slice.pop("new"), slice.pop("back", {})
    if new:
        slice["lo"] = None
    for lo in back.values():
        slice["lo"] = lo
    return bool(tables)


def start(slice: dict[str, Any], oid: int) -> str | None:
    """From where on one of the tables is read."""
    if oid in slice.get("new", ()):
        return None
    lo: str | None = slice.get("back", {}).get(str(oid), slice["lo"])
    return lo


def all_of(slice: dict[str, Any]) -> list[int]:
    """The tables of a slice."""
    return [*slice["tables"], *slice["new"], *map(int, slice.get("back", ()))]


def condition(slice: dict[str, Any], known: sql.Composable) -> sql.Composed:
    """Which rows are of a slice; `known`: those of the tables that the last run knew."""
    ways = [sql.SQL("({} and {})").format(_of(slice["tables"]), known)]
    ways += [
        sql.SQL("({} and {})").format(_of([oid]), between(start(slice, oid), slice["hi"]))
        for oid in map(int, slice.get("back", ()))
    ]
    if slice["new"]:
        ways.append(sql.SQL("({} and {})").format(_of(slice["new"]), between(None, slice["hi"])))
    return sql.SQL("({})").format(sql.SQL(" or ").join(ways))


def _of(tables: Iterable[int]) -> sql.Composed:
    return sql.SQL("tableoid = any({}::oid[])").format(sql.Literal(f"{{{','.join(map(str, tables))}}}"))
