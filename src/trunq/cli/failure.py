"""What a command says when it cannot do its work."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from trunq import explanation
from trunq.errors import QueueInUse, QueueNotFound, SubscriptionNotFound

SHELL_HINTS: Final[dict[type[BaseException], str]] = {
    QueueNotFound: "Create it with trunq queue create NAME, or see what is there: trunq queue list.",
    SubscriptionNotFound: "Those there are: trunq subscription list.",
    QueueInUse: "To drop it with all that is in it: --force.",
}
"""The advice as a command, where the database gives it as SQL."""


class Mistake(Exception):
    """A command that cannot be done as it was given; the text says why and what to do."""


class Interrupted(Mistake):
    """The user stopped a command; the text says how things stand."""


def explain(error: BaseException) -> str | None:
    """What to tell the user, or None when the error is a defect of ours and deserves its traceback."""
    if isinstance(error, Mistake):
        return str(error)
    found = explanation.explain(error)
    if found is not None and (hint := SHELL_HINTS.get(type(error))) is not None:
        found = replace(found, advice=hint)
    return found.sentences if found is not None else None
