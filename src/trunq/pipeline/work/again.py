"""Rows of the quarantine, on their way through the pipeline again."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Collection, Iterator
from typing import Any

import pyarrow as pa

from trunq.arrow.batch import batches_of
from trunq.pipeline.control import Control
from trunq.pipeline.definition.pipeline import Pipeline
from trunq.pipeline.work.column import Refuse


def again(
    pipeline: Pipeline,
    control: Control,
    ids: list[int],
    refuse: Refuse,
    lost: Callable[[int], None],
    columns: Collection[str],
) -> Iterator[pa.RecordBatch]:
    """The rows, but for those whose value could not be cast and is not in the quarantine: they are refused
    for the same reasons, and `lost` is told how many they are. `columns`: those that rows have today, where
    it is known; what `evolve` says has another name since comes under that.
    """
    rows = [_renamed(pipeline, row, columns) for row in control.read_quarantine(pipeline.name, ids)]
    if _may_lose(pipeline):
        reasons = control.read_reasons(pipeline.name, ids)
        gone = [_is_lost(pipeline, row, why) for row, why in zip(rows, reasons, strict=True)]
        if any(gone):
            kept = [(row, why) for row, why, is_gone in zip(rows, reasons, gone, strict=True) if is_gone]
            refuse([row for row, _ in kept], [why for _, why in kept])
            lost(len(kept))
            rows = [row for row, is_gone in zip(rows, gone, strict=True) if not is_gone]
    return batches_of(alike(rows), "the quarantine")


def _renamed(pipeline: Pipeline, row: dict[str, Any], columns: Collection[str]) -> dict[str, Any]:
    names = pipeline.evolve.renamed(row, columns)
    return {names.get(name, name): value for name, value in row.items()} if names else row


def alike(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows, in each column values of one kind: where one is a text that could not be cast, or NaN, and
    others are none, these are the texts that they have in JSON.
    """
    kinds: dict[str, set[type]] = {}
    for row in rows:
        for name, value in row.items():
            if value is not None:
                # To Arrow both are numbers.
                kinds.setdefault(name, set()).add(int if isinstance(value, float) else type(value))
    mixed = {name for name, found in kinds.items() if len(found) > 1}
    if not mixed:
        return rows
    return [{name: _text(value) if name in mixed else value for name, value in row.items()} for row in rows]


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _may_lose(pipeline: Pipeline) -> bool:
    columns = pipeline.columns
    if columns is None:
        return False
    masked = {name for name in columns.cast if columns.renamed(name) in columns.mask}
    return bool(masked) or "string" in columns.cast.values()


def _is_lost(pipeline: Pipeline, row: dict[str, Any], reasons: list[str]) -> bool:
    """Whether a value of a row that could not be cast is none any more: it was masked, or is base64 of bytes
    that are no text.
    """
    assert pipeline.columns is not None
    for old, kind in pipeline.columns.cast.items():
        name = pipeline.columns.renamed(old)
        if f"{name} cannot be cast to {kind}" not in reasons:
            continue
        value = row.get(name)
        if value is None and name in pipeline.columns.mask:
            return True
        if kind == "string" and isinstance(value, str) and _is_of_bytes(value):
            return True
    return False


def _is_of_bytes(text: str) -> bool:
    try:
        base64.b64decode(text, validate=True).decode()
    except UnicodeDecodeError:
        return True
    except (binascii.Error, ValueError):
        return False
    return False
