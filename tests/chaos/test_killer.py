"""Messages that kill their worker, in real processes that are started again: nobody but they die."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from chaos.fleet import LEADER
from scope import some
from waiting import wait_until

WORKER = Path(__file__).parent / "killed.py"
PATIENCE = 150.0


@contextmanager
def kept_alive(commands: list[list[str]]) -> Iterator[Any]:
    """Processes that are started again when they end, whenever the function given is called."""
    running: list[subprocess.Popen[bytes]] = []

    def start_again() -> None:
        for place, process in enumerate(running):
            if process.poll() is not None:
                running[place] = start(commands[place])

    def start(command: list[str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, *command], stderr=subprocess.DEVNULL, env=dict(os.environ))

    try:
        running.extend(start(command) for command in commands)
        yield start_again
    finally:
        for process in running:
            process.kill()
            process.wait()


@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("workers", "concurrency", "named"),
    some(
        [(1, 50, False), (3, 10, True)],
        [(1, 10, True), (1, 50, False), (2, 50, True), (3, 10, False), (3, 10, True), (3, 50, True)],
    ),
)
def test_only_the_killers_die(database: str, workers: int, concurrency: int, named: bool) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("select trunq.create_queue('q')")
        connection.execute("select trunq.subscribe('q', 'default', p_max_attempts => 3)")
        publish = "select trunq.publish_many('q', array_fill('{}'::jsonb, array[%s::int]), array[%s::text])"
        killers = []
        for kind, count in (("work", 15), ("killer", 1), ("work", 30), ("killer", 1), ("work", 13)):
            row = connection.execute(publish, (count, kind)).fetchone()
            assert row is not None
            killers += row[0] if kind == "killer" else []

        finished = (
            "select count(*) from (select unnest(ids) from trunq_data.q_receipt where outcome = 'a'"
            " union select id from trunq.dead) finished(id)"
        )

        def is_over() -> bool:
            start_again()
            return connection.execute(finished).fetchone() == (60,)

        names = [f"worker-{number}" if named else "-" for number in range(workers)]
        commands = [[str(WORKER), database, name, str(concurrency)] for name in names]
        with kept_alive([*commands, ["-c", LEADER, database, "leader"]]) as start_again:
            wait_until(is_over, PATIENCE, "everything is done or dead")
        dead = connection.execute("select id, reason from trunq.list_dead('q') order by id").fetchall()
        assert dead == [(id, "lease_expired") for id in killers]
