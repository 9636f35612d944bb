"""trunq: a queue and event-stream system that lives inside Postgres."""

from typing import TYPE_CHECKING, Any

from trunq._async import AsyncClient
from trunq._sync import Client
from trunq.errors import (
    ClientClosed,
    ClusterChanged,
    Duplicate,
    EmbeddedError,
    EmbeddedMissing,
    InvalidArgument,
    InvalidName,
    InvalidSchedule,
    LeaseLost,
    MarkMismatch,
    MemberBusy,
    MemoTooLarge,
    MessageFailed,
    MessageNotFound,
    MessagesLost,
    MessageTooLarge,
    QueueClosed,
    QueueFull,
    QueueInUse,
    QueueNotFound,
    ResultTimeout,
    ScheduleNotFound,
    SchemaError,
    SchemaMissing,
    SchemaNewer,
    SchemaOlder,
    SubscriptionBusy,
    SubscriptionNotFound,
    TickNotFound,
    TransactionEnded,
    TransactionTooLarge,
    TrunqError,
    WrongIsolation,
    WrongMode,
)
from trunq.message import Message, Reject, Retry
from trunq.schedule import Schedule
from trunq.wire.json import RawJson

if TYPE_CHECKING:
    from trunq.consumer import Consumer
    from trunq.mover import Mover
    from trunq.rank import Rank, Ranks
    from trunq.worker import Worker

__all__ = [
    "AsyncClient",
    "Client",
    "ClientClosed",
    "ClusterChanged",
    "Consumer",
    "Duplicate",
    "EmbeddedError",
    "EmbeddedMissing",
    "InvalidArgument",
    "InvalidName",
    "InvalidSchedule",
    "LeaseLost",
    "MarkMismatch",
    "MemberBusy",
    "MemoTooLarge",
    "Message",
    "MessageFailed",
    "MessageNotFound",
    "MessageTooLarge",
    "MessagesLost",
    "Mover",
    "QueueClosed",
    "QueueFull",
    "QueueInUse",
    "QueueNotFound",
    "Rank",
    "Ranks",
    "RawJson",
    "Reject",
    "ResultTimeout",
    "Retry",
    "Schedule",
    "ScheduleNotFound",
    "SchemaError",
    "SchemaMissing",
    "SchemaNewer",
    "SchemaOlder",
    "SubscriptionBusy",
    "SubscriptionNotFound",
    "TickNotFound",
    "TransactionEnded",
    "TransactionTooLarge",
    "TrunqError",
    "Worker",
    "WrongIsolation",
    "WrongMode",
]


def __getattr__(name: str) -> Any:
    # A program that only publishes does not wait for what a worker imports.
    if name == "Worker":
        from trunq.worker import Worker  # noqa: PLC0415

        return Worker
    if name == "Consumer":
        from trunq.consumer import Consumer  # noqa: PLC0415

        return Consumer
    if name == "Mover":
        from trunq.mover import Mover  # noqa: PLC0415

        return Mover
    if name in ("Rank", "Ranks"):
        from trunq import rank  # noqa: PLC0415

        return getattr(rank, name)
    raise AttributeError(f"module 'trunq' has no attribute {name!r}")
