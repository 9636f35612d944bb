"""Acts on all that match: what is asked before, and how this process carries them on beside the leader."""

from __future__ import annotations

import asyncio
import logging
from datetime import datetime
from typing import Any, Final, cast, get_args

import psycopg

from trunq.connection.backoff import first_line
from trunq.display import counted
from trunq.errors import InvalidArgument, TrunqError
from trunq.web.call import Call, Question, messages
from trunq.web.database import Database, Turns
from trunq.web.page import moment, text, whole
from trunq.web.pages.dead import filter_of
from trunq.web.pages.message import wanted_of
from trunq.word import State, SweepAct

COUNTED_TO: Final = 100_000
"""How far a preview counts; above, it says so."""
LOOKED: Final = 100_000
"""At how many dead messages a look over all queues looks."""
SOON: Final = 1.0
"""Seconds until it is tried again, while somebody else does a part, or the database is away."""
TRIES: Final = 30
"""So often in a row; the leader carries on what we give up."""
GOES_ON: Final = "It goes on when this page is closed, in parts of 10,000, and can be stopped."
TYPED: Final = "everywhere"
FILTERS_OF: Final = {"fingerprint": "error"}
"""Filters that tell of something that may be hidden, where that is called otherwise."""

log = logging.getLogger("trunq.web")
_carrying: set[asyncio.Task[None]] = set()
_parts = Turns()
"""A group in many queues is many sweeps."""


async def now(call: Call) -> datetime:
    """The time of the database, which a preview remembers."""
    row = await (await call.connection.execute("select trunq.clock()")).fetchone()
    assert row is not None
    time: datetime = row[0]
    return time


def how_many(n: int, what: str = "") -> str:
    """What a preview counted, in words."""
    return messages(n, what) if n <= COUNTED_TO else f"more than {COUNTED_TO:,} {what}messages"


async def ask_cancel(call: Call) -> Question:
    """How many messages in one state would be cancelled."""
    queue, wanted = call.need("queue"), wanted_of(call.given, call.hidden)
    subscription, state = call.need("subscription"), call.need("state")
    newest = await call.client.list_messages(
        queue, subscription, limit=1, brief=True, connection=call.connection
    )
    before, until = newest[0].id + 1 if newest else 1, await now(call)
    n = await call.client.count_messages(
        queue,
        subscription,
        cast("State", state),
        COUNTED_TO,
        before,
        connection=call.connection,
        **wanted,
    )
    said = f" with {', '.join(wanted)}" if wanted else ""
    some = how_many(n if n < COUNTED_TO else n + 1, f"{state} ")
    given = {name: text(call.given, name) for name in ("kind", "key", "error", "payload", "headers", "since")}
    return Question(
        f"Cancel {some} of {queue}/{subscription}{said}? They will not run; of those that run,"
        f" the workers are told. What was published after this count stays. {GOES_ON}",
        f"Cancel {some}",
        {
            **given,
            "queue": queue,
            "subscription": subscription,
            "state": state,
            "act": "cancel",
            "before": before,
        }
        | {"until": until.isoformat(), "count": n if n < COUNTED_TO else COUNTED_TO + 1},
        is_possible=n > 0,
    )


async def ask_group(call: Call) -> Question:
    """What is done to a group of dead messages in all queues."""
    act, fingerprint = _act(call), _group(call)
    until = await now(call)
    newest = await call.client.list_dead_groups(look=LOOKED, connection=call.connection)
    mine = [row for row in newest if row.fingerprint == fingerprint]
    n = sum(row.messages for row in mine)
    least = "at least " if any(row.looked_to is not None for row in newest) else ""
    then = "Nothing brings them back." if act == "purge" else "They run again, from their first attempt."
    queues = sorted(row.queue for row in mine)
    where = queues[0] if len(queues) == 1 else counted(len(queues), "queue")
    return Question(
        f"{act.capitalize()} {least}{messages(n, 'dead ')} of {where} with fingerprint {fingerprint}? {then}"
        f" What died after this count stays. {GOES_ON}",
        f"{act.capitalize()} {least}{messages(n)}",
        {"act": act, "fingerprint": fingerprint, "queues": " ".join(queues), "until": until.isoformat()},
        typed=TYPED if act == "purge" else None,
        is_possible=n > 0,
    )


async def start(call: Call) -> str:
    """Start what was asked: in one queue, or a group in all that the question named."""
    act, until, count = _act(call), moment(call.given, "until"), whole(call.given, "count")
    several = (text(call.given, "queues") or "").split()
    if act == "purge":
        require_typed(call, TYPED if several else call.need("queue"))
    for name in ("error", "fingerprint", "payload", "headers") if not several else ():
        # Without it, all would be meant.
        if text(call.given, name) is not None and FILTERS_OF.get(name, name) in call.hidden:
            raise InvalidArgument(f"{name} is hidden here, and so no filter", "count again what you mean")
    wanted: dict[str, Any] = filter_of(call.given, call.hidden)
    if "id" in wanted:
        raise InvalidArgument("a sweep is of all that match, and takes no id")
    if several:
        wanted["fingerprint"] = _group(call)
    if act == "cancel":
        wanted = wanted_of(call.given, call.hidden)
        wanted |= {"subscription": call.need("subscription"), "state": call.need("state")}
    for queue in several or [call.need("queue")]:
        id = await call.client.start_sweep(
            queue,
            act,
            before=None if several else whole(call.given, "before"),
            until=until,
            counted=None if several or count is None or count > COUNTED_TO else count,
            connection=call.connection,
            **wanted,
        )
        call.started.append((queue, id))
    if several:
        return f"Sweeps of {counted(len(several), 'queue')} {act} what they counted"
    return f"Sweep {call.started[0][1]} of {call.started[0][0]} goes on by itself"


def require_typed(call: Call, word: str) -> None:
    """Refuse a purge whose form does not have this word typed: the question says which."""
    if text(call.given, "typed") != word:
        raise InvalidArgument(
            f"nothing was purged: what was typed is not {word}", "the question before it asks for that"
        )


def _group(call: Call) -> str:
    """The fingerprint of a group in several queues; without it all that is dead there would be meant."""
    if "error" in call.hidden:
        raise InvalidArgument("errors are hidden here, and so is which messages died of one")
    return call.need("fingerprint")


def _act(call: Call) -> SweepAct:
    act = call.need("act")
    if act not in get_args(SweepAct):
        raise InvalidArgument(f"act is {', '.join(get_args(SweepAct))}")
    return cast("SweepAct", act)


def carry(database: Database, queue: str, id: int, who: str) -> None:
    """Carry a sweep on while this process lives; the leader does it, too, and after us."""
    task = asyncio.create_task(_carry(database, queue, id, who))
    # The loop keeps no task alive by itself.
    _carrying.add(task)
    task.add_done_callback(_carrying.discard)


async def _carry(database: Database, queue: str, id: int, who: str) -> None:
    tries = 0
    while tries < TRIES:
        try:
            async with _parts.turn(), database.changing(who) as connection:
                more = await database.client.carry_sweep(queue, id, connection=connection)
        except (psycopg.Error, TrunqError, OSError, TimeoutError) as error:
            log.warning("sweep %s of %s: %s", id, queue, first_line(error))
            more = None
        if more is False:
            # Not after each part: each time pages would look again for all that takes long.
            database.forget()
            return
        tries = 0 if more else tries + 1
        if more is None:
            await asyncio.sleep(SOON)
