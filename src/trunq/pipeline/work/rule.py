"""Checks: one more column, the names of the rules that a row breaks; and what becomes of such a row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from trunq.arrow.batch import plain_rows
from trunq.arrow.value import to_json
from trunq.errors import InvalidPipeline
from trunq.pipeline.definition.check import Check
from trunq.pipeline.definition.pipeline import Pipeline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BROKEN: Final = "_broken"
_SHOWN: Final = 500


def marked(pipeline: Pipeline, frame: DataFrame) -> DataFrame:
    """The frame with the column of broken rules last; without checks, itself. Null is broken."""
    from pyspark.sql import functions  # noqa: PLC0415  # needs a session
    from pyspark.sql.types import BooleanType  # noqa: PLC0415

    from trunq.pipeline.work.statement import parsed  # noqa: PLC0415

    if not pipeline.checks:
        return frame
    if BROKEN in frame.columns:
        raise InvalidPipeline(
            f'pipeline {pipeline.name}: rows have a column "{BROKEN}", which checks write themselves',
            "give it another name in sql",
        )
    broken = []
    for check in pipeline.checks:
        expression = functions.expr(check.holds)
        with parsed(pipeline, f"check {check.name!r}"):
            kind = frame.select("*", expression.alias(BROKEN)).schema[BROKEN].dataType
        if not isinstance(kind, BooleanType):
            raise InvalidPipeline(
                f"pipeline {pipeline.name}: check {check.name!r} is {kind.simpleString()}, neither true nor"
                f" false: {check.holds}"
            )
        holds = functions.coalesce(expression, functions.lit(False))
        broken.append(functions.when(~holds, functions.lit(check.name)))
    names = functions.array_compact(functions.array(*broken))
    return frame.select("*", names.alias(BROKEN))


@dataclass(slots=True)
class Sorter:
    """Sorts out the rows of a task: those that are written, and those that broke a rule."""

    checks: Sequence[Check]
    refuse: Callable[[list[Any], list[list[str]]], None]
    broken: Counter[str] = field(default_factory=Counter)
    """How many rows broke which rule."""
    failed: dict[str, str] | None = None
    """The first rule that fails the run, and a row that broke it."""

    def sort(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """What is to be written of a batch whose last column is that of broken rules."""
        names = batch.column(batch.num_columns - 1)
        rows = batch.select(list(range(batch.num_columns - 1)))
        wrong = pc.greater(pc.list_value_length(names), 0)
        if not pc.any(wrong, min_count=0).as_py():
            return rows
        otherwise = {check.name: check.otherwise for check in self.checks}
        written = [True] * batch.num_rows
        kept: list[int] = []
        reasons: list[list[str]] = []
        for at in pc.indices_nonzero(wrong).to_pylist():
            by = names[at].as_py()
            self.broken.update(by)
            answers = {otherwise[name] for name in by}
            written[at] = answers == {"warn"}
            if "fail" in answers and self.failed is None:
                name = next(name for name in by if otherwise[name] == "fail")
                self.failed = {
                    "check": name,
                    "row": to_json(rows.slice(at, 1).to_pylist(maps_as_pydicts="lossy")[0])[:_SHOWN],
                }
            elif "quarantine" in answers:
                kept.append(at)
                reasons.append([name for name in by if otherwise[name] != "warn"])
        if kept and self.failed is None:
            self.refuse(plain_rows(rows.take(pa.array(kept)).to_pylist(maps_as_pydicts="lossy")), reasons)
        return rows.filter(pa.array(written))
