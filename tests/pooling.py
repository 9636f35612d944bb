"""PgBouncer before a test's database."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from trunq.embedded import Embedded
from waiting import wait_until

PGBOUNCER = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")

needs_pgbouncer = pytest.mark.skipif(PGBOUNCER is None, reason="PgBouncer is not installed")

CONFIGURATION = """
[databases]
* = host={host} port={port} user=postgres
[pgbouncer]
listen_addr =
listen_port = 6432
unix_socket_dir = {directory}
auth_type = any
pool_mode = {mode}
default_pool_size = {size}
"""


@contextmanager
def pooling(server: Embedded, database: str, mode: str = "transaction", size: int = 40) -> Iterator[str]:
    """Run PgBouncer with `size` connections to the server; gives the address of `database` behind it."""
    address = conninfo_to_dict(server.dsn)
    directory = server.directory / "pooler"
    directory.mkdir(exist_ok=True)
    directory.chmod(0o777)
    file = directory / "pgbouncer.ini"
    file.write_text(
        CONFIGURATION.format(
            host=address["host"], port=address["port"], directory=directory, mode=mode, size=size
        )
    )
    # It refuses root, and must be let into the directory of the server's socket.
    account = file.parent.parent.owner()
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen([str(PGBOUNCER), "-u", account, str(file)], stdout=log, stderr=log)
    dsn = f"host={directory} port=6432 dbname={conninfo_to_dict(database)['dbname']} user=postgres"

    def answers() -> bool:
        with suppress(psycopg.OperationalError), psycopg.connect(dsn):
            return True
        return False

    try:
        wait_until(answers)
        yield dsn
    finally:
        process.terminate()
        process.wait()
        shutil.rmtree(directory)
