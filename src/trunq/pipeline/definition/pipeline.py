"""A pipeline as data: the same from Python and from TOML, checked before anything runs."""

from __future__ import annotations

import difflib
import json
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self, get_args

from pydantic import BaseModel, Field, PrivateAttr, ValidationError, field_validator, model_validator
from pydantic_core import ErrorDetails

from trunq.errors import InvalidPipeline
from trunq.pipeline.definition.api import HttpSink, HttpSource
from trunq.pipeline.definition.check import Check, DeltaLookup, FileLookup, Lookup, TableLookup
from trunq.pipeline.definition.column import Columns
from trunq.pipeline.definition.iso_duration import Span
from trunq.pipeline.definition.part import VARIABLE, Files, Part, expand, is_expanded, without_password
from trunq.pipeline.definition.trigger import Trigger

_ONLY_A_RUN_TELLS: Final = {"python", "http"}
"""Formats of sources that cannot be asked beforehand."""

Mode = Literal["append", "upsert", "replace", "history"]


class _InPostgres(Part):
    dsn: str | None = None
    """Address; None: the database of trunq."""

    _check_dsn = field_validator("dsn")(without_password)


class TableSource(_InPostgres):
    """A table of Postgres: what was committed since the last run (`window`), or `all` of it each time.

    With `cursor`, an indexed time column, and `lag`, a run reads only rows not older than the newest one of
    the last run less the lag, and loses what was committed later than that.
    """

    format: Literal["table"] = "table"
    table: str
    changes: Literal["window", "all"] = "window"
    cursor: str | None = None
    lag: Span | None = None

    @model_validator(mode="after")
    def _both(self) -> Self:
        if (self.cursor is None) != (self.lag is None):
            raise ValueError("cursor and lag go together: cursor = 'updated_at', lag = '1 hour'")
        if self.cursor is not None and self.changes == "all":
            raise ValueError("cursor and lag are for changes = 'window'")
        return self


class QueueSource(_InPostgres):
    """Messages of a queue of trunq, by its ticks; `subscription` holds them until they are read.

    Columns: id, kind, key, payload (JSON text), created_at.
    """

    format: Literal["queue"] = "queue"
    queue: str
    subscription: str | None = None


class HistorySource(_InPostgres):
    """What became of the messages of a queue of trunq, an attempt a row; rotation waits for it.

    Columns: queue, subscription, kind, key, id, attempt, outcome, error (its first line), worker,
    published_at, leased_at, finished_at, day, took, waited (seconds), priority, subscription_id, lease_id;
    with `payload` also payload, headers and result.
    """

    format: Literal["history"] = "history"
    queue: str
    taker: str | None = None
    """Under which the queue keeps its history for this pipeline; None: the pipeline's name."""
    payload: bool = False
    max_messages: int = Field(1_000_000, gt=0)
    """About how many messages of each subscription a run takes."""


class FileSource(Part):
    """Files that no run has read yet; those that changed within `settled` are still being written."""

    format: Literal["csv", "json", "parquet"]
    path: Files
    """With * and **, as /data/incoming/**/*.csv."""
    max_files: int | None = Field(None, gt=0)
    settled: Span = Field("2 seconds", validate_default=True)
    types: dict[str, str] = {}
    """Types of columns by name, as in Arrow: {"id": "int64"}; others are found out."""
    delimiter: str = ","
    nulls: list[str] = [""]
    changed: Literal["read", "refuse"] = "read"
    """A file that was read and has changed since: it is read again, whole, or no run goes on."""


class FunctionSource(Part):
    """A Python function `module:name`, called with a context, that yields rows: dicts, or Arrow tables.

    `context.state` is what the last run left; what the function assigns to it is the next one's.
    """

    format: Literal["python"] = "python"
    function: str


Source = Annotated[
    TableSource | QueueSource | HistorySource | FileSource | FunctionSource | HttpSource,
    Field(discriminator="format"),
]


