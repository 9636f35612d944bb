"""Lengths of time in a model: read as everywhere, written in ISO 8601."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer

from trunq.wire import duration as spans


def read_duration(value: Any) -> timedelta:
    """A length of time from text, a number of seconds or a timedelta; it is not negative.

    Raises ValueError for anything else.
    """
    if isinstance(value, timedelta):
        span = value
    elif isinstance(value, int | float) and not isinstance(value, bool):
        span = timedelta(seconds=value)
    elif isinstance(value, str):
        span = spans.read(value)
    else:
        raise ValueError(f"{value!r} is no length of time: {spans.HOW}")
    if span < timedelta(0):
        raise ValueError(f"a length of time is not negative: {value!r}")
    return span


def write_duration(span: timedelta) -> str:
    """The length of time in ISO 8601."""
    seconds = span.seconds + span.microseconds / 1_000_000
    days = f"{span.days}D" if span.days else ""
    time = f"T{seconds:.6f}".rstrip("0").rstrip(".") + "S" if seconds or not days else ""
    return f"P{days}{time}"


Span = Annotated[timedelta, BeforeValidator(read_duration), PlainSerializer(write_duration)]
"""A field of a model."""
