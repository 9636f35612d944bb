"""What the database refused, as the driver below another library tells it."""

from __future__ import annotations

from typing import Any

from trunq.errors import Diagnosis, TrunqError, translate_diagnosis
from trunq.wire.call import unreadable


def refusal(error: BaseException | None) -> TrunqError | None:
    """The error of ours that a driver's stands for, or None when it is none of ours."""
    told = _diagnosis(error)
    if told is None:
        return None
    return translate_diagnosis(told) or (unreadable(told) if told.sqlstate[:2] == "22" else None)


def sqlstate(error: BaseException | None) -> str | None:
    """The SQLSTATE of an error of a driver."""
    told = _diagnosis(error)
    return told and told.sqlstate


def _diagnosis(error: BaseException | None) -> Diagnosis | None:
    if error is None:
        return None
    if (told := getattr(error, "diag", None)) is not None:
        return Diagnosis.of(told)
    # asyncpg's own error, below the one by which SQLAlchemy makes its driver look like others.
    below: Any = error if hasattr(error, "constraint_name") else error.__cause__
    if not getattr(below, "sqlstate", None):
        return None
    names = ("message", "hint", "detail", "context", "schema_name", "constraint_name")
    return Diagnosis(below.sqlstate, *(getattr(below, name, None) for name in names))