class TableSink(_InPostgres):
    """A table of Postgres, made when it is not there.

    `upsert` needs a `key` with a unique index, and takes the row with the largest `newest` column where that
    is given. `history` keeps each version of a key from `valid_from` to `valid_to`.
    """

    format: Literal["table"] = "table"
    table: str
    mode: Mode = "append"
    key: list[str] = []
    newest: str | None = None

    @model_validator(mode="after")
    def _keyed(self) -> Self:
        if self.mode in ("upsert", "history") and not self.key:
            raise ValueError(f"mode = '{self.mode}' needs key = ['...'], the columns that name a row")
        if self.mode in ("append", "replace") and (self.key or self.newest):
            raise ValueError(f"key and newest are for the modes upsert and history, not for {self.mode}")
        if any(len(part.strip('"').encode()) > 63 for part in self.table.split(".")):
            raise ValueError(f"table is {self.table[:40]}...: a name in Postgres has at most 63 bytes")
        return self


class QueueSink(_InPostgres):
    """Messages of a queue of trunq: a row is a payload. `key` names the column of their keys."""

    format: Literal["queue"] = "queue"
    queue: str
    kind: str | None = None
    key: str | None = None


class DeltaSink(Part):
    """A Delta table in a directory, made when it is not there.

    With `replace` a run stands for all rows, with `replace_partitions` for all rows of the partitions that
    it has rows of; the others stay.
    """

    format: Literal["delta"] = "delta"
    path: str
    mode: Literal["append", "upsert", "replace", "replace_partitions"] = "append"
    key: list[str] = []
    newest: str | None = None
    partition_by: list[str] = []

    @model_validator(mode="after")
    def _keyed(self) -> Self:
        if (self.mode == "upsert") != bool(self.key):
            raise ValueError("mode = 'upsert' and key = ['...'] go together")
        if self.newest and self.mode != "upsert":
            raise ValueError(f"newest is for the mode upsert, not for {self.mode}")
        if self.mode == "replace_partitions" and not self.partition_by:
            raise ValueError("mode = 'replace_partitions' needs partition_by = ['...']")
        return self


class ParquetSink(Part):
    """A directory of Parquet files, in which each run has a directory of its own."""

    format: Literal["parquet"] = "parquet"
    path: str


Sink = Annotated[
    TableSink | QueueSink | DeltaSink | ParquetSink | HttpSink,
    Field(discriminator="format"),
]


