"""A pipeline as data: the same from Python and from TOML, checked before anything runs."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, Self

from pydantic import Field, PrivateAttr, ValidationError, field_validator, model_validator

from trunq.pipeline.definition.change import dropping, gives_changes, masked, require_changes
from trunq.pipeline.definition.check import Check, Lookup
from trunq.pipeline.definition.column import Columns
from trunq.pipeline.definition.credentials import Credentials
from trunq.pipeline.definition.evolve import Evolve
from trunq.pipeline.definition.fill import check_places, fill
from trunq.pipeline.definition.jdbc import is_jdbc, require_jdbc
from trunq.pipeline.definition.limits import Limits
from trunq.pipeline.definition.many import check_many, check_one, implied, of_table
from trunq.pipeline.definition.message import INSTANCE, Message, flat, read_message
from trunq.pipeline.definition.mistake import invalid
from trunq.pipeline.definition.part import VARIABLE, Part, expand, is_expanded, without_password
from trunq.pipeline.definition.reserved import refused
from trunq.pipeline.definition.sink import Sink
from trunq.pipeline.definition.source import HistorySource, QueueSource, Source, TableSource
from trunq.pipeline.definition.stamp import WITH_COLUMNS
from trunq.pipeline.definition.storage import is_remote
from trunq.pipeline.definition.trigger import Trigger
from trunq.pipeline.errors import MessageRefused

_ONLY_A_RUN_TELLS: Final = {"python", "http", "jdbc"}
"""Formats of sources that cannot be asked beforehand."""


class Pipeline(Part):
    """What is moved from where to where, and how.

    `columns` says what becomes of the source's columns before all else.

    `function` is a Python function `module:name`, or itself, that is given all rows of a run as an Arrow
    table (and a context, if it has a second parameter) and returns the table to be written.

    Spark is needed for these: `sql`, statements that each see what the one before gave as `input`, `lookups`
    by their names, and the message's payload as `:message`; `transform`, a function as above from DataFrame
    to DataFrame, which is given what `sql` gave; and `checks` that are expressions. All `checks` see what
    these gave, or `function`.

    `engine` says where rows pass: "spark" in tasks of Spark, "process" in the process of the run; "auto"
    takes Spark where the pipeline needs it, or a slice is large.

    `stamp`: each row says in `_run` and `_at` which run brought it, and when that began.

    `max_bad` is the share of rows that may be quarantined before the run fails. `evolve`: what becomes of
    new columns and of changed types. `freshness`: the column whose newest time says how fresh
    the sink is. `trigger`: what starts it by itself. `then`: pipelines that run after each that succeeded.
    `isolate`: each run is done in a process of its own, which is killed when the run is cancelled, and may
    crash alone.

    `message`: fields of the message that asks for a run, which `${message.NAME}` stands for. `per`: the field
    each value of which has a state and runs of its own; `credentials`: where `${credentials.NAME}` of that
    value come from; `limits`: how much of each may run.
    """

    name: str
    engine: Literal["auto", "spark", "process"] = "auto"
    source: Source
    columns: Columns | None = None
    function: str | None = None
    sql: list[str] = []
    transform: str | None = None
    lookups: dict[str, Lookup] = {}
    checks: list[Check] = []
    sink: Sink
    evolve: Evolve = Evolve()
    stamp: bool = False
    max_bad: float = Field(1.0, ge=0, le=1)
    freshness: str | None = None
    trigger: Trigger | None = None
    then: list[str] = []
    isolate: bool = False
    message: Message
    per: str | None = None
    credentials: Credentials | None = None
    limits: Limits | None = None
    _given: dict[str, Any] = PrivateAttr(default_factory=dict)
    _variables: dict[str, str] = PrivateAttr(default_factory=dict)

    def __init__(self, name: str | None = None, **parts: Any) -> None:
        try:
            super().__init__(**({} if name is None else {"name": name}), **implied(parts))
        except ValidationError as error:
            raise invalid(Pipeline, name or str(parts.get("name", "")), error) from None

    @field_validator("function", "transform", mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        return name_of(value) if callable(value) else value

    @field_validator("name")
    @classmethod
    def _plain_name(cls, value: str) -> str:
        pipeline, slash, instance = value.partition("/")
        is_one = not slash or (is_expanded.get() and INSTANCE.fullmatch(instance))
        if not is_one or not re.fullmatch(r"[a-z][a-z0-9_]{0,47}", pipeline):
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
        if self.engine == "process" and self.has_frames:
            raise ValueError(
                "engine = 'process' is without Spark, and sql, transform and checks with holds need it: write"
                " engine = 'spark', or columns, checks as data or a function in their place"
            )
        if self.function is not None and (self.has_frames or self.lookups):
            raise ValueError(
                "function is given rows as an Arrow table, without Spark, and does not go with sql,"
                " transform, lookups or checks with holds: write it as transform, which is given a DataFrame"
            )
        if self.lookups and not (self.sql or self.transform):
            raise ValueError("lookups are for sql and transform, and there is neither")
        if self.sink.format not in (*WITH_COLUMNS, "jdbc"):
            self._require_no_columns()
        if self.sink.format == "parquet" and self.evolve.tables == "refuse" and is_remote(self.sink.path):
            raise ValueError(
                "evolve makes no sink, and whether there are files of Parquet at an address, only a list of"
                " all of them tells: leave tables out"
            )
        if self.evolve.rename and self.sink.format == "parquet":
            old, new = next(iter(self.evolve.rename.items()))
            raise ValueError(
                "evolve renames columns, and files of Parquet that are there keep theirs: leave it out and"
                f" write columns = {{ rename = {{ {new} = {old!r} }} }}, which keeps the old name"
            )
        if self.evolve.partitions == "rewrite" and self.sink.format != "delta":
            raise ValueError(
                f"evolve rewrites partitions, and a sink of format {self.sink.format!r} has none: leave"
                " partitions out"
            )
        if self.stamp and self.sink.format not in WITH_COLUMNS:
            raise ValueError(
                f"stamp writes two columns, which a sink of format {self.sink.format!r} does not take:"
                " leave it out"
            )
        names = [check.name for check in self.checks]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"two checks have the name {twice[0]!r}")
        return self

    @model_validator(mode="after")
    def _named_freely(self) -> Self:
        named = [] if self.columns is None else [*self.columns.rename.values(), *self.columns.constant]
        if (found := refused(self, (*named, *self.evolve.rename, *self.evolve.rename.values()))) is not None:
            raise ValueError(": ".join(found))
        return self

    def _require_no_columns(self) -> None:
        """Refuse an `evolve` about columns that the sink has not."""
        given = f"a sink of format {self.sink.format!r} has no columns"
        if self.evolve.widens:
            raise ValueError(f"evolve widens types, and {given}: leave widen out")
        if self.evolve.sorts:
            raise ValueError(
                f"evolve keeps out what a column does not hold, and {given}: leave quarantine out and write"
                " checks"
            )
        if self.evolve.tables == "refuse":
            raise ValueError(f"evolve makes no table, and {given}: leave tables out")
        if self.evolve.rename:
            raise ValueError(f"evolve renames columns, and {given}: leave rename out")

    @model_validator(mode="after")
    def _whole(self) -> Self:
        """What stands for all rows has to be given all, and what deletes has to hear of deletes."""
        require_changes(self.source, self.sink)
        key = getattr(self.sink, "key", None) or []
        if (mistake := masked(self, [key] if isinstance(key, str) else key)) is not None:
            raise ValueError(mistake)
        require_jdbc(self)
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

    @model_validator(mode="after")
    def _for_each(self) -> Self:
        """What is of each value of `per`."""
        if is_expanded.get():
            return self
        if self.has_tables:
            check_many(self.per, self.message, self.sink, self.trigger)
        else:
            check_one(self.sink)
        root, _, field = (self.per or "message.").partition(".")
        if self.per is not None and (root != "message" or field not in self.message):
            raise ValueError(
                f"per is {self.per!r:.60}: it names a field that message declares, as"
                " per = 'message.customer' with message = { customer = 'text' }"
            )
        check_places(
            self.definition, set(self.message), self.per, has_credentials=self.credentials is not None
        )
        if self.credentials is not None and self.per is None:
            raise ValueError(
                "credentials are those of a value of per, and there is no per: ${NAME} is for all"
            )
        if self.per is not None and not self.has_tables:
            self._require_apart()
        if (self.message or self.per) and self.trigger is not None and not self.has_tables:
            self._require_message(field)
        return self

    def _require_apart(self) -> None:
        """Refuse what would be one thing of all."""
        named = f"${{{self.per}}}"
        if isinstance(self.source, HistorySource):
            raise ValueError("the history of a queue is of all: per does not go with it")
        if isinstance(self.source, QueueSource) and named not in f"{self.source.queue}{self.source.dsn}":
            raise ValueError(
                f"source.queue is one for all, and each would read all of it: write {named} into it"
            )
        if gives_changes(self.source):
            shared = getattr(self.source, "subscription", None)
            places = "".join(str(getattr(self.source, key, "")) for key in ("subscription", "queue", "dsn"))
            if shared and named not in places:
                raise ValueError(
                    "source.subscription is one for all, and each would end what others have not read: write"
                    f" {named} into it"
                )
        what = dropping(self.sink)
        where = "".join(str(getattr(self.sink, key, "")) for key in ("table", "path", "queue", "dsn"))
        if what is not None and named not in where:
            raise ValueError(
                f"{what} of each would drop the rows of the others: write {named} into the"
                " sink's table, path, queue or dsn"
            )

    def _require_message(self, field: str) -> None:
        """Refuse a trigger whose messages say nothing."""
        trigger = self.trigger
        assert trigger is not None
        if trigger.continuous or ((trigger.every or trigger.cron) and trigger.for_ is None):
            raise ValueError(
                "trigger asks without a message, and message declares fields: give it for = [...], or"
                " on = 'message'"
            )
        if trigger.for_ is not None:
            if self.per is None:
                raise ValueError("trigger.for is for the values of per, and there is no per")
            if others := sorted(set(self.message) - {field}):
                raise ValueError(f"trigger.for gives {field} alone, and message declares {others[0]} as well")
            for value in trigger.for_ if isinstance(trigger.for_, list) else []:
                if (mistake := self.message[field].mistake(value)) or not INSTANCE.fullmatch(str(value)):
                    raise ValueError(f"trigger.for: {mistake or f'{value!r:.60} cannot be one of per'}")

    @property
    def has_tables(self) -> bool:
        """Whether it is of many tables, each of which is an instance."""
        return isinstance(self.source, TableSource) and bool(self.source.tables)

    @property
    def needs_spark(self) -> bool:
        """Whether its rows pass in tasks of Spark, whatever they are."""
        return self.why_spark is not None

    @property
    def why_spark(self) -> str | None:
        """What has its rows pass in tasks of Spark; None: nothing of it does."""
        if self.engine == "spark":
            return "engine = 'spark'"
        if is_jdbc(self):
            return "format = 'jdbc' needs it"
        if self.sql or self.transform:
            return f"{'sql' if self.sql else 'transform'} needs it"
        if (check := next((check for check in self.checks if check.holds), None)) is not None:
            return f"the check {check.name!r} needs it"
        return None

    @property
    def has_frames(self) -> bool:
        """Whether something of it works on DataFrames, which only Spark has."""
        return bool(self.sql or self.transform or any(check.holds for check in self.checks))

    @property
    def is_marked(self) -> bool:
        """Whether Spark marks rows that break a check."""
        return any(check.is_found_by_spark for check in self.checks)

    @property
    def definition(self) -> dict[str, Any]:
        """What is kept of it in the database: as it was written, without defaults."""
        given = self.model_dump(
            mode="json", exclude_defaults=True, exclude={"name", "source", "sink"}, by_alias=True
        )
        for part in ("source", "sink"):
            of_part = getattr(self, part)
            given[part] = {"format": of_part.format, **of_part.model_dump(mode="json", exclude_defaults=True)}
        return given

    def of_message(self, payload: Any) -> dict[str, Any]:
        """What a message says that the definition declares. Raises MessageRefused."""
        found = read_message(self.name, self.message, payload)
        if self.per is not None:
            value = flat(found)[self.per.partition(".")[2]]
            if not INSTANCE.fullmatch(value):
                raise MessageRefused(
                    f"pipeline {self.name}: {self.per} is {value!r:.60}, which no instance can have as its"
                    " name: 63 letters, digits, _, - and ."
                )
        return found

    def value_of(self, message: Mapping[str, Any]) -> str:
        """The value of `per` in what a message says."""
        return flat(message)[(self.per or "").partition(".")[2]]

    def expanded(
        self,
        variables: Mapping[str, str] | None = None,
        *,
        name: str | None = None,
        message: Mapping[str, Any] | None = None,
        credentials: Mapping[str, str] | None = None,
    ) -> Pipeline:
        """It with `${NAME}` replaced by what the environment has; `$${NAME}` stands for the text itself.

        `name` is that of an instance, `message` what `of_message` gave for it. Raises InvalidPipeline for a
        name that the environment does not have, MessageRefused for a value that its place does not take.
        """
        known = os.environ if variables is None else variables
        secret = {f"credentials.{key}": value for key, value in (credentials or {}).items()}
        values = {**{f"message.{key}": value for key, value in flat(message or {}).items()}, **secret}
        written = of_table(self.definition, message or {}) if self.has_tables else self.definition
        token = is_expanded.set(True)
        try:
            definition = expand(self.name, written, known)
            made = Pipeline(name or self.name, **fill(name or self.name, definition, values))
        finally:
            is_expanded.reset(token)
        names = {name for escaped, name in VARIABLE.findall(json.dumps(written)) if not escaped}
        made._variables = {name: known[name] for name in names if "." not in name} | secret
        made._given = dict(message or {})
        return made

    @property
    def variables(self) -> dict[str, str]:
        """What `${NAME}` and `${credentials.NAME}` stood for in it, when it is expanded."""
        return self._variables

    @property
    def given(self) -> dict[str, Any]:
        """What the message says that it was expanded with."""
        return self._given


def name_of(function: Callable[..., Any]) -> str:
    """`module:name` of a function, by which a runner finds it."""
    name = getattr(function, "__qualname__", "")
    if "<" in name or not name or function.__module__ == "__main__":
        raise ValueError(
            f"{name or function!r} cannot be found by a runner: write a function at the top of a"
            f" module of its own"
        )
    return f"{function.__module__}:{name}"
