"""What the database knows of a run, by the functions of pipeline/run.sql; each call is a transaction."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final
from uuid import UUID

from trunq import Client
from trunq.pipeline.figures import Figures

HOLD: Final = 30.0
"""Seconds for which whoever is at a run keeps others from it; told again every few seconds."""


_SHOWN: Final = 5
"""Values that a warning names."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a message asks for."""

    pipeline: str
    message_id: int
    payload: Any = None
    is_backfill: bool = False
    is_resend: bool = False
    left: str | None = None
    """The identity of a pipeline that was dropped, and may have left something in its sink."""
    chain: UUID | None = None
    started_by: str | None = None

    @property
    def noted(self) -> Any:
        """The payload as the run notes it: that of a resend is like no other."""
        return {"resend": self.payload, "of": "quarantine"} if self.is_resend else self.payload


@dataclass(slots=True)
class Run:
    """A run that is open, as its sink and source see it."""

    pipeline: str
    identity: str
    run_id: int
    number: int
    message_id: int
    slice: dict[str, Any]
    payload: Any = None
    backfill: int = 0
    attempt: int = 0
    is_cancelled: bool = False
    sink_hash: int | None = None
    """Of the sink as it was when this was opened."""
    marked: int = 0
    """The newest run that this sink is known to hold."""
    engine: str | None = None
    """Where the rows of its attempt pass: spark or process, and `engine_reason`: why."""
    engine_reason: str | None = None
    begun_at: str = ""
    """When it began, in ISO 8601; the same for each attempt."""
    progress: dict[str, Any] = field(default_factory=dict)
    figures: Figures = field(default_factory=Figures)
    """Of its attempt."""
    goes_on: Callable[[], object] = field(default=bool, repr=False, compare=False)
    """Raises when its attempt is to stop: while a sink waits for others, it asks."""

    def __getstate__(self) -> dict[str, Any]:
        """Tasks that have it do not ask: the runner does."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.name != "goes_on"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in {**state, "goes_on": bool}.items():
            setattr(self, name, value)

    @property
    def mark(self) -> str:
        """Under which a sink keeps the number of the newest run: a backfill is a series of its own."""
        return f"{self.identity}/{self.backfill}" if self.backfill else self.identity

    @property
    def message(self) -> Any:
        """What its functions and statements see: the payload; where that says no fields, and the definition
        declares some, those that the run began with.
        """
        says_none = self.payload is None or self.backfill or "quarantine" in self.slice
        return self.slice.get("message", self.payload) if says_none else self.payload


class Control:
    """The functions, through a client."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def open(self, asked: Asked, message: dict[str, Any] | None = None) -> dict[str, Any]:
        """What is to be done for a message: answer, take, wait, plan, or begin its instance, with what it
        says as `message`.
        """
        opened: dict[str, Any] = self._call(
            "_open_run",
            pipeline=asked.pipeline,
            message_id=asked.message_id,
            payload=_json(asked.noted),
            backfill=asked.is_backfill,
            hold_for=f"{HOLD} seconds",
            message=_json(message),
        )
        return opened

    def ask_each(self, pipeline: str, values: list[str], unfit: list[str]) -> int:
        """Ask for a run of each of some instances; of how many none was asked for yet. `unfit`: values that
        cannot be those of one.
        """
        noted = {"count": len(unfit), "values": unfit[:_SHOWN]} if unfit else None
        asked: int = self._call("_ask_each", pipeline=pipeline, values=values, unfit=_json(noted))
        return asked

    def begin_look(self, pipeline: str) -> dict[str, Any]:
        """What whoever looks for the tables of a pipeline has to know."""
        begun: dict[str, Any] = self._call("_begin_look", pipeline=pipeline)
        return begun

    def take_tables(
        self, pipeline: str, look: int, tables: list[dict[str, Any]], *, asks: bool
    ) -> dict[str, int] | None:
        """Have the tables of a look be known, and ask for a run of each; None: the look is to begin anew."""
        told: dict[str, int] | None = self._call(
            "_take_tables", pipeline=pipeline, look=look, tables=_json(tables), asks=asks
        )
        return told

    def note_plan(self, pipeline: str, error: str | None = None) -> None:
        """Why a run could not begin; None: it could, or there was nothing new."""
        self._call("_note_plan", pipeline=pipeline, error=error)

    def left(self, identity: str) -> dict[str, Any] | None:
        """What is known of a pipeline that was dropped; None: nothing of it is left."""
        found: dict[str, Any] | None = self._call("_find_left", identity=identity)
        return found

    def forget_left(self, identity: str) -> None:
        """What it had left is gone."""
        self._call("_forget_left", identity=identity)

    def begin(self, asked: Asked, planned: dict[str, Any], slice: dict[str, Any]) -> dict[str, Any] | None:
        """The run over a slice that was planned; None when another began meanwhile, or state, source or sink
        were set.
        """
        begun: dict[str, Any] | None = self._call(
            "_begin_run",
            pipeline=asked.pipeline,
            message_id=asked.message_id,
            slice=_json(slice),
            snapshot=planned["snapshot"],
            done=planned["done"],
            plan_hash=planned["plan_hash"],
            payload=_json(asked.noted),
            backfill=asked.is_backfill,
            chain=asked.chain,
            started_by=asked.started_by,
            hold_for=f"{HOLD} seconds",
        )
        return begun

    def note_nothing(self, pipeline: str, planned: dict[str, Any], state: dict[str, Any]) -> None:
        """There is nothing new up to this state."""
        self._call(
            "_note_nothing",
            pipeline=pipeline,
            done=planned["done"],
            state=_json(state),
            plan_hash=planned["plan_hash"],
        )

    def attempt(self, run: Run) -> int | None:
        """Begin an attempt; None when the run is over."""
        attempt: int | None = self._call(
            "_try_run", run_id=run.run_id, engine=run.engine, engine_reason=run.engine_reason
        )
        return attempt

    def hold(self, run: Run, holder: int) -> str | None:
        """Say that we are at it: `over` or `cancelled` when we should not be any more."""
        told: str | None = self._call(
            "_hold_run",
            run_id=run.run_id,
            holder=holder,
            progress=_json(run.progress),
            hold_for=f"{HOLD} seconds",
        )
        return told

    def let_go(self, run: Run, holder: int, error: str | None = None, *, has_failed: bool = True) -> None:
        """We are not at it any more: others need not wait."""
        self._call("_let_run_go", run_id=run.run_id, holder=holder, error=error, has_failed=has_failed)

    def note_crash(self, run: Run, holder: int, error: str) -> int:
        """The process that was at it crashed; how often that has happened to the run."""
        crashes: int | None = self._call("_note_crash", pipeline=run.pipeline, message_id=holder, error=error)
        return crashes or 1

    def fail_share(self, pipeline: str, message_id: int, error: str) -> bool:
        """Give up the share of a backfill that a message is for; False: it is for none."""
        is_share: bool = self._call("_fail_share", pipeline=pipeline, message_id=message_id, error=error)
        return is_share

    def is_cancelled(self, run: Run) -> bool:
        """Whether somebody cancelled it, or skipped it."""
        query = b"select is_cancelled from trunq.pipeline_run where run_id = %s"
        with self._client.transaction() as connection:
            row = connection.execute(query, [run.run_id]).fetchone()
        return bool(row and row[0])

    def stage(self, run: Run, parts: list[str], state: dict[str, Any] | None, out: int, bad: int) -> bool:
        """All is staged; False: the run is over, and the sink is to take nothing of this attempt."""
        figures = run.figures
        is_open: bool = self._call(
            "_stage_run",
            attempt=run.attempt,
            parts=parts,
            state_after=None if state is None else _json(state),
            rows_in=run.progress.get("rows_in", 0),
            rows_out=out,
            rows_bad=bad,
            bytes_in=run.progress.get("bytes"),
            bytes_out=figures.bytes_out,
            source_ms=_ms(figures.source),
            work_ms=_ms(figures.work),
            sink_ms=_ms(figures.sink),
            newest_at=figures.newest,
            columns=_json(figures.columns),
            newest_by=figures.newest_by,
        )
        return is_open

    def drop_attempt(self, run: Run) -> None:
        """Our attempt has failed: unless all is staged, it and what it put into the quarantine go."""
        self._call("_drop_attempts", run_id=run.run_id, attempt=run.attempt)

    def finish(self, run: Run, number: int, attempt: int) -> dict[str, Any]:
        """The run ends with the attempt that its sink holds; 0: with none. `is_lost`: the sink holds what
        this database knows nothing of.
        """
        finished: dict[str, Any] = self._call(
            "_finish_run",
            run_id=run.run_id,
            attempt=attempt,
            number=number,
            sink_hash=run.sink_hash,
            commit_ms=_ms(run.figures.commit) if attempt == run.attempt else None,
        )
        return finished

    def note_sink(self, run: Run, number: int) -> None:
        """Note that the sink holds a run that this database does not expect."""
        self._call("_note_sink", run_id=run.run_id, number=number)

    def quarantine(
        self, run: Run, reasons: list[list[str]], rows: list[Any], part: str | None = None
    ) -> None:
        """Keep rows that broke a rule; those of a part count when the attempt has it among its parts."""
        self._call(
            "_quarantine", attempt=run.attempt, reasons=_json(reasons), contents=_json(rows), part=part
        )

    def quarantined(self, pipeline: str, reason: str | None) -> list[int]:
        """Ids of rows in the quarantine."""
        ids: list[int] = self._call("_find_quarantined", pipeline=pipeline, reason=reason)
        return ids

    def read_quarantine(self, pipeline: str, ids: list[int]) -> list[Any]:
        """The rows themselves."""
        rows: list[Any] = self._call("_read_quarantine", pipeline=pipeline, ids=_json(ids))
        return rows

    def read_reasons(self, pipeline: str, ids: list[int]) -> list[list[str]]:
        """For which reasons each of them is there."""
        reasons: list[list[str]] = self._call("_read_reasons", pipeline=pipeline, ids=_json(ids))
        return reasons

    def new_files(self, pipeline: str, files: list[list[Any]], limit: int | None) -> list[list[Any]]:
        """Of files those that no run has read."""
        new: list[list[Any]] = self._call(
            "_find_new_files", pipeline=pipeline, files=_json(files), limit=limit
        )
        return new

    def changed_files(self, pipeline: str, files: list[list[Any]]) -> list[str]:
        """Of files the paths of those that a run has read as they were."""
        paths: list[str] = self._call("_find_changed_files", pipeline=pipeline, files=_json(files))
        return paths

    def ask(self, statement: bytes, values: Mapping[str, Any]) -> Any:
        """The one value of a statement, in a transaction of its own."""
        with self._client.transaction() as connection:
            row = connection.execute(statement, values).fetchone()
        return row and row[0]

    def begin_compaction(self, pipeline: str, after: int | None = None) -> UUID | None:
        """Begin one that is due after so many runs, or was asked for; None: it is not to be begun."""
        begun: UUID | None = self._call("_begin_compaction", pipeline=pipeline, after=after)
        return begun

    def end_compaction(self, pipeline: str, holder: UUID, **told: Any) -> None:
        """Note what became of it: `files_merged`, `files_made` and `files_deleted`, or `error`."""
        self._call("_end_compaction", pipeline=pipeline, token=holder, **told)

    def told(self, pipeline: str) -> dict[str, Any]:
        """A pipeline, or an instance, as a message that asks for its run finds it."""
        told: dict[str, Any] = self._call("_tell_named", pipeline=pipeline)
        return told

    def _call(self, function: str, /, **arguments: Any) -> Any:
        given = {name: value for name, value in arguments.items() if value is not None}
        names = ", ".join(f"p_{name} => %({name})s{_CASTS.get(name, '')}" for name in given)
        return self.ask(f"select trunq.{function}({names})".encode(), given)


