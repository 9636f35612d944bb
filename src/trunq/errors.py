"""What can go wrong, one class per SQLSTATE.

    TrunqError
    ├── QueueNotFound          TQ001
    ├── SubscriptionNotFound   TQ002
    ├── LeaseLost              TQ003
    ├── InvalidName            TQ004   also a ValueError
    ├── InvalidArgument        TQ005   also a ValueError
    ├── MessageTooLarge        TQ006   also a ValueError
    ├── WrongIsolation         TQ007
    ├── SubscriptionBusy       TQ008
    ├── QueueInUse             TQ009
    ├── ClusterChanged         TQ010
    ├── WrongMode              TQ011
    ├── TickNotFound           TQ012
    ├── MessageNotFound        TQ013
    ├── QueueFull              TQ014
    ├── Duplicate              TQ015
    ├── ScheduleNotFound       TQ016
    ├── InvalidSchedule        TQ017   also a ValueError
    ├── QueueClosed            TQ018
    ├── TransactionTooLarge    TQ019
    ├── ChangeDenied           TQ020
    ├── MemoTooLarge           TQ025   also a ValueError
    ├── MessagesLost           TQ026
    ├── MemberBusy             TQ027
    ├── MarkMismatch           TQ028
    ├── PipelineNotFound       TQ030
    ├── InvalidPipeline        TQ031   also a ValueError
    ├── MessageFailed                  the message that a client awaited did not succeed
    ├── ResultTimeout                  its result did not come in time; also a TimeoutError
    ├── ClientClosed                   found by the client
    ├── TransactionEnded               likewise
    ├── SchemaError                    found by the client before it calls anything
    │   ├── SchemaMissing
    │   ├── SchemaOlder        TQ040   also where it was taken back (trunq db downgrade)
    │   └── SchemaNewer
    └── EmbeddedError                  the embedded server cannot start
        └── EmbeddedMissing

The functions in the database raise with these codes. `translate` is the only place that turns a code, or the
lack of a queue's table or function, into a class. A database that is away stays what psycopg calls it:
`psycopg.OperationalError`.
"""

from __future__ import annotations

import re
from types import TracebackType
from typing import Any, Final, NamedTuple

import psycopg

from trunq.word import VERBS


class TrunqError(Exception):
    """Base of every error trunq raises; `hint` says the way out, where one is known."""

    sqlstate: str | None = None
    says_all = False
    """Whether a worker that reports it leaves the traceback out, as it shows nothing but trunq."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\nHINT: {self.hint}" if self.hint else self.message

    def __reduce__(self) -> tuple[type[TrunqError], tuple[str, str | None]]:
        return type(self), (self.message, self.hint)


class QueueNotFound(TrunqError):
    """No queue has this name."""

    sqlstate = "TQ001"


class SubscriptionNotFound(TrunqError):
    """The queue has no subscription of this name."""

    sqlstate = "TQ002"


class LeaseLost(TrunqError):
    """The lease ended before this answer: others hold its messages now, and nothing was changed."""

    sqlstate = "TQ003"


class InvalidName(TrunqError, ValueError):
    """A name trunq cannot use: not 1 to 48 of a-z, 0-9 and _, starting with a letter."""

    sqlstate = "TQ004"


class InvalidArgument(TrunqError, ValueError):
    """An argument out of its range, or two that contradict each other."""

    sqlstate = "TQ005"


class MessageTooLarge(TrunqError, ValueError):
    """A payload, body or headers above the stated limit."""

    sqlstate = "TQ006"


class WrongIsolation(TrunqError):
    """Called above READ COMMITTED, where a lease would hand out messages twice."""

    sqlstate = "TQ007"


class SubscriptionBusy(TrunqError):
    """Another transaction holds the subscription's lock for too long."""

    sqlstate = "TQ008"


class QueueInUse(TrunqError):
    """The queue still has other subscriptions or unfinished messages."""

    sqlstate = "TQ009"


class ClusterChanged(TrunqError):
    """The positions were made in another cluster: `adopt` (pg_upgrade) or `rebase` (a logical restore)."""

    sqlstate = "TQ010"


class WrongMode(TrunqError):
    """A shared subscription was read in batches, or an exclusive one leased from."""

    sqlstate = "TQ011"


class TickNotFound(TrunqError):
    """No tick has this id, or it is older than what the queue retains."""

    sqlstate = "TQ012"


