"""What a DBA allows a role or a database: commands say which limit ended them, and how it is undone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg import sql

from shelling import Shell
from trunq import Client, install
from trunq.sql import Migration

Limit = Callable[[str, str], None]


@pytest.fixture
def limit(database: str) -> Limit:
    """Set something for all sessions of the database."""

    def limit(name: str, value: str) -> None:
        with psycopg.connect(database, autocommit=True) as session:
            session.execute(
                sql.SQL("alter database {} set {} = {}").format(
                    sql.Identifier(session.info.dbname), sql.Identifier(name), value
                )
            )

    return limit


def test_a_database_that_is_set_read_only_says_how_one_command_writes(
    trunq: Shell, limit: Limit, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit("default_transaction_read_only", "on")
    done = trunq("queue", "create", "mail")
    assert done.status == 1
    assert "default_transaction_read_only is set" in done.said
    assert "Traceback" not in done.said + trunq("db", "upgrade", "--repair").said
    assert trunq("queue", "list").status == 0
    monkeypatch.setenv("PGOPTIONS", "-c default_transaction_read_only=off")
    assert trunq("queue", "create", "mail").status == 0


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("statement_timeout", "longer than statement_timeout allows"),
        ("lock_timeout", "longer than lock_timeout allows"),
    ],
)
def test_a_command_that_a_time_out_ended_says_which(
    name: str,
    said: str,
    trunq: Shell,
    client: Client,
    connection: psycopg.Connection[Any],
    limit: Limit,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client.create_queue("mail")
    limit(name, "1s")
    with connection.transaction():
        connection.execute("lock table trunq.schedule in access exclusive mode")
        done = trunq("schedule", "list")
    assert (done.status, done.out) == (1, "")
    assert said in done.said
    assert "Traceback" not in done.said
    monkeypatch.setenv("PGOPTIONS", f"-c {name}=0")
    assert trunq("schedule", "list").status == 0


def test_limits_of_a_database_end_no_upgrade(
    trunq: Shell, client: Client, database: str, limit: Limit, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.create_queue("mail")
    unbounded = """do $$ begin
      assert current_setting('statement_timeout') = '0';
      assert current_setting('idle_in_transaction_session_timeout') = '0';
    end $$"""
    known = install.migrations()
    newer = Migration(install.newest() + 1, "9999_unbounded", unbounded)
    monkeypatch.setattr(install, "migrations", lambda: (*known, newer))
    limit("statement_timeout", "1min")
    limit("idle_in_transaction_session_timeout", "1min")
    assert trunq("db", "upgrade").status == 0
    assert install.version(database) == newer.number
    with psycopg.connect(database) as session:
        # Within a transaction of somebody else's they stay as they are.
        install.install(session)
        assert session.execute("show statement_timeout").fetchone() == ("1min",)