_CASTS: Final = {
    **dict.fromkeys(
        (
            "payload",
            "slice",
            "state",
            "state_after",
            "progress",
            "reasons",
            "contents",
            "ids",
            "files",
            "columns",
            "message",
            "tables",
            "unfit",
        ),
        "::jsonb",
    ),
    **dict.fromkeys(
        ("message_id", "look", "done", "run_id", "attempt", "holder", "plan_hash", "number", "sink_hash"),
        "::bigint",
    ),
    **dict.fromkeys(("rows_in", "rows_out", "rows_bad", "bytes_in", "bytes_out"), "::bigint"),
    **dict.fromkeys(("after", "files_merged", "files_made", "files_deleted"), "::bigint"),
    **dict.fromkeys(("source_ms", "work_ms", "sink_ms", "commit_ms"), "::bigint"),
    "newest_at": "::timestamptz",
    "hold_for": "::interval",
    "parts": "::text[]",
    "values": "::text[]",
    "chain": "::uuid",
    "limit": "::integer",
}


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None else round(max(0.0, seconds) * 1000)


def _json(value: Any) -> str | None:
    if value is None:
        return None
    # jsonb holds no NUL; a backslash before u0000 that is itself escaped stands for text.
    return HALF.sub("\ufffd", _NUL.sub(r"\1", json.dumps(value, default=str, ensure_ascii=False)))


HALF: Final = re.compile("[\ud800-\udfff]")
"""Half of a character, which JSON may have, and jsonb and UTF-8 have not."""
_NUL: Final = re.compile(r"(?<!\\)((?:\\\\)*)\\u0000")
