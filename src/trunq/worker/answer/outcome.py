"""What a worker says of messages that did not succeed: a line each, while they are few.

Of those that fail alike (queue, kind, class of the error, line that raised it) the first comes with its
traceback, and no more than LINES are said in EVERY seconds. The others are counted, in one line at the end of
that time: each failure is kept with its message, by the database, and a log that repeats thousands of them is
read by nobody.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import timedelta
from time import monotonic
from typing import Any, Final, NamedTuple

from trunq.client.message import Message
from trunq.display import interval
from trunq.worker.handler.result import headline, is_short, last_line_of, traceback_of, users_frames

log = logging.getLogger("trunq.worker")

EVERY: Final = 10.0
"""Seconds between two counts."""
LINES: Final = 10
"""Lines for what fails alike within EVERY seconds."""
MOST: Final = 500
"""So many ways to fail are told apart; then the oldest is forgotten."""

PUT_OFF: Final = "is put off"
CANCELLED: Final = "is cancelled"

Way = tuple[Any, ...]


class Subject(NamedTuple):
    """The message that a line is about; `attempt` 0: not known."""

    queue: str
    id: int
    kind: str | None = None
    attempt: int = 0
    max_attempts: int | None = 0

    @classmethod
    def of(cls, message: Message) -> Subject:
        """Without the payload: answers may wait for the database."""
        return cls(message.queue, message.id, message.kind, message.attempt, message.max_attempts)

    @property
    def about(self) -> dict[str, Any]:
        """It in the fields of a log line."""
        return {"queue": self.queue, "message_id": self.id, "kind": self.kind, "attempt": self.attempt}

    def __str__(self) -> str:
        return f"message {self.id} of {self.queue}"

    @property
    def details(self) -> str:
        """Attempt and kind."""
        most = f"/{self.max_attempts}" if self.max_attempts else ""
        attempt = f", attempt {self.attempt}{most}" if self.attempt else ""
        return attempt + (f", kind {self.kind}" if self.kind is not None else "")


class Note(NamedTuple):
    """What is to be said of a message as soon as the database has told what becomes of it.

    `error` is the first of its way to fail, and said with its traceback. `reference` stands in the error that
    is kept with the message, too.
    """

    subject: Subject
    verb: str
    way: Way
    why: str
    is_first: bool
    error: BaseException | None = None
    reference: str | None = None


@dataclass(slots=True)
class Count:
    """What failed in one way and ended in one way, since the last count."""

    first: int
    since: float
    lines: int = 0
    more: int = 0
    last: str = ""


class Outcomes:
    """Says what became of messages."""

    def __init__(self) -> None:
        self._known: dict[Way, None] = {}
        self._counts: dict[tuple[Way, str], Count] = {}

    def failed(self, message: Message, error: BaseException, reference: str) -> Note:
        """A handler raised."""
        way = (message.queue, message.kind, type(error), *last_line_of(error))
        is_first = self._is_first(way)
        subject = Subject.of(message)
        raised = error if is_first else None
        return Note(subject, "failed", way, headline(error), is_first, raised, reference)

    def answered(self, subject: Subject, verb: str, why: str | None, reference: str | None = None) -> Note:
        """A handler, or the worker itself, did not take the message for done."""
        way = (subject.queue, subject.kind, verb)
        return Note(subject, verb, way, headline(why or ""), self._is_first(way), None, reference)

    def say(self, note: Note, wait: timedelta | None, reason: str | None) -> None:
        """The database told what becomes of it: dead for a `reason`, or again after `wait`.

        Without either, it runs again at once.
        """
        verb = note.verb if reason is None else CANCELLED if reason == "cancelled" else f"is dead ({reason})"
        key, now = (note.way, verb), monotonic()
        if (count := self._counts.get(key)) is None:
            if len(self._counts) >= MOST:
                oldest = next(iter(self._counts))
                _say_count(oldest, self._counts.pop(oldest), now)
            count = self._counts[key] = Count(note.subject.id, now)
        if count.lines >= (1 if verb == PUT_OFF else LINES) and not note.is_first:
            count.more += 1
            count.last = note.why
            return
        count.lines += 1
        _say_one(note, verb, None if reason is not None else wait or timedelta(0))

    def say_rest(self) -> None:
        """Say what was only counted since the last time."""
        counts, self._counts, now = self._counts, {}, monotonic()
        for key, count in counts.items():
            _say_count(key, count, now)

    def _is_first(self, way: Way) -> bool:
        if way in self._known:
            return False
        if len(self._known) >= MOST:
            del self._known[next(iter(self._known))]
        self._known[way] = None
        return True


def _say_one(note: Note, verb: str, wait: timedelta | None) -> None:
    subject, error = note.subject, note.error
    again = "" if wait is None else f", next try {_in(wait)}"
    text = f"{subject} {verb}{subject.details}{again}{': ' if note.why else ''}{note.why}"
    about = {**subject.about, "outcome": verb.removeprefix("is ")}
    if note.reference is not None:
        text += f" (reference {note.reference})"
        about["reference"] = note.reference
    if wait is not None:
        about["next_try_in"] = round(wait.total_seconds(), 3)
    level = (
        logging.INFO
        if verb == CANCELLED
        else logging.ERROR
        if wait is None
        else logging.WARNING
        if note.is_first
        else logging.INFO
    )
    if error is None or error.__traceback__ is None or getattr(error, "says_all", False):
        log.log(level, "%s", text, extra=about)
    elif is_short(error):
        # As an exception, for those who collect them; unless it says too much.
        log.log(level, "%s", text, extra=about, exc_info=(type(error), error, users_frames(error)))
    else:
        log.log(level, "%s\n%s", text, traceback_of(error), extra=about)


def _say_count(key: tuple[Way, str], count: Count, now: float) -> None:
    (queue, kind, *_), verb = key
    if not count.more:
        return
    level = logging.ERROR if verb.startswith("is dead") else logging.INFO
    of_kind = "without a kind" if kind is None else f"of kind {kind}"
    log.log(
        level,
        "%s more %s in %s in %.0f s, like message %s, which %s; the last: %s",
        f"{count.more:,}",
        of_kind,
        queue,
        now - count.since,
        count.first,
        verb,
        count.last or "no reason given",
        extra={"queue": queue, "kind": kind, "outcome": verb.removeprefix("is "), "more": count.more},
    )


def _in(wait: timedelta) -> str:
    if wait <= timedelta(0):
        return "at once"
    if wait >= timedelta(seconds=1):
        # 3.97 s are 4: the clock ran on while we asked.
        wait = timedelta(seconds=round(wait.total_seconds()))
    return f"in {interval(wait)}"
