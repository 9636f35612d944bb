"""A look at which tables there are, for a pipeline of many: each has a pipeline of its own, which the look
makes or changes, and asks for a run of. sql/functions/pipeline/table.sql has the rules.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

from trunq.arrow.catalog import split_name, write_name
from trunq.connection._sync.opening import open_connection
from trunq.connection.address import complete
from trunq.errors import InvalidPipeline
from trunq.pipeline.control import Asked, Control
from trunq.pipeline.definition.many import PLACEHOLDERS, PRIMARY, of_table
from trunq.pipeline.definition.pattern import matches
from trunq.pipeline.definition.pipeline import Pipeline
from trunq.pipeline.definition.reading import read_definition
from trunq.pipeline.definition.source import TableSource
from trunq.pipeline.redact import redacted

_AT_ONCE: Final = 50
"""Tables that a transaction takes."""

# Rows of a partition are read with the table that it is part of.
_TABLES: Final = """select n.nspname::text, c.relname::text, c.relkind::text,
  has_schema_privilege(n.oid, 'usage') and has_table_privilege(c.oid, 'select'),
  array(select a.attname::text from pg_index i cross join unnest(i.indkey) with ordinality k(attnum, at)
    join pg_attribute a on a.attrelid = c.oid and a.attnum = k.attnum
    where i.indrelid = c.oid and i.indisprimary order by k.at)
from pg_class c join pg_namespace n on n.oid = c.relnamespace
where c.relkind in ('r', 'p', 'v', 'm', 'f') and c.relpersistence <> 't'
  and n.nspname !~ '^(pg_|information_schema$|trunq$|trunq_)'
  and not exists (select from pg_inherits i where i.inhrelid = c.oid) order by 1, 2"""

_KINDS: Final = {"v": "a view", "m": "a materialized view", "f": "a foreign table"}


@dataclass(slots=True)
class Found:
    """A table that matches: the definition of its pipeline, or why it has none."""

    schema: str
    table: str
    definition: dict[str, Any] | None = None
    refused: str | None = None
    hint: str | None = None


def look(control: Control, dsn: str, asked: Asked) -> dict[str, Any]:
    """What became of a look that a message asks for."""
    if asked.is_backfill or asked.is_resend:
        raise InvalidPipeline(
            f"pipeline {asked.pipeline} has many tables, each with runs of its own",
            f"name the pipeline of one table; trunq pipeline tables {asked.pipeline} lists them",
        )
    while True:
        begun = control.begin_look(asked.pipeline)
        tables = [asdict(each) for each in find(read_definition(asked.pipeline, begun["definition"]), dsn)]
        counts = [
            control.take_tables(asked, begun, tables[at : at + _AT_ONCE])
            for at in range(0, len(tables), _AT_ONCE)
        ]
        ended = None if None in counts else control.end_look(asked.pipeline, begun)
        if ended is not None:
            return {"outcome": "done", "asked": sum(count or 0 for count in counts), **ended}


def find(pipeline: Pipeline, dsn: str) -> list[Found]:
    """The tables that it names, as they are now. Raises InvalidPipeline."""
    expanded = pipeline.expanded({**os.environ, **PLACEHOLDERS})
    source = expanded.source
    assert isinstance(source, TableSource)
    address = complete(source.dsn or dsn, f"trunq pipeline {pipeline.name}")
    with redacted(expanded, dsn), open_connection(address) as connection:
        rows = [
            row
            for row in connection.execute(_TABLES).fetchall()
            if any(matches(each, *row[:2]) for each in source.tables)
            and not any(matches(each, *row[:2]) for each in source.except_)
        ]
        here = connection.execute("select current_schema()::text, current_user::text").fetchone()
    assert here is not None
    return list(_taken(pipeline, rows, *here))


def _taken(pipeline: Pipeline, rows: list[Any], schema: str, role: str) -> Iterator[Found]:
    """What becomes of each; those that it writes itself are none."""
    made = [_take(pipeline, row, role) for row in rows]
    is_here = pipeline.definition["source"].get("dsn") == pipeline.definition["sink"].get("dsn")
    own = {name for each in made for name in _written(each, schema)} if is_here else set()
    places: dict[str, Found] = {}
    for each in made:
        if (each.schema, each.table) in own:
            continue
        if each.definition is not None:
            first = places.setdefault(str(each.definition["sink"]), each)
            if first is not each:
                each.definition = None
                each.refused = (
                    f"its rows would be written into the same as those of {first.schema}.{first.table}"
                )
                each.hint = "put ${schema} into the sink's name, too"
        yield each


def _written(found: Found, schema: str) -> Iterator[tuple[str, str]]:
    """The table that the pipeline of a table writes."""
    target = None if found.definition is None else found.definition["sink"].get("table")
    if target is not None:
        *first, table = split_name(target)
        yield (first[0] if first else schema, table)


def _take(pipeline: Pipeline, row: Any, role: str) -> Found:
    schema, table, kind, may_read, key = row
    found = Found(schema, table)
    name = write_name([schema, table])
    reads_all = getattr(pipeline.source, "changes", "window") == "all"
    if not may_read:
        found.refused = f"role {role} may not read it"
        found.hint = f"grant usage on schema {schema} to {role}; grant select on {name} to {role}"
    elif kind in _KINDS and not reads_all:
        found.refused = f"it is {_KINDS[kind]}, whose rows do not say when they were written"
        found.hint = 'a pipeline of its own with changes = "all" reads all of it each time'
    elif getattr(pipeline.sink, "key", None) == PRIMARY and not key:
        found.refused = "it has no primary key, by which its rows are found in the sink"
        found.hint = f"alter table {name} add primary key (...), or a pipeline of its own with another key"
    else:
        try:
            found.definition = of_table(pipeline, schema, table, key)
        except InvalidPipeline as error:
            found.refused, found.hint = error.message, error.hint
    return found
