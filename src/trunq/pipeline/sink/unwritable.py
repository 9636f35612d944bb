"""What Postgres says when it does not take rows, in a sentence that names the sink and the way out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from trunq.connection.backoff import first_line
from trunq.pipeline.errors import SinkUnwritable

_RIGHT: Final = "42501"
_NO_TABLE: Final = "42P01"
_NO_COLUMN: Final = "42703"
_NO_ROOM: Final = "53100"
_NO_FIT: Final = ("22", "23")
_AGAIN: Final = "; nothing of this run is in the sink, and it is tried again"


@contextmanager
def named_by_postgres(pipeline: str, target: str) -> Iterator[None]:
    """Raises SinkUnwritable for a right that is missing, a table or a column that is gone, a full disk, and
    values that the table refuses.
    """
    try:
        yield
    except Exception as error:
        if (told := _unwritable(pipeline, target, error)) is None:
            raise
        raise told from error


def _unwritable(pipeline: str, target: str, error: Any) -> SinkUnwritable | None:
    """Of an error of psycopg, or of ADBC."""
    state = getattr(error, "sqlstate", None) or ""
    why = first_line(error)
    if state == _RIGHT:
        return SinkUnwritable(
            f"pipeline {pipeline} may not write to {target}: {why}", f"grant the right{_AGAIN}"
        )
    if state == _NO_TABLE:
        return SinkUnwritable(
            f"pipeline {pipeline}: a table was dropped while a run wrote to {target}: {why}",
            f"tables of a sink are made when a run begins{_AGAIN}",
        )
    if state == _NO_COLUMN:
        return SinkUnwritable(
            f"pipeline {pipeline}: a column of {target} got another name, or was dropped, while a run wrote"
            f" to it: {why}",
            f"a run begins with the columns that the table has{_AGAIN}",
        )
    if state == _NO_ROOM:
        return SinkUnwritable(
            f"pipeline {pipeline}: the server of {target} has no room on its disk: {why}",
            f"make room{_AGAIN}",
        )
    if state[:2] in _NO_FIT:
        return SinkUnwritable(
            f"pipeline {pipeline}: {target} refuses a row: {why}",
            "keep such rows out by a check or a function, or change the table",
        )
    return None
