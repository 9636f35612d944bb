"""Pipelines read from what was written: a definition, a TOML file."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trunq.errors import InvalidPipeline
from trunq.pipeline.definition.pipeline import Pipeline


def read_definition(name: str, definition: Mapping[str, Any]) -> Pipeline:
    """A pipeline from its definition. Raises InvalidPipeline."""
    if not isinstance(definition, Mapping):
        raise InvalidPipeline(f"pipeline {name} is {definition!r:.50}, not a table of keys")
    return Pipeline(name, **{key: value for key, value in definition.items() if key != "name"})


def load(path: str | Path) -> list[Pipeline]:
    """The pipelines of a TOML file, `[pipeline.<name>]` each, those first that others run after themselves.

    Raises InvalidPipeline.
    """
    try:
        text = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidPipeline(f"the file {path} cannot be read: {_reason(error)}") from error
    tables = text.get("pipeline")
    if not isinstance(tables, dict) or not tables or set(text) != {"pipeline"}:
        raise InvalidPipeline(
            f"the file {path} has no pipeline, or has something beside them",
            "each begins with [pipeline.NAME]",
        )
    found = {name: read_definition(name, body) for name, body in tables.items()}
    ordered: dict[str, Pipeline] = {}

    def add(pipeline: Pipeline, way: tuple[str, ...]) -> None:
        if pipeline.name in way:
            raise InvalidPipeline(
                f"pipeline {pipeline.name} would run after itself: {' -> '.join((*way, pipeline.name))}"
            )
        for name in pipeline.then:
            if name in found and name not in ordered:
                add(found[name], (*way, pipeline.name))
        ordered.setdefault(pipeline.name, pipeline)

    for pipeline in found.values():
        add(pipeline, ())
    return list(ordered.values())


def _reason(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)
