"""Where the next slice of a pipeline begins, as a person reads it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trunq.cli.ground.output import Row
from trunq.display import text


def position(row: Row, runs: Sequence[Row]) -> str:
    """Up to where its source was read, and since when; `--json` has the state itself."""
    state, source = row["state"], row["definition"]["source"]
    if source.get("changes") == "all" or (source["format"] == "jdbc" and "cursor" not in source):
        return f"each run reads all of {source.get('table') or 'its source'}"
    newest = next((run for run in runs if run["outcome"] == "done" and not run["backfill"]), None)
    if source["format"] in ("csv", "json", "parquet"):
        where = None if newest is None else "the files that were found so far are read"
    else:
        where = _words(source, state)
    return "at the beginning" if where is None else where + _since(state, newest)


def _words(source: dict[str, Any], state: dict[str, Any]) -> str | None:
    """What was read; None: nothing."""
    if "tick" in state:
        return f"behind tick {text(state['tick'])} of queue {state.get('queue') or source.get('queue')}"
    if source["format"] == "table" and "snapshot" in state:
        up_to = f", up to {source['cursor']} {state['cursor']}" if "cursor" in state else ""
        before = int(state["snapshot"].split(":")[1])
        return f"rows that were committed before transaction {text(before)} are read{up_to}"
    if source["format"] == "history" and state:
        leases = max(int(each["lease"]) for each in state.values())
        return f"attempts are read up to lease {text(leases)} of queue {source['queue']}"
    of = {"http": (source.get("since") or {}).get("path"), "jdbc": source.get("cursor")}.get(source["format"])
    for name in ("since", "cursor"):
        if of is not None and state.get(name) is not None:
            return f"up to {of} {state[name]}"
    return ", ".join(f"{name} {text(value)}" for name, value in state.items() if value is not None) or None


def _since(state: dict[str, Any], newest: Row | None) -> str:
    """By which run it is there; nothing where somebody set it, or it moved without a run."""
    if newest is None or newest["slice"].get("after", state) != state:
        return ""
    return f", since run {newest['number']} of {text(newest['ended_at'])}"
