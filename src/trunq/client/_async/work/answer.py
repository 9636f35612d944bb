"""Answers: what became of leased messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, cast, overload

from trunq.client._async.access import AsyncAccess
from trunq.client._async.traced import settling
from trunq.client.answered import Answered, Leased, for_each, only_one
from trunq.client.park import Park
from trunq.connection.given import AsyncGiven
from trunq.wire.array import (
    bigint_array,
    interval_array,
    jsonb_array,
    moment_array,
    real_array,
    text_array,
)
from trunq.wire.call import Call
from trunq.wire.scalar import Interval, interval
from trunq.word import Backoff


class AsyncAnswers(AsyncAccess):
    """Answers.

    Each takes a message, or a list of messages of one lease, which know the lease they are held under; or,
    for programs that kept only ids, the queue, the subscription, the lease, its token and the ids.

    Answering for a message twice under the same lease changes nothing and is not counted, so an answer may
    be sent again when the connection broke. All answers raise LeaseLost when the lease has ended,
    MessageNotFound for an id that is not of this lease. In a transaction of yours an answer is the last
    statement: it locks the lease until the transaction ends.
    """

    @overload
    async def ack(
        self,
        messages: Leased,
        /,
        *,
        result: Any = None,
        results: Sequence[Any] | None = None,
        took: Iterable[float | None] | float | None = None,
        connection: AsyncGiven | None = None,
    ) -> int: ...

    @overload
    async def ack(
        self,
        queue: str,
        subscription: str,
        lease_id: int,
        token: int,
        ids: Iterable[int],
        results: Sequence[Any] | None = None,
        took: Iterable[float | None] | None = None,
        *,
        connection: AsyncGiven | None = None,
    ) -> int: ...

    async def ack(
        self,
        queue: str | Leased,
        subscription: str | None = None,
        lease_id: int | None = None,
        token: int | None = None,
        ids: Iterable[int] | None = None,
        results: Sequence[Any] | None = None,
        took: Iterable[float | None] | float | None = None,
        *,
        result: Any = None,
        connection: AsyncGiven | None = None,
    ) -> int:
        """Messages are done; returns how many were not answered before.

        `results` (any JSON, kept if the subscription keeps results) and `took` (seconds each handler ran)
        are in the order of the messages; `result` is one for each of them.
        """
        held = Answered.of(queue, subscription, lease_id, token, ids)
        only_one("result", result, "results", results)
        if result is not None:
            results = [result] * len(held.ids)
        arguments = {
            "results": jsonb_array("results", results),
            "took": real_array(for_each(took, held)),
        }
        return await self._answer(connection, "ack", held, arguments)

    @overload
    async def retry(
        self,
        messages: Leased,
        /,
        *,
        after: Interval | None = None,
        error: str | None = None,
        took: Iterable[float | None] | float | None = None,
        max_attempts: int | None = None,
        backoff: Backoff | None = None,
        backoff_base: Interval | None = None,
        backoff_cap: Interval | None = None,
        jitter: float | None = None,
        connection: AsyncGiven | None = None,
    ) -> int: ...

    @overload
    async def retry(
        self,
        queue: str,
        subscription: str,
        lease_id: int,
        token: int,
        ids: Iterable[int],
        errors: Sequence[str | None] | str | None = None,
        delays: Iterable[Interval | None] | None = None,
        took: Iterable[float | None] | None = None,
        *,
        max_attempts: int | None = None,
        backoff: Backoff | None = None,
        backoff_base: Interval | None = None,
        backoff_cap: Interval | None = None,
        jitter: float | None = None,
        connection: AsyncGiven | None = None,
    ) -> int: ...

    async def retry(
        self,
        queue: str | Leased,
        subscription: str | None = None,
        lease_id: int | None = None,
        token: int | None = None,
        ids: Iterable[int] | None = None,
        errors: Sequence[str | None] | str | None = None,
        delays: Iterable[Interval | None] | None = None,
        took: Iterable[float | None] | float | None = None,
        *,
        after: Interval | None = None,
        error: str | None = None,
        max_attempts: int | None = None,
        backoff: Backoff | None = None,
        backoff_base: Interval | None = None,
        backoff_cap: Interval | None = None,
        jitter: float | None = None,
        connection: AsyncGiven | None = None,
    ) -> int:
        """Messages are to be tried again; those whose attempts are used up become dead. Returns how many.

        `after` is the delay and `error` the reason of each. In the long form, `errors` is one for all, or,
        like `delays` and `took`, one for each id. A delay of None is by the policy: what is given of it here,
        as in `subscribe`, goes before the subscription's.
        """
        held = Answered.of(queue, subscription, lease_id, token, ids)
        only_one("after", after, "delays", delays)
        only_one("error", error, "errors", errors)
        if after is not None:
            delays = [after] * len(held.ids)
        arguments = {
            "errors": text_array("errors", for_each(error if errors is None else errors, held)),
            "delays": interval_array("delays", delays),
            "took": real_array(for_each(took, held)),
            "max_attempts": max_attempts,
            "backoff": backoff,
            "backoff_base": interval("backoff_base", backoff_base),
            "backoff_cap": interval("backoff_cap", backoff_cap),
            "jitter": jitter,
        }
        return await self._answer(connection, "retry", held, arguments)

    @overload
    async def time_out(
        self,
        messages: Leased,
        /,
        *,
        error: str | None = None,
        took: Iterable[float | None] | float | None = None,
        max_attempts: int | None = None,
        backoff: Backoff | None = None,
        backoff_base: Interval | None = None,
        backoff_cap: Interval | None = None,
        jitter: float | None = None,
        connection: AsyncGiven | None = None,
    ) -> int: ...

    @overload
    async def time_out(
        self,
        queue: str,
        subscription: str,
        lease_id: int,
        token: int,
        ids: Iterable[int],
        errors: Sequence[str | None] | str | None = None,
        took: Iterable[float | None] | None = None,
        *,
        max_attempts: int | None = None,
        backoff: Backoff | None = None,
        backoff_base: Interval | None = None,
        backoff_cap: Interval | None = None,
        jitter: float | None = None,
        connection: AsyncGiven | None = None,
    ) -> int: ...

    async def time_out(
        self,
        queue: str | Leased,
        subscription: str | None = None,
        lease_id: int | None = None,
        token: int | None = None,
        ids: Iterable[int] | None = None,
        errors: Sequence[str | None] | str | None = None,
        took: Iterable[float | None] | float | None = None,
        *,
        error: str | None = None,
        max_attempts: int | None = None,
        backoff: Backoff | None = None,
        backoff_base: Interval | None = None,
        backoff_cap: Interval | None = None,
        jitter: float | None = None,
        connection: AsyncGiven | None = None,
    ) -> int:
        """Messages took longer than they may: tried again by the policy, like a retry. Returns how many.

        What is given of the policy here goes before the subscription's. Their history says timed_out.
        """
        held = Answered.of(queue, subscription, lease_id, token, ids)
        only_one("error", error, "errors", errors)
        arguments = {
            "errors": text_array("errors", for_each(error if errors is None else errors, held)),
            "took": real_array(for_each(took, held)),
            "max_attempts": max_attempts,
            "backoff": backoff,
            "backoff_base": interval("backoff_base", backoff_base),
            "backoff_cap": interval("backoff_cap", backoff_cap),
            "jitter": jitter,
        }
        return await self._answer(connection, "time_out", held, arguments)

    @overload
    async def reject(
        self,
        messages: Leased,
        reason: str | None = None,
        /,
        *,
        took: Iterable[float | None] | float | None = None,
        connection: AsyncGiven | None = None,
    ) -> int: ...

    @overload
    async def reject(
        self,
        queue: str,
        subscription: str,
        lease_id: int,
        token: int,
        ids: Iterable[int],
        errors: Sequence[str | None] | str | None = None,
        took: Iterable[float | None] | None = None,
        *,
        connection: AsyncGiven | None = None,
    ) -> int: ...

    async def reject(
        self,
        queue: str | Leased,
        subscription: str | None = None,
        lease_id: int | None = None,
        token: int | None = None,
        ids: Iterable[int] | None = None,
        errors: Sequence[str | None] | str | None = None,
        took: Iterable[float | None] | float | None = None,
        *,
        connection: AsyncGiven | None = None,
    ) -> int:
        """Messages will never succeed: they become dead, for this reason. Returns how many."""
        if not isinstance(queue, str):
            only_one("reason", subscription, "errors", errors)
            errors, subscription = errors if subscription is None else subscription, None
        held = Answered.of(queue, subscription, lease_id, token, ids)
        arguments = {
            "errors": text_array("errors", for_each(errors, held)),
            "took": real_array(for_each(took, held)),
        }
        return await self._answer(connection, "reject", held, arguments)

    @overload
    async def release(
        self,
        messages: Leased,
        /,
        *,
        after: Interval | None = None,
        error: str | None = None,
        connection: AsyncGiven | None = None,
    ) -> int: ...

    @overload
    async def release(
        self,
        queue: str,
        subscription: str,
        lease_id: int,
        token: int,
        ids: Iterable[int],
        errors: Sequence[str | None] | str | None = None,
        delays: Iterable[Interval | None] | None = None,
        *,
        connection: AsyncGiven | None = None,
    ) -> int: ...

    async def release(
        self,
        queue: str | Leased,
        subscription: str | None = None,
        lease_id: int | None = None,
        token: int | None = None,
        ids: Iterable[int] | None = None,
        errors: Sequence[str | None] | str | None = None,
        delays: Iterable[Interval | None] | None = None,
        *,
        after: Interval | None = None,
        error: str | None = None,
        connection: AsyncGiven | None = None,
    ) -> int:
        """Messages were not started: they go back, the attempt does not count. Returns how many.

        At once; or after `after`, or `delays`, one for each id. With an error, which says why you cannot
        start them, and no delay, after one that grows each time, from a second to 5 minutes.
        """
        held = Answered.of(queue, subscription, lease_id, token, ids)
        only_one("error", error, "errors", errors)
        only_one("after", after, "delays", delays)
        if after is not None:
            delays = [after] * len(held.ids)
        arguments = {
            "errors": text_array("errors", for_each(error if errors is None else errors, held)),
            "delays": interval_array("delays", delays),
        }
        return await self._answer(connection, "release", held, arguments)

    @overload
    async def forward(
        self,
        messages: Leased,
        /,
        *,
        into: str,
        delay: Interval | None = None,
        connection: AsyncGiven | None = None,
    ) -> list[int | None]: ...

    @overload
    async def forward(
        self,
        queue: str,
        subscription: str,
        lease_id: int,
        token: int,
        ids: Iterable[int],
        into: str,
        delay: Interval | None = None,
        *,
        connection: AsyncGiven | None = None,
    ) -> list[int | None]: ...

    async def forward(
        self,
        queue: str | Leased,
        subscription: str | None = None,
        lease_id: int | None = None,
        token: int | None = None,
        ids: Iterable[int] | None = None,
        into: str | None = None,
        delay: Interval | None = None,
        *,
        connection: AsyncGiven | None = None,
    ) -> list[int | None]:
        """Messages go on into another queue, at once or after `delay`, with all that they had but progress.

        Returns their ids there, in order: None for one that was answered before, or that somebody cancelled,
        which is dead instead. Whoever published a message follows, cancels and awaits it by the id he knows.
        """
        held = Answered.of(queue, subscription, lease_id, token, ids)
        if into is None:
            raise TypeError("into must be given: the queue that the messages go on into")
        if held.is_nothing:
            return []
        arguments = {"ids": bigint_array(held.ids), "into": into, "delay": interval("delay", delay)}
        with settling(self._telemetry, "forward", held):
            ((there,),) = await self._execute(connection, Call("forward", {**held.lease, **arguments}))
        return list(there)

    @overload
    async def park(
        self,
        messages: Leased,
        token: str | Sequence[str],
        until: Interval | datetime,
        /,
        *,
        took: Iterable[float | None] | float | None = None,
        connection: AsyncGiven | None = None,
    ) -> int: ...

    @overload
    async def park(
        self,
        queue: str,
        subscription: str,
        lease_id: int,
        token: int,
        ids: Iterable[int],
        tokens: Sequence[str],
        delays: Iterable[Interval | None] | None = None,
        until: Iterable[datetime | None] | None = None,
        took: Iterable[float | None] | None = None,
        *,
        connection: AsyncGiven | None = None,
    ) -> int: ...

    async def park(
        self,
        queue: str | Leased,
        subscription: str | Sequence[str],
        lease_id: int | Interval | datetime,
        token: int | None = None,
        ids: Iterable[int] | None = None,
        tokens: Sequence[str] | None = None,
        delays: Iterable[Interval | None] | None = None,
        until: Iterable[datetime | None] | None = None,
        took: Iterable[float | None] | float | None = None,
        *,
        connection: AsyncGiven | None = None,
    ) -> int:
        """Messages wait for the outside: nobody holds them, and no attempt counts. Returns how many.

        Each waits until somebody resumes it by its token, a secret of its own (one for a message, a list for
        several), or until a time, from now or a datetime, is over: then it has failed as one that took too
        long. In the long form, `delays` or `until` has one for each id. Raises Duplicate for a token that
        another message has, or had.
        """
        if isinstance(queue, str):
            held = Answered.of(queue, cast(str, subscription), cast(int, lease_id), token, ids)
        else:
            held = Answered.of(queue, None, None, None, None)
            tokens = [subscription] if isinstance(subscription, str) else subscription
            parks = [Park(each, cast("Interval | datetime", lease_id)) for each in tokens]
            delays, until = [each.delay for each in parks], [each.moment for each in parks]
        arguments = {
            "tokens": text_array("tokens", tokens),
            "delays": interval_array("delays", delays),
            "until": moment_array("until", until),
            "took": real_array(for_each(took, held)),
        }
        return await self._answer(connection, "park", held, arguments)

    async def _answer(
        self, connection: AsyncGiven | None, function: str, held: Answered, arguments: dict[str, Any]
    ) -> int:
        if held.is_nothing:
            return 0
        call = Call(function, {**held.lease, "ids": bigint_array(held.ids), **arguments})
        with settling(self._telemetry, function, held):
            ((answered,),) = await self._execute(connection, call)
        return int(answered)
