"""What all parts of a pipeline have in common."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, Final

from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict
from pydantic import BaseModel, ConfigDict, field_validator

from trunq.errors import InvalidPipeline

VARIABLE: Final = re.compile(
    r"\$(\$?)\{([A-Za-z_][A-Za-z0-9_]*|(?:message|credentials)(?:\.[A-Za-z_][A-Za-z0-9_]*)+)\}"
)
"""`${NAME}`, or `$${NAME}` for the text itself; `fill` takes those with dots."""

is_expanded: Final = ContextVar("is_expanded", default=False)
"""Whether what is read is for a run, with its passwords."""


class Part(BaseModel):
    """A part: unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


def directory_of(pattern: str) -> str:
    """The directory that files of a pattern are in, or below."""
    return os.path.dirname(re.split(r"[*?[]", os.path.abspath(pattern), maxsplit=1)[0])


def without_password(dsn: str | None) -> str | None:
    """An address. Raises ValueError for one with a password in it, unless that is a variable."""
    try:
        password = conninfo_to_dict(dsn or "").get("password")
    except ProgrammingError:
        # ${NAME} stands for a whole address, or for its password between @ and :.
        password = None
    if password and not is_expanded.get() and not VARIABLE.search(str(password)):
        raise ValueError(
            "a password does not belong into a pipeline, which lies in the database as it is written: put the"
            " address into an environment variable and write dsn = '${NAME}'"
        )
    return dsn


def expand(pipeline: str, value: Any, variables: Mapping[str, str]) -> Any:
    """A value with what `${NAME}` stands for in its texts. Raises InvalidPipeline."""
    if isinstance(value, dict):
        return {key: expand(pipeline, each, variables) for key, each in value.items()}
    if isinstance(value, list):
        return [expand(pipeline, each, variables) for each in value]
    if not isinstance(value, str):
        return value

    def known(found: re.Match[str]) -> str:
        if "." in found[2]:
            return found[0]
        if found[1]:
            return found[0][1:]
        if found[2] not in variables:
            raise InvalidPipeline(
                f"pipeline {pipeline} names ${{{found[2]}}}, which is not in the environment of this process",
                f"start it with {found[2]}=...",
            )
        return variables[found[2]]

    return VARIABLE.sub(known, value)


def plain_value(value: Any) -> Any:
    """A value that TOML, JSON and columns have. Raises ValueError for others."""
    if isinstance(value, str | bool | int | float):
        return value
    raise ValueError(f"{value!r:.60} is neither text, nor a number, nor true or false")


class InPostgres(Part):
    """A part that lies in a database of Postgres."""

    dsn: str | None = None
    """Address; None: the database of trunq."""

    _check_dsn = field_validator("dsn")(without_password)
