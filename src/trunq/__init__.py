"""trunq: a queue and event-stream system that lives inside Postgres."""

from typing import TYPE_CHECKING, Any

from trunq._async import AsyncClient
from trunq._sync import Client
from trunq.errors import (
    ClientClosed,
    ClusterChanged,
    EmbeddedError,
    EmbeddedMissing,
    InvalidArgument,
    InvalidName,
    LeaseLost,
    MessageNotFound,
    MessageTooLarge,
    QueueClosed,
    QueueFull,
    QueueInUse,
    QueueNotFound,
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
from trunq.wire.json import RawJson

if TYPE_CHECKING:
    from trunq.worker import Worker

__all__ = [
    "AsyncClient",
    "Client",
    "ClientClosed",
    "ClusterChanged",
    "EmbeddedError",
    "EmbeddedMissing",
    "InvalidArgument",
    "InvalidName",
    "LeaseLost",
    "Message",
    "MessageNotFound",
    "MessageTooLarge",
    "QueueClosed",
    "QueueFull",
    "QueueInUse",
    "QueueNotFound",
    "RawJson",
    "Reject",
    "Retry",
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
    raise AttributeError(f"module 'trunq' has no attribute {name!r}")
