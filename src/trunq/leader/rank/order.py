"""What a function that ranks returned, checked: one bad rank, and none of it counts."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from trunq.record import Lane

_LOWEST: Final = -100
_HIGHEST: Final = 100
_MOST_RUNNING: Final = 1000


class Rank(NamedTuple):
    """The rank of a lane (-100 to 100, the smallest comes first; None: its place as that of others), and how
    many of its messages may run at once (1 to 1,000; None: as the subscription says).

    `lane` is one of those that the function was given, or its name where lanes have no priorities.
    """

    lane: Lane | str
    rank: int | None = None
    max_running: int | None = None


class BadOrder(Exception):
    """A function returned what is no order of the lanes it was given."""


@dataclass(slots=True)
class Order:
    """The ranks of lanes, as columns."""

    lanes: list[str] = field(default_factory=list)
    priorities: list[int] = field(default_factory=list)
    ranks: list[int | None] = field(default_factory=list)
    max_running: list[int | None] = field(default_factory=list)


def order(said: Any, lanes: Sequence[Lane]) -> Order:
    """What a function said of `lanes`. Raises BadOrder."""
    known = {(lane.priority, lane.lane) for lane in lanes}
    found = Order()
    for one in _ranks(said):
        priority, name = _place(one.lane)
        if (priority, name) not in known:
            raise BadOrder(f"there is no lane {_called(priority, name)} among those that it was given")
        what = f"lane {_called(priority, name)}"
        found.ranks.append(_number(f"the rank of {what}", one.rank, _LOWEST, _HIGHEST))
        found.max_running.append(_number(f"max_running of {what}", one.max_running, 1, _MOST_RUNNING))
        found.priorities.append(priority)
        found.lanes.append(name)
    places = list(zip(found.priorities, found.lanes, strict=True))
    if len(set(places)) < len(places):
        twice = next(place for place in places if places.count(place) > 1)
        raise BadOrder(f"it ranks lane {_called(*twice)} twice")
    return found


def _ranks(said: Any) -> Iterator[Rank]:
    if isinstance(said, Mapping):
        yield from (Rank(lane, rank) for lane, rank in said.items())
        return
    if isinstance(said, str) or not isinstance(said, Iterable):
        raise BadOrder(f"it returned {said!r:.100}, not ranks by lane (a dict) or an iterable of trunq.Rank")
    for one in said:
        if not isinstance(one, Rank):
            raise BadOrder(f"it returned {one!r:.100} among its ranks, which is no trunq.Rank")
        yield one


def _place(lane: Any) -> tuple[int, str]:
    if isinstance(lane, Lane):
        return lane.priority, lane.lane
    if isinstance(lane, str):
        return 0, lane
    raise BadOrder(f"{lane!r:.100} is no lane: give one of those that it was given, or the name of one")


def _called(priority: int, name: str) -> str:
    return f'"{name}"' + (f" with priority {priority}" if priority else "")


def _number(what: str, value: Any, lowest: int, highest: int) -> int | None:
    if value is None:
        return None
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise BadOrder(
            f"{what} is {value!r:.100}: give a whole number from {lowest} to {highest}, or None"
        ) from None
    if not lowest <= number <= highest:
        raise BadOrder(f"{what} is {number}, not one from {lowest} to {highest}")
    return number
