"""`trunq session`: who stands in the way, and ending it."""

from __future__ import annotations

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from calling import new_names
from shelling import Shell
from trunq import Client


def test_a_session_in_the_way_is_shown_asked_about_and_ended(
    trunq: Shell, client: Client, database: str
) -> None:
    client.create_queue("mail")
    assert trunq("session", "list").said == "No session is in the way."
    with psycopg.connect(database, autocommit=True, application_name="notebook of eve") as other:
        pid = str(other.info.backend_pid)
        other.execute(
            "select pg_advisory_lock(trunq._lock_class('queue'), queue_id)"
            " from trunq.queue where name = 'mail'"
        )
        shown = trunq("session", "list").said
        # As it is typed, and why it is in the way.
        assert f" {pid} " in shown
        assert "holds the lock of queue" in shown
        (row,) = trunq("session", "list", "--json").json
        assert row["pid"] == int(pid)
        assert 'application "notebook of eve" holds the lock of queue "mail"' in row["finding"]
        assert f"trunq session end {pid} ends it" in trunq("doctor").said
        asked = trunq("session", "end", pid)
        assert asked.status == 1
        assert "notebook of eve" in asked.said
        assert "Nobody is here to answer" in asked.said
        assert other.execute("select 1").fetchone() == (1,)
        assert trunq("session", "end", pid, "--yes").out == f"Process {pid} has ended.\n"
        with pytest.raises(psycopg.OperationalError):
            other.execute("select 1")
    gone = trunq("session", "end", pid, "--yes")
    assert (gone.status, f"Process {pid} is in nobody's way" in gone.said) == (1, True)


def test_a_role_that_ends_nobody_is_sent_to_the_doctor(
    trunq: Shell,
    client: Client,
    database: str,
    connection: psycopg.Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client.create_queue("mail")
    role = next(new_names("looker"))
    connection.execute(f"create role {role} login in role pg_read_all_stats".encode())
    client.grant_role("mail", "reader", role)
    try:
        with psycopg.connect(database, autocommit=True) as other:
            other.execute(
                "select pg_advisory_lock(trunq._lock_class('queue'), queue_id)"
                " from trunq.queue where name = 'mail'"
            )
            monkeypatch.setenv("TRUNQ_DSN", make_conninfo(database, user=role))
            assert "trunq doctor names others" in trunq("session", "list").said
            done = trunq("session", "end", str(other.info.backend_pid), "--yes")
            assert (done.status, "is none that this role ends" in done.said) == (1, True)
    finally:
        client.revoke_role("mail", "reader", role)
        connection.execute(f"drop role {role}".encode())
