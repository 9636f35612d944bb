"""The credentials of a value of `per`, asked for at each run, and kept nowhere."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trunq.errors import InvalidPipeline
from trunq.pipeline.definition.credentials import Credentials
from trunq.pipeline.source.function import find_function


def credentials_of(pipeline: str, model: Credentials, value: str) -> dict[str, str]:
    """They, by their names. Raises InvalidPipeline, without anything of them."""
    if model.from_ == "env":
        return _of_environment(pipeline, model.prefix or "", value)
    if model.from_ == "file":
        return _texts(pipeline, _of_file(pipeline, Path(model.path or ""), value), str(model.path))
    function = find_function(pipeline, model.function or "")
    try:
        given = function(value)
    except Exception as error:
        # Its text may have what nobody is to read.
        raise InvalidPipeline(
            f"pipeline {pipeline}: {model.function} gives no credentials of {value!r}: {type(error).__name__}"
        ) from None
    return _texts(pipeline, given, str(model.function))


def _of_environment(pipeline: str, prefix: str, value: str) -> dict[str, str]:
    if not re.fullmatch(r"[a-z0-9_]+", value):
        raise InvalidPipeline(
            f"pipeline {pipeline}: no variable of the environment can be named by {value!r}, as another value"
            " would have the same",
            "give the credentials by from = 'file' or from = 'function'",
        )
    start = f"{prefix}{value.upper()}__"
    found = {
        name.removeprefix(start).lower(): text
        for name, text in os.environ.items()
        # The last two underscores end the value: a name has none of them in it, and begins with a letter.
        if name.startswith(start) and re.fullmatch(r"[A-Z](_?[A-Z0-9])*", name.removeprefix(start))
    }
    if not found:
        raise InvalidPipeline(
            f"pipeline {pipeline}: the environment of this process has no {start}...",
            f"start it with {start}TOKEN=... for ${{credentials.token}}",
        )
    return found


def _of_file(pipeline: str, path: Path, value: str) -> Any:
    try:
        text = path.read_text(encoding="utf-8")
        read = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except (OSError, ValueError) as error:
        # A parser's message may have a piece of the text.
        why = (
            error.strerror
            if isinstance(error, OSError) and error.strerror
            else f"it is no {path.suffix[1:].upper()}"
        )
        raise InvalidPipeline(
            f"pipeline {pipeline}: the credentials in {path} cannot be read: {why}"
        ) from None
    if not isinstance(read, Mapping) or value not in read:
        raise InvalidPipeline(
            f"pipeline {pipeline}: {path} has no credentials of {value!r}",
            f'it has a table of that name: ["{value}"]',
        )
    return read[value]


def _texts(pipeline: str, given: Any, where: str) -> dict[str, str]:
    if not isinstance(given, Mapping) or not all(isinstance(each, str | int) for each in given.values()):
        raise InvalidPipeline(f"pipeline {pipeline}: the credentials of {where} are not a dict of texts")
    return {str(name): str(each) for name, each in given.items()}
