"""The verbs of a queue's hot path, each a function of its own for every queue."""

from __future__ import annotations

from typing import Final

VERBS: Final = frozenset(
    {
        "publish",
        "publish_many",
        "publish_unique",
        "lease",
        "ack",
        "retry",
        "time_out",
        "reject",
        "release",
        "extend",
        "set_progress",
        "next_batch",
        "finish_batch",
    }
)
