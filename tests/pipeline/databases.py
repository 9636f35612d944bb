"""Databases that pipelines reach by JDBC: a MariaDB, and a Postgres with a port, of the tests' own."""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from copying import copied_server
from jars import ENVIRONMENT as OF_JARS
from jars import MARIADB, POSTGRES
from pipeline.storages import free_port
from waiting import wait_until

PASSWORD: Final = "a-password-of-tests"
ENVIRONMENT: Final = {**OF_JARS, "JDBC_PASSWORD": PASSWORD, "TRUNQ_SPARK_MEMORY": "512m"}
"""What pipelines name, and processes need that start a Spark of their own."""

MARIADBD: Final = shutil.which("mariadbd", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")


class MariaDb:
    """A server in a directory of its own."""

    name = "mariadb"

    def __init__(self) -> None:
        if MARIADBD is None or not MARIADB.is_file():
            pytest.skip("MariaDB or its driver is not installed: apt install mariadb-server libmariadb-java")
        self.root = Path(tempfile.mkdtemp(prefix="trunq-mariadb-"))
        subprocess.run(
            [
                "mariadb-install-db",
                *("--no-defaults", "--user=root", f"--datadir={self.root}/data"),
                *("--auth-root-authentication-method=normal", "--skip-test-db"),
            ],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.port = free_port()
        self.start()
        self._ask(f"create user pipe@'%' identified by '{PASSWORD}'; grant all on *.* to pipe@'%'", "")

    def start(self) -> None:
        self._process = subprocess.Popen(
            [
                *(str(MARIADBD), "--no-defaults", "--user=root", f"--datadir={self.root}/data"),
                *(f"--socket={self.root}/socket", f"--port={self.port}", "--bind-address=127.0.0.1"),
                *("--innodb-flush-log-at-trx-commit=2", "--innodb-buffer-pool-size=64M"),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        wait_until(self._answers)

    def place(self, database: str) -> dict[str, Any]:
        """As a pipeline has it."""
        url = f"jdbc:mariadb://127.0.0.1:{self.port}/{database}"
        return {"format": "jdbc", "url": url, "user": "pipe", "password": "${JDBC_PASSWORD}"}

    def make(self, database: str) -> None:
        self._ask(f"create database {database}", "")

    def sql(self, database: str, query: str) -> list[tuple[str, ...]]:
        """Rows of statements, as texts."""
        return self._ask(query, database)

    def kill(self) -> None:
        """As if the machine was cut off."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        self.kill()
        shutil.rmtree(self.root, ignore_errors=True)

    def _ask(self, query: str, database: str) -> list[tuple[str, ...]]:
        told = subprocess.run(
            [
                *("mariadb", "--no-defaults", f"--socket={self.root}/socket", "--user=root", "--batch"),
                *("--skip-column-names", "--default-character-set=utf8mb4", database),
            ],
            input=query,
            check=True,
            capture_output=True,
            text=True,
        )
        return [tuple(line.split("\t")) for line in told.stdout.splitlines()]

    def _answers(self) -> bool:
        # It says so once it can be asked.
        return (self.root / "socket").exists() and not subprocess.run(
            ["mariadb-admin", "--no-defaults", f"--socket={self.root}/socket", "--user=root", "ping"],
            capture_output=True,
            check=False,
        ).returncode


class OtherPostgres:
    """A server with a port, as Java needs it."""

    name = "postgresql"

    def __init__(self) -> None:
        if not POSTGRES.is_file():
            pytest.skip("the driver of Postgres is not installed: apt install libpostgresql-jdbc-java")
        self.port = free_port()
        self._stack = ExitStack()
        settings = {"listen_addresses": "127.0.0.1", "port": self.port, "fsync": "off"}
        self._server = self._stack.enter_context(copied_server(settings=settings))
        self._ask(f"create role pipe superuser login password '{PASSWORD}'", "postgres")

    def place(self, database: str) -> dict[str, Any]:
        url = f"jdbc:postgresql://127.0.0.1:{self.port}/{database}"
        return {"format": "jdbc", "url": url, "user": "pipe", "password": "${JDBC_PASSWORD}"}

    def make(self, database: str) -> None:
        self._ask(f"create database {database} template template1", "postgres")

    def sql(self, database: str, query: str) -> list[tuple[str, ...]]:
        return self._ask(query, database)

    def stop(self) -> None:
        self._stack.close()

    def _ask(self, query: str, database: str) -> list[tuple[str, ...]]:
        with psycopg.connect(make_conninfo(self._server.dsn, dbname=database), autocommit=True) as connection:
            cursor = connection.execute(query.encode())
            while cursor.nextset():
                pass
            rows = cursor.fetchall() if cursor.description else []
        return [tuple("NULL" if each is None else str(each) for each in row) for row in rows]


class Other:
    """A database of one of them, for one test."""

    def __init__(self, server: Any, name: str) -> None:
        self.server, self.name, self.kind = server, name, server.name
        server.make(name)

    @property
    def place(self) -> dict[str, Any]:
        return dict(self.server.place(self.name))

    def sql(self, query: str) -> list[tuple[str, ...]]:
        return list(self.server.sql(self.name, query))

    def one(self, query: str) -> str:
        return self.sql(query)[0][0]

    def tables(self) -> list[str]:
        """Those that there are."""
        where = "database()" if self.kind == "mariadb" else "current_schema()"
        rows = self.sql(f"select table_name from information_schema.tables where table_schema = {where}")
        return sorted(name for (name,) in rows)

    @property
    def time(self) -> str:
        """The type of a time without a zone."""
        return "datetime(6)" if self.kind == "mariadb" else "timestamp"

    def series(self, first: int, last: int) -> str:
        """A table `g` of numbers, with one column `n`."""
        if self.kind == "mariadb":
            return f"(select seq as n from seq_{first}_to_{last}) g"
        return f"generate_series({first}, {last}) g(n)"


KINDS: Final[dict[str, type[Any]]] = {"mariadb": MariaDb, "postgresql": OtherPostgres}


def opened(kind: str) -> Iterator[Any]:
    """The server of a kind, until the end."""
    server = KINDS[kind]()
    yield server
    server.stop()


def is_listening(port: int) -> bool:
    """Whether something answers there."""
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True
