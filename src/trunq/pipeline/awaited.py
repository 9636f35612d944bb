"""The message that somebody waits for, whichever runner does what it asks for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from trunq import Message
from trunq.errors import InvalidPipeline
from trunq.pipeline.errors import RunFailed, RunPutOff
from trunq.record import MessageState
from trunq.spark.errors import JavaMissing, PythonMismatch
from trunq.word import OPEN

TRIES: Final = 3
"""After so many attempts, who waits is told that the run failed."""


class Awaited:
    """What is known of it; without an id, nobody waits."""

    def __init__(self, id: int | None) -> None:
        self.id = id
        self.is_answered = False
        self.failure: Exception | None = None
        """Why it has failed: three times, or for a reason that lies in the pipeline, or in what Spark has."""

    def raised(self, message: Message, error: Exception) -> None:
        """An attempt of ours failed."""
        if isinstance(error, InvalidPipeline | JavaMissing | PythonMismatch) or message.attempt >= TRIES:
            self.failure = error

    def put_off(self, why: str) -> None:
        """It will not begin for a while."""
        self.failure = RunPutOff(why)

    def look(self, rows: Sequence[MessageState]) -> None:
        """See what became of it elsewhere."""
        row = next(row for row in rows if row.subscription == "default")
        if row.state not in OPEN:
            self.is_answered = True
        elif row.state == "retrying" and sum(bool(each["error"]) for each in row.attempts) >= TRIES:
            self.failure = self.failure or RunFailed(str(row.error))
