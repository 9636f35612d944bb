"""Who stands in the way is ended by who may, as the finding says, and nobody else is."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from calling import ask, fetch, move_clock, new_names, refused
from conftest import Connect
from engine import Engine
from trunq.record import Finding

Connection = psycopg.Connection[Any]

BEGAN = "select backend_start from pg_stat_activity where pid = %s"


@pytest.fixture
def work(session: Connection) -> Engine:
    return Engine(session, next(new_names("held"))).create()


@pytest.fixture
def other(work: Engine, open_session: Connect) -> Engine:
    """A session that published and went home."""
    other = work.on(open_session(autocommit=False))
    other.publish()
    return other


def session_of(work: Engine, other: Engine) -> tuple[int, datetime]:
    pid = other.connection.info.backend_pid
    return pid, fetch(work.connection, BEGAN, pid)


def test_one_that_is_named_is_ended_and_noted(work: Engine, other: Engine) -> None:
    pid, began_at = session_of(work, other)
    for date_style in ("ISO", "German", "SQL, DMY"):
        # The finding reads the same in each.
        work.run(f"set datestyle = '{date_style}'")
        with work.clock("15 seconds"):
            (row,) = work.call("list_warnings")
        found = Finding("warnings", "warning", None, None, row.warning, row.hint, None)
        assert found.session == (pid, began_at)
    work.run("reset datestyle")
    with work.clock("15 seconds"):
        assert ask(work.connection, "end_session", pid=pid, began_at=began_at) is True
    with pytest.raises(psycopg.OperationalError):
        other.connection.commit()
    noted = "select arguments from trunq.audit where did = 'end_session' order by audit_id desc limit 1"
    arguments = work.fetch(noted)
    assert arguments["pid"] == pid
    assert f'has published to queue "{work.queue}"' in arguments["finding"]


def test_whoever_is_in_nobodys_way_is_not_ended(work: Engine, other: Engine, open_session: Connect) -> None:
    pid, began_at = session_of(work, other)
    name = f"select trunq.end_session({pid}, '2000-01-01')"
    bystander = work.on(open_session(application_name=name))
    with work.clock("15 seconds"):
        # Another has its process id by now.
        with refused("TQ005", f"process {pid}", "in nobody's way", "trunq.diagnose()"):
            ask(work.connection, "end_session", pid=pid, began_at=began_at - timedelta(microseconds=1))
        with refused("TQ005", "in nobody's way"):
            ask(work.connection, "end_session", pid=pid, began_at="2000-01-01")
        for each in (bystander, work):
            with refused("TQ005", "in nobody's way"):
                own, since = session_of(work, each)
                ask(work.connection, "end_session", pid=own, began_at=since)
        with refused("TQ005", "process (null)"):
            ask(work.connection, "end_session", pid=None, began_at=None)
    # It goes on: it has committed.
    other.connection.commit()
    with work.clock("15 seconds"), refused("TQ005", "in nobody's way"):
        ask(work.connection, "end_session", pid=pid, began_at=began_at)
    assert bystander.fetch("select 1") == other.fetch("select 1") == 1


@pytest.fixture
def role(session: Connection) -> Iterator[str]:
    """A role without rights, and another that is a member of the owner."""
    name = next(new_names("ender"))
    owner = fetch(session, "select nspowner::regrole::text from pg_namespace where nspname = 'trunq'")
    session.execute(f"create role {name} login; create role {name}_victim login".encode())
    session.execute(f"grant {owner} to {name}".encode())
    yield name
    session.execute(f"drop role {name}, {name}_victim".encode())


def test_a_role_is_told_which_grant_it_needs(
    session: Connection, shared_database: str, role: str, open_session: Connect
) -> None:
    def end(connection: Connection, other: Connection) -> bool:
        pid = other.info.backend_pid
        began_at = fetch(session, BEGAN, pid)
        return bool(ask(connection, "end_session", pid=pid, began_at=began_at))

    def follow(error: psycopg.Error) -> None:
        hint = str(error.diag.message_hint)
        assert role in hint
        session.execute(hint.partition(", and ")[0].encode())

    address = make_conninfo(shared_database, user=f"{role}_victim")
    owners = open_session(autocommit=False)
    with (
        psycopg.connect(make_conninfo(shared_database, user=role), autocommit=True) as ender,
        psycopg.connect(address) as victim,
    ):
        for each in (owners, victim):
            each.execute("select pg_current_xact_id()")
        move_clock(ender, "6 minutes")
        with psycopg.connect(address, autocommit=True) as stranger, refused("42501", "for schema trunq"):
            end(stranger, victim)
        with pytest.raises(psycopg.Error) as unseen:
            end(ender, victim)
        assert unseen.value.sqlstate == "TQ005"
        follow(unseen.value)
        with pytest.raises(psycopg.errors.InsufficientPrivilege) as unsignalled:
            end(ender, victim)
        assert f"role {role} may not end process" in str(unsignalled.value)
        follow(unsignalled.value)
        assert end(ender, victim)
        with pytest.raises(psycopg.OperationalError):
            victim.execute("select 1")
        with refused("42501", "superusers alone"):
            end(ender, owners)
    owners.rollback()
