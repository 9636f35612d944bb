"""Results: what became of messages that were published as awaited."""

from __future__ import annotations

from time import monotonic
from typing import Any

from trunq.client._async.passing import AsyncPassing
from trunq.client.reply import (
    FIRST_CHECK,
    FIRST_POLL,
    LONGEST_POLL,
    AsyncPatience,
    Question,
    Replies,
    result_of,
)
from trunq.connection.given import AsyncGiven
from trunq.errors import ResultTimeout
from trunq.record import Published
from trunq.wire.array import bigint_array
from trunq.wire.name import check_name
from trunq.wire.scalar import Interval, interval


class AsyncResults(AsyncPassing):
    """Results."""

    _waiting: Replies | None

    async def result(
        self,
        queue: str,
        id: int | Published,
        *,
        subscription: str = "default",
        timeout: Interval | None = None,
        connection: AsyncGiven | None = None,
    ) -> Any:
        """Wait for the final answer to a message that was published with `awaited`, and return its result.

        That is what its handler returned; a retry is no final answer. Raises MessageFailed when the message
        was rejected, cancelled or replaced, expired, was too old, or failed in its last attempt;
        ResultTimeout after
        `timeout` (None: it waits for ever), which leaves the message as it is; InvalidArgument for one that
        was not published with `awaited`; MessageNotFound for one that is nowhere, which it is until its
        transaction commits, and for one whose reply is gone: it is kept for an hour, unless `awaited` said
        how long.

        All who wait in a client share one connection of its own, beside its pool. With `connection`, or a
        pool of yours, it asks again and again instead, each second at last.
        """
        check_name("queue", queue)
        check_name("subscription", subscription)
        message_id = id.id if isinstance(id, Published) else id
        bigint_array([message_id])
        question = Question(queue, subscription, message_id)
        given = interval("timeout", timeout)
        seconds = None if given is None else given.total_seconds()
        if connection is not None or self._conninfo is None:
            return await self._poll(question, seconds, connection)
        # Says why the database cannot be reached, or does not fit.
        await self._ready_pool()
        replies = self._replies()
        future = replies.wait_for(question)
        try:
            reply = await AsyncPatience.outcome(future, seconds)
        except TimeoutError:
            raise self._late(question, seconds) from None
        finally:
            replies.leave(question, future)
        return result_of(queue, reply)

    async def close(self) -> None:
        """Close the client's own connections; a pool of yours stays open. Another call opens them again.

        Calls that still wait for a connection, or for a result, raise ClientClosed, and so do loops that
        listen.
        """
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            await AsyncPatience.ended(waiting)
        await super().close()

    def _start_afresh(self) -> None:
        self._waiting = None
        super()._start_afresh()

    def _replies(self) -> Replies:
        with self._swapping:
            if self._waiting is None:
                assert self._conninfo is not None
                self._waiting = Replies(self._conninfo)
            return self._waiting

    async def _poll(self, question: Question, seconds: float | None, connection: AsyncGiven | None) -> Any:
        """Ask until there is a reply; at first, and seldom later, whether there will be one."""
        queue, subscription, message_id = question
        ends = None if seconds is None else monotonic() + seconds
        pause, check_at, check_pause = FIRST_POLL, 0.0, FIRST_CHECK
        while True:
            is_due = monotonic() >= check_at
            if is_due:
                check_pause = min(4 * check_pause, 60.0)
                check_at = monotonic() + check_pause
            found = await self.list_replies(
                queue, [message_id], subscription=subscription, check=is_due, connection=connection
            )
            if found:
                return result_of(queue, found[0])
            left = pause if ends is None else ends - monotonic()
            if left <= 0:
                raise self._late(question, seconds)
            await AsyncPatience.pause(min(pause, left))
            pause = min(2 * pause, LONGEST_POLL)

    def _late(self, question: Question, seconds: float | None) -> ResultTimeout:
        return ResultTimeout(
            f"message {question.id} of {question.queue} has no result within {seconds:g} s",
            "it goes on; client.show_message tells its state, and another call of result waits again",
        )
