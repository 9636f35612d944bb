"""What statements look like in the databases that are written, and how names are quoted in those read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from trunq.arrow.catalog import split_name
from trunq.errors import InvalidPipeline
from trunq.pipeline.definition.jdbc import InJdbc
from trunq.pipeline.jdbc.driver import Connection

PART: Final = "trunq_part"
"""The column of a stage that says which task wrote a row."""

ROW: Final = "trunq_row"
"""That by which the last of several rows with one key is known."""

MARK: Final = "trunq_mark"

_QUOTES: Final = {"mariadb": "`", "mysql": "`"}


class Column(NamedTuple):
    """The type of a column, and the one to cast to: a cast to `varchar(5)` would cut a text in silence."""

    kind: str
    cast: str


@dataclass(frozen=True, slots=True)
class Naming:
    """How a database has names."""

    kind: str

    def quote(self, name: str) -> str:
        """A name in quotes."""
        mark = _QUOTES.get(self.kind, '"')
        return f"{mark}{name.replace(mark, mark * 2)}{mark}"

    def named(self, table: tuple[str | None, str]) -> str:
        """A table in quotes."""
        return ".".join(self.quote(part) for part in table if part)

    def listed(self, names: Sequence[str], of: str = "") -> str:
        """Columns in quotes."""
        return ", ".join(f"{of}{self.quote(name)}" for name in names)


def parts_of(pipeline: str, table: str) -> tuple[str | None, str]:
    """Schema and table of a name as people write it."""
    parts = split_name(table)
    if len(parts) > 2 or not all(parts):
        raise InvalidPipeline(
            f'pipeline {pipeline}: "{table}" is not the name of a table', "write table, or schema.table"
        )
    return (parts[0], parts[1]) if len(parts) == 2 else (None, parts[0])


_MADE: Final[dict[str, dict[str, str]]] = {
    "postgresql": {
        "string": "text",
        "boolean": "boolean",
        "byte": "smallint",
        "short": "smallint",
        "integer": "integer",
        "long": "bigint",
        "float": "real",
        "double": "double precision",
        "date": "date",
        "timestamp": "timestamp with time zone",
        "timestamp_ntz": "timestamp without time zone",
        "binary": "bytea",
    },
    "mysql": {
        "string": "longtext",
        "boolean": "boolean",
        "byte": "tinyint",
        "short": "smallint",
        "integer": "int",
        "long": "bigint",
        "float": "float",
        "double": "double",
        "date": "date",
        # The type timestamp ends in 2038.
        "timestamp": "datetime(6)",
        "timestamp_ntz": "datetime(6)",
        "binary": "longblob",
    },
}

_OF_TEXT: Final = re.compile(r"numeric\(\d+,\d+\)")
_OF_TEXT_IN_POSTGRES: Final = re.compile(
    r"numeric(\(\d+,\d+\))?|jsonb?|uuid|interval|inet|cidr|macaddr8?|xml|time( with(out)? time zone)?"
)
"""Types of Postgres whose values pass as texts, and have such a type where a table is made."""

_IN_KEY: Final = "varchar(255)"


class Database(Naming):
    """One that is written: Postgres, or MariaDB and MySQL."""

    @property
    def is_postgres(self) -> bool:
        """Which of both."""
        return self.kind == "postgresql"

    def made_as(self, kind: str, was: str = "", *, in_key: bool = False) -> str | None:
        """The type of a column for one of Spark's, which was a text of this type of Postgres; None: there is
        none.
        """
        if kind == "string" and (_OF_TEXT_IN_POSTGRES if self.is_postgres else _OF_TEXT).fullmatch(was):
            return was
        if kind.startswith("decimal"):
            return f"numeric{kind.removeprefix('decimal')}"
        if kind == "string" and in_key and not self.is_postgres:
            # A text without end is no key there.
            return _IN_KEY
        return _MADE["postgresql" if self.is_postgres else "mysql"].get(kind)

    @property
    def suffix(self) -> str:
        """What stands behind a table that is made."""
        return "" if self.is_postgres else " engine = InnoDB default charset = utf8mb4 collate = utf8mb4_bin"

    def tables(self, connection: Connection, schema: str | None, like: str) -> list[str]:
        """Names of tables that begin so."""
        rows = connection.rows(
            "select table_name from information_schema.tables where table_schema = "
            f"{self._schema(schema)} and substring(table_name, 1, {len(like)}) = ?",
            *([schema] if schema else []),
            like,
        )
        return [str(name) for (name,) in rows]

    def columns(self, connection: Connection, table: tuple[str | None, str]) -> dict[str, Column]:
        """The columns of a table with their types; {}: it is not there."""
        schema, name = table
        if self.is_postgres:
            rows = connection.rows(
                "select attname, format_type(atttypid, atttypmod), format_type(atttypid, -1) from"
                " pg_attribute where attrelid = to_regclass(?) and attnum > 0 and not attisdropped"
                " order by attnum",
                self.named(table),
            )
        else:
            rows = connection.rows(
                "select column_name, column_type, column_type from information_schema.columns where"
                f" table_name = ? and table_schema = {self._schema(schema)} order by ordinal_position",
                name,
                *([schema] if schema else []),
            )
        return {str(column): Column(str(kind), str(cast)) for column, kind, cast in rows}

    def lacks_transactions(self, connection: Connection, table: tuple[str | None, str]) -> str | None:
        """The engine of a table that keeps no transactions."""
        if self.is_postgres:
            return None
        schema, name = table
        return connection.one(
            "select t.engine from information_schema.tables t join information_schema.engines e on e.engine ="
            f" t.engine where t.table_name = ? and t.table_schema = {self._schema(schema)} and"
            " coalesce(e.transactions, 'NO') <> 'YES'",
            name,
            *([schema] if schema else []),
        )

    def prefix_index(self, connection: Connection, table: tuple[str | None, str]) -> str | None:
        """A unique index over the beginning of a text, by which rows are the same that are not."""
        if self.is_postgres:
            return None
        schema, name = table
        return connection.one(
            "select index_name from information_schema.statistics where table_name = ? and table_schema ="
            f" {self._schema(schema)} and non_unique = 0 and sub_part is not null limit 1",
            name,
            *([schema] if schema else []),
        )

    def _schema(self, schema: str | None) -> str:
        if schema:
            return "?"
        return "current_schema()" if self.is_postgres else "database()"

    def patience(self, seconds: int) -> str:
        """Wait for a lock of a table no longer."""
        if self.is_postgres:
            return f"set lock_timeout = '{seconds}s'"
        return f"set session lock_wait_timeout = {seconds}"

    def limit(self, seconds: int) -> str:
        """Wait for the client no longer, in this transaction; MySQL does not know how."""
        if self.is_postgres:
            return f"set local idle_in_transaction_session_timeout = '{seconds}s'"
        return f"set @trunq = 0 /*M!100300 , session idle_transaction_timeout = {seconds} */"

    def make_mark(self, mark: tuple[str | None, str]) -> str:
        """The table of marks."""
        kind = "text" if self.is_postgres else _IN_KEY
        return (
            f"create table if not exists {self.named(mark)} (name {kind} primary key, pipeline {kind} not"
            f" null, number bigint not null, attempt bigint not null){self.suffix}"
        )

    def hold_mark(self, mark: tuple[str | None, str]) -> str:
        """Have a row of the mark, with its name and pipeline."""
        into = f"{self.named(mark)} (name, pipeline, number, attempt) values (?, ?, 0, 0)"
        if self.is_postgres:
            return f"insert into {into} on conflict do nothing"
        return f"insert ignore into {into}"

    def take(
        self,
        table: tuple[str | None, str],
        columns: dict[str, Column],
        stage: tuple[str | None, str],
        parts: int,
        key: Sequence[str],
        newest: str | None,
    ) -> str:
        """Rows of some parts of a stage become rows of a table."""
        names = list(columns)
        read = [
            f"cast({self.quote(name)} as {column.cast})" if self.is_postgres else self.quote(name)
            for name, column in columns.items()
        ]
        of = f"where {self.quote(PART)} in ({', '.join('?' * parts)})"
        into = f"insert into {self.named(table)} ({self.listed(names)})"
        if not key:
            return f"{into} select {', '.join(read)} from {self.named(stage)} {of}"
        first = f"{self.quote(newest)} is null, {self.quote(newest)} desc, " if newest else ""
        order = f"order by {first}{self.quote(ROW)} desc"
        one = (
            f"select s.*, row_number() over (partition by {self.listed(key)} {order}) trunq_at"
            f" from {self.named(stage)} s {of}"
        )
        upsert = self._upsert(table, names, key, newest)
        return f"{into} select {', '.join(read)} from ({one}) o where trunq_at = 1 {upsert}"

    def _upsert(
        self, table: tuple[str | None, str], names: Sequence[str], key: Sequence[str], newest: str | None
    ) -> str:
        rest = [name for name in names if name not in key]
        if self.is_postgres:
            on = f"on conflict ({self.listed(key)})"
            if not rest:
                return f"{on} do nothing"
            sets = ", ".join(f"{self.quote(name)} = excluded.{self.quote(name)}" for name in rest)
            mine = f"{self.quote(table[1])}.{self.quote(newest)}" if newest else ""
            when = f" where {mine} is null or excluded.{self.quote(newest)} >= {mine}" if newest else ""
            return f"{on} do update set {sets}{when}"
        if not rest:
            first = f"{self.named(table)}.{self.quote(key[0])}"
            return f"on duplicate key update {first} = {first}"
        if newest is None:
            sets = ", ".join(f"{self.quote(name)} = values({self.quote(name)})" for name in rest)
            return f"on duplicate key update {sets}"
        mine = f"{self.named(table)}.{self.quote(newest)}"
        is_newer = f"{mine} is null or values({self.quote(newest)}) >= {mine}"
        # An assignment sees those before it: the newest comes last.
        ordered = [*(name for name in rest if name != newest), newest]
        quoted = [(self.quote(name), f"{self.named(table)}.{self.quote(name)}") for name in ordered]
        sets = ", ".join(f"{name} = if({is_newer}, values({name}), {old})" for name, old in quoted)
        return f"on duplicate key update {sets}"


def database_of(place: InJdbc) -> Database:
    """That of a sink."""
    return Database("mysql" if place.kind in ("mariadb", "mysql") else place.kind)
