"""What is wrong with a definition, in a sentence."""

from __future__ import annotations

import difflib
import re
from typing import Any, Final, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from trunq.errors import InvalidPipeline
from trunq.pipeline.definition.check import DeltaLookup, FileLookup, TableLookup
from trunq.pipeline.definition.sink import Sink
from trunq.pipeline.definition.source import Source


def invalid(model: type[BaseModel], name: str, error: ValidationError) -> InvalidPipeline:
    """The first mistake in a sentence."""
    # A key that is not known is most likely the one that is missing.
    first = min(error.errors(include_url=False), key=lambda each: each["type"] != "extra_forbidden")
    # After source and sink the location names the format, too.
    path = [str(part) for at, part in enumerate(first["loc"]) if at != 1 or part not in _FORMATS]
    return InvalidPipeline(f"pipeline {name:.60}: {_sentence(model, first, path)}")


_PARTS: Final[dict[str, tuple[type[BaseModel], ...]]] = {
    "source": get_args(get_args(Source)[0]),
    "sink": get_args(get_args(Sink)[0]),
    "lookups": (FileLookup, DeltaLookup, TableLookup),
}


def _formats(model: type[BaseModel]) -> tuple[str, ...]:
    return get_args(model.model_fields["format"].annotation)


_FORMATS: Final = {name for models in _PARTS.values() for model in models for name in _formats(model)}


def _sentence(model: type[BaseModel], first: ErrorDetails, path: list[str]) -> str:
    where, kind = ".".join(path), first["type"]
    if kind == "extra_forbidden":
        known = _keys(model, path[:-1], first["loc"])
        near = difflib.get_close_matches(path[-1], known, 1)
        return f"there is no {where}" + (
            f"; is it {near[0]}?" if near else f"; keys here: {', '.join(known)}"
        )
    if kind == "missing":
        return f"{where} is missing"
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        context = first.get("ctx", {})
        known = re.findall(r"'(\w+)'", str(context.get("expected_tags", "")))
        tag = str(context.get("tag", ""))
        near = difflib.get_close_matches(tag, known, 1)
        if not tag:
            return f"{where}.format is missing" + (f": one of {', '.join(known)}" if known else "")
        return f"{where}.format is {tag!r}, which there is not: " + (
            f"is it {near[0]}?" if near else f"one of {', '.join(known)}"
        )
    if kind in ("model_attributes_type", "model_type"):
        return f"{where} is {first['input']!r:.60}, not a table of keys: {where} = {{...}}"
    said = first["msg"].removeprefix("Value error, ")
    return f"{where}: {said}" if where else said


def _keys(model: type[BaseModel], path: list[str], location: tuple[int | str, ...]) -> list[str]:
    """The keys that a part has, which is found by the format of the part that it is in."""
    if path and path[0] in ("checks", "lookups"):
        # Without the place in the list, or name and format.
        path = [path[0], *path[2 if path[0] == "checks" else 3 :]]
    for at, name in enumerate(path):
        if at == 0 and name in _PARTS:
            format = location[2 if name == "lookups" else 1]
            found = [each for each in _PARTS[name] if format in _formats(each)]
        else:
            found = _models(model.model_fields[name].annotation) if name in model.model_fields else []
        if not found:
            return []
        model = found[0]
    return [field.alias or name for name, field in model.model_fields.items()]


def _models(annotation: Any) -> list[Any]:
    """The models in a type."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for each in get_args(annotation) for model in _models(each)]
