"""Changes of a table, deletes too: which sources give them, which sinks take them, and what goes together."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Literal, Self

from pydantic import Field, model_validator

from trunq.errors import InvalidPipeline
from trunq.pipeline.definition.part import Part

OP: Final = "_op"
CHANGED_AT: Final = "_changed_at"
DELETED_AT: Final = "deleted_at"
"""When a row was deleted that a sink with `deletes = "soft"` keeps."""

GONE: Final = ("delete", "truncate")
"""What `_op` says of rows that are not there any more: rules ask nothing of these."""

OWN: Final = (OP, CHANGED_AT)
"""Columns that captured rows have beside those of their table."""

_WITHOUT_DELETES: Final = ("upsert", "history")
_OF_ALL: Final = ("replace", "replace_partitions")


class Applying(Part):
    """A sink that deletes: what its source deleted (`mode = "apply"`), or has no longer (`missing`).

    `deletes = "soft"` keeps such rows with the time in `deleted_at`; a history ends their open version.
    `max_missing`: the share of the rows of the sink that a run may find missing.
    """

    deletes: Literal["hard", "soft"] = "hard"
    missing: Literal["keep", "delete"] = "keep"
    max_missing: float = Field(0.5, ge=0, le=1)

    @model_validator(mode="after")
    def _deleting(self) -> Self:
        mode = getattr(self, "mode", "")
        if self.missing == "delete" and mode not in _WITHOUT_DELETES:
            raise ValueError(f"missing = 'delete' is for the modes upsert and history, not for {mode}")
        if self.deletes == "soft" and mode == "history":
            raise ValueError(
                "deletes = 'soft' is not for mode = 'history', which keeps what is gone up to its valid_to:"
                " leave it out"
            )
        if self.deletes == "soft" and mode != "apply" and self.missing == "keep":
            raise ValueError(
                "deletes = 'soft' says what becomes of deleted rows, and none are: that is for mode ="
                " 'apply', or missing = 'delete'"
            )
        if "max_missing" in self.model_fields_set and self.missing == "keep":
            raise ValueError("max_missing goes with missing = 'delete'")
        if mode == "apply" and getattr(self, "newest", None):
            raise ValueError("newest is not for mode = 'apply': changes come in the order of their commits")
        return self


def is_read_whole(source: Any) -> bool:
    """Whether each run has all that a source has."""
    if source.format == "http":
        # Of a list's items, those that fail may be left out.
        return source.since is None and source.each is None
    return getattr(source, "changes", None) == "all"


def gives_changes(source: Any) -> bool:
    """Whether a source gives changes, deletes too."""
    return getattr(source, "changes", None) == "capture"


def require_changes(source: Any, sink: Any) -> None:
    """Refuse a source and a sink that do not go together. Raises ValueError."""
    mode = getattr(sink, "mode", "append")
    if mode == "apply" and not gives_changes(source):
        raise ValueError(
            "mode = 'apply' takes changes, and this source gives none: write changes = 'capture' in a source"
            " with format = 'table', or mode = 'upsert' in sink"
        )
    if gives_changes(source) and mode in _WITHOUT_DELETES:
        raise ValueError(
            f"mode = '{mode}' would lose the deletes of changes = 'capture': write mode = 'apply' in sink"
        )
    if gives_changes(source) and mode in _OF_ALL:
        raise ValueError(
            f"a run brings the changes of the table alone, and mode = '{mode}' would drop the rest: write"
            " mode = 'apply' in sink"
        )
    if getattr(sink, "missing", "keep") == "delete" and not is_read_whole(source):
        raise ValueError(
            "missing = 'delete' needs a source that is read whole each time: write changes = 'all' in a"
            " source with format = 'table', or format = 'http' without since and each"
        )


def require_all(pipeline: Any, slice: dict[str, Any], backfill: int) -> None:
    """Refuse some of the rows of a source for a sink that would drop the others: when the run began, it had
    another mode. Raises InvalidPipeline.
    """
    mode = getattr(pipeline.sink, "mode", "")
    is_part = "quarantine" in slice or ("range" in slice and mode == "replace")
    if mode in _OF_ALL and is_part:
        raise InvalidPipeline(
            f"pipeline {pipeline.name}: the run has a part of the rows, and mode = '{mode}' would drop the"
            " others",
            "give the sink the mode back that it had when the run began, or end the run: trunq pipeline"
            f" cancel {pipeline.name}{f' --backfill {backfill}' if backfill else ''}",
        )


def dropping(sink: Any) -> str | None:
    """What of a sink has its rows go that the source does not have; None: nothing."""
    mode = getattr(sink, "mode", "")
    if mode in (*_OF_ALL, "apply"):
        return f"mode = '{mode}'"
    return "missing = 'delete'" if getattr(sink, "missing", "keep") == "delete" else None


def key_of(pipeline: Any, slice: dict[str, Any]) -> list[str]:
    """The columns that name a row in the sink: those it names, else, where changes are applied, the primary
    key that the slice tells.
    """
    given: list[str] = list(getattr(pipeline.sink, "key", None) or ())
    if given or getattr(pipeline.sink, "mode", "") != "apply":
        return given
    columns = pipeline.columns
    return [name if columns is None else columns.renamed(name) for name in slice.get("key", ())]


def masked(pipeline: Any, key: Iterable[str]) -> str | None:
    """What is wrong with a key of which the steps of columns leave nothing; None: nothing is."""
    if pipeline.columns is None or pipeline.sql or pipeline.transform or pipeline.function:
        return None
    name = next((name for name in key if pipeline.columns.mask.get(name) == "null"), None)
    return name and (
        f'mask puts null into "{name}", by which the sink finds a row: write mask = {{ {name} = "hash" }}'
        " with a salt, which keeps rows apart, or take another key"
    )


def require_unmasked(pipeline: Any, key: Iterable[str]) -> None:
    """Refuse a key of which the steps of columns leave nothing. Raises InvalidPipeline."""
    if (mistake := masked(pipeline, key)) is not None:
        raise InvalidPipeline(f"pipeline {pipeline.name}: {mistake}")


def is_whole(slice: dict[str, Any]) -> bool:
    """Whether a slice has all rows of its source."""
    return bool(slice.get("all") or slice.get("snapshot"))
