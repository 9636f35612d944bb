"""Tenants of a queue (functions/operate/tenant.sql): a session publishes and reads for one at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from calling import ask, call, drain, fetch, new_names, publish, refused
from conftest import Connect

Connection = psycopg.Connection[Any]

REFUSED = "42501"


@pytest.fixture(params=["plain", "keyed"])
def shared(session: Connection, request: pytest.FixtureRequest) -> str:
    """A queue of tenants; with unique keys, one with lanes as well."""
    name = next(new_names("shared"))
    more = {"unique": "refuse", "lanes": "key"} if request.param == "keyed" else {}
    ask(session, "create_queue", queue=name, **more)
    ask(session, "set_tenancy", queue=name)
    return name


@pytest.fixture
def tenant(session: Connection, open_session: Connect, shared: str) -> Iterator[Connection]:
    """A session of a publisher, which works for the tenant `ada`."""
    role = f"tenant_{session.info.dbname}_{shared}"
    session.execute(f"create role {role}".encode())
    ask(session, "grant_role", queue=shared, role="publisher", grantee=role)
    other = open_session()
    other.execute(f"set role {role}".encode())
    other.execute("set trunq.tenant = 'ada'")
    yield other
    other.close()
    session.execute(f"drop owned by {role}; drop role {role}".encode())


def ways(session: Connection, queue: str) -> dict[str, Callable[[str | None], Any]]:
    """How a message with a key may be published."""
    found: dict[str, Callable[[str | None], Any]] = {
        "publish": lambda key: ask(session, "publish", queue=queue, payload={}, key=key),
        "delayed": lambda key: ask(
            session, "publish", queue=queue, payload={}, key=key, delay=timedelta(hours=1)
        ),
        "options": lambda key: ask(
            session, "publish", queue=queue, payload={}, key=key, options={"max_attempts": 2}
        ),
        "publish_many": lambda key: publish(session, queue, 2, keys=[key]),
        "many delayed": lambda key: publish(session, queue, 2, keys=[key], delay=timedelta(hours=1)),
        "insert": lambda key: session.execute(
            f"insert into trunq_log.{queue} (payload, key) values ('1', %s)".encode(), (key,)
        ),
    }
    if fetch(session, "select unique_policy from trunq.queue where name = %s", queue):
        found["publish_unique"] = lambda key: ask(
            session, "publish_unique", queue=queue, payload={}, key=key, unique_key=f"one {key}"
        )
        found["many unique"] = lambda key: call(
            session, "publish_many_unique", queue=queue, payloads=[{}, {}], keys=[key], unique_keys=["a", "b"]
        )
        found["many unique, one of another"] = lambda key: call(
            session,
            "publish_many_unique",
            queue=queue,
            payloads=[{}, {}],
            keys=["ada", key],
            unique_keys=["c", "d"],
        )
    return found


def test_a_session_publishes_with_its_own_key_alone(
    session: Connection, shared: str, tenant: Connection
) -> None:
    for name, publish_one in ways(tenant, shared).items():
        for key in ("bob", "", None, "ADA", "ada "):
            with refused(REFUSED):
                publish_one(key)
        publish_one("ada")
        assert name
    keys = session.execute(f"select distinct key from trunq_log.{shared}".encode()).fetchall()
    delayed = session.execute(
        "select distinct d.key from trunq.delayed d join trunq.queue q using (queue_id) where q.name = %s",
        (shared,),
    ).fetchall()
    assert (keys, delayed) == ([("ada",)], [("ada",)])


@pytest.mark.parametrize("setting", ["reset trunq.tenant", "set trunq.tenant = ''"])
def test_a_session_without_a_tenant_publishes_nothing(shared: str, tenant: Connection, setting: str) -> None:
    tenant.execute(setting.encode())
    for publish_one in ways(tenant, shared).values():
        for key in ("ada", "", None):
            with refused(REFUSED):
                publish_one(key)


def test_copy_is_refused_by_postgres(shared: str, tenant: Connection) -> None:
    with (
        pytest.raises(psycopg.errors.FeatureNotSupported, match="row-level security"),
        tenant.cursor().copy(f"copy trunq_log.{shared} (key, payload) from stdin".encode()) as copy,
    ):
        copy.write_row(("ada", "1"))


def test_reading_the_log_shows_one_tenant(session: Connection, shared: str, tenant: Connection) -> None:
    for key in ("ada", "bob"):
        publish(session, shared, 2, keys=[key])
    role = fetch(tenant, "select current_user")
    session.execute(f"grant select (key) on trunq_log.{shared} to {role}".encode())
    assert tenant.execute(f"select key from trunq_log.{shared}".encode()).fetchall() == [("ada",), ("ada",)]
    tenant.execute("set trunq.tenant = 'bob'")
    assert fetch(tenant, f"select count(*) from trunq_log.{shared} where key = 'bob'") == 2


def test_the_owner_and_workers_see_all_tenants(session: Connection, shared: str, tenant: Connection) -> None:
    ids = [
        ask(session, "publish", queue=shared, payload={}, key="bob"),
        ask(tenant, "publish", queue=shared, payload={}, key="ada"),
    ]
    role = fetch(tenant, "select current_user")
    ask(session, "grant_role", queue=shared, role="worker", grantee=role)
    assert sorted(drain(tenant, shared)) == sorted(ids)


def test_it_ends_as_it_began(session: Connection, shared: str, tenant: Connection) -> None:
    ask(session, "set_tenancy", queue=shared)  # again: nothing to do
    ask(session, "set_tenancy", queue=shared, tenancy=False)
    for publish_one in ways(tenant, shared).values():
        publish_one("bob")
    ask(session, "set_tenancy", queue=shared, tenancy=True)
    with refused(REFUSED):
        ask(tenant, "publish", queue=shared, payload={}, key="bob")


def test_a_queue_without_tenants_asks_nothing(session: Connection, queue: str) -> None:
    sources = (
        "select string_agg(p.prosrc, '') from pg_proc p where p.pronamespace = 'trunq_queue'::regnamespace"
        " and p.proname like %s"
    )
    assert "tenant" not in fetch(session, sources, f"{queue}\\_%")
    keyed = next(new_names("keyed"))
    ask(session, "create_queue", queue=keyed, unique="refuse")
    asks = "c_has_tenants constant boolean := true"
    assert asks not in fetch(session, sources, f"{keyed}\\_%")
    ask(session, "set_tenancy", queue=keyed)
    assert fetch(session, sources, f"{keyed}\\_%").count(asks) == 2


def test_tenancy_is_the_owner_s_to_set(session: Connection, shared: str, tenant: Connection) -> None:
    with refused(REFUSED):
        ask(tenant, "set_tenancy", queue=shared, tenancy=False)
    with refused("TQ001", "nowhere"):
        ask(session, "set_tenancy", queue="nowhere")
