"""A pipeline as data: the same from Python and from TOML, checked before anything runs."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, Self

from pydantic import Field, PrivateAttr, ValidationError, field_validator, model_validator

from trunq.pipeline.definition.check import Check, Lookup
from trunq.pipeline.definition.column import Columns
from trunq.pipeline.definition.mistake import invalid
from trunq.pipeline.definition.part import VARIABLE, Part, expand, is_expanded, without_password
from trunq.pipeline.definition.sink import Sink
from trunq.pipeline.definition.source import QueueSource, Source, TableSource
from trunq.pipeline.definition.trigger import Trigger

_ONLY_A_RUN_TELLS: Final = {"python", "http"}
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
            raise invalid(Pipeline, name or str(parts.get("name", "")), error) from None

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


def name_of(function: Callable[..., Any]) -> str:
    """`module:name` of a function, by which a runner finds it."""
    name = getattr(function, "__qualname__", "")
    if "<" in name or not name or function.__module__ == "__main__":
        raise ValueError(
            f"{name or function!r} cannot be found by a runner: write a function at the top of a"
            f" module of its own"
        )
    return f"{function.__module__}:{name}"
