"""A primary with the queue `q`, and its standby, both real."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from copying import copied_server
from memory import in_memory
from trunq import embedded
from trunq.embedded import Embedded
from waiting import wait_until


@dataclass
class Pair:
    """The two servers."""

    primary: Embedded
    standby: Embedded

    @property
    def either(self) -> str:
        """The address of whichever of the two takes writes."""
        hosts = ",".join(str(conninfo_to_dict(server.dsn)["host"]) for server in (self.primary, self.standby))
        return make_conninfo(self.primary.dsn, host=hosts, target_session_attrs="read-write")

    def caught_up(self) -> None:
        """Wait until the standby has replayed all of the primary."""
        end = one(self.primary.dsn, "select pg_current_wal_flush_lsn()::text")
        wait_until(lambda: one(self.standby.dsn, "select pg_last_wal_replay_lsn() >= %s::pg_lsn", end))

    def synchronize(self) -> None:
        """From now on a commit on the primary waits for the standby, as `synchronous_commit` says."""
        set_system(self.primary, "synchronous_standby_names", "*")
        query = "select count(*) from pg_stat_replication where sync_state = 'sync'"
        wait_until(lambda: one(self.primary.dsn, query))

    def sever(self) -> None:
        """The standby receives nothing more."""
        set_system(self.standby, "primary_conninfo", "")
        wait_until(lambda: one(self.standby.dsn, "select count(*) = 0 from pg_stat_wal_receiver"))

    def fail_over(self) -> None:
        """The primary dies, the standby takes its place."""
        self.primary.kill()
        assert one(self.standby.dsn, "select pg_promote()")


def set_system(server: Embedded, name: str, value: str) -> None:
    """Change a setting of a running server."""
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute(f"alter system set {name} = '{value}'".encode())
        connection.execute("select pg_reload_conf()")


def one(dsn: str, query: str, *values: Any) -> Any:
    """The first value of the first row."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        row = connection.execute(query.encode(), values or None).fetchone()
    assert row is not None
    return row[0]


@contextmanager
def primary_and_standby(
    major: int, *, retention: str = "1 day", standby_settings: Mapping[str, str] | None = None
) -> Iterator[Pair]:
    """Start the two."""
    with in_memory():
        directory = Path(tempfile.mkdtemp(prefix="trunq-standby-"))
    try:
        with copied_server(major) as primary:
            one(primary.dsn, "select trunq.create_queue('q', %s)", retention)
            copy = primary.directory / "copy"
            primary._run("pg_basebackup", "-d", primary.dsn, "-D", str(copy), "-R", "--checkpoint=fast")
            copy.rename(directory / "data")
            with embedded.start(directory, major, standby_settings) as standby:
                yield Pair(primary, standby)
    finally:
        shutil.rmtree(directory)