class Pipeline(Part):
    """What is moved from where to where, and how.

    `columns` says what becomes of the source's columns before all else.

    `function` is a Python function `module:name`, or itself, that is given all rows of a run as an Arrow
    table (and a context, if it has a second parameter) and returns the table to be written.

    Spark is needed for these: `sql`, statements that each see what the one before gave as `input`, `lookups`
    by their names, and the message's payload as `:message`; `transform`, a function as above from DataFrame
    to DataFrame, which is given what `sql` gave; and `checks` that are expressions. All `checks` see what
    these gave, or `function`.

    `max_bad` is the share of rows that may be quarantined before the run fails. `evolve`: a new column is
    added to the sink's table, refused or ignored. `freshness`: the column whose newest time says how fresh
    the sink is. `trigger`: what starts it by itself. `then`: pipelines that run after each that succeeded.
    `isolate`: each run is done in a process of its own, which is killed when the run is cancelled, and may
    crash alone.
    """

    name: str
    source: Source
    columns: Columns | None = None
    function: str | None = None
    sql: list[str] = []
    transform: str | None = None
    lookups: dict[str, Lookup] = {}
    checks: list[Check] = []
    sink: Sink
    evolve: Literal["add", "refuse", "ignore"] = "add"
    max_bad: float = Field(1.0, ge=0, le=1)
    freshness: str | None = None
    trigger: Trigger | None = None
    then: list[str] = []
    isolate: bool = False
    _variables: dict[str, str] = PrivateAttr(default_factory=dict)

    def __init__(self, name: str | None = None, **parts: Any) -> None:
        try:
            super().__init__(**({} if name is None else {"name": name}), **parts)
        except ValidationError as error:
            raise _invalid(name or str(parts.get("name", "")), error) from None

    @field_validator("function", "transform", mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        return name_of(value) if callable(value) else value

    @field_validator("name")
    @classmethod
    def _plain_name(cls, value: str) -> str:
        if not re.fullmatch(r"[a-z][a-z0-9_]{0,47}", value):
            raise ValueError(
                f"{value[:60]!r} cannot be the name of a pipeline: a lower-case letter, then up to"
                f" 47 lower-case"
                " letters, digits or underscores"
            )
        return value

    @field_validator("lookups")
    @classmethod
    def _plain_lookups(cls, value: dict[str, Lookup]) -> dict[str, Lookup]:
        for name, lookup in value.items():
            if not re.fullmatch(r"[a-z_][a-z0-9_]*", name) or name == "input":
                raise ValueError(
                    f"{name!r:.60} cannot be the name of a lookup: lower-case letters, digits, underscores;"
                    " input is what the statement before gave"
                )
            without_password(getattr(lookup, "dsn", None))
        return value

    @model_validator(mode="after")
    def _startable(self) -> Self:
        source, trigger = self.source, self.trigger
        if (
            trigger is not None
            and trigger.continuous
            and (source.format in _ONLY_A_RUN_TELLS or getattr(source, "changes", "window") == "all")
        ):
            raise ValueError(
                "trigger.continuous does not go with this source: only a run tells whether there is something"
                " new; give a trigger with every"
            )
        return self

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.function is not None and (self.needs_spark or self.lookups):
            raise ValueError(
                "function is given rows as an Arrow table, without Spark, and does not go with sql,"
                " transform, lookups or checks with holds: write it as transform, which is given a DataFrame"
            )
        if self.lookups and not (self.sql or self.transform):
            raise ValueError("lookups are for sql and transform, and there is neither")
        names = [check.name for check in self.checks]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"two checks have the name {twice[0]!r}")
        return self

    @model_validator(mode="after")
    def _whole(self) -> Self:
        """What stands for all rows has to be given all."""
        mode = getattr(self.sink, "mode", None)
        if mode not in ("replace", "replace_partitions"):
            return self
        if isinstance(self.source, QueueSource):
            raise ValueError(f"a queue brings new messages alone, and mode = '{mode}' would drop the others")
        if isinstance(self.source, TableSource) and self.source.changes == "window":
            raise ValueError(
                f"a run brings what is new in the table alone, and mode = '{mode}' would drop the rest:"
                " write changes = 'all' in source, or mode = 'upsert' in sink"
            )
        return self

    @property
    def needs_spark(self) -> bool:
        """Whether its rows go through Spark."""
        return bool(self.sql or self.transform or any(check.holds for check in self.checks))

    @property
    def is_marked(self) -> bool:
        """Whether Spark marks rows that break a check."""
        return any(check.is_found_by_spark for check in self.checks)

    @property
    def definition(self) -> dict[str, Any]:
        """What is kept of it in the database: as it was written, without defaults."""
        given = self.model_dump(mode="json", exclude_defaults=True, exclude={"name", "source", "sink"})
        for part in ("source", "sink"):
            of_part = getattr(self, part)
            given[part] = {"format": of_part.format, **of_part.model_dump(mode="json", exclude_defaults=True)}
        return given

    def expanded(self, variables: Mapping[str, str] | None = None) -> Pipeline:
        """It with `${NAME}` replaced by what the environment has; `$${NAME}` stands for the text itself.

        Raises InvalidPipeline for a name that the environment does not have.
        """
        known = os.environ if variables is None else variables
        token = is_expanded.set(True)
        try:
            made = Pipeline(self.name, **expand(self.name, self.definition, known))
        finally:
            is_expanded.reset(token)
        names = {name for escaped, name in VARIABLE.findall(json.dumps(self.definition)) if not escaped}
        made._variables = {name: known[name] for name in names}
        return made

    @property
    def variables(self) -> dict[str, str]:
        """What `${NAME}` stood for in it, when it is expanded."""
        return self._variables


def read_definition(name: str, definition: Mapping[str, Any]) -> Pipeline:
    """A pipeline from its definition. Raises InvalidPipeline."""
    if not isinstance(definition, Mapping):
        raise InvalidPipeline(f"pipeline {name} is {definition!r:.50}, not a table of keys")
    return Pipeline(name, **{key: value for key, value in definition.items() if key != "name"})


