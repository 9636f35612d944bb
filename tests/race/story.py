"""What has happened to a queue before its database is dumped, and what its readers have still to get."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import psycopg

from calling import Lease, answer, ask, call, drain, lease, publish

Connection = psycopg.Connection[Any]

STREAM = {"queue": "q", "subscription": "stream"}


@dataclass
class Story:
    """What has happened to queue `q` before it is dumped, and what its readers have still to get."""

    open: Lease
    done: list[int]
    dead: list[int]
    delayed: list[int]
    due: dict[str, list[int]] = field(default_factory=dict)


def tell(session: Connection) -> Story:
    """Have messages in every state."""
    ask(session, "create_queue", queue="q")
    done = publish(session, "q", 2)
    answer(session, "ack", lease(session, "q", 2))
    ask(session, "subscribe", queue="q", subscription="late")
    ids = publish(session, "q", 8)
    ask(session, "subscribe", **STREAM, mode="exclusive")
    more = publish(session, "q", 4)
    ask(session, "tick", queue="q", force=True)
    (batch,) = call(session, "next_batch", **STREAM, worker="w")
    ask(session, "finish_batch", **STREAM, batch_id=batch.batch_id, token=batch.token)
    unread = publish(session, "q", 2)
    answer(session, "ack", lease(session, "q", 2))
    answer(session, "retry", lease(session, "q"), delays=["0"], errors=["again"])
    answer(session, "retry", lease(session, "q"), delays=[timedelta(hours=1)])
    answer(session, "reject", lease(session, "q"), errors=["no"])
    delayed = ask(session, "publish", queue="q", delay=timedelta(hours=1))
    open_lease = lease(session, "q", 2)
    assert open_lease.ids == ids[5:7]
    answer(session, "ack", open_lease, open_lease.ids[:1])
    answer(session, "ack", lease(session, "q", 3, subscription="late"))
    return Story(
        open=open_lease,
        done=[*done, *ids[:2], ids[5]],
        dead=[ids[4]],
        delayed=[ids[3], delayed],
        due={
            "default": sorted([ids[2], ids[6], ids[7], *more, *unread]),
            "late": sorted([*ids[3:], *more, *unread]),
            "stream": unread,
        },
    )


def read(session: Connection, subscription: str) -> list[int]:
    """All that a subscription gets, in the order of ids."""
    if subscription != "stream":
        return sorted(drain(session, "q", subscription))
    ask(session, "tick", queue="q", force=True)
    found = []
    while rows := call(session, "next_batch", **STREAM, worker="w"):
        found += [row.id for row in call(session, "read_batch", **STREAM, batch_id=rows[0].batch_id)]
        ask(session, "finish_batch", **STREAM, batch_id=rows[0].batch_id, token=rows[0].token)
    return sorted(found)
