"""Progress: how far what runs is, and checkpoints from which the next attempt goes on."""

from __future__ import annotations

from typing import Any, overload

from trunq.client._async.access import AsyncAccess
from trunq.client.answered import Answered
from trunq.client.message import Message
from trunq.client.progress import Progress
from trunq.connection.given import AsyncGiven
from trunq.errors import InvalidArgument
from trunq.wire.call import Call


class AsyncReporting(AsyncAccess):
    """Progress."""

    @overload
    async def set_progress(
        self,
        message: Message,
        /,
        *,
        percent: float | None = None,
        note: str | None = None,
        checkpoint: Any = None,
        connection: AsyncGiven | None = None,
    ) -> None: ...

    @overload
    async def set_progress(
        self,
        queue: str,
        subscription: str,
        lease_id: int,
        token: int,
        id: int,
        percent: float | None = None,
        note: str | None = None,
        checkpoint: Any = None,
        *,
        connection: AsyncGiven | None = None,
    ) -> None: ...

    async def set_progress(
        self,
        queue: str | Message,
        subscription: str | None = None,
        lease_id: int | None = None,
        token: int | None = None,
        id: int | None = None,
        percent: float | None = None,
        note: str | None = None,
        checkpoint: Any = None,
        *,
        connection: AsyncGiven | None = None,
    ) -> None:
        """Say how far a message is that was leased: 0 to 100 `percent`, a `note` of up to 500 characters, and
        a `checkpoint`, up to 1 MB of JSON, that the next attempt is given.

        What is left out stays as this attempt said it. Raises LeaseLost when the lease has ended,
        MessageTooLarge for a larger checkpoint, InvalidArgument also when the message was answered. A handler
        that a worker runs calls `message.set_progress`, which writes seldom.
        """
        held = Answered.of(queue, subscription, lease_id, token, None if id is None else [id])
        given = Progress.of(percent, note, checkpoint)
        arguments = {**held.lease, "id": held.ids[0], **given.arguments}
        ((is_said,),) = await self._execute(connection, Call("set_progress", arguments))
        if not is_said:
            raise InvalidArgument(
                f"message {held.ids[0]} was answered: it makes no progress any more", "report while it runs"
            )
