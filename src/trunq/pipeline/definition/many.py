"""A definition of many tables: what it needs, and the definition of the pipeline of one table."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from trunq.arrow.catalog import split_name, write_name
from trunq.pipeline.definition.part import VARIABLE
from trunq.pipeline.definition.source import TableSource

if TYPE_CHECKING:
    from trunq.pipeline.definition.pipeline import Pipeline

PRIMARY: Final = ["*"]
"""As `key` of a sink: the primary key of each table."""
PLACEHOLDERS: Final = {"table": "${table}", "schema": "${schema}"}
_LONGEST: Final = 30
"""Characters of a name; those of its tables begin with it."""


def check_many(name: str, source: Any, sink: Any, trigger: Any) -> None:
    """Raises ValueError for what does not go with many tables, or with one."""
    if not isinstance(source, TableSource) or not source.tables:
        if getattr(sink, "key", None) == PRIMARY:
            raise ValueError(
                "sink.key = ['*'], the primary key of each table, goes with source.tables: name the columns"
            )
        return
    if not any(PLACEHOLDERS["table"] in text for text in _texts(sink.model_dump())):
        raise ValueError(
            "all of source.tables would be written into one: put ${table} into the sink's name, as table ="
            " 'copy.${table}' or path = 'lake/${table}'"
        )
    if len(name) > _LONGEST:
        raise ValueError(f"the name of a pipeline of many tables has {_LONGEST} characters at most")
    if trigger is not None and trigger.continuous:
        raise ValueError("trigger.continuous does not go with source.tables: give a trigger with every")


def of_table(pipeline: Pipeline, schema: str, table: str, key: list[str]) -> dict[str, Any]:
    """The definition of the pipeline of one table. Raises InvalidPipeline."""
    from trunq.pipeline.definition.pipeline import Pipeline as Made  # noqa: PLC0415  # that imports this

    given = pipeline.definition
    source = {name: value for name, value in given["source"].items() if name not in ("tables", "except")}
    source["table"] = _escaped(write_name([schema, table]))
    sink = {name: _filled(name, value, schema, table) for name, value in given["sink"].items()}
    if sink.get("key") == PRIMARY:
        sink["key"] = key
    kept = {name: value for name, value in given.items() if name not in ("source", "sink", "trigger")}
    return Made(pipeline.name, **kept, source=source, sink=sink).definition


def _filled(name: str, value: Any, schema: str, table: str) -> Any:
    if isinstance(value, list):
        return [_filled(name, each, schema, table) for each in value]
    if isinstance(value, dict):
        return {key: _filled(name, each, schema, table) for key, each in value.items()}
    if not isinstance(value, str) or not any(text in value for text in PLACEHOLDERS.values()):
        return value
    if name == "table":
        return write_name([_put(part, schema, table) for part in split_name(value)])
    if name == "path":
        return _put(value, _component(schema), _component(table))
    if name == "url":
        return _put(value, quote(schema, safe=""), quote(table, safe=""))
    return _put(value, schema, table)


def _put(text: str, schema: str, table: str) -> str:
    names = {"schema": schema, "table": table}
    # In one pass: a name may look like a placeholder.
    return re.sub(r"\$\{(schema|table)\}", lambda found: _escaped(names[found[1]]), text)


def _escaped(name: str) -> str:
    """A name in which nothing is taken for a variable."""
    return VARIABLE.sub(lambda found: "$" + found[0], name)


def _component(name: str) -> str:
    """One directory, another one for each name."""
    kept = re.sub(
        r"[^A-Za-z0-9_.-]", lambda found: "".join(f"~{byte:02X}" for byte in found[0].encode()), name
    )
    return kept.replace(".", "~2E") if not kept.strip(".") else kept


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from _texts(each)
