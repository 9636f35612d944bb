"""What a worker was asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from trunq.errors import InvalidArgument
from trunq.leader.duty import LINES
from trunq.leader.rank import Ranks
from trunq.worker.handler import Registry

if TYPE_CHECKING:
    from trunq.telemetry import Telemetry

_OF_LEADER: Final = 1 + len(LINES)
"""Connections of a leader: for its election, and for each of its lines of duties."""

UnknownKinds = Literal["wait", "reject"]


@dataclass(frozen=True, slots=True)
class Options:
    """What a worker was asked for; worker/__init__.py says what each means."""

    queues: tuple[str, ...]
    subscription: str
    dsn: str
    identity: str
    is_named: bool
    concurrency: int
    prefetch: int | None
    public_ids: bool
    asks: str | None
    """JSON."""
    poll: float
    lease_time: float | None
    reserve: float | None
    grace: float | None
    max_connections: int | None
    notify: bool | None
    lead: bool
    until_empty: bool
    until_idle: bool
    unknown_kinds: UnknownKinds
    ranks: Ranks | None
    shuffle: bool
    process_pool: int
    telemetry: Telemetry | None = None


def connections(options: Options, registry: Registry) -> tuple[int, int]:
    """How many connections a worker opens at most, and how many of them each pool of transactions has.

    Leases, answers, the bell and what ranks have one each, the leader four. Async handlers in a transaction
    have a pool, and sync ones another. Not counted: one for each subscription that is ranked by a function
    with a connection.
    """
    fixed = 2 + (options.notify is not False) + _OF_LEADER * options.lead + (options.ranks is not None)
    pools = registry.colours_of_transactions
    most = options.max_connections
    if most is None:
        most = fixed + pools * options.concurrency
    if most < fixed + pools:
        raise InvalidArgument(f"this worker needs at least {fixed + pools} connections, not {most}")
    share = min(options.concurrency, (most - fixed) // pools) if pools else 1
    return fixed + pools * share, share