def load(path: str | Path) -> list[Pipeline]:
    """The pipelines of a TOML file, `[pipeline.<name>]` each, those first that others run after themselves.

    Raises InvalidPipeline.
    """
    try:
        text = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidPipeline(f"the file {path} cannot be read: {_reason(error)}") from error
    tables = text.get("pipeline")
    if not isinstance(tables, dict) or not tables or set(text) != {"pipeline"}:
        raise InvalidPipeline(
            f"the file {path} has no pipeline, or has something beside them",
            "each begins with [pipeline.NAME]",
        )
    found = {name: read_definition(name, body) for name, body in tables.items()}
    ordered: dict[str, Pipeline] = {}

    def add(pipeline: Pipeline, way: tuple[str, ...]) -> None:
        if pipeline.name in way:
            raise InvalidPipeline(
                f"pipeline {pipeline.name} would run after itself: {' -> '.join((*way, pipeline.name))}"
            )
        for name in pipeline.then:
            if name in found and name not in ordered:
                add(found[name], (*way, pipeline.name))
        ordered.setdefault(pipeline.name, pipeline)

    for pipeline in found.values():
        add(pipeline, ())
    return list(ordered.values())


def _reason(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)


def name_of(function: Callable[..., Any]) -> str:
    """`module:name` of a function, by which a runner finds it."""
    name = getattr(function, "__qualname__", "")
    if "<" in name or not name or function.__module__ == "__main__":
        raise ValueError(
            f"{name or function!r} cannot be found by a runner: write a function at the top of a"
            f" module of its own"
        )
    return f"{function.__module__}:{name}"


def _invalid(name: str, error: ValidationError) -> InvalidPipeline:
    """The first mistake in a sentence."""
    # A key that is not known is most likely the one that is missing.
    first = min(error.errors(include_url=False), key=lambda each: each["type"] != "extra_forbidden")
    # After source and sink the location names the format, too.
    path = [str(part) for at, part in enumerate(first["loc"]) if at != 1 or part not in _FORMATS]
    return InvalidPipeline(f"pipeline {name:.60}: {_sentence(first, path)}")


_PARTS: Final[dict[str, tuple[type[BaseModel], ...]]] = {
    "source": get_args(get_args(Source)[0]),
    "sink": get_args(get_args(Sink)[0]),
    "lookups": (FileLookup, DeltaLookup, TableLookup),
}


def _formats(model: type[BaseModel]) -> tuple[str, ...]:
    return get_args(model.model_fields["format"].annotation)


_FORMATS: Final = {name for models in _PARTS.values() for model in models for name in _formats(model)}


def _sentence(first: ErrorDetails, path: list[str]) -> str:
    where, kind = ".".join(path), first["type"]
    if kind == "extra_forbidden":
        known = _keys(path[:-1], first["loc"])
        near = difflib.get_close_matches(path[-1], known, 1)
        return f"there is no {where}" + (
            f"; is it {near[0]}?" if near else f"; keys here: {', '.join(known)}"
        )
    if kind == "missing":
        return f"{where} is missing"
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        context = first.get("ctx", {})
        known = re.findall(r"'(\w+)'", str(context.get("expected_tags", "")))
        tag = str(context.get("tag", ""))
        near = difflib.get_close_matches(tag, known, 1)
        if not tag:
            return f"{where}.format is missing" + (f": one of {', '.join(known)}" if known else "")
        return f"{where}.format is {tag!r}, which there is not: " + (
            f"is it {near[0]}?" if near else f"one of {', '.join(known)}"
        )
    if kind in ("model_attributes_type", "model_type"):
        return f"{where} is {first['input']!r:.60}, not a table of keys: {where} = {{...}}"
    said = first["msg"].removeprefix("Value error, ")
    return f"{where}: {said}" if where else said


def _keys(path: list[str], location: tuple[int | str, ...]) -> list[str]:
    """The keys that a part has, which is found by the format of the part that it is in."""
    model: type[BaseModel] = Pipeline
    if path and path[0] in ("checks", "lookups"):
        # Without the place in the list, or name and format.
        path = [path[0], *path[2 if path[0] == "checks" else 3 :]]
    for at, name in enumerate(path):
        if at == 0 and name in _PARTS:
            format = location[2 if name == "lookups" else 1]
            found = [each for each in _PARTS[name] if format in _formats(each)]
        else:
            found = _models(model.model_fields[name].annotation) if name in model.model_fields else []
        if not found:
            return []
        model = found[0]
    return list(model.model_fields)


def _models(annotation: Any) -> list[Any]:
    """The models in a type."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for each in get_args(annotation) for model in _models(each)]
