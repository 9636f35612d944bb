"""Names of OpenTelemetry's conventions for messaging, and those of our own.

The conventions' own package keeps them in a private module, as they are not final; a test compares ours with
it.
"""

from __future__ import annotations

from typing import Final

SYSTEM: Final = "messaging.system"
DESTINATION: Final = "messaging.destination.name"
SUBSCRIPTION: Final = "messaging.destination.subscription.name"
OPERATION: Final = "messaging.operation.name"
OPERATION_TYPE: Final = "messaging.operation.type"
MESSAGE_ID: Final = "messaging.message.id"
COUNT: Final = "messaging.batch.message_count"
ERROR_TYPE: Final = "error.type"
SERVER_ADDRESS: Final = "server.address"
SERVER_PORT: Final = "server.port"

SEND: Final = "send"
RECEIVE: Final = "receive"
PROCESS: Final = "process"
SETTLE: Final = "settle"

SENT: Final = "messaging.client.sent.messages"
CONSUMED: Final = "messaging.client.consumed.messages"
DURATION: Final = "messaging.client.operation.duration"
PROCESS_DURATION: Final = "messaging.process.duration"

BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
"""Bounds of the histograms, in seconds."""

KIND: Final = "trunq.message.kind"
ATTEMPT: Final = "trunq.message.attempt"
OUTCOME: Final = "trunq.outcome"
