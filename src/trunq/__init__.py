"""trunq: a queue and event-stream system that lives inside Postgres."""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from trunq.client.heard import Channel, Heard, Missed, Notification
from trunq.client.message import Message, Reject, Retry
from trunq.client.park import Park
from trunq.client.payload import Unfit
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
from trunq.wire.json import RawJson

if TYPE_CHECKING:
    from trunq.client._async import AsyncClient
    from trunq.client._sync import Client
    from trunq.leader.rank import Rank, Ranks
    from trunq.process.consumer import Consumer
    from trunq.process.mover import Mover
    from trunq.schedule import Schedule
    from trunq.worker import Worker

__all__ = [
    "AsyncClient",
    "Channel",
    "Client",
    "ClientClosed",
    "ClusterChanged",
    "Consumer",
    "Duplicate",
    "EmbeddedError",
    "EmbeddedMissing",
    "Heard",
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
    "Missed",
    "Mover",
    "Notification",
    "Park",
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
    "Unfit",
    "Worker",
    "WrongIsolation",
    "WrongMode",
]


_AT_FIRST_USE: Final = {
    "AsyncClient": "trunq.client._async",
    "Client": "trunq.client._sync",
    "Consumer": "trunq.process.consumer",
    "Mover": "trunq.process.mover",
    "Rank": "trunq.leader.rank",
    "Ranks": "trunq.leader.rank",
    "Schedule": "trunq.schedule",
    "Worker": "trunq.worker",
}
"""A program that has one client does not wait for the other's modules, nor for a worker's."""


_MODULES: Final = frozenset({"install", "record", "schedule"})
"""Found as attributes without an import of their own."""


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"trunq.{name}")
    if name not in _AT_FIRST_USE:
        raise AttributeError(f"module 'trunq' has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_AT_FIRST_USE[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
