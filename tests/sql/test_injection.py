"""Every function with every text that could be taken for SQL: it stays a text, whoever calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from calling import refused
from conftest import Connect
from granting import MAY, ROLES, granting, make_shop, outcome

Connection = psycopg.Connection[Any]

HOSTILE = (
    "'; select public.trap(); --",
    '"; select public.trap(); --',
    "x') || public.trap() || ('",
    "*/ public.trap() /*unique public.trap() */ $$ public.trap() $q$ %s %1$I %L \\",
    "public.trap()",
)

PARAMETERS = """
    select p.proname, substr(a.name, 3), a.type = 'text[]'::regtype
    from pg_proc p cross join unnest(p.proargnames[:p.pronargs], p.proargtypes::oid[]) a(name, type)
    where p.pronamespace = 'trunq'::regnamespace and p.proname !~ '^_' and p.prokind = 'f'
      and a.type in ('text'::regtype, 'text[]'::regtype) order by 1, 2
"""


@pytest.fixture
def shop(connection: Connection) -> Connection:
    """Two queues, and a function that fails whoever runs it: no text may become a call of it."""
    made = make_shop(connection)
    made.execute(
        "create function public.trap() returns text language plpgsql"
        " as $$ begin raise exception 'somebody ran it' using errcode = 'XX999'; end $$"
    )
    return made


def attack(session: Connection, may: Callable[[str], bool]) -> dict[tuple[str, str, str], str]:
    """Each text parameter of each function with each hostile text: what was no refusal of ours."""
    found = {}
    for function, parameter, is_array in session.execute(PARAMETERS.encode()).fetchall():
        if not may(function):
            continue
        for hostile in HOSTILE:
            arguments = {**MAY[function][1], parameter: [hostile] if is_array else hostile}
            state = outcome(session, function, "mine", arguments)
            if state != "00000" and not state.startswith("TQ"):
                found[function, parameter, hostile] = state
    return found


def test_as_the_owner(shop: Connection) -> None:
    with refused("XX999"):
        shop.execute("select public.trap()")
    assert attack(shop, lambda _: True) == {}


@pytest.mark.parametrize("role", ROLES)
def test_as_each_role(shop: Connection, connect: Connect, role: str) -> None:
    with granting(shop, connect) as grant:
        session = grant(role)
        found = attack(session, lambda function: role in MAY[function][0])
        # Another queue than its own, by whatever name, or its memos: no right.
        assert set(found.values()) <= {"42501"}
        assert {parameter for _, parameter, _ in found} <= {"queue", "scope"}
