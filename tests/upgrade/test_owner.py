"""Who upgrades is the owner of trunq: whatever runs then runs with its rights."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path
from typing import Any

import psycopg
import pytest

import trunq
from calling import OUTDATED, ask, fetch
from conftest import Connect
from trunq import Client, install
from trunq.cli.operate import uninstall, upgrade

Connection = psycopg.Connection[Any]

OPERATING = ("install.py", "cli/operate/upgrade.py", "cli/operate/uninstall.py")
"""What asks the database itself, and calls no functions of trunq for it."""

NEARER = {
    "name": ["text"],
    "oid": ["regclass", "regnamespace", "integer"],
    '"any"': ["text"],
    "anyelement": ["text", "bigint"],
    "anyarray": ["text[]"],
    "anynonarray": ["text"],
}
"""Types that a call gives, where Postgres's own function takes another one: an overload with these wins."""

SIGNATURES = """
    select p.proname, array(select format_type(t, null) from unnest(p.proargtypes::oid[]) t)
    from pg_catalog.pg_proc p
    where p.pronamespace = 'pg_catalog'::regnamespace and p.proname = any (%s) and p.pronargs > 0
"""


def overload(session: Connection) -> int:
    """Functions of somebody else's that are nearer to what these files call. Returns how many."""
    sources = [(Path(trunq.__file__).parent / name).read_text() for name in OPERATING]
    called = sorted({name for source in sources for name in re.findall(r"(?<![.\w])([a-z_]+)\(", source)})
    planted = set()
    for name, types in session.execute(SIGNATURES.encode(), (called,)).fetchall():
        for given in product(*(NEARER.get(type, [type]) for type in types)):
            planted |= {f"{name}({', '.join(given)})"}
            if types[-1] == '"any"':
                planted |= {f"{name}({', '.join([*given, 'text'])})"}
    for signature in planted:
        session.execute(
            f"create function public.{signature} returns text language plpgsql as"
            f" $$ begin raise exception 'a function of somebody else was run: {signature}'; end $$".encode()
        )
    return len(planted)


@pytest.fixture
def installed(database: str, connect: Connect) -> tuple[str, Connection]:
    """A database with a queue that an upgrade is to follow."""
    session = connect()
    ask(session, "create_queue", queue="work")
    session.execute(OUTDATED.encode())
    return database, session


def test_an_upgrade_runs_no_function_of_somebody_else(installed: tuple[str, Connection]) -> None:
    database, session = installed
    assert overload(session) > 20
    assert upgrade.plan(database).queues == ["work"]
    assert install.version(database) == install.newest()
    assert install.install(database, "pgq").queues == 1
    assert not upgrade.plan(database).functions
    with Client(database) as client:
        assert "pgq" in uninstall.look(client).schemas


def test_a_transaction_that_an_install_joins_keeps_its_search_path(database: str) -> None:
    with psycopg.connect(database) as session:
        session.execute("set local search_path = public, trunq")
        install.install(session)
        assert install.version(session) == install.newest()
        assert fetch(session, "show search_path") == "public, trunq"
