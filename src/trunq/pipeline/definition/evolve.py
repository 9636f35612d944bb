"""What becomes of a sink's columns when those of the rows change."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Literal

from pydantic import field_validator, model_validator

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

    `rename`: columns of the sink, with the names that they get when rows have these and not the old ones.

    `partitions`: where the sink has other partitions than `partition_by` says, that is refused, or a run
    first rewrites the whole table.

    As text: `add`, `refuse` and `ignore` are about new columns, `widen` and `quarantine` add them, and say
    what becomes of types; with `freeze` nothing of the sink changes.
    """

    tables: Literal["add", "refuse"] = "add"
    columns: Literal["add", "refuse", "ignore", "quarantine"] = "add"
    types: Types = "refuse"
    column: dict[str, Types] = {}
    rename: dict[str, str] = {}
    partitions: Literal["refuse", "rewrite"] = "refuse"

    @model_validator(mode="before")
    @classmethod
    def _of_text(cls, given: Any) -> Any:
        if not isinstance(given, str):
            return given
        if given not in _TEXTS:
            raise ValueError(f"{given!r:.60} is none of {', '.join(_TEXTS)}")
        return _TEXTS[given]

    @field_validator("rename")
    @classmethod
    def _one_name_each(cls, value: dict[str, str]) -> dict[str, str]:
        for old, new in value.items():
            if new in value or list(value.values()).count(new) > 1:
                raise ValueError(
                    f"rename has {new!r:.60} twice: one column has one new name, which no other has or had"
                )
            if not old or not new or len(new.encode()) > 63:
                raise ValueError(f"rename of {old!r:.60}: a name has 1 to 63 bytes")
        return value

    @property
    def widens(self) -> bool:
        """Whether the type of any column may change."""
        return "widen" in (self.types, *self.column.values())

    @property
    def sorts(self) -> bool:
        """Whether rows may go to the quarantine for what the sink does not hold."""
        return "quarantine" in (self.columns, self.types, *self.column.values())

    def renamed(self, there: Iterable[str], given: Iterable[str]) -> dict[str, str]:
        """Which columns that a sink has get a new name for rows with these."""
        had, comes = set(there), set(given)
        return {
            old: new
            for old, new in self.rename.items()
            if old in had and new not in had and new in comes and old not in comes
        }

    def gone(self, there: Iterable[str]) -> dict[str, None]:
        """The old names of columns that a sink has under their new ones."""
        had = set(there)
        return {old: None for old, new in self.rename.items() if new in had and old not in had}

    def of_type(self, column: str) -> Types:
        """What becomes of a column that comes with another type."""
        return self.column.get(column, self.types)
