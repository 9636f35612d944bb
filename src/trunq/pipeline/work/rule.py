"""Checks: one more column, of the rules that Spark finds a row to break; and what becomes of such a row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from trunq.arrow.batch import plain_rows_of
from trunq.arrow.value import to_json
from trunq.errors import InvalidPipeline
from trunq.pipeline.definition.change import GONE, OP
from trunq.pipeline.definition.check import Check
from trunq.pipeline.definition.pipeline import Pipeline
from trunq.pipeline.errors import CheckFailed

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

BROKEN: Final = "_broken"
_SHOWN: Final = 500


def marked(pipeline: Pipeline, frame: DataFrame, schema: pa.Schema) -> DataFrame:
    """The frame with the column of broken rules last, of those that Spark finds; without such, itself.

    An expression that is null is broken. `schema`: the columns as the sink takes them.
    """
    from pyspark.sql import functions  # noqa: PLC0415  # needs a session

    from trunq.pipeline.work.spread import with_twins  # noqa: PLC0415

    if not pipeline.is_marked:
        return frame
    broken = [_expression(pipeline, check, frame) for check in pipeline.checks if check.holds]
    names = functions.array_compact(functions.array(*broken))
    made = frame.select("*", names.alias(BROKEN)) if broken else frame
    if not any(check.unique for check in pipeline.checks):
        return made
    return with_twins(pipeline, frame, made, schema)


def _expression(pipeline: Pipeline, check: Check, frame: DataFrame) -> Column:
    """The name of a check where its expression does not hold."""
    from pyspark.sql import functions  # noqa: PLC0415
    from pyspark.sql.types import BooleanType  # noqa: PLC0415

    from trunq.pipeline.work.statement import parsed  # noqa: PLC0415

    expression = functions.expr(check.holds or "")
    with parsed(pipeline, f"check {check.name!r}"):
        kind = frame.select("*", expression.alias(BROKEN)).schema[BROKEN].dataType
    if not isinstance(kind, BooleanType):
        raise InvalidPipeline(
            f"pipeline {pipeline.name}: check {check.name!r} is {kind.simpleString()}, neither true nor"
            f" false: {check.holds}"
        )
    holds = functions.coalesce(expression, functions.lit(False))
    return functions.when(~holds, functions.lit(check.name))


@dataclass(slots=True)
class Sorter:
    """Sorts out the rows of a task: those that are written, and those that broke a rule."""

    checks: Sequence[Check]
    refuse: Callable[[list[Any], list[list[str]]], None]
    of_changes: bool = False
    """Whether rows say what became of them: one that is gone breaks no rule, or the sink would keep it."""
    broken: Counter[str] = field(default_factory=Counter)
    """How many rows broke which rule."""
    failed: dict[str, str] | None = None
    """The first rule that fails the run, and a row that broke it."""

    def sort(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """What is to be written of a batch whose last column is that of broken rules."""
        rows = batch.select(list(range(batch.num_columns - 1)))
        return self.sort_by(rows, {}, batch.column(batch.num_columns - 1))

    def sort_by(
        self, rows: pa.RecordBatch, broken: Mapping[str, pa.Array], names: pa.Array | None = None
    ) -> pa.RecordBatch:
        """What is to be written of rows, of which these break rules: by the rule, and by the row."""
        masks = list(broken.values())
        if names is not None:
            masks.append(pc.greater(pc.list_value_length(names), 0))
        wrong = reduce(pc.or_, masks) if masks else pa.repeat(pa.scalar(False), rows.num_rows)
        if self.of_changes and OP in rows.schema.names:
            wrong = pc.and_not(wrong, pc.is_in(rows.column(OP), pa.array(GONE)))
        if not pc.any(wrong, min_count=0).as_py():
            return rows
        otherwise = {check.name: check.otherwise for check in self.checks}
        written = [True] * rows.num_rows
        kept: list[int] = []
        reasons: list[list[str]] = []
        for at in pc.indices_nonzero(wrong).to_pylist():
            found = {name for name, mask in broken.items() if mask[at].as_py()}
            found.update(() if names is None else names[at].as_py())
            by = [name for name in otherwise if name in found]
            self.broken.update(by)
            answers = {otherwise[name] for name in by}
            written[at] = answers == {"warn"}
            if "fail" in answers and self.failed is None:
                name = next(name for name in by if otherwise[name] == "fail")
                self.failed = {
                    "check": name,
                    "row": to_json(plain_rows_of(rows.slice(at, 1))[0])[:_SHOWN],
                }
            elif "quarantine" in answers:
                kept.append(at)
                reasons.append([name for name in by if otherwise[name] != "warn"])
        if kept and self.failed is None:
            self.refuse(plain_rows_of(rows.take(pa.array(kept))), reasons)
        return rows.filter(pa.array(written))


def check_failed(pipeline: str, failed: Mapping[str, str]) -> CheckFailed:
    """The error of a check that fails the run."""
    return CheckFailed(f"pipeline {pipeline}: a row broke the check {failed['check']!r}: {failed['row']}")
