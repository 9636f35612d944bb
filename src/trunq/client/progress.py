"""What a handler reports of its message: how far it is, and a checkpoint for the next attempt."""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

from trunq.errors import InvalidArgument, MessageTooLarge
from trunq.wire.json import json_bytes
from trunq.wire.scalar import text

NOTE_CHARACTERS: Final = 500
CHECKPOINT_BYTES: Final = 1_048_576
"""Of JSON text. The database has the same limits (trunq._limit), and the last word."""


class Progress(NamedTuple):
    """One report; None: nothing was said about it. The checkpoint is JSON."""

    percent: float | None = None
    note: str | None = None
    checkpoint: bytes | None = None

    @classmethod
    def of(cls, percent: object, note: object, checkpoint: Any) -> Progress:
        """From what a program gives. Raises InvalidArgument, and MessageTooLarge for a checkpoint."""
        if percent is None and note is None and checkpoint is None:
            raise InvalidArgument("set_progress was given nothing to say", "give percent, note or checkpoint")
        return cls(_percent(percent), _note(note), _checkpoint(checkpoint))

    def then(self, newer: Progress) -> Progress:
        """Both in one: what the newer one says, and what only this one says."""
        return Progress(
            self.percent if newer.percent is None else newer.percent,
            self.note if newer.note is None else newer.note,
            self.checkpoint if newer.checkpoint is None else newer.checkpoint,
        )

    @property
    def arguments(self) -> dict[str, Any]:
        """It as arguments of a call."""
        checkpoint = None if self.checkpoint is None else self.checkpoint.decode()
        return {"percent": self.percent, "note": self.note, "checkpoint": checkpoint}


def _percent(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidArgument(f"percent is a number, not {type(value).__name__}", "give 0 to 100")
    if math.isnan(value) or not 0 <= value <= 100:
        raise InvalidArgument(f"percent is 0 to 100, not {value}", "a share of 0.5 is 50 percent")
    return float(value)


def _note(value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise InvalidArgument(f"note is text, not {type(value).__name__}", "give str(note)")
    if len(value) > NOTE_CHARACTERS:
        raise InvalidArgument(
            f"a note has up to {NOTE_CHARACTERS} characters, not {len(value):,}",
            "keep what the next attempt needs in the checkpoint",
        )
    return text("note", value)


def _checkpoint(value: Any) -> bytes | None:
    try:
        raw = json_bytes("checkpoint", value)
    except MessageTooLarge as error:
        # Beyond what any message may have.
        raise _too_large("more than 64 MB") from error
    if raw is not None and len(raw) > CHECKPOINT_BYTES:
        raise _too_large(f"{len(raw):,}")
    return raw


def _too_large(size: str) -> MessageTooLarge:
    return MessageTooLarge(
        f"a checkpoint has up to {CHECKPOINT_BYTES:,} bytes (1 MB), not {size}",
        "keep large content elsewhere, and say in the checkpoint where it is",
    )
