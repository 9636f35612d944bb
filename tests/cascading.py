"""Nodes of a cascade: databases with PgQ's pgq_node over the facade, a worker each, and PgQ's own admin."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

import mirroring
from docs.page import blocks
from trunq.embedded import Embedded
from waiting import wait_until

PYTHON = "/usr/bin/python3"
HAS_PGQ = Path("/usr/lib/python3/dist-packages/pgq/cascade").exists()
PROGRAM = Path(__file__).parent / "facade" / "program.py"
ROOT = Path(__file__).parents[1]
PAGE = {
    block.file: block.text for block in blocks(ROOT / "docs" / "operate" / "pgq.md") if block.file is not None
}
"""The programs that the page shows."""
QUEUE = "jobs"
PATIENCE = 60.0

SEEN = (
    "create table seen (n serial, consumer text, id bigint, type text, data text, extra1 text, retry integer)"
)


class Node:
    """A database of a cascade, with the processes that work on it."""

    def __init__(self, name: str, server: Embedded, directory: Path) -> None:
        self.name = name
        self.directory = directory
        self.server = server
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            connection.execute(f"create database {name} template facade".encode())
        # As key=value: a URL has what the programs' ini files take for their own.
        parts: dict[str, Any] = {**conninfo_to_dict(server.dsn), "dbname": name}
        self.dsn = make_conninfo("", **parts)
        self.processes: list[subprocess.Popen[bytes]] = []
        self.connect()
        self.connection.execute(SEEN.encode())

    def connect(self) -> None:
        self.connection = psycopg.connect(self.dsn, autocommit=True)

    def fetch(self, statement: str, *arguments: Any) -> Any:
        row = self.connection.execute(statement.encode(), arguments or None).fetchone()
        return row and row[0]

    def rows(self, statement: str, *arguments: Any) -> list[tuple[Any, ...]]:
        return self.connection.execute(statement.encode(), arguments or None).fetchall()

    # What its administrator does.

    def admin(self, *arguments: str, queue: str = QUEUE) -> str:
        """PgQ's setadm, on this node. Returns what it says."""
        status, said = self.ask_admin(*arguments, queue=queue)
        assert status == 0, said
        return said

    def ask_admin(self, *arguments: str, queue: str = QUEUE) -> tuple[int, str]:
        """As `admin`, where it may fail: with its status."""
        (self.directory / "setadm.py").write_text(PAGE["setadm.py"])
        config = self._write_config("setadm", f"{self.name}_admin", queue)
        command = [PYTHON, "setadm.py", str(config), *arguments]
        with (self.directory / "said").open("w+") as said:
            done = subprocess.run(
                command, stdout=said, stderr=said, cwd=self.directory, timeout=PATIENCE, check=False
            )
        return done.returncode, (self.directory / "said").read_text()

    def create(self, kind: str, *options: str, provider: Node | None = None, queue: str = QUEUE) -> None:
        """Make it a node of a cascade."""
        more = [f"--provider={provider.dsn}"] if provider else []
        worker = f"--worker={queue}_{self.name}"
        self.admin(f"create-{kind}", self.name, self.dsn, worker, *more, *options, queue=queue)
        if kind == "root":
            self.connection.execute(
                "update pgq.queue set queue_ticker_max_lag = '20 ms', queue_ticker_idle_period = '20 ms'"
                " where queue_name = %s",
                (queue,),
            )

    # What its programs do.

    def start(self, kind: str = "CascadedWorker", *options: str, job: str = "", queue: str = QUEUE) -> None:
        """A program for PgQ, of program.py; with options, to its end."""
        job = job or f"{queue}_{self.name}"
        command = [PYTHON, str(PROGRAM), kind, str(self._write_config("program", job, queue)), *options]
        process = self.spawn(command)
        if options:
            assert process.wait(PATIENCE) == 0, (self.directory / f"{self.name}.said").read_text()

    def spawn(self, command: list[str]) -> subprocess.Popen[bytes]:
        """A program of this node. What it says goes into a file: a pipe that nobody reads would stop it."""
        with (self.directory / f"{self.name}.said").open("a") as said:
            self.processes.append(subprocess.Popen(command, stdout=said, stderr=said, cwd=self.directory))
        return self.processes[-1]

    def kill(self) -> None:
        """Kill its programs, in the midst of whatever they do."""
        for process in self.processes:
            process.kill()
            process.wait()
        self.processes.clear()

    def insert(self, *data: str, queue: str = QUEUE) -> None:
        """Events, and a tick behind them."""
        for text in data:
            self.fetch("select pgq.insert_event(%s, 'work', %s)", queue, text)
        wait_until(lambda: self.fetch("select pgq.ticker(%s)", queue), PATIENCE)

    def _write_config(self, section: str, job: str, queue: str) -> Path:
        path = self.directory / f"{job}.ini"
        settings = {
            "job_name": job,
            "node_db": self.dsn,
            "queue_name": queue,
            "loop_delay": "0.05",
            "exception_sleep": "0.2",
            "global_wm_publish_period": "0.2",
            "local_wm_publish_period": "0",
            "use_skylog": "0",
            "logfile": str(self.directory / f"{job}.log"),
        }
        lines = [f"{name} = {value}" for name, value in settings.items()]
        path.write_text("\n".join([f"[{section}]", *lines, ""]))
        return path

    # What is there.

    def seen(self, consumer: str = "") -> list[str]:
        """The data of what a program noted here, in order; of the node's own worker, if no other is named."""
        job = consumer or f"{QUEUE}_{self.name}"
        return [data for (data,) in self.rows("select data from seen where consumer = %s order by n", job)]

    def log(self, queue: str = QUEUE) -> list[tuple[Any, ...]]:
        """The users' events in its own queue."""
        number = self.fetch("select queue_id from pgq.queue where queue_name = %s", queue)
        return self.rows(
            f"select ev_id, ev_type, ev_data from pgq.event_{number} where ev_type = 'work' order by ev_id"
        )

    def type(self, queue: str = QUEUE) -> Any:
        return self.fetch("select node_type from pgq_node.get_node_info(%s)", queue)

    def last_tick(self, queue: str = QUEUE) -> Any:
        return self.fetch("select last_tick_id from pgq.get_queue_info(%s)", queue)

    def wait_for(self, data: str, consumer: str = "") -> None:
        wait_until(lambda: self.seen(consumer)[-1:] == [data], PATIENCE, f"{data} at {self.name}")

    def close(self) -> None:
        self.kill()
        self.connection.close()


def prepare(server: Embedded) -> None:
    """A database of trunq to make nodes of: with the facade, and PgQ's own script over it."""
    from trunq import install  # noqa: PLC0415

    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute("create database facade template postgres")
    dsn = make_conninfo(server.dsn, dbname="facade")
    install.install(dsn, "pgq")
    with psycopg.connect(dsn) as connection:
        connection.execute(mirroring.NODE_SCRIPT.read_bytes())
