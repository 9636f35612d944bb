"""A pipeline as it is shown: how fresh it is, what its runs moved, what changed, what was kept out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

from rich.markup import escape

from trunq import Client, display
from trunq.cli.ground.failure import Mistake
from trunq.cli.ground.output import Row, out, print_fact, say, write_rows
from trunq.cli.operate.pause import with_words
from trunq.cli.pipeline.position import position
from trunq.cli.pipeline.run import progress_words, share_words, trigger_words
from trunq.display import interval, place, text
from trunq.record import Backfill

_RUNS: Final = (
    "run",
    "begun_at",
    "ended_at",
    "outcome",
    "engine",
    "attempts",
    "rows_in",
    "rows_out",
    "rows_bad",
    "bytes in",
    "bytes out",
    "source",
    "work",
    "sink",
    "error",
)
_CHANGES: Final = ("run", "noted_at", "column", "change")
_REASONS: Final = ("reasons", "quarantined", "newest_at", "example")
_UNITS: Final = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def warnings_of(trunq: Client, name: str) -> list[Row]:
    """What is wrong with a pipeline, or its instances, with the way out."""
    found = [
        each
        for each in trunq.list_warnings("pipelines")
        if re.search(rf'"{re.escape(name)}["/]', each.warning)
    ]
    return [{"warning": each.warning, "hint": each.hint} for each in found]


def compaction_of(trunq: Client, name: str) -> Row | None:
    """The last compaction of its table."""
    return next((each._asdict() for each in trunq.show_compaction(name)), None)


def _compaction(row: Row | None) -> str | None:
    if row is None or row["ended_at"] is None:
        return None
    at = text(row["ended_at"])
    if row["error"] is not None:
        return f"failed at {at}: {row['error']}"
    return f"{compacted_words(row)}, at {at}"


def _of_instance(row: Row, words: str) -> str:
    """With the value of an instance in the place of the field that names it."""
    value = row["pipeline"].partition("/")[2]
    per = row["definition"].get("per")
    return words.replace(f"${{{per}}}", value) if value and per else words


def compacted_words(row: Row) -> str:
    """What a compaction did."""
    merged, made, deleted = (row[f"files_{what}"] for what in ("merged", "made", "deleted"))
    found = f"{display.counted(merged, 'file')} became {made:,}" if merged else "no small files to merge"
    return (
        f"{found}, {display.counted(deleted, 'old one was', 'old ones were')} deleted"
        if deleted
        else f"{found}, no old ones to delete"
    )


def print_pipeline(
    row: Row, runs: Sequence[Row], changes: Sequence[Row], reasons: Sequence[Row], warnings: Sequence[Row]
) -> None:
    """Print what is known of a pipeline, and tables of its runs, changes and reasons where there are any."""
    say("Pipeline {name}", name=row["pipeline"])
    for fact, value in (
        ("source", _of_instance(row, place(row["definition"]["source"]))),
        ("sink", _of_instance(row, _sink(row["definition"]["sink"]))),
        ("freshness", _freshness(row)),
        ("then", ", ".join(row["followers"]) or None),
        ("per", _per(row)), ("tables", _tables(row)),
        ("engine", _engine(runs)),
        ("trigger", trigger_words(row["trigger"])), ("next due", row["next_due"]),
        ("paused", with_words(row)["paused"] or None), ("quarantined", row["quarantined"] or None),
        ("compaction", _compaction(row["compaction"])),
        ("state", None if _has_instances(row) else position(row, runs)), ("error", row["error"]),
    ):  # fmt: skip
        print_fact(fact, value, 12)
    # The error stands above, with its advice.
    said = "" if row["error"] is None else f": {row['error'].splitlines()[0]}"
    for each in warnings:
        print_fact("warning", f"{each['warning'].replace(said, '')}; {each['hint']}", 12)
    for run in runs:
        if run["outcome"] is None:
            print_fact("run " + str(run["number"]), progress_words(run["progress"]) or "open", 12)
    # Those of instances are told from each other.
    whose = ("pipeline",) if any(run["pipeline"] != row["pipeline"] for run in runs) else ()
    write_rows([_with_figures(run) for run in runs], (*whose, *_RUNS), False, "It has not run yet.")
    if changes:
        write_rows([_with_change(each) for each in changes], _CHANGES, False, "")
    if reasons:
        print_reasons(reasons)


def _sink(sink: dict[str, Any]) -> str:
    """Where rows go, how, and how often if that is not once."""
    mode = f", {sink['mode']}" if "mode" in sink else ""
    return place(sink) + (" (at least once)" if sink["format"] == "http" else mode)


def print_reasons(counts: Sequence[Row], empty: str = "") -> None:
    """How many rows are in the quarantine for which reason, each in full: --reason takes it."""
    write_rows([{**row, "reasons": row["reason"]} for row in counts], _REASONS, False, empty)


def print_backfills(backfills: Sequence[Backfill]) -> None:
    """Those that go on, and the newest one that has ended."""
    ended = [row for row in backfills if row.outcome is not None][:1]
    for row in [*(row for row in backfills if row.outcome is None), *ended]:
        print_fact(f"backfill {row.backfill}", share_words(row), 12)


def _per(row: Row) -> str | None:
    """What has a state of its own, and where that is seen."""
    per, name = row["definition"].get("per"), row["pipeline"]
    if "tables" in row["definition"]["source"]:
        return None
    if per is None or not _has_instances(row):
        return per and f"{per} = {name.partition('/')[2]}"
    return f"{per} (trunq pipeline instances {name})"


def _has_instances(row: Row) -> bool:
    definition = row["definition"]
    return ("per" in definition or "tables" in definition["source"]) and "/" not in row["pipeline"]


def own_state(row: Row) -> Any:
    """Where the next slice of a pipeline begins."""
    if _has_instances(row):
        name, per = row["pipeline"], row["definition"].get("per", "its tables")
        raise Mistake(
            f"Pipeline {name} has no state of its own: each value of {per} has. Name an instance:"
            f" trunq pipeline instances {name}"
        )
    return row["state"]


def _tables(row: Row) -> str | None:
    """How many a pipeline of many tables has, or which of them an instance is."""
    name, patterns = row["pipeline"], row["definition"]["source"].get("tables")
    if patterns is None or "/" in name:
        return None
    if "tables" not in row["state"]:
        return f"of {', '.join(patterns)}; a run looks for them (trunq pipeline run {name})"
    refused = row["state"]["refused"]
    more = f", {refused} more cannot be read, or are gone" if refused else ""
    return f"{row['state']['tables']} of {', '.join(patterns)}{more} (trunq pipeline instances {name})"


def _engine(runs: Sequence[Row]) -> str | None:
    """Where the rows of the newest run passed, or pass, and why."""
    newest = next((run for run in runs if run["engine"] is not None), None)
    return None if newest is None else f"{newest['engine']}: {newest['engine_reason']}"


def seconds(age: timedelta | None) -> timedelta | None:
    """An age in whole seconds."""
    return None if age is None else timedelta(seconds=int(age.total_seconds()))


def _freshness(row: Row) -> str | None:
    if (age := seconds(row["age"])) is None:
        return None
    at = text(row["fresh_at"])
    if row["fresh_by"] is None:
        return f"{interval(age)} old: the source was read up to {at}"
    return f"{interval(age)} old: the newest {row['fresh_by']} is {at}"


def _with_figures(run: Row) -> Row:
    times: dict[str, Any] = {
        name: None if run[f"{name}_ms"] is None else interval(timedelta(milliseconds=run[f"{name}_ms"]))
        for name in ("source", "work", "sink")
    }
    sizes = {f"bytes {way}": _size(run[f"bytes_{way}"]) for way in ("in", "out")}
    return {**run, "run": "backfill" if run["backfill"] else run["number"], **times, **sizes}


def _size(bytes: int | None) -> str | None:
    if bytes is None:
        return None
    found = next(((size, unit) for size, unit in _UNITS if bytes >= size), None)
    return f"{bytes} B" if found is None else f"{bytes / found[0]:,.1f} {found[1]}"


def _with_change(change: Row) -> Row:
    before = change["type_before"]
    if change["type"] is None:
        said = "renamed"
    else:
        said = f"added as {change['type']}" if before is None else f"from {before} to {change['type']}"
    return {**change, "run": change["number"], "column": change["column_name"], "change": said}


def print_tree(runs: Sequence[Row], parent: str | None = None, depth: int = 0) -> None:
    """Runs of a chain, each below the pipeline that it ran after."""
    if depth == 0 and runs:
        say("Chain {chain}", chain=UUID(str(runs[0]["chain"])))
    for row in runs:
        if row["started_by"] == parent:
            ended, rows = row["outcome"] or "open", display.counted(row["rows_out"] or 0, "row")
            out.print(f"{'  ' * (depth + 1)}{escape(row['pipeline'])} {row['number']}: {ended}, {rows}")
            print_tree(runs, row["pipeline"], depth + 1)
