"""Groups: several members read one stream at the same time."""

from __future__ import annotations

from datetime import datetime

from trunq._async.access import AsyncAccess
from trunq.connection.given import AsyncGiven
from trunq.record import Group, Member
from trunq.wire.scalar import moment
from trunq.word import BatchLeft, Start


class AsyncGroups(AsyncAccess):
    """Groups."""

    async def create_group(
        self,
        queue: str,
        group: str,
        slots: int | None = None,
        start: Start = "latest",
        tick_id: int | None = None,
        at: datetime | None = None,
        *,
        connection: AsyncGiven | None = None,
    ) -> bool:
        """Make a group of readers, who have a batch each at the same time; False when it was there.

        Without `slots` they have whole batches, beside each other. With `slots`, a power of two up to 1024,
        the messages of one key come in order: each key is in one slot, which one member at a time reads.
        It starts as in `subscribe`; without slots, an exclusive subscription of this name becomes the group,
        and goes on where it stands.
        """
        made: bool = await self._value(
            connection,
            "create_group",
            queue=queue,
            group=group,
            slots=slots,
            start=start,
            tick_id=tick_id,
            at=moment("at", at),
        )
        return made

    async def drop_group(self, queue: str, group: str, *, connection: AsyncGiven | None = None) -> bool:
        """End a group, its members and positions; False when there was none."""
        was: bool = await self._value(connection, "drop_group", queue=queue, group=group)
        return was

    async def join_group(
        self, queue: str, group: str, member: str, *, connection: AsyncGiven | None = None
    ) -> datetime:
        """Become a member of a group; returns when. Whoever asks for a batch is one too.

        Raises MemberBusy while another process uses that name.
        """
        joined_at: datetime = await self._value(
            connection, "join_group", queue=queue, group=group, member=member
        )
        return joined_at

    async def leave_group(
        self,
        queue: str,
        group: str,
        member: str,
        batch: BatchLeft | None = None,
        *,
        connection: AsyncGiven | None = None,
    ) -> bool:
        """End a member; False when there was none of that name.

        Raises MemberBusy when it has a batch in hand, unless `batch` says what becomes of that: `finish`, as
        if the member had; `give_back`, for the next who asks.
        """
        was: bool = await self._value(
            connection, "leave_group", queue=queue, group=group, member=member, batch=batch
        )
        return was

    async def list_groups(
        self, queue: str | None = None, *, connection: AsyncGiven | None = None
    ) -> list[Group]:
        """The groups of a queue, or of all: how they read, how many members, where they stand."""
        return await self._records(connection, Group, "list_groups", queue=queue)

    async def list_members(
        self, queue: str, group: str, *, connection: AsyncGiven | None = None
    ) -> list[Member]:
        """The members of a group, when they were seen, and the batch that each has in hand."""
        return await self._records(connection, Member, "list_members", queue=queue, group=group)
