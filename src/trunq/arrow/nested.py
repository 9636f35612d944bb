"""Arrays and composites of Postgres as lists and structs, and JSON as a struct of a given type.

A column of them travels as text, so that a table takes it as it was. An array is the text that Postgres
writes of it; what has a composite in it is JSON, since of a composite's own text only its database knows the
columns. What the column is made of lies in its metadata.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from trunq.arrow.value import NESTED, TYPE

Leaf = Callable[[pa.Array, pa.DataType], pa.Array]
"""Texts in a type that is not nested. Raises ArrowInvalid."""


class _Number(str):
    """A number of JSON as it was written: no digit is lost."""

    __slots__ = ()


def noted(kind: pa.DataType) -> bytes:
    """A type, for the metadata of a column."""
    return bytes(pa.schema([("", kind)]).serialize().to_pybytes())


def nested_type(field: pa.Field) -> pa.DataType | None:
    """What a column of texts is made of; None: it is no array and no composite."""
    if not field.metadata or NESTED not in field.metadata:
        return None
    found: pa.DataType = pa.ipc.read_schema(pa.py_buffer(field.metadata[NESTED])).field(0).type
    return found


def has_struct(kind: pa.DataType) -> bool:
    """Whether a composite is in it, so that it travels as JSON."""
    if pa.types.is_list(kind):
        return has_struct(kind.value_type)
    return bool(pa.types.is_struct(kind))


def plain_type(kind: pa.DataType) -> pa.DataType:
    """A type without what its parts are noted to be."""
    if pa.types.is_list(kind):
        return pa.list_(plain_type(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(each.name, plain_type(each.type)) for each in kind])
    return kind


def decoded(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Texts of Postgres as lists and structs. Raises ArrowInvalid, which says what does not fit."""
    if has_struct(kind):
        return of_json(column, kind, _of_postgres)
    values = [None if each is None else _of_array(each) for each in column.to_pylist()]
    return built(values, pa.field("", plain_type(kind)), _of_postgres)


def of_json(column: pa.Array, kind: pa.DataType, leaf: Leaf) -> pa.Array:
    """JSON texts in a nested type: what an object has beside it is left out, what it lacks is null.

    Raises ArrowInvalid.
    """
    values = [None if each is None else _of_json(each) for each in column.to_pylist()]
    return built(values, pa.field("", kind), leaf)


def built(values: list[Any], field: pa.Field, leaf: Leaf) -> pa.Array:
    """Values of lists, dicts and texts in the type of a field."""
    kind = field.type
    if pa.types.is_list(kind):
        return _built_lists(values, kind, leaf)
    if pa.types.is_struct(kind):
        return _built_structs(values, kind, leaf)
    is_json = bool(field.metadata and field.metadata.get(TYPE) in (b"json", b"jsonb"))
    texts = pa.array([_text(each, kind, is_json=is_json) for each in values], pa.string())
    return texts if pa.types.is_string(kind) else leaf(texts, kind)


def _built_lists(values: list[Any], kind: pa.DataType, leaf: Leaf) -> pa.Array:
    offsets: list[int | None] = []
    flat: list[Any] = []
    for each in values:
        offsets.append(None if each is None else len(flat))
        if each is None:
            continue
        if not isinstance(each, list):
            raise pa.ArrowInvalid(f"{_said(each)} is no list")
        flat += each
    items = built(flat, kind.value_field, leaf)
    return pa.ListArray.from_arrays(pa.array([*offsets, len(flat)], pa.int32()), items)


def _built_structs(values: list[Any], kind: pa.DataType, leaf: Leaf) -> pa.Array:
    for each in values:
        if each is not None and not isinstance(each, dict):
            raise pa.ArrowInvalid(f"{_said(each)} is no object")
    children = [
        built([None if each is None else each.get(field.name) for each in values], field, leaf)
        for field in kind
    ]
    fields = [pa.field(field.name, child.type) for field, child in zip(kind, children, strict=True)]
    is_null = pa.array([each is None for each in values], pa.bool_())
    return pa.StructArray.from_arrays(children, fields=fields, mask=is_null)


def _text(value: Any, kind: pa.DataType, *, is_json: bool) -> str | None:
    if value is None:
        return None
    if is_json or (isinstance(value, list | dict) and pa.types.is_string(kind)):
        return _dumped(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str):
        raise pa.ArrowInvalid(f"{_said(value)} is no {kind}")
    return str(value)


def _said(value: Any) -> str:
    return _dumped(value)[:60]


def _dumped(value: Any) -> str:
    match value:
        case _Number():
            return str(value)
        case dict():
            parts = (f"{json.dumps(key, ensure_ascii=False)}: {_dumped(each)}" for key, each in value.items())
            return f"{{{', '.join(parts)}}}"
        case list():
            return f"[{', '.join(map(_dumped, value))}]"
        case _:
            return json.dumps(value, ensure_ascii=False)


def _of_json(text: str) -> Any:
    try:
        return json.loads(text, parse_float=_Number, parse_int=_Number, parse_constant=_Number)
    except ValueError:
        raise pa.ArrowInvalid(f"{text[:60]} is no JSON") from None


def _of_array(text: str) -> Any:
    """The text of an array: {1,NULL,"a b"}, of several dimensions {{1},{2}}, of other bounds [0:1]={1,2}."""
    if text.startswith("["):
        text = text[text.index("=") + 1 :]
    return _items(_TOKEN.finditer(text, 1))


def _items(tokens: Iterator[re.Match[str]]) -> list[Any]:
    made: list[Any] = []
    for token in tokens:
        quoted, bare, brace = token.groups()
        if brace == "{":
            made.append(_items(tokens))
        elif brace == "}":
            break
        elif bare is not None:
            made.append(None if bare.upper() == "NULL" else _ESCAPED.sub(r"\1", bare))
        else:
            made.append(_ESCAPED.sub(r"\1", quoted))
    return made


_TOKEN: Final = re.compile(r'"((?:[^"\\]|\\.)*)"|((?:[^",{}\\]|\\.)+)|([{}])', re.DOTALL)
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)


def _of_postgres(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Texts as Postgres writes values, alone or in JSON."""
    if pa.types.is_binary(kind):
        values = [None if each is None else bytes.fromhex(each[2:]) for each in texts.to_pylist()]
        return pa.array(values, kind)
    if pa.types.is_boolean(kind):
        texts = pc.if_else(pc.equal(texts, "t"), "true", pc.if_else(pc.equal(texts, "f"), "false", texts))
    elif pa.types.is_timestamp(kind):
        plainly = pc.replace_substring_regex(texts, r"\+00(:?00)?$", "").cast(pa.timestamp("us"))
        return plainly.cast(kind)
    return texts.cast(kind)
