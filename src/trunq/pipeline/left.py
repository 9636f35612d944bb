"""What a pipeline that was dropped had staged in its sink, where no further run removes it."""

from __future__ import annotations

from typing import Any, Final

from trunq.pipeline import sink as sinks
from trunq.pipeline.control import Control, Run
from trunq.pipeline.definition.reading import read_definition
from trunq.pipeline.errors import Wait
from trunq.pipeline.instance import filled
from trunq.pipeline.redact import redacted

_AFTER_ALL: Final = 2**31
"""A number that no run of its had."""
_IN_USE: Final = 30.0
"""Seconds until a stage that an attempt still writes into is looked at again."""


def remove_left(control: Control, dsn: str, identity: str) -> dict[str, Any]:
    """Remove it, for what the sink has taken is not staged any more. Raises Wait while it is in use."""
    left = control.left(identity)
    if left is None:
        return {"outcome": "nothing left"}
    name = str(left["name"])
    pipeline = filled(read_definition(name.partition("/")[0], left["definition"]), name, left["message"])
    with redacted(pipeline):
        sink = sinks.make(pipeline, dsn)
        for backfill in left["backfills"]:
            if not sink.clear(Run(name, identity, 0, _AFTER_ALL, 0, {}, backfill=backfill)):
                raise Wait(_IN_USE)
    control.forget_left(identity)
    return {"outcome": "removed"}
