"""Those who set something of lanes take their locks in one order, and none ends in a deadlock."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from conftest import Connect
from laning import make
from waiting import wait_until_blocked

Connection = psycopg.Connection[Any]


@pytest.mark.parametrize(
    ("verb", "arguments"),
    [
        ("set_ranks", {"subscription": "default", "lanes": ["b"], "ranks": [3]}),
        ("set_ranks", {"subscription": "default", "lanes": [], "ranks": [], "are_all": True}),
        ("resume_lane", {"lane": "b"}),
        ("pause_lane", {"lane": "b"}),
        ("set_lane", {"lane": "b", "rank": 1}),
    ],
)
def test_who_sets_two_lanes_meets_another_who_sets_one(
    session: Connection, open_session: Connect, meanwhile: Any, verb: str, arguments: dict[str, Any]
) -> None:
    first, second = open_session(autocommit=False), open_session(autocommit=False)
    laned = make(session)
    laned.ask("set_lane", lane="b", rank=7)
    laned.ask("pause_lane", lane="b")
    laned.on(first).ask("set_lane", lane="a", weight=2)
    late = meanwhile(laned.on(second).ask, verb, **arguments)
    wait_until_blocked(session, second)
    laned.on(first).ask("set_lane", lane="b", weight=2)
    first.commit()
    late.result(120)
    second.commit()
