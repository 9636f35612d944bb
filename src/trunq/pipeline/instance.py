"""An instance: a pipeline for one value of its `per`. What a run of it is expanded with."""

from __future__ import annotations

import os
from typing import Any, Final

from psycopg import sql

from trunq.arrow.catalog import identifier
from trunq.connection._sync.opening import open_lent
from trunq.connection.address import complete
from trunq.errors import InvalidArgument, InvalidPipeline
from trunq.pipeline.control import Asked
from trunq.pipeline.credentials import credentials_of
from trunq.pipeline.definition.message import INSTANCE, MessageField
from trunq.pipeline.definition.part import expand
from trunq.pipeline.definition.pipeline import Pipeline
from trunq.pipeline.errors import MessageRefused
from trunq.pipeline.redact import redacted

_MOST: Final = 100_000
"""Values of a trigger's table."""


def expanded_for(written: Pipeline, asked: Asked, opened: dict[str, Any]) -> Pipeline:
    """A pipeline with the values of a run that was opened.

    Those of a run that is taken up were fixed with its slice. A backfill, rows that are sent again, and
    whoever asks for an instance by its name, say none: those of its newest message count. Raises
    MessageRefused, InvalidPipeline.
    """
    if written.has_tables:
        # What a look has found of its table.
        found = opened["run"]["slice"]["message"] if opened["action"] == "take" else opened["message"]
        return filled(written, opened["pipeline"], found)
    if not written.message:
        return written.expanded()
    if opened["action"] == "take":
        said = opened["run"]["slice"].get("message")
    elif asked.is_backfill or asked.is_resend or (asked.payload is None and "/" in opened["pipeline"]):
        said = opened["message"]
    else:
        said = asked.payload
    return filled(written, opened["pipeline"], said)


def filled(written: Pipeline, name: str, said: Any) -> Pipeline:
    """A pipeline, or an instance, with what a message said, or a look found of its table. Raises
    MessageRefused, InvalidPipeline.
    """
    if written.has_tables:
        return written.expanded(name=name, message=said)
    if not written.message:
        return written.expanded()
    message = written.of_message(said)
    if written.per is not None and written.value_of(message) != name.partition("/")[2]:
        # Its rows would be those of one, and its state and mark those of another.
        raise MessageRefused(
            f"pipeline {name}: {written.per} of the message is {written.value_of(message)!r:.60}, which is"
            " another instance"
        )
    if written.credentials is None:
        return written.expanded(name=name, message=message)
    credentials = credentials_of(name, written.credentials, written.value_of(message))
    return written.expanded(name=name, message=message, credentials=credentials)


def values_of_trigger(written: Pipeline, asked: Asked, dsn: str) -> tuple[list[str], list[str]] | None:
    """Whose runs a message of a trigger with `for` asks for, and the values of which none can be; None: it is
    none of these.
    """
    trigger = written.trigger
    if trigger is None or trigger.for_ is None or asked.payload is not None:
        return None
    if isinstance(trigger.for_, list):
        return sorted({str(value) for value in trigger.for_}), []
    table = trigger.for_
    try:
        query = sql.SQL("select distinct {0}::text from {1} where {0} is not null limit {2}").format(
            sql.Identifier(table.column), identifier(table.table), sql.Literal(_MOST + 1)
        )
    except InvalidArgument as error:
        raise InvalidPipeline(f"pipeline {written.name}: trigger.for: {error.message}", error.hint) from None
    # Of the definition that alone: a sink may need more than whoever asks has.
    address = expand(written.name, table.dsn, os.environ) if table.dsn else dsn
    named = complete(address, f"trunq pipeline {written.name}")
    with redacted(written, address), open_lent(named) as connection:
        found = sorted(row[0] for row in connection.execute(query).fetchall())
    if len(found) > _MOST:
        raise InvalidPipeline(
            f"pipeline {written.name}: trigger.for: {table.table} has more than {_MOST} values"
        )
    field = written.message[(written.per or "").partition(".")[2]]
    good = [value for value in found if _is_good(field, value)]
    return good, sorted(set(found).difference(good))


def _is_good(field: MessageField, value: str) -> bool:
    if not INSTANCE.fullmatch(value):
        return False
    if field.type == "integer":
        return value.isdecimal() and not field.mistake(int(value))
    return not field.mistake(value)
