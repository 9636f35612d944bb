"""What a sink would have after a run: columns that it would get, and why it would refuse the rows."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from trunq.arrow import catalog, mark
from trunq.arrow import table as tables
from trunq.arrow.batch import for_lake
from trunq.arrow.catalog import Connection
from trunq.arrow.statement import Target
from trunq.arrow.value import table_type
from trunq.arrow.wide import with_names
from trunq.connection._sync.opening import open_lent
from trunq.connection.address import complete
from trunq.errors import InvalidArgument, InvalidPipeline
from trunq.pipeline import sink as sinks
from trunq.pipeline.definition.change import DELETED_AT, OWN, key_of, require_unmasked
from trunq.pipeline.definition.pipeline import Pipeline
from trunq.pipeline.definition.reserved import require_free
from trunq.pipeline.definition.sink import DeltaSink, QueueSink, TableSink
from trunq.pipeline.definition.storage import is_remote
from trunq.pipeline.sink.contract import agreed, require_there
from trunq.pipeline.sink.lake import lake_stage
from trunq.pipeline.sink.stamped import stamped
from trunq.pipeline.sink.version import TIME, VALID_FROM, VALID_TO
from trunq.pipeline.sink.widening import widened
from trunq.pipeline.work.fitting import fitting_of

Columns = dict[str, str]


@dataclass(slots=True)
class Written:
    """What it would have for the rows; columns None: it has none, or only a run tells."""

    columns: Columns | None = None
    added: Columns = field(default_factory=dict)
    is_made: bool = False
    notes: list[str] = field(default_factory=list)


def foresee(
    pipeline: Pipeline, dsn: str, schema: pa.Schema | None, slice: Mapping[str, Any] | None = None
) -> Written:
    """What the sink would have after rows of this schema, of this slice; None: it is not known.

    Raises InvalidPipeline for what it would refuse.
    """
    look = _LOOKS.get(pipeline.sink.format)
    if look is None:
        return Written(notes=["what its sink takes, only a run tells"])
    try:
        if schema is not None:
            require_free(pipeline, schema.names)
        key = key_of(pipeline, dict(slice or {}))
        require_unmasked(pipeline, key)
        sink = sinks.make(pipeline, dsn)
        require_there(pipeline, sink)
        fitting = None if schema is None else fitting_of(pipeline, schema, sink)
        given = schema if fitting is None else fitting.schema
        given = stamped(given) if pipeline.stamp and given is not None else given
        found = look(pipeline, dsn, given, key)
        found.notes += [] if fitting is None else fitting.notes
        return found
    except InvalidArgument as error:
        raise InvalidPipeline(f"pipeline {pipeline.name}: {error.message}", error.hint) from None


def _table(pipeline: Pipeline, dsn: str, schema: pa.Schema | None, key: list[str]) -> Written:
    model = pipeline.sink
    assert isinstance(model, TableSink)
    target = Target(model.table, model.mode, tuple(key), model.newest)
    noted = dict.fromkeys(_noted(model), "timestamp with time zone")
    if schema is not None:
        schema = _taken(model, schema)
    kinds = None if schema is None else tables.incoming(target, schema, table_type)
    with open_lent(complete(model.dsn or dsn, f"trunq pipeline {pipeline.name}")) as connection:
        is_there = catalog.is_there(connection, target.quoted)
        _require_rights(connection, target, _rights(model), is_there=is_there)
        if kinds is None:
            return Written(is_made=not is_there)
        if not is_there:
            if unknown := [name for name in target.key if kinds[name] is None]:
                raise InvalidArgument(f'nothing is known of the type of "{unknown[0]}"')
            made = {name: kind for name, kind in kinds.items() if kind is not None} | noted
            return Written(made, made, is_made=True)
        # With evolve = "ignore" the table stays as it is.
        wider = widened(connection, target, kinds, pipeline.evolve)
        now = {name: None if name in wider else kind for name, kind in kinds.items()}
        found = tables.fit(connection, target, now, evolve="ignore")
        generated = catalog.generated(connection, target.quoted)
        there = catalog.columns(connection, target.quoted)
        renamed = pipeline.evolve.renamed(there, kinds)
    new = {
        name: kind
        for name, kind in kinds.items()
        if kind is not None and name not in {*found, *generated, *renamed.values()}
    }
    written = Written({name: column.kind for name, column in found.items()} | wider)
    written.notes += [
        f"column {name} of {target.name} becomes {kind}, and is {found[name].kind}"
        for name, kind in wider.items()
    ]
    written.notes += [f"column {old} of {target.name} is renamed {now}" for old, now in renamed.items()]
    return _with_noted(_evolved(pipeline, written, new, target.name), noted, there)


def _with_noted(written: Written, noted: Columns, there: Collection[str]) -> Written:
    """With the columns that the sink writes itself, whatever evolve says: it finds by these what is gone."""
    written.added = {**written.added, **{name: kind for name, kind in noted.items() if name not in there}}
    written.columns = {**(written.columns or {}), **noted}
    return written


def _noted(model: TableSink | DeltaSink) -> list[str]:
    """The columns that the sink writes itself."""
    if model.mode == "history":
        return [VALID_FROM, VALID_TO]
    return [DELETED_AT] if model.deletes == "soft" else []


def _taken(model: TableSink | DeltaSink, schema: pa.Schema) -> pa.Schema:
    """Of the rows, the columns that its table gets."""
    return pa.schema([each for each in schema if model.mode != "apply" or each.name not in OWN])


def _rights(model: TableSink) -> str:
    """What the role of the sink has to be allowed on its table."""
    is_losing = model.mode == "apply" or (model.missing == "delete" and model.mode != "history")
    if model.deletes == "hard" and is_losing:
        return "insert,update,delete"
    return {"append": "insert", "replace": "insert,delete"}.get(model.mode, "insert,update")


def _require_rights(connection: Connection, target: Target, wanted: str, *, is_there: bool) -> None:
    """Refuse a role that may not do what a run does."""
    if is_there:
        for right in wanted.split(","):
            row = connection.execute(
                "select has_table_privilege(%s::regclass, %s)", (target.quoted, right)
            ).fetchone()
            if row is not None and not row[0]:
                raise InvalidArgument(
                    f"the role of its sink may not {right} in {target.name}",
                    f"grant {wanted} on {target.name}",
                )
    else:
        parts = target.table._obj
        # The schema that a plain name falls into is the first of search_path.
        schema = parts[0] if len(parts) == 2 else None
        row = connection.execute(
            "select n.nspname, has_schema_privilege(n.oid, 'create') from pg_namespace n"
            " where n.nspname = coalesce(%s, current_schema())",
            (schema,),
        ).fetchone()
        if row is None:
            raise InvalidArgument(
                f"there is no schema {schema or 'in search_path'} for {target.name}",
                "create it: a run makes the table alone",
            )
        if not row[1]:
            raise InvalidArgument(
                f"the role of its sink may not create {target.name}",
                f"grant create on schema {row[0]}, or make the table",
            )
    row = connection.execute(
        "select coalesce(has_schema_privilege(to_regnamespace(%s), 'create'),"
        " has_database_privilege(current_database(), 'create'))",
        (mark.SCHEMA,),
    ).fetchone()
    if row is not None and not row[0]:
        raise InvalidArgument(
            f"the role of its sink may not use schema {mark.SCHEMA}, where rows are staged",
            f"grant create on the database, or create schema {mark.SCHEMA} and grant create, usage on it",
        )


def _delta(pipeline: Pipeline, dsn: str, schema: pa.Schema | None, key: list[str]) -> Written:  # noqa: ARG001  # as all sinks
    from trunq.arrow.delta import check_partitioning, open_table  # noqa: PLC0415  # needs deltalake

    model = pipeline.sink
    assert isinstance(model, DeltaSink)
    if not is_remote(model.path):
        _require_writable(model.path)
    stage = lake_stage(pipeline.name, model)
    with stage.explaining():
        table = open_table(stage.uri, stage.options)
    if schema is None:
        return Written(is_made=table is None)
    lake = for_lake(pa.RecordBatch.from_pylist([], _taken(model, schema))).schema
    needed = [*key, *([model.newest] if model.newest else [])]
    if missing := [name for name in needed if name not in lake.names]:
        raise InvalidArgument(
            f'there is no column "{missing[0]}" in the rows; there are {", ".join(lake.names)}'
        )
    check_partitioning(lake, model.partition_by)
    coming = {each.name: str(each.type) for each in lake}
    noted = dict.fromkeys(_noted(model), str(TIME))
    if table is None:
        return Written(coming | noted, coming | noted, is_made=True)
    found = pa.schema(table.schema().to_arrow())
    renamed = pipeline.evolve.renamed(found.names, lake.names)
    found = with_names(found, renamed)
    there = {each.name: str(each.type) for each in found}
    if list(there) == ["trunq_blank"]:
        return Written(coming | noted, coming | noted)
    partitions = [renamed.get(name, name) for name in table.metadata().partition_columns]
    is_moved = bool(model.partition_by) and model.partition_by != partitions
    if is_moved and pipeline.evolve.partitions == "refuse":
        raise InvalidArgument(
            f"{model.path} is partitioned by ({', '.join(partitions)}), and partition_by is"
            f" ({', '.join(model.partition_by)})",
            'evolve = { partitions = "rewrite" } has a run write the whole table anew, or write to another'
            " path",
        )
    wanted = agreed(pipeline, model.path, found, lake)
    becomes = {each.name: str(each.type) for each in wanted}
    wider = {name: kind for name, kind in becomes.items() if there.get(name, kind) != kind}
    written = Written({name: becomes.get(name, kind) for name, kind in there.items() if name in coming})
    if wider:
        named = ", ".join(f"{name} as {kind}" for name, kind in wider.items())
        written.notes.append(f"{model.path} is written anew, with {named}")
    written.notes += [f"column {old} of {model.path} is renamed {now}" for old, now in renamed.items()]
    if is_moved:
        written.notes.append(
            f"{model.path} is written anew, partitioned by ({', '.join(model.partition_by)})"
        )
    new = {name: kind for name, kind in coming.items() if name not in there}
    return _with_noted(_evolved(pipeline, written, new, model.path), noted, there)


def _evolved(pipeline: Pipeline, written: Written, new: Columns, target: str) -> Written:
    """With what becomes of columns that the sink has not."""
    if not new:
        return written
    if pipeline.evolve.columns == "refuse":
        raise InvalidArgument(
            f'column "{next(iter(new))}" is new: {target} has none', 'evolve = "add" adds it'
        )
    if pipeline.evolve.columns == "ignore":
        written.notes.append(f"left out, since {target} has no such columns: {', '.join(new)}")
    else:
        written.added = new
        written.columns = {**(written.columns or {}), **new}
    return written


def _parquet(pipeline: Pipeline, dsn: str, schema: pa.Schema | None, key: list[str]) -> Written:  # noqa: ARG001  # as all sinks
    path = str(getattr(pipeline.sink, "path", ""))
    if not is_remote(path):
        _require_writable(path)
    lake = None if schema is None else for_lake(pa.RecordBatch.from_pylist([], schema)).schema
    there = sinks.make(pipeline, dsn).columns()
    if lake is not None and there is not None:
        lake = agreed(pipeline, path, there, lake)
    columns = None if lake is None else {each.name: str(each.type) for each in lake}
    return Written(
        columns,
        is_made=not is_remote(path) and not Path(path).exists(),
        notes=["each run writes files of its own"],
    )


def _require_writable(path: str) -> None:
    there = Path(path).absolute()
    while not there.exists():
        there = there.parent
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise InvalidArgument(
            f"{there} is no directory that this process may write into", "a runner needs that right"
        )


def _queue(pipeline: Pipeline, dsn: str, schema: pa.Schema | None, key: list[str]) -> Written:  # noqa: ARG001  # as all sinks
    model = pipeline.sink
    assert isinstance(model, QueueSink)
    if schema is not None and model.key is not None and model.key not in schema.names:
        raise InvalidArgument(
            f'there is no column "{model.key}" in the rows, whose values are to be keys; there are'
            f" {', '.join(schema.names)}"
        )
    return Written(notes=[] if schema is None else [f"a payload has {', '.join(schema.names)}"])


def _http(pipeline: Pipeline, dsn: str, schema: pa.Schema | None, key: list[str]) -> Written:  # noqa: ARG001  # as all sinks
    return Written(notes=["whether the API takes the rows, only a run tells"])


def _jdbc(pipeline: Pipeline, dsn: str, schema: pa.Schema | None, key: list[str]) -> Written:  # noqa: ARG001  # as all sinks
    from trunq.pipeline.sink.jdbc import JdbcSink  # noqa: PLC0415  # needs pyspark

    there, coming, renamed, wider = JdbcSink(pipeline, dsn).foresee(schema)
    if schema is None:
        return Written(is_made=not there)
    if not there:
        return Written(coming, coming, is_made=True)
    table = str(getattr(pipeline.sink, "table", ""))
    written = Written({name: kind for name, kind in there.items() if name in coming} | wider)
    written.notes += [
        f"column {name} of {table} becomes {to}, and is {there[name]}" for name, to in wider.items()
    ]
    written.notes += [f"column {old} of {table} is renamed {now}" for old, now in renamed.items()]
    new = {name: kind for name, kind in coming.items() if name not in there}
    return _evolved(pipeline, written, new, table)


_LOOKS: Final[dict[str, Callable[[Pipeline, str, pa.Schema | None, list[str]], Written]]] = {
    "table": _table,
    "delta": _delta,
    "parquet": _parquet,
    "queue": _queue,
    "http": _http,
    "jdbc": _jdbc,
}
