"""A definition of many tables: what it implies and needs, and the definition of one of them.

Each table is an instance: `per` is `message.table`, and the message says which table it is.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import quote

from trunq.arrow.catalog import split_name, write_name
from trunq.pipeline.definition.message import INSTANCE

PER: Final = "message.table"
PRIMARY: Final = ["*"]
"""As `key` of a sink: the primary key of each table."""
_MESSAGE: Final = {"table": {"type": "text", "pattern": INSTANCE.pattern}}
_PLACEHOLDER: Final = re.compile(r"\$\{(schema|table)\}")
_TAKES: Final = ("table", "path", "queue", "kind", "url")
"""Keys of sinks in which the name of a table may stand."""
_PLAIN: Final = re.compile(r"[A-Za-z0-9_-]+")
_LONGEST: Final = 54


def implied(parts: Mapping[str, Any]) -> dict[str, Any]:
    """A definition as it was given, with what many tables imply."""
    given = dict(parts)
    source, sink = given.get("source"), given.get("sink")
    if not _value(source, "tables"):
        return given
    if given.get("per") is None:
        given["per"] = PER
    if not given.get("message"):
        given["message"] = _MESSAGE
    if isinstance(sink, Mapping) and sink.get("mode") in ("upsert", "history") and "key" not in sink:
        given["sink"] = {**sink, "key": PRIMARY}
    return given


def _value(part: Any, name: str) -> Any:
    return part.get(name) if isinstance(part, Mapping) else getattr(part, name, None)


def check_one(sink: Any) -> None:
    """Raises ValueError for what goes with many tables alone."""
    if getattr(sink, "key", None) == PRIMARY:
        raise ValueError(
            "sink.key = ['*'], the primary key of each table, goes with source.tables: name the columns"
        )


def check_many(per: str | None, message: Mapping[str, Any], sink: Any, trigger: Any) -> None:
    """Raises ValueError for what does not go with many tables."""
    if per != PER or set(message) != {"table"}:
        raise ValueError(
            "source.tables has a run for each table, and per and message of its own: leave both out, and make"
            " a pipeline for each value of another per"
        )
    for name, text in _texts(sink.model_dump()):
        if _PLACEHOLDER.search(text) and name not in _TAKES:
            raise ValueError(f"sink.{name} has the name of a table, which goes into {', '.join(_TAKES)}")
    if not any("${table}" in text for _, text in _texts(sink.model_dump())):
        raise ValueError(
            "all of source.tables would be written into one: put ${table} into the sink's name, as table ="
            " 'copy.${table}' or path = 'lake/${table}'"
        )
    if trigger is not None and trigger.continuous:
        raise ValueError("trigger.continuous does not go with source.tables: give a trigger with every")
    if trigger is not None and trigger.for_ is not None:
        raise ValueError("trigger.for does not go with source.tables: each time it asks for all tables")


def value_of_table(schema: str, table: str) -> str:
    """What names the table among the instances: shop.orders, or with a hash what cannot be written so."""
    plain = f"{schema}.{table}"
    if _PLAIN.fullmatch(schema) and _PLAIN.fullmatch(table) and INSTANCE.fullmatch(plain):
        return plain
    told = re.sub(r"[^A-Za-z0-9_-]", "_", f"{schema[:20]}_{table}")[: _LONGEST - 2]
    digest = hashlib.sha256(write_name([schema, table]).encode()).hexdigest()
    # Two dots: no plain one has these.
    return f"t.{told}.{digest[:8]}"


def of_table(definition: Mapping[str, Any], message: Mapping[str, Any]) -> dict[str, Any]:
    """The definition of one table, as it was found: `schema_name`, `table_name` and `key`."""
    schema, table = str(message["schema_name"]), str(message["table_name"])
    source = {name: value for name, value in definition["source"].items() if name not in ("tables", "except")}
    source["table"] = write_name([schema, table])
    sink = {name: _filled(name, value, schema, table) for name, value in definition["sink"].items()}
    if sink.get("key") == PRIMARY:
        renamed = definition.get("columns", {}).get("rename", {})
        sink["key"] = [renamed.get(column, column) for column in message["key"]]
    return {**definition, "source": source, "sink": sink}


def _filled(name: str, value: Any, schema: str, table: str) -> Any:
    if not isinstance(value, str) or not _PLACEHOLDER.search(value):
        return value
    names = {"schema": schema, "table": table}

    def put(text: str) -> str:
        # In one pass: a name may look like a placeholder.
        return _PLACEHOLDER.sub(lambda found: names[found[1]], text)

    if name == "table":
        return write_name([put(part) for part in split_name(value)])
    if name == "path":
        names = {key: _component(each) for key, each in names.items()}
    elif name == "url":
        names = {key: quote(each, safe="") for key, each in names.items()}
    return put(value)


def _component(name: str) -> str:
    """One directory, another one for each name."""
    kept = re.sub(
        r"[^A-Za-z0-9_.-]", lambda found: "".join(f"~{byte:02X}" for byte in found[0].encode()), name
    )
    return kept.replace(".", "~2E") if not kept.strip(".") else kept


def _texts(sink: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The texts of a sink, each with its key, or that of the table that it is in."""
    for name, value in sink.items():
        if isinstance(value, str):
            yield name, value
        elif isinstance(value, Mapping):
            yield from ((name, text) for _, text in _texts(value))
        elif isinstance(value, list):
            yield from ((name, each) for each in value if isinstance(each, str))
