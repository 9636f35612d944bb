"""What becomes of a sink's columns when those of the rows change."""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import model_validator

from trunq.pipeline.definition.part import Part

Types = Literal["refuse", "widen", "quarantine"]

_TEXTS: Final[dict[str, dict[str, str]]] = {
    "add": {},
    "refuse": {"columns": "refuse"},
    "ignore": {"columns": "ignore"},
    "widen": {"types": "widen"},
    "quarantine": {"types": "quarantine"},
    "freeze": {"tables": "refuse", "columns": "refuse"},
}


class Evolve(Part):
    """A table that is not there is made, or refused (`tables`). A new column is added to the sink, refused,
    or ignored, or rows that have a value in it go to the quarantine (`columns`). A column that comes with
    another type is refused, or its type in the sink becomes one that holds both, or the values that the
    sink's type does not hold go to the quarantine with their rows (`types`); `column` says so for single
    ones.

    `partitions`: where the sink has other partitions than `partition_by` says, that is refused, or a run
    first rewrites the whole table.

    As text: `add`, `refuse` and `ignore` are about new columns, `widen` and `quarantine` add them, and say
    what becomes of types; with `freeze` nothing of the sink changes.
    """

    tables: Literal["add", "refuse"] = "add"
    columns: Literal["add", "refuse", "ignore", "quarantine"] = "add"
    types: Types = "refuse"
    column: dict[str, Types] = {}
    partitions: Literal["refuse", "rewrite"] = "refuse"

    @model_validator(mode="before")
    @classmethod
    def _of_text(cls, given: Any) -> Any:
        if not isinstance(given, str):
            return given
        if given not in _TEXTS:
            raise ValueError(f"{given!r:.60} is none of {', '.join(_TEXTS)}")
        return _TEXTS[given]

    @property
    def widens(self) -> bool:
        """Whether the type of any column may change."""
        return "widen" in (self.types, *self.column.values())

    @property
    def sorts(self) -> bool:
        """Whether rows may go to the quarantine for what the sink does not hold."""
        return "quarantine" in (self.columns, self.types, *self.column.values())

    def of_type(self, column: str) -> Types:
        """What becomes of a column that comes with another type."""
        return self.column.get(column, self.types)
