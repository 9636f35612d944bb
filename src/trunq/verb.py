"""The verbs of a queue's hot path, each a function of its own for every queue."""

from __future__ import annotations

from typing import Final

VERBS: Final = frozenset(
    {
        "publish",
        "publish_many",
        "lease",
        "ack",
        "retry",
        "reject",
        "release",
        "extend",
        "next_batch",
        "finish_batch",
    }
)
