"""What the next run would read and write, and what would stop it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import psycopg
import pyarrow as pa

from trunq import Client, display
from trunq.connection.address import address
from trunq.errors import PipelineNotFound, TrunqError
from trunq.pipeline import sink as sinks
from trunq.pipeline import source as sources
from trunq.pipeline.choice import choose_engine
from trunq.pipeline.control import Asked, Control
from trunq.pipeline.definition.jdbc import JdbcSource
from trunq.pipeline.definition.need import missing
from trunq.pipeline.definition.pipeline import Pipeline
from trunq.pipeline.definition.reading import read_definition
from trunq.pipeline.instance import expanded_for
from trunq.pipeline.look import Found, find
from trunq.pipeline.plan.sink import Written, foresee
from trunq.pipeline.redact import redact, redacted
from trunq.pipeline.source import Foreseen, Source
from trunq.pipeline.source.function import find_function
from trunq.pipeline.work.column import Steps
from trunq.record import PipelineRun, PipelineState

_NOTHING: Final = "nothing is new"


@dataclass(slots=True)
class Planned:
    """What the next run of a pipeline would do.

    `reads` says in words what `slice` is; `slice` None: nothing is new, or only a run tells. `rows`: about
    how many these are; None: only reading tells. `columns`: those that the sink would have for them, with
    types, of which `added` are new; None: only a run tells. `refused`: why the run would fail, each with the
    way out, `hint`. `notes`: what else is to be known.
    """

    pipeline: str
    reads: str = ""
    slice: dict[str, Any] | None = None
    rows: int | None = None
    is_exact: bool = False
    is_open: bool = False
    """The run has begun: its slice is fixed."""
    has_failed: bool = False
    """Its newest attempt did: `notes` has the error."""
    engine: str = "process"
    """"spark" or "process", and `why`; that is empty where nothing is new, or nothing can be read."""
    why: str = ""
    columns: dict[str, str] | None = None
    added: dict[str, str] = field(default_factory=dict)
    makes_sink: bool = False
    """The sink's table, or directory, would be made."""
    refused: list[dict[str, str | None]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    instances: list[Planned] | None = None
    """Of a pipeline with `per`: what the next run of each would do."""


def plan_pipeline(pipeline: str, dsn: str | None = None, *, message: Any = None, limit: int = 100) -> Planned:
    """What the next run would do, as far as it can be known from here, in the environment of this process.

    `dsn`: where trunq is, as for a client. `message`: what would ask for it; for an instance, None is the one
    that it had last. Of a pipeline with `per` and no message it plans `limit` instances. Nothing is written,
    and no message published. Raises PipelineNotFound.
    """
    with Client(dsn, max_connections=2) as client:
        row = client.list_pipelines(pipeline)[0]
        planned = Planned(pipeline)
        with _refusing(planned, None):
            written = read_definition(pipeline.partition("/")[0], row.definition)
            if written.per is None or "/" in pipeline:
                return _plan(client, address(dsn), row, written, message)
            if message is not None:
                name = f"{pipeline}/{written.value_of(written.of_message(message))}"
                return _plan(client, address(dsn), _instance(client, row, name), written, message)
            _plan_each(client, address(dsn), row, written, planned, limit)
        return planned


def _plan(
    client: Client, dsn: str, row: PipelineState, written: Pipeline, message: Any, found: Found | None = None
) -> Planned:
    planned = Planned(row.pipeline)
    if found is not None and found.refused is not None:
        planned.refused.append({"message": f"it cannot be read: {found.refused}", "hint": found.hint})
        return planned
    if row.paused:
        until = "somebody resumes it" if row.paused_until is None else _moment(row.paused_until)
        planned.notes.append(f"it is paused until {until}")
    with _refusing(planned, None):
        if found is not None:
            message = found.message
        elif message is None and "/" in row.pipeline:
            message = next((each.message for each in client.list_instances(row.pipeline)), None)
        asked = Asked(row.pipeline, 0, message)
        pipeline = expanded_for(
            written, asked, {"action": "plan", "pipeline": row.pipeline, "message": message}
        )
        _Planning(client, dsn, row, pipeline, planned).plan()
    return planned


def _instance(client: Client, row: PipelineState, name: str) -> PipelineState:
    """That of a name, or what it begins with."""
    try:
        return client.list_pipelines(name)[0]
    except PipelineNotFound:
        return row._replace(pipeline=name, state={}, open_run=None, fresh_at=None, fresh_by=None)


def _plan_each(
    client: Client, dsn: str, row: PipelineState, written: Pipeline, planned: Planned, limit: int
) -> None:
    if written.has_tables:
        _plan_tables(client, dsn, row, written, planned, limit)
        return
    rows = client.list_instances(row.pipeline, limit)
    planned.instances = [
        _plan(client, dsn, client.list_pipelines(each.pipeline)[0], written, None) for each in rows
    ]
    known = rows[0].instances if rows else 0
    planned.reads = f"it has {display.counted(known, 'instance')}, and each has a next run of its own"
    if known > len(rows):
        planned.notes.append(f"{len(rows)} of them are planned here: --limit")


def _plan_tables(
    client: Client, dsn: str, row: PipelineState, written: Pipeline, planned: Planned, limit: int
) -> None:
    """What the next look would find, and the next run of each table read."""
    found = find(written, dsn)
    rows = {each.pipeline: each for each in client.list_instances(row.pipeline, _ALL)}
    names = [f"{row.pipeline}/{each.value}" for each in found]
    new = sum(name not in rows for name in names)
    tables = display.counted(len(found), "table")
    planned.reads = f"{tables}, {new} of them new, and each has a next run of its own"
    planned.notes += [
        f"the table of {name} is gone, or matches no more: its rows stay in the sink"
        for name in rows
        if name not in names
    ]
    planned.instances = [
        _plan(client, dsn, _instance(client, row, name), written, None, each)
        for name, each in list(zip(names, found, strict=True))[:limit]
    ]
    if len(found) > limit:
        planned.notes.append(f"{limit} of them are planned here: --limit")


_ALL = 100_000
"""Instances: more than there are."""


class _Planning:
    """A step after the other; one that fails does not keep the others from being looked at."""

    def __init__(
        self, client: Client, dsn: str, row: PipelineState, pipeline: Pipeline, planned: Planned
    ) -> None:
        self._client, self._dsn, self._row, self._planned = client, dsn, row, planned
        self._pipeline = pipeline

    def plan(self) -> None:
        planned, pipeline = self._planned, self._pipeline
        for sentence in missing(pipeline):
            planned.refused.append({"message": f"pipeline {pipeline.name}: {sentence}", "hint": None})
        for name in (pipeline.function, pipeline.transform):
            if name is not None:
                with self._refusing():
                    find_function(pipeline.name, name)
        source = None
        with self._refusing():
            source = sources.make(pipeline, self._dsn, Control(self._client))
        schema = None
        if source is not None:
            known = len(planned.refused)
            with self._refusing():
                self._read(source)
            # What cannot be read has no size and no columns: that would be the same error in other words.
            if len(planned.refused) == known:
                with self._refusing():
                    self._choose(source)
                with self._refusing():
                    schema = self._schema(source)
        with self._refusing():
            sinks.make(pipeline, self._dsn).check()
        with self._refusing():
            self._write(foresee(pipeline, self._dsn, schema, planned.slice or {}))

    def _read(self, source: Source) -> None:
        planned, row = self._planned, self._row
        runs: list[PipelineRun] = []
        # An instance whose first run is still to come has none.
        with suppress(PipelineNotFound):
            runs = self._client.list_runs(row.pipeline, limit=1000)
        if (
            run := next((each for each in runs if each.number == row.open_run and not each.backfill), None)
        ) is not None:
            planned.is_open = True
            planned.slice, planned.reads = run.slice, f"what run {run.number}, which is open, has to read: "
            estimate = getattr(source, "estimate", None)
            if estimate is not None:
                with suppress(Exception):
                    self._tell(estimate(run.slice))
            planned.reads += _slice_words(self._pipeline, run.slice, None)
            if run.error:
                planned.has_failed = True
                planned.notes.append(f"its newest attempt failed: {run.error.splitlines()[0]}")
            return
        # A class that is made from another plans in its own way, and may write.
        found = source.foresee(row.state) if "foresee" in vars(type(source)) else None
        if found is None:
            planned.reads = "only a run tells what it reads"
            return
        self._tell(found)
        notes = getattr(source, "notes", None)
        planned.notes += [] if notes is None else notes()
        planned.slice = found.slice
        if found.slice is None:
            planned.reads = _NOTHING
        else:
            planned.reads = _slice_words(self._pipeline, found.slice, _since(row, runs))

    def _choose(self, source: Source) -> None:
        """Where the rows would pass; of no slice, what the definition says."""
        planned, pipeline = self._planned, self._pipeline
        if planned.slice is not None:
            planned.engine, planned.why = choose_engine(pipeline, source, planned.slice)
        elif (why := pipeline.why_spark) is not None:
            planned.engine, planned.why = "spark", why
        elif pipeline.engine == "process":
            planned.engine, planned.why = "process", "engine = 'process'"
        elif planned.reads != _NOTHING:
            planned.engine, planned.why = "process", "how large the slice is, only a run tells"

    def _tell(self, found: Foreseen) -> None:
        self._planned.rows, self._planned.is_exact = found.rows, found.is_exact

    def _schema(self, source: Source) -> pa.Schema | None:
        """The columns of the rows that the sink is given; None: only a run tells."""
        pipeline, planned = self._pipeline, self._planned
        if planned.slice is None and pipeline.source.format not in ("table", "queue", "history", "jdbc"):
            return None
        given = source.foresee_schema(planned.slice or {})
        changes = next((name for name in ("transform", "sql", "function") if getattr(pipeline, name)), None)
        if given is not None and pipeline.columns is not None:
            given = Steps(pipeline, given).schema
        if changes is not None:
            planned.notes.append(f"which columns {changes} gives, only a run tells")
            return None
        return given

    def _write(self, written: Written) -> None:
        planned = self._planned
        planned.columns, planned.added, planned.makes_sink = written.columns, written.added, written.is_made
        planned.notes += written.notes

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        with _refusing(self._planned, self._pipeline), redacted(self._pipeline):
            yield


@contextmanager
def _refusing(planned: Planned, pipeline: Pipeline | None) -> Iterator[None]:
    """Notes an error of the body: a run would end with it."""
    try:
        yield
    except (TrunqError, psycopg.Error, OSError, ImportError) as error:
        text = error.message if isinstance(error, TrunqError) else f"{type(error).__name__}: {error}"
        told = {
            "message": (text if pipeline is None else redact(pipeline, text)).strip(),
            "hint": error.hint if isinstance(error, TrunqError) else None,
        }
        if told not in planned.refused:
            planned.refused.append(told)


def _since(row: PipelineState, runs: list[PipelineRun]) -> datetime | None:
    """Up to when the source was read."""
    if row.fresh_by is None:
        return row.fresh_at
    done = (
        run.begun_at
        for run in runs
        if run.outcome == "done" and not run.backfill and "quarantine" not in run.slice
    )
    return next(done, None)


def _moment(at: datetime) -> str:
    return at.isoformat(" ", "seconds")


def _slice_words(  # a case a format
    pipeline: Pipeline, slice: dict[str, Any], since: datetime | None
) -> str:
    source = pipeline.source
    table, queue = getattr(source, "table", None), getattr(source, "queue", None)
    after = "" if since is None else f" since {_moment(since)}"
    if "quarantine" in slice:
        return f"{display.counted(len(slice['quarantine']), 'row')} of the quarantine"
    if "range" in slice:
        return f"the range {slice['range']}"
    if "changes" in slice:
        return f"changes of {table}"
    if "because" in slice:
        return f"all rows of {table} anew: {slice['because']}"
    if "files" in slice:
        number = len(slice["files"])
        times = [datetime.fromtimestamp(at / 1e9, UTC) for *_, at in slice["files"]]
        named = ", ".join(str(path) for path, *_ in slice["files"][:_NAMED]) + (
            ", ..." if number > _NAMED else ""
        )
        return f"{display.counted(number, 'file')} of {_moment(min(times))} to {_moment(max(times))}: {named}"
    if isinstance(source, JdbcSource):
        return source.words(slice)
    if source.format == "table":
        newly = f"rows of {table} that were committed{after or ' since the last run'}"
        return newly if slice.get("lo") else f"all rows of {table}"
    if source.format == "queue":
        up_to = "now" if slice.get("hi") is None else f"tick {slice['hi']}"
        return f"messages of {queue} from tick {slice['lo']} to {up_to}"
    if source.format == "history":
        leases = display.counted(sum(part["leases"] for part in slice["parts"]), "lease")
        return f"attempts of queue {queue}: {leases}"
    return f"a slice of {source.format}"


_NAMED = 5
"""Files that are named in words; the slice has all."""
