"""The words for what becomes of a message, as trunq._outcomes and trunq._states have them."""

from __future__ import annotations

from typing import Literal

State = Literal["scheduled", "ready", "leased", "retrying", "done", "dead", "replaced", "purged"]
"""Where a message is, as one shared subscription sees it."""

Open = Literal["scheduled", "ready", "leased", "retrying"]
"""States in which it may still be handed out."""

Outcome = Literal[
    "success",
    "failed",
    "timed_out",
    "rejected",
    "released",
    "lease_expired",
    "expired",
    "cancelled",
    "replaced",
]
"""How one attempt ended."""

Reason = Literal["cancelled", "expired", "lease_expired", "max_attempts", "rejected"]
"""Why it is dead."""
