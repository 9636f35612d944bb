"""Other databases, which Spark reads and writes by their JDBC drivers."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any, Final, Literal, Self

from pydantic import Field, field_validator, model_validator

from trunq.pipeline.definition.endpoint import Back, is_secret, without_secrets
from trunq.pipeline.definition.part import VARIABLE, Part, is_expanded

DRIVERS: Final = {
    "postgresql": "org.postgresql.Driver",
    "mariadb": "org.mariadb.jdbc.Driver",
    "mysql": "com.mysql.cj.jdbc.Driver",
    "sqlserver": "com.microsoft.sqlserver.jdbc.SQLServerDriver",
    "oracle": "oracle.jdbc.OracleDriver",
    "db2": "com.ibm.db2.jcc.DB2Driver",
}
"""Classes of drivers, by what stands behind `jdbc:` in a URL."""

_WRITTEN: Final = ("postgresql", "mariadb", "mysql")
_IN_URL: Final = re.compile(
    r"//[^/@?]*:([^/@?]+)@|[?&;:](?:\w*password|pwd)=([^&;]+)|:[^/@:]+/([^/@]+)@", re.IGNORECASE
)
_KEYED: Final = ("upsert", "history")


class InJdbc(Part):
    """A part that lies in a database with a JDBC driver, whose jar is among `spark.jars` of the settings."""

    url: str
    """As jdbc:mariadb://host:3306/shop."""
    user: str | None = None
    password: str | None = None
    driver: str | None = None
    """The driver's class; None: the one that is known for the URL."""
    properties: dict[str, str] = {}
    """Of the driver."""

    @field_validator("url")
    @classmethod
    def _addressed(cls, value: str) -> str:
        if not re.match(r"jdbc:[a-z0-9]+:.", value) and not (not is_expanded.get() and VARIABLE.match(value)):
            raise ValueError(f"{value[:60]!r} is no URL of JDBC, as jdbc:mariadb://host:3306/shop")
        for found in _IN_URL.finditer(value):
            if not is_expanded.get() and not VARIABLE.search(found[1] or found[2] or found[3]):
                raise ValueError(
                    "a password does not belong into a pipeline, which lies in the database as it is written:"
                    " write password = '${NAME}'"
                )
        return value

    @field_validator("password")
    @classmethod
    def _unwritten(cls, value: str | None) -> str | None:
        if value is not None and not is_expanded.get() and not VARIABLE.search(value):
            raise ValueError(
                "a password does not belong into a pipeline, which lies in the database as it is written: put"
                " it into an environment variable and write password = '${NAME}'"
            )
        return value

    @field_validator("properties")
    @classmethod
    def _without_secrets(cls, value: dict[str, str]) -> dict[str, str]:
        if own := [name for name in value if name in ("user", "password", "url", "driver", "dbtable")]:
            raise ValueError(f"properties has {own[0]}, which the part has a key for, or sets itself")
        without_secrets(value)
        return value

    @model_validator(mode="after")
    def _driven(self) -> Self:
        if self.driver is None and self.kind and self.kind not in DRIVERS:
            raise ValueError(
                f"no driver is known for jdbc:{self.kind}: write driver = 'its.class', and name its jar in"
                " spark.jars of the settings"
            )
        return self

    @property
    def kind(self) -> str:
        """What stands behind `jdbc:`; empty: only known when it is expanded."""
        found = re.match(r"jdbc:([a-z0-9]+):", self.url)
        return found[1] if found else ""

    @property
    def secrets(self) -> list[str]:
        """What must not be told."""
        found = [text for each in _IN_URL.finditer(self.url) for text in each.groups() if text]
        found += [value for name, value in self.properties.items() if is_secret(name)]
        return found + ([self.password] if self.password else [])


def place_of(place: InJdbc) -> str:
    """A URL as people are told it: without what stands before the host, or behind it as options."""
    return re.sub(r"(//)[^/@]*@|(:)[^/@:]+/[^@]+@", r"\1\2", re.split(r"[?;]|:(?=\w+=)", place.url)[0])


