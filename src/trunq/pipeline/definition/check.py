"""Checks and lookups as data."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from trunq.pipeline.definition.part import Part


class Check(Part):
    """A rule, as an expression of Spark SQL; a row for which it is false or null breaks it.

    `quarantine` keeps such a row out, with the name of the rule; `drop` leaves it out; `fail` fails the run;
    `warn` counts it and writes it.
    """

    name: str = Field(min_length=1, max_length=200)
    holds: str = Field(min_length=1)
    otherwise: Literal["quarantine", "drop", "fail", "warn"] = "quarantine"


class FileLookup(Part):
    """Files, all of them each time."""

    format: Literal["csv", "json", "parquet"]
    path: str
    types: dict[str, str] = {}
    delimiter: str = ","
    nulls: list[str] = [""]


class DeltaLookup(Part):
    """The current version of a Delta table."""

    format: Literal["delta"]
    path: str


class TableLookup(Part):
    """A table or view of Postgres, all of it each time; dsn None: in the database of trunq."""

    format: Literal["table"]
    table: str
    dsn: str | None = None


Lookup = Annotated[FileLookup | DeltaLookup | TableLookup, Field(discriminator="format")]
