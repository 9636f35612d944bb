"""Passwords stay out of errors: drivers repeat addresses in theirs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from urllib.parse import quote, quote_plus

from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict

from trunq.errors import TrunqError
from trunq.pipeline.definition.pipeline import Pipeline
from trunq.pipeline.errors import Wait


class Failed(TrunqError):
    """An error of a driver whose text had a secret in it; the name of its class stands in the text."""


def secrets(pipeline: Pipeline, *dsns: str) -> list[str]:
    """What must not be told of an expanded pipeline, and of further addresses, the longest first."""
    found: set[str] = set()
    if "http" in (pipeline.source.format, pipeline.sink.format):
        found |= {way for value in pipeline.variables.values() for way in ways(value)}
    for name, value in pipeline.variables.items():
        if name.startswith("credentials."):
            found |= {value, *ways(value)} - {""}
    if pipeline.columns is not None and pipeline.columns.salt:
        found |= set(ways(pipeline.columns.salt))
    stored = (pipeline.source, pipeline.sink, *pipeline.lookups.values())
    for storage in (getattr(part, "storage", None) for part in stored):
        if storage is not None:
            found |= {way for value in storage.secrets for way in ways(value)}
    for part in (pipeline.source, pipeline.sink):
        found |= {way for value in getattr(part, "secrets", ()) for way in (value, *ways(value))}
    found |= _of_addresses(pipeline, dsns)
    return sorted(found, key=len, reverse=True)


def _of_addresses(pipeline: Pipeline, dsns: tuple[str, ...]) -> set[str]:
    """Addresses of databases, and their passwords."""
    found: set[str] = set()
    references = [check.refers_to for check in pipeline.checks]
    parts = (pipeline.source, pipeline.sink, *pipeline.lookups.values(), *references)
    for dsn in (*(getattr(part, "dsn", None) for part in parts), *dsns):
        if not dsn:
            continue
        found.add(dsn)
        try:
            password = conninfo_to_dict(dsn).get("password")
        except ProgrammingError:
            continue
        if password:
            found.add(str(password))
    return found


def ways(value: str) -> list[str]:
    """The ways in which a secret is written: as it is, and in an address."""
    plain = value.strip()
    if len(plain) < _SHORTEST:
        return []
    return list(dict.fromkeys((plain, quote(plain, safe=""), quote_plus(plain), quote(plain))))


_SHORTEST: Final = 4
"""Characters; what is shorter stands in too many words."""


def redact(pipeline: Pipeline, text: str, *dsns: str) -> str:
    """A text without the secrets of a pipeline, and of further addresses."""
    for secret in secrets(pipeline, *dsns):
        text = text.replace(secret, "***")
    return text


@contextmanager
def redacted(pipeline: Pipeline, *dsns: str) -> Iterator[None]:
    """Raises an error that tells a secret as one that does not.

    What is ours stays what it is: who catches it goes by its class.
    """
    try:
        yield
    except Exception as error:
        text = str(error)
        if (told := redact(pipeline, text, *dsns)) == text:
            raise
        if isinstance(error, TrunqError):
            error.message = redact(pipeline, error.message, *dsns)
            error.hint = error.hint and redact(pipeline, error.hint, *dsns)
            error.args = (error.message,)
        elif isinstance(error, Wait):
            error.args = (told,)
        else:
            raise Failed(f"{type(error).__name__}: {told}") from None
        raise error from None
