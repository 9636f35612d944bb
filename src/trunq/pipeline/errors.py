"""What can go wrong in a run, beside a pipeline that cannot be.

trunq.errors.TrunqError
├── StageLost      rows that were staged are gone: the run is tried again
├── SourceChanged  a table was rewritten while it was read in shares: the run is tried again
├── SinkUnwritable a disk is full, a right or a table is gone: the run is tried again
├── Outrun         another run was first to replace partitions: the run is tried again
├── RunCancelled   somebody cancelled the run
├── RunOver        somebody else ended the run, or is at it
├── TooManyBad     more rows broke a rule than the pipeline allows
├── TooManyMissing the source lacks more rows of the sink than the pipeline allows
├── CheckFailed    a row broke a rule that fails the run
├── WorkFailed     Spark ended the work
├── EngineDied     the Java process of Spark ended
├── MessageRefused a message says what its pipeline cannot take: it is dead
├── RunFailed      what a run in a process of its own has raised there
├── RunCrashed     the process of such a run ended before the run
├── StorageFailed  a storage does not answer: the run is tried again
├── DatabaseFailed another database does not answer, or refuses: the run is tried again
└── ApiFailed      an HTTP API does not answer, or refuses
    └── ApiRefused by its status

Wait is no error: the message is to come again after a while. Again is none either: a request is made again.
"""

from __future__ import annotations

from typing import Any

from trunq.errors import TrunqError


class StageLost(TrunqError):
    """A stage has fewer rows than were written into it."""


class SourceChanged(TrunqError):
    """A table was rewritten while it was read."""


class SinkUnwritable(TrunqError):
    """The sink cannot be written to."""


class Outrun(TrunqError):
    """The sink got other partitions, or other rows in them, after this run had begun to read."""


class RunCancelled(TrunqError):
    """The run was cancelled while we were at it."""


class RunOver(TrunqError):
    """The run is not ours any more."""


class TooManyBad(TrunqError):
    """A larger share of rows broke a rule than `max_bad`."""


class TooManyMissing(TrunqError):
    """A larger share of the sink's rows is missing in the source than `max_missing`."""


class CheckFailed(TrunqError):
    """A row broke a check of which `otherwise` is fail."""


class MessageRefused(TrunqError):
    """A message says what its pipeline cannot take; it is not tried again."""


class WorkFailed(TrunqError):
    """Spark could not do what the pipeline says."""


class EngineDied(TrunqError):
    """The Java process of Spark has exited; the next run starts another."""


class RunPutOff(TrunqError):
    """A pause, or a limit of its pipeline, lets a run begin later."""


class RunFailed(TrunqError):
    """A run in a process of its own failed; the text has the name of its error."""


class RunCrashed(TrunqError):
    """The process of a run ended before the run; `crashes`: how often that has happened to it."""

    def __init__(self, message: str, crashes: int) -> None:
        super().__init__(message)
        self.crashes = crashes


class ApiFailed(TrunqError):
    """An API did not give, or take, what it was asked to."""


class ApiRefused(ApiFailed):
    """An API answered with a `status` that refuses the request."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class StorageFailed(TrunqError):
    """A storage did not give, or take, what it was asked to."""


class DatabaseFailed(TrunqError):
    """A database that is reached by JDBC did not give, or take, what it was asked to."""


class Wait(Exception):  # no error: it is to come again
    """The message is to come again after some seconds: somebody else is at it, the pipeline is paused, or an
    API asks for it. `put_off`: why that lasts, where it is no matter of moments.
    """

    def __init__(self, seconds: float, why: str = "", put_off: str | None = None) -> None:
        super().__init__(why or put_off or f"{seconds} s")
        self.seconds, self.put_off = seconds, put_off


class Again(Exception):  # no error: it is asked again
    """A request may succeed later: after so many seconds, where the API says so."""

    def __init__(self, why: str, after: float | None = None) -> None:
        super().__init__(why)
        self.after = after


def wait_told(wait: Wait) -> dict[str, Any]:
    """How a task, or a process, says that the run is to come again: an error would be a failure of it."""
    return {"wait": [wait.seconds, str(wait), wait.put_off]}


def raise_wait(results: list[dict[str, Any]]) -> None:
    """Raise what one of them said of that."""
    for each in results:
        if "wait" in each:
            raise Wait(*each["wait"])