class MessageNotFound(TrunqError):
    """An answer names a message its lease does not hold."""

    sqlstate = "TQ013"


class QueueFull(TrunqError):
    """As many messages wait as the queue allows: publish again when its workers have caught up."""

    sqlstate = "TQ014"


class Duplicate(TrunqError):
    """Another message holds the unique key, and the publisher asked to be told by an error."""

    sqlstate = "TQ015"


class ScheduleNotFound(TrunqError):
    """No schedule has this name."""

    sqlstate = "TQ016"


class InvalidSchedule(TrunqError, ValueError):
    """A cron text or time zone that nobody can read, or a schedule that says too much or too little."""

    sqlstate = "TQ017"


class QueueClosed(TrunqError):
    """Nothing can be published into the queue until it is opened again."""

    sqlstate = "TQ018"


class TransactionTooLarge(TrunqError):
    """The transaction publishes more messages than the queue allows."""

    sqlstate = "TQ019"


class ChangeDenied(TrunqError):
    """The capture of a table denies this change; or it is a log, which nobody changes by hand."""

    sqlstate = "TQ020"


class MemoTooLarge(TrunqError, ValueError):
    """The value of a memo above the stated limit."""

    sqlstate = "TQ025"


class MessagesLost(TrunqError):
    """The subscription stood still for longer than its queue holds messages: go on with `accept_loss`."""

    sqlstate = "TQ026"


class MarkMismatch(TrunqError):
    """A batch of a stream does not follow what the target of its mover has received."""

    sqlstate = "TQ028"


class MemberBusy(TrunqError):
    """The member of a group has a batch in hand, or another process uses its name."""

    sqlstate = "TQ027"


class MessageFailed(TrunqError):
    """The message whose result was awaited did not succeed.

    `outcome` is rejected, failed or timed_out (in its last attempt), lease_expired, expired, cancelled,
    outdated or replaced; `error` is the detail of a rejection, or the first line of the last error;
    `reference` finds that error, and `public` is what users may see.
    """

    def __init__(
        self,
        message: str,
        hint: str | None = None,
        *,
        outcome: str = "failed",
        error: str | None = None,
        reference: str | None = None,
        public: str | None = None,
    ) -> None:
        super().__init__(message, hint)
        self.outcome = outcome
        self.error = error
        self.reference = reference
        self.public = public

    def __reduce__(self) -> Any:
        state = {
            "outcome": self.outcome,
            "error": self.error,
            "reference": self.reference,
            "public": self.public,
        }
        return type(self), (self.message, self.hint), state


class ResultTimeout(TrunqError, TimeoutError):
    """The message has no final answer within the time that the caller would wait; it goes on."""


class PipelineNotFound(TrunqError):
    """No pipeline has this name."""

    sqlstate = "TQ030"


class InvalidPipeline(TrunqError, ValueError):
    """A pipeline that cannot be, or that cannot do now what was asked of it."""

    sqlstate = "TQ031"


class ClientClosed(TrunqError):
    """The client was closed while this call waited for a connection, or for a result."""


class TransactionEnded(TrunqError):
    """A transaction ended before its block did: what was written in the block may not be there."""


class SchemaError(TrunqError):
    """The database does not hold the schema this version of trunq works with."""


class SchemaMissing(SchemaError):
    """The database has no trunq schema yet."""


class SchemaOlder(SchemaError):
    """The database holds an older schema, or one that was taken back and has no functions yet: upgrade it."""

    sqlstate = "TQ040"


class SchemaNewer(SchemaError):
    """The database holds a newer schema: upgrade this program."""


class EmbeddedError(TrunqError):
    """The embedded Postgres could not be started; the message ends with what its log says."""


class EmbeddedMissing(EmbeddedError):
    """No Postgres of the wanted version is installed to embed."""


_CODED: list[type[TrunqError]] = [*TrunqError.__subclasses__(), SchemaOlder]

BY_SQLSTATE: dict[str, type[TrunqError]] = {
    error.sqlstate: error for error in _CODED if error.sqlstate is not None
}


_MISSING: Final = {"3F000", "42P01", "42883"}
"""A schema, a table or a function that is not there."""

_CHECK_VIOLATION: Final = "23514"

_OF_NO_QUEUE: Final = re.compile(rf"trunq_queue\.\"?(\w+?)_({'|'.join(VERBS)})\"?\(")
"""A function of a queue's own that is not there, as Postgres names it, whatever language it speaks."""

