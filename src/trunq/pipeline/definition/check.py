"""Checks and lookups as data."""

from __future__ import annotations

import datetime as dt
import re
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from trunq.pipeline.definition.part import Part, plain_value, without_password
from trunq.pipeline.definition.storage import Stored, require_lake

Dsn = Annotated[str | None, AfterValidator(without_password)]


def _as_json(value: Any) -> Any:
    """Days and times as their texts."""
    if isinstance(value, dt.date | dt.time):
        return value.isoformat()
    return plain_value(value)


Value = Annotated[str | bool | int | float, BeforeValidator(_as_json)]

_TIME: Final = re.compile(r"\d{4}-\d\d-\d\d")

RULES: Final = ("not_null", "one_of", "between", "matches", "unique", "refers_to")


def _placed(value: Any, other: Any) -> Any:
    """By what a value comes before another one: of times, whatever their zones, when they are."""
    if isinstance(value, str) and _TIME.match(value) and _TIME.match(other):
        try:
            times = [dt.datetime.fromisoformat(each) for each in (value, other)]
        except ValueError:
            return value
        return times[0] if times[0].tzinfo else times[0].replace(tzinfo=dt.UTC)
    return value


class Reference(Part):
    """A column of a table of Postgres; dsn None: in the database of trunq."""

    table: str
    column: str
    dsn: Dsn = None


class Check(Part):
    """A rule: `holds`, an expression of Spark SQL, or one as data about a `column`, which needs no Spark.

    `not_null`; `one_of` some values; `between` two, both included; `matches`, a regular expression (RE2) that
    is found in the text; `unique` among the rows of a run, also of several columns together; `refers_to`, a
    value of a column of a table. Null breaks `holds` and `not_null`, and no other rule.

    `quarantine` keeps a row that breaks it out, with the name of the rule; `drop` leaves it out; `fail` fails
    the run; `warn` counts it and writes it. The name of a rule as data may be left to trunq.
    """

    name: str = Field("", min_length=1, max_length=200)
    holds: str | None = Field(None, min_length=1)
    column: str | list[str] | None = None
    not_null: Literal[True] | None = None
    one_of: list[Value] | None = Field(None, min_length=1)
    between: tuple[Value, Value] | None = None
    matches: str | None = None
    unique: Literal[True] | None = None
    refers_to: Reference | None = None
    otherwise: Literal["quarantine", "drop", "fail", "warn"] = "quarantine"

    @model_validator(mode="before")
    @classmethod
    def _named(cls, given: Any) -> Any:
        if isinstance(given, dict) and "name" not in given and given.get("column"):
            of = given["column"]
            rule = next((rule for rule in RULES if rule in given), "")
            named = " and ".join(map(str, of)) if isinstance(of, list) else of
            return {**given, "name": f"{named} {rule.replace('_', ' ')}"[:200]}
        return given

    @field_validator("matches")
    @classmethod
    def _readable(cls, value: str | None) -> str | None:
        if value is not None:
            import pyarrow as pa  # noqa: PLC0415  # slow to import
            import pyarrow.compute as pc  # noqa: PLC0415

            try:
                pc.match_substring_regex(pa.array([""]), value)
            except pa.ArrowInvalid as error:
                said = str(error).removeprefix("Invalid regular expression: ")
                raise ValueError(
                    f"{value[:60]!r} is no pattern: {said}; it is written as RE2 has it, without look-around"
                    " and references back"
                ) from None
        return value

    @model_validator(mode="after")
    def _one(self) -> Self:
        rules = [rule for rule in RULES if getattr(self, rule) is not None]
        if not self.name:
            raise ValueError("name is missing")
        if self.holds is None and self.column is None and not rules:
            raise ValueError(
                "holds is missing, or column and a rule: holds = 'delay > 0', or column = 'delay' and one of"
                f" {', '.join(RULES)}"
            )
        if self.holds is not None and (rules or self.column is not None):
            raise ValueError("holds is a whole rule: column and the rules as data are for checks without it")
        if self.holds is None and (self.column is None or len(rules) != 1):
            raise ValueError(
                f"give column and one of {', '.join(RULES)}, not {' and '.join(rules) or 'none'}: each rule"
                " is a check of its own"
            )
        if isinstance(self.column, list) and not (self.unique and self.column):
            raise ValueError("several columns are for unique: the other rules have a check for each column")
        if len(set(self.of)) < len(self.of):
            raise ValueError("column names one twice: name it once")
        self._require_order()
        return self

    def _require_order(self) -> None:
        if self.between is None:
            return
        least, most = self.between
        if isinstance(least, bool) or isinstance(most, bool):
            raise ValueError("between is for what has an order: one_of is for true and false")
        if isinstance(least, str) != isinstance(most, str):
            raise ValueError(f"between has {least!r} and {most!r}: write both as text, or as numbers")
        if _placed(least, most) > _placed(most, least):
            raise ValueError(f"nothing is between {least!r} and {most!r}: write the smaller one first")

    @property
    def of(self) -> list[str]:
        """The columns that a rule as data is about."""
        return [self.column] if isinstance(self.column, str) else self.column or []

    @property
    def is_found_by_spark(self) -> bool:
        """Whether the rows that break it are found by Spark, where there is Spark."""
        return self.holds is not None or self.unique is not None


class FileLookup(Stored):
    """Files, all of them each time."""

    format: Literal["csv", "json", "parquet"]
    types: dict[str, str] = {}
    delimiter: str = ","
    nulls: list[str] = [""]


class DeltaLookup(Stored):
    """The current version of a Delta table."""

    format: Literal["delta"]

    @model_validator(mode="after")
    def _in_a_lake(self) -> Self:
        require_lake(self.path)
        return self


class TableLookup(Part):
    """A table or view of Postgres, all of it each time; dsn None: in the database of trunq."""

    format: Literal["table"]
    table: str
    dsn: str | None = None


Lookup = Annotated[FileLookup | DeltaLookup | TableLookup, Field(discriminator="format")]
