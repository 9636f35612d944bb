"""A Python function as a source."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from trunq.arrow.batch import batches_of
from trunq.errors import InvalidPipeline
from trunq.pipeline.control import Control
from trunq.pipeline.definition.pipeline import Pipeline
from trunq.pipeline.definition.source import FunctionSource as Model
from trunq.pipeline.source import Context, Plan, Source, State


def find_function(pipeline: str, name: str) -> Callable[..., Any]:
    """The function `module:name`. Raises InvalidPipeline where there is none."""
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise InvalidPipeline(f"pipeline {pipeline}: {name!r} names no function", "write module:name")
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise InvalidPipeline(
            f"pipeline {pipeline}: {name} is not found here: {error}",
            "start the runner where the module can be imported",
        ) from error
    if not callable(found):
        raise InvalidPipeline(f"pipeline {pipeline}: {name} is no function")
    return found  # type: ignore[no-any-return]


def wants_context(function: Callable[..., Any]) -> bool:
    """Whether a function that is given rows has a second parameter."""
    return len(inspect.signature(function).parameters) > 1


class FunctionSource(Source):
    """A function that yields rows."""

    def __init__(self, pipeline: Pipeline, dsn: str, control: Control) -> None:  # noqa: ARG002  # as all sources
        assert isinstance(pipeline.source, Model)
        self._function = find_function(pipeline.name, pipeline.source.function)
        self._is_mixed = pipeline.evolve.sorts
        self._what = f"pipeline {pipeline.name}: function {pipeline.source.function}"

    def plan(self, state: State) -> Plan:
        # What there is, only the function knows, and where it then stands when it has ended.
        return Plan({"state": state}, None)

    def plan_range(self, range: dict[str, Any]) -> dict[str, Any]:
        return {"state": {}, "range": range}

    def read(self, slice: dict[str, Any], context: Context) -> Iterator[pa.RecordBatch]:
        context.state = dict(slice["state"])
        context.range = slice.get("range")
        for batch in batches_of(self._function(context), self._what, is_mixed=self._is_mixed):
            context.check()
            yield batch

    def release(self, state: State) -> None:
        """What the function keeps is its own."""
