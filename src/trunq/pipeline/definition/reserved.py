"""Names of columns that trunq works with itself, beside those of the rows: which a pipeline cannot take."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from trunq.errors import InvalidPipeline
from trunq.pipeline.definition.change import DELETED_AT
from trunq.pipeline.definition.stamp import STAMPS

PREFIX: Final = "trunq "
"""How those begin that every pipeline has."""
_OF_JDBC: Final = ("trunq_part", "trunq_row")
_OF_VERSIONS: Final = ("valid_from", "valid_to")
_OF_CHECKS: Final = re.compile(r"_broken(_key_\d+)?")
_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")


def taken_by(pipeline: Any, name: str) -> str | None:
    """What of a pipeline has a column of this name, in either case; None: nothing has."""
    sink, name = pipeline.sink, name.lower()
    for is_taken, who in (
        (name.startswith(PREFIX), "as trunq's own are called"),
        (pipeline.stamp and name in STAMPS, "which stamp writes itself"),
        (getattr(sink, "mode", "") == "history" and name in _OF_VERSIONS, "which mode history writes itself"),
        (
            getattr(sink, "deletes", "hard") == "soft" and name == DELETED_AT,
            "in which the sink notes when a row was deleted",
        ),
        (sink.format == "jdbc" and name in _OF_JDBC, "as one of the stage is called"),
        (sink.format == "delta" and name == "trunq_blank", "as trunq's own is called"),
        (pipeline.is_marked and _OF_CHECKS.fullmatch(name) is not None, "which checks write themselves"),
    ):
        if is_taken:
            return who
    return None


def refused(pipeline: Any, names: Iterable[str]) -> tuple[str, str] | None:
    """The first name that is taken: why it is refused, and the way out."""
    for name in names:
        if (who := taken_by(pipeline, name)) is not None:
            key = name if _BARE.fullmatch(name) else f'"{name}"'
            return (
                f'rows have a column "{name}", {who}',
                f'give it another name: columns = {{ rename = {{ {key} = "..." }} }}, or by sql or a'
                " function",
            )
    return None


def require_free(pipeline: Any, names: Iterable[str]) -> None:
    """Refuse rows with a column that is taken. Raises InvalidPipeline."""
    if (found := refused(pipeline, names)) is not None:
        raise InvalidPipeline(f"pipeline {pipeline.name}: {found[0]}", found[1])
