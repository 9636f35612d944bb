"""A look at which tables there are, for a pipeline of many: it begins an instance for each, and asks for a
run of each. sql/functions/pipeline/look.sql has the rules.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Final

from trunq.arrow.catalog import Connection, split_name, write_name
from trunq.connection._sync.opening import open_lent
from trunq.connection.address import complete
from trunq.errors import InvalidPipeline, TrunqError
from trunq.pipeline.control import Control
from trunq.pipeline.definition.many import PRIMARY, value_of_table
from trunq.pipeline.definition.part import expand
from trunq.pipeline.definition.pattern import matches
from trunq.pipeline.definition.pipeline import Pipeline
from trunq.pipeline.definition.reading import read_definition
from trunq.pipeline.definition.source import TableSource
from trunq.pipeline.redact import redacted
from trunq.pipeline.source.catalog import KEY_OF

_MOST: Final = 10_000
"""Tables of a pipeline."""

_KEY: Final = f"array({KEY_OF.format('c.oid')})"

# Rows of a partition are read with the table that it is part of.
_TABLES: Final = f"""select n.nspname::text as schema_name, c.relname::text as table_name,
  c.relkind::text as kind, c.oid::bigint as oid,
  has_schema_privilege(n.oid, 'usage') and has_table_privilege(c.oid, 'select') as may_read,
  {_KEY} as key
