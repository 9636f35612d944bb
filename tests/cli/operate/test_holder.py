"""`trunq session`: who stands in the way, and ending it."""

from __future__ import annotations

import psycopg
import pytest

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
