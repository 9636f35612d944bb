"""sql and transform: from DataFrame to DataFrame, on the driver, before a row is read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame

from trunq.errors import InvalidPipeline
from trunq.pipeline.definition.pipeline import Pipeline
from trunq.pipeline.source import Context
from trunq.pipeline.source.function import find_function, wants_context
from trunq.pipeline.work.reason import first_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PLANS = "org.apache.spark.sql.catalyst.plans.logical"
_COMMANDS = (f"{_PLANS}.Command", f"{_PLANS}.ParsedStatement", f"{_PLANS}.CompoundBody")


def require_queries(session: SparkSession, pipeline: Pipeline) -> None:
    """Refuse sql that is no query, checks that are no expressions, and a transform that is not there.

    Nothing is looked up: which columns there are is known later.
    """
    parser = session._jsparkSession.sessionState().sqlParser()
    for number, text in enumerate(pipeline.sql, 1):
        with parsed(pipeline, f"statement {number} of sql"):
            plan = parser.parsePlan(text)
        if any(_is_a(session, plan, name) for name in _COMMANDS):
            raise InvalidPipeline(
                f"pipeline {pipeline.name}: statement {number} of sql is no query, but"
                f" {plan.getClass().getSimpleName()}",
                "each statement is a select, which sees what the one before gave as input",
            )
    for check in pipeline.checks:
        if check.holds:
            with parsed(pipeline, f"check {check.name!r}"):
                parser.parseExpression(check.holds)
    if pipeline.transform is not None:
        find_function(pipeline.name, pipeline.transform)


def transformed(session: SparkSession, pipeline: Pipeline, frame: DataFrame, context: Context) -> DataFrame:
    """What sql and transform make of a frame. The session is this run's alone: views in it are its own."""
    for name, lookup in context.lookups.items():
        lookup.createTempView(name)
    message = {"message": json.dumps(context.message)}
    for number, text in enumerate(pipeline.sql, 1):
        session.catalog.dropTempView("input")
        frame.createTempView("input")
        with parsed(pipeline, f"statement {number} of sql"):
            frame = session.sql(text, message)
    if pipeline.transform is None:
        return frame
    function = find_function(pipeline.name, pipeline.transform)
    given: Any = function(frame, context) if wants_context(function) else function(frame)
    if not isinstance(given, DataFrame):
        raise InvalidPipeline(
            f"pipeline {pipeline.name}: transform {pipeline.transform} gave {_a(given)}, not a DataFrame"
        )
    if given.isStreaming:
        raise InvalidPipeline(f"pipeline {pipeline.name}: transform {pipeline.transform} gave a stream")
    return given


@contextmanager
def parsed(pipeline: Pipeline, what: str) -> Iterator[None]:
    """Says what of a pipeline Spark cannot read, or where it names what is not there."""
    try:
        yield
    except (ParseException, AnalysisException) as error:
        raise InvalidPipeline(f"pipeline {pipeline.name}: {what}: {first_line(error)}") from None


def _is_a(session: SparkSession, plan: Any, name: str) -> bool:
    java: Any = session.sparkContext._jvm
    return bool(java.java.lang.Class.forName(name).isInstance(plan))


def _a(given: Any) -> str:
    return "nothing" if given is None else f"a {type(given).__name__}"