from pg_class c join pg_namespace n on n.oid = c.relnamespace
where c.relkind in ('r', 'p', 'v', 'm', 'f') and c.relpersistence <> 't'
  and n.nspname !~ '^(pg_|information_schema$|trunq$|trunq_)'
  and not exists (select from pg_inherits i where i.inhrelid = c.oid) order by 1, 2"""

_KINDS: Final = {"v": "a view", "m": "a materialized view", "f": "a foreign table"}


@dataclass(slots=True)
class Found:
    """A table that matches: by what its instance is named, what a run is to know of it, and why there can be
    none, with the way out.
    """

    value: str
    message: dict[str, Any]
    refused: str | None = None
    hint: str | None = None


def look(control: Control, pipeline: str, dsn: str, *, asks: bool) -> dict[str, int]:
    """Look, and have the database know what was found; how many tables there are. `asks`: for runs."""
    while True:
        begun = control.begin_look(pipeline)
        tables = find(read_definition(pipeline, begun["definition"]), dsn)
        told = control.take_tables(pipeline, begun["look"], [asdict(each) for each in tables], asks=asks)
        # Others have looked meanwhile, or the definition is another one.
        if told is not None:
            return told


def find(written: Pipeline, dsn: str) -> list[Found]:
    """The tables that a definition names, as they are now. Raises InvalidPipeline."""
    source = written.source
    assert isinstance(source, TableSource)
    with _connected(written, dsn) as connection:
        cursor = connection.execute(_TABLES)
        names = [column.name for column in cursor.description or []]
        rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
        here = connection.execute("select current_schema()::text, current_user::text").fetchone()
    assert here is not None
    matching = [row for row in rows if is_named(source, row["schema_name"], row["table_name"])]
    if len(matching) > _MOST:
        raise InvalidPipeline(
            f"pipeline {written.name}: {len(matching)} tables match, and {_MOST} at most may",
            "give source.tables patterns that match fewer, and make another pipeline for the rest",
        )
    return list(_taken(written, matching, *here))


def has_key(written: Pipeline, dsn: str, message: Mapping[str, Any]) -> bool:
    """Whether the table of an instance still has the primary key that the newest look found. A run keeps what
    it began with.
    """
    if not written.has_tables or getattr(written.sink, "key", None) != PRIMARY:
        return True
    with _connected(written, dsn) as connection:
        query = f"select {_KEY} from pg_class c where c.oid = %s"
        row = connection.execute(query.encode(), (message["oid"],)).fetchone()
    return row is not None and row[0] == message["key"]


@contextmanager
def _connected(written: Pipeline, dsn: str) -> Iterator[Connection]:
    """The database of a source alone: a sink may need more than whoever looks has."""
    source = written.source
    assert isinstance(source, TableSource)
    address = expand(written.name, source.dsn, os.environ) if source.dsn else dsn
    named = complete(address, f"trunq pipeline {written.name}")
    with redacted(written, address), open_lent(named) as connection:
        yield connection


def is_named(source: TableSource, schema: str, table: str) -> bool:
    """Whether a source names a table."""
    return any(matches(each, schema, table) for each in source.tables) and not any(
        matches(each, schema, table) for each in source.except_
    )


def is_known(written: Pipeline, opened: dict[str, Any]) -> bool:
    """Whether the table of an instance can be read, as far as its definition and the newest look say."""
    source, message = written.source, opened["message"]
    if not isinstance(source, TableSource) or not source.tables:
        return True
    return opened["refused"] is None and is_named(source, message["schema_name"], message["table_name"])


def _taken(written: Pipeline, rows: list[dict[str, Any]], schema: str, role: str) -> Iterator[Found]:
    """What becomes of each; those that the pipeline writes itself are none of its tables."""
    made = [(row, *_take(written, row, role)) for row in rows]
    is_here = getattr(written.sink, "dsn", None) == getattr(written.source, "dsn", None)
    own = {name for _, _, sink in made for name in _written(sink, schema)} if is_here else set()
    places: dict[str, str] = {}
    for row, found, sink in made:
        name = (row["schema_name"], row["table_name"])
        if name in own and name not in set(_written(sink, schema)):
            continue
        if name in own:
            found.refused = "its rows would be written into itself"
            found.hint = "give sink.table another schema, or another name, as copy_of_${table}"
        elif sink is not None:
            first = places.setdefault(str(sink), write_name(name))
            if first != write_name(name):
                found.refused = f"its rows would be written into the same as those of {first}"
                found.hint = "put ${schema} into the sink's name, too"
        yield found


def _written(sink: dict[str, Any] | None, schema: str) -> Iterator[tuple[str, str]]:
    """The table that is written."""
    if sink is not None and "table" in sink:
        *first, table = split_name(sink["table"])
        yield (first[0] if first else schema, table)


def _take(written: Pipeline, row: dict[str, Any], role: str) -> tuple[Found, dict[str, Any] | None]:
    """A table, and the sink of its rows, if it can have one."""
    schema, table = row["schema_name"], row["table_name"]
    name = write_name([schema, table])
    value = value_of_table(schema, table)
    message = {"table": value, **{key: row[key] for key in ("schema_name", "table_name", "key", "oid")}}
    found = Found(value, message)
    if not row["may_read"]:
        found.refused = f"role {role} may not read it"
        found.hint = f"grant usage on schema {schema} to {role}; grant select on {name} to {role}"
    elif row["kind"] in _KINDS and getattr(written.source, "changes", "window") != "all":
        found.refused = f"it is {_KINDS[row['kind']]}, whose rows do not say when they were written"
        found.hint = 'a pipeline of its own with changes = "all" reads all of it each time'
    elif _is_keyed(written.sink) and not row["key"]:
        found.refused = "it has no primary key, by which its rows are found in the sink"
        found.hint = f"alter table {name} add primary key (...), or a pipeline of its own with another key"
    elif "${" in name:
        found.refused = "its name has ${, which stands for a variable in a definition"
        found.hint = "rename it"
    else:
        try:
            # Without the environment: each name stands for itself.
            made = written.expanded(_Names(), name=f"{written.name}/{value}", message=message)
        except TrunqError as error:
            found.refused, found.hint = error.message, error.hint
        else:
            return found, made.definition["sink"]
    return found, None


class _Names(dict[str, str]):
    """Variables that stand for nothing but their names."""

    def __missing__(self, name: str) -> str:
        return "${" + name + "}"

    def __contains__(self, name: object) -> bool:
        return True


def _is_keyed(sink: Any) -> bool:
    """Whether the primary key of each table finds its rows in the sink."""
    key = getattr(sink, "key", None)
    return key == PRIMARY or (getattr(sink, "mode", "") == "apply" and not key)
