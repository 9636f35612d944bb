"""Rows of JSON as Arrow: types that the user names, and others as they are found."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa

from trunq.arrow.batch import array_of
from trunq.errors import InvalidPipeline
from trunq.pipeline.control import HALF


def read_types(pipeline: str, types: dict[str, str]) -> dict[str, pa.DataType]:
    """Types by their names in Arrow. Raises InvalidPipeline."""
    try:
        return {name: pa.type_for_alias(kind) for name, kind in types.items()}
    except ValueError as error:
        raise InvalidPipeline(f"pipeline {pipeline}: types: {error}", 'as in {id = "int64"}') from error


def typed(
    rows: list[dict[str, Any]],
    types: dict[str, pa.DataType],
    names: Iterable[str] | None = None,
    *,
    is_mixed: bool = False,
) -> pa.Table:
    """Rows as a table, with these columns, or with those that there are. If they may be mixed, values of one
    column that are of several types are texts.

    Raises ArrowInvalid for values of one column that are of several types.
    """
    names = dict.fromkeys(name for row in rows for name in row) if names is None else names
    columns = {}
    for name in names:
        try:
            columns[name] = _column([row.get(name) for row in rows], types.get(name), is_mixed=is_mixed)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
            raise pa.ArrowInvalid(f'column "{name}": {error}') from error
    return pa.table(columns)


def sound(
    rows: list[dict[str, Any]],
    types: dict[str, pa.DataType],
    refuse: Callable[[list[Any], list[list[str]]], None],
    names: Iterable[str] | None = None,
    *,
    is_mixed: bool = False,
) -> pa.Table:
    """As `typed`; rows with half of a character in a text are refused. JSON may have it, and nothing else."""
    try:
        return typed(rows, types, names, is_mixed=is_mixed)
    except UnicodeEncodeError:
        halves = [row for row in rows if _has_half(row)]
        refuse(halves, [["half of a character"]] * len(halves))
        return typed([row for row in rows if not _has_half(row)], types, names, is_mixed=is_mixed)


def _has_half(row: dict[str, Any]) -> bool:
    return HALF.search(json.dumps(row, ensure_ascii=False)) is not None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _column(values: list[Any], kind: pa.DataType | None, *, is_mixed: bool) -> pa.Array:
    if kind is None:
        return array_of(values, is_mixed=is_mixed)
    try:
        return pa.array(values, kind)
    except (pa.ArrowTypeError, pa.ArrowInvalid):
        # JSON has no times: text becomes one. Values of several types become of one as text.
        found = pa.array([value if value is None else _text(value) for value in values], pa.string())
        if not pa.types.is_timestamp(kind):
            return found.cast(kind)
        other = pa.timestamp(kind.unit, None if kind.tz else "UTC")
        try:
            return found.cast(kind)
        except pa.ArrowInvalid:
            # With a zone where the type has none, or without where it has one.
            return found.cast(other).cast(kind)
