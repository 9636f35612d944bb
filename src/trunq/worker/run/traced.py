"""Handlers of a worker that was given a Telemetry: each call in a span."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

from trunq.client.message import Message, Reject, Retry
from trunq.client.park import Park
from trunq.word import Outcome
from trunq.worker.handler import Handler

if TYPE_CHECKING:
    from trunq.telemetry import Telemetry, Work


def traced(telemetry: Telemetry, handler: Handler) -> Callable[..., Any]:
    """What is called in the place of a handler's function, wherever that runs: the span is the current one
    there.
    """
    function = handler.function

    @wraps(function)
    async def handle(given: Message | list[Message], **arguments: Any) -> Any:
        raised: Retry | Reject | None = None
        with telemetry.processing(_messages(given)) as work:
            try:
                answer = await function(given, **arguments)
            except (Retry, Reject) as said:
                answer = raised = said
            _tell(work, answer)
        if raised is not None:
            raise raised
        return answer

    @wraps(function)
    def handle_beside(given: Message | list[Message], **arguments: Any) -> Any:
        raised: Retry | Reject | None = None
        with telemetry.processing(_messages(given)) as work:
            try:
                answer = function(given, **arguments)
            except (Retry, Reject) as said:
                answer = raised = said
            _tell(work, answer)
        if raised is not None:
            raise raised
        return answer

    return handle if handler.is_async else handle_beside


def _messages(given: Message | list[Message]) -> list[Message]:
    return given if isinstance(given, list) else [given]


def _tell(work: Work, answer: Any) -> None:
    """The outcome of one message; of several, the worst of theirs."""
    found = {_outcome(each) for each in (answer if isinstance(answer, list) else [answer])}
    worst: tuple[Outcome, ...] = ("rejected", "failed", "parked")
    work.ended(next((each for each in worst if each in found), "success"))


def _outcome(answer: Any) -> Outcome:
    if isinstance(answer, Reject):
        return "rejected"
    if isinstance(answer, Retry | BaseException):
        return "failed"
    return "parked" if isinstance(answer, Park) else "success"