_LOG: Final = re.compile(r"trunq_log\.\"?(\w+)")

_OF_A_QUEUE: Final = re.compile(r"trunq_(data|queue)\.")

_OURS: Final = re.compile(r"\btrunq\.\w|\W\btrunq(_queue|_log|_data)?\b\W")
"""Each language has quotes of its own."""

_INSTALL: Final = "`trunq db install` puts trunq there, or brings it up to date"

_CREATE: Final = (
    "create it: select trunq.create_queue('name'); select * from trunq.list_queues() shows those there are"
)

_CREATE_UNIQUE: Final = "give the queue unique keys: select trunq.convert_queue('name', p_unique => 'refuse')"


class Diagnosis(NamedTuple):
    """What the database says of an error, whichever driver tells it."""

    sqlstate: str
    message: str | None = None
    hint: str | None = None
    detail: str | None = None
    context: str | None = None
    schema: str | None = None
    constraint: str | None = None

    @classmethod
    def of(cls, told: psycopg.errors.Diagnostic) -> Diagnosis:
        """As psycopg tells it."""
        return cls(
            told.sqlstate or "",
            told.message_primary,
            told.message_hint,
            told.message_detail,
            told.context,
            told.schema_name,
            told.constraint_name,
        )


def translate(error: psycopg.Error) -> TrunqError | None:
    """The trunq error that a database error stands for, or None when it is not one of ours."""
    return translate_diagnosis(Diagnosis.of(error.diag))


def translate_diagnosis(told: Diagnosis) -> TrunqError | None:
    """The same of what any driver told."""
    kind = BY_SQLSTATE.get(told.sqlstate)
    if kind is not None:
        return kind(told.message or kind.__name__, told.hint)
    if told.sqlstate == _CHECK_VIOLATION:
        return _too_large(told) or _unruly(told)
    if told.sqlstate in _MISSING:
        return _missing(told.message or "")
    return None


def _missing(said: str) -> TrunqError | None:
    """What it means that a schema, table or function is not there; None when it is none of ours."""
    if (found := _OF_NO_QUEUE.search(said)) and found.group(2) == "publish_unique":
        return QueueNotFound(f'there is no queue "{found.group(1)}" with unique keys', _CREATE_UNIQUE)
    if found := _OF_NO_QUEUE.search(said) or _LOG.search(said):
        return QueueNotFound(f'there is no queue "{found.group(1)}"', _CREATE)
    if _OF_A_QUEUE.search(said):
        return QueueNotFound(
            f"the queue was dropped meanwhile: {said}", "`trunq queue list` shows those there are"
        )
    if _OURS.search(said):
        return SchemaMissing(f"trunq is not in this database, or an older one: {said}", _INSTALL)
    return None


_RULES: Final = {
    "options_are_known_and_readable": (
        "the options of a message cannot be read",
        'options are like {"max_attempts": 3, "expires_at": "2030-01-31T10:00:00Z", "awaited": true}'
        ' or {"backoff": "linear", "backoff_base": 10, "dead_into": "failures"}',
    ),
    "plain_queue_has_no_priority": (
        "a plain queue has no priorities",
        "publish with priority 0, or make a queue with lanes by priority",
    ),
}
"""Rules of the log that COPY meets, by their names: what is wrong, and the way out."""


def _unruly(told: Diagnosis) -> InvalidArgument | None:
    """What another rule of the log refuses, and the functions that publish say in words of their own."""
    if told.schema != "trunq" or (told.constraint or "") not in _RULES:
        return None
    what, hint = _RULES[told.constraint or ""]
    where = (told.context or "").partition("\n")[0][:100]
    return InvalidArgument(f"{what} ({where})", hint)


def _too_large(told: Diagnosis) -> MessageTooLarge | None:
    """What the log's own limit refuses; None when it is another rule that does."""
    if told.schema != "trunq" or "_at_most_" not in (told.constraint or ""):
        return None
    where = (told.context or "").partition("\n")[0][:100]
    return MessageTooLarge(
        "a message is too large: at most 16777216 bytes each for payload, body and headers,"
        f" 1000 for kind and key ({where})",
        "keep large content elsewhere and publish where it is",
    )


class Translated:
    """Context manager in which database errors that stand for one of trunq's leave as that.

    It is a class with no state, not a generator: it stands around every call of the hot path.
    """

    __slots__ = ()

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, psycopg.Error) and (ours := translate(error)) is not None:
            raise ours from error


translated = Translated()