class JdbcSource(InJdbc):
    """A table of another database, or a `query`: all of it each time, or with `cursor` what has a larger
    value in this column than the last run has seen.

    What is committed later with a smaller value, a cursor never finds: with `lag` (a length of time, or a
    number where the column has numbers) each run reads again from that much before, into a sink that finds
    rows by a key. `shares`: by how many tasks it is read at most; None: as many as run at the same time.
    """

    format: Literal["jdbc"] = "jdbc"
    table: str = ""
    query: str = ""
    cursor: str | None = None
    lag: Back | None = None
    share_by: str | None = None
    """A column of numbers by whose ranges tasks share the rows; None: the primary key, where it is one, or
    the cursor."""
    shares: int | None = Field(None, gt=0)

    @model_validator(mode="after")
    def _named(self) -> Self:
        if bool(self.table) == bool(self.query):
            raise ValueError("give table, or query: one of them")
        if self.lag is not None and self.cursor is None:
            raise ValueError("lag goes with cursor: cursor = 'updated_at', lag = '1 hour'")
        zero: Any = timedelta() if isinstance(self.lag, timedelta) else 0
        if self.lag is not None and self.lag <= zero:
            raise ValueError("lag is more than nothing, or left out")
        return self

    @property
    def changes(self) -> Literal["all", "cursor"]:
        """Whether a run reads all rows, or those behind a cursor."""
        return "all" if self.cursor is None else "cursor"

    def words(self, slice: dict[str, Any]) -> str:
        """What a slice has."""
        what = self.table or "the query"
        if "to" not in slice:
            return f"all rows of {what}"
        since = "" if slice["from"] is None else f" from {slice['from']}"
        return f"rows of {what} with {self.cursor}{since} up to {slice['to']}"


class JdbcSink(InJdbc):
    """A table of Postgres, MariaDB or MySQL, made when it is not there.

    `upsert` needs a `key` with a unique index, and takes the row with the largest `newest` column where that
    is given.
    """

    format: Literal["jdbc"] = "jdbc"
    table: str
    mode: Literal["append", "upsert"] = "append"
    key: list[str] = []
    newest: str | None = None

    @model_validator(mode="after")
    def _keyed(self) -> Self:
        if self.mode == "upsert" and not self.key:
            raise ValueError("mode = 'upsert' needs key = ['...'], the columns that name a row")
        if self.mode == "append" and (self.key or self.newest):
            raise ValueError("key and newest are for mode = 'upsert', not for append")
        if self.kind and self.kind not in _WRITTEN:
            raise ValueError(
                f"jdbc:{self.kind} can be read alone: a sink is one of"
                f" {', '.join(f'jdbc:{each}' for each in _WRITTEN)}"
            )
        return self


NO_WIDENING: Final = (
    "evolve widens types, and MariaDB and MySQL forget the default and the not null of a column whose type"
    " they change"
)
WIDEN_YOURSELF: Final = (
    "leave widen out, and say all of the column yourself: alter table ... modify column n bigint not null"
)


def is_jdbc(pipeline: Any) -> bool:
    """Whether a pipeline reads or writes by JDBC, which Spark does for it."""
    return "jdbc" in (pipeline.source.format, pipeline.sink.format)


def require_jdbc(pipeline: Any) -> None:
    """Refuse what does not go with JDBC. Raises ValueError."""
    source, sink = pipeline.source, pipeline.sink
    mode = getattr(sink, "mode", "append")
    if is_jdbc(pipeline):
        if pipeline.engine == "process":
            raise ValueError("engine = 'process' is without Spark, which format = 'jdbc' needs: leave it out")
        if pipeline.function is not None:
            raise ValueError(
                "function is given rows without Spark, which format = 'jdbc' needs: write it as transform,"
                " which is given a DataFrame"
            )
    if isinstance(sink, JdbcSink) and pipeline.evolve.widens and sink.kind in ("mariadb", "mysql"):
        raise ValueError(f"{NO_WIDENING}: {WIDEN_YOURSELF}")
    if isinstance(source, JdbcSource) and source.cursor is not None:
        if mode in ("replace", "replace_partitions"):
            raise ValueError(
                f"a run brings what is behind the cursor alone, and mode = '{mode}' would drop the rest:"
                " leave cursor out, or write mode = 'upsert' in sink"
            )
        if source.lag is not None and mode not in _KEYED:
            raise ValueError(
                f"lag reads rows again, and mode = '{mode}' would have them twice: write mode = 'upsert' and"
                " key = ['...'] in sink, or leave lag out"
            )
