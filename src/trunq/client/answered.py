"""What an answer is about: messages under one lease, or an open batch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from trunq.client.message import Message
from trunq.errors import InvalidArgument

Leased = Message | Sequence[Message]
"""A message, or several of one lease."""


class Answered(NamedTuple):
    """Messages by their ids, and the lease they are held under."""

    lease: dict[str, Any]
    ids: list[int]

    @property
    def is_nothing(self) -> bool:
        """Whether it is a list without messages, which need no answer."""
        return not self.lease

    @classmethod
    def of(
        cls,
        queue: str | Leased,
        subscription: str | None,
        lease_id: int | None,
        token: int | None,
        ids: Iterable[int] | None,
    ) -> Answered:
        """From the arguments of an answer: messages alone, or all of the rest."""
        rest = {"subscription": subscription, "lease_id": lease_id, "token": token, "ids": ids}
        if isinstance(queue, str):
            if missing := [name for name, value in rest.items() if value is None]:
                raise TypeError(f"with the name of a queue, {', '.join(missing)} must be given too")
            rest.pop("ids")
            return cls({"queue": queue, **rest}, list(ids or ()))
        if given := [name for name, value in rest.items() if value is not None]:
            raise TypeError(f"messages know their lease: {', '.join(given)} cannot be given with them")
        messages: list[Any] = list(queue) if isinstance(queue, Sequence) else [queue]
        for message in messages:
            if not isinstance(message, Message):
                raise TypeError(
                    f"an answer is about messages that were leased, not {type(message).__name__};"
                    " for ids, give queue, subscription, lease_id, token and ids"
                )
        leases = {(each.queue, each.subscription, each.lease_id, each.token) for each in messages}
        if len(leases) > 1:
            raise InvalidArgument(
                f"these messages are of {len(leases)} leases", "answer for those of each lease apart"
            )
        names = ("queue", "subscription", "lease_id", "token")
        return cls(
            {name: value for lease in leases for name, value in zip(names, lease, strict=True)},
            [message.id for message in messages],
        )


def for_each(value: Any, held: Answered) -> Any:
    """A text or a number that stands for each of the messages, as a list; a list as it is."""
    return [value] * len(held.ids) if isinstance(value, str | int | float) else value


def only_one(name: str, value: Any, other: str, given: Any) -> None:
    """Refuse two arguments that say the same: one of them would be lost."""
    if value is not None and given is not None:
        raise InvalidArgument(
            f"{name} and {other} are both given", f"{name} is for all, {other} one for each"
        )
