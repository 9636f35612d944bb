"""Messages that wait for the outside, while their workers are killed."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from psycopg.types.json import Jsonb

from calling import ask
from scope import some
from serving import Queue
from trunq.embedded import Embedded
from waiting import wait_until

PROGRAM = Path(__file__).parent / "parking.py"


@pytest.mark.slow
def test_nothing_that_was_parked_or_resumed_is_lost_or_done_twice(own_server: Embedded) -> None:
    connection = psycopg.connect(own_server.dsn, autocommit=True)
    queue = Queue(own_server.dsn, connection, lease_time="3 s", backoff_base="0.1 s", max_attempts=0)
    connection.execute("create table ledger (id bigint, step integer, value integer)")
    ids = queue.publish(count=some(150, 600))
    workers: dict[str, subprocess.Popen[bytes]] = {}

    def start(name: str) -> None:
        workers[name] = subprocess.Popen([sys.executable, str(PROGRAM), own_server.dsn, name])

    def written(step: int) -> int:
        row = connection.execute("select count(*) from ledger where step = %s", (step,)).fetchone()
        return row[0] if row else 0

    order = random.Random(22).sample(ids, len(ids))
    try:
        for name in ("first", "second"):
            start(name)
        for number, id in enumerate(order, 1):
            # Some before they are parked: a token is known beforehand.
            assert ask(connection, "resume", queue="q", token=f"token {id}", value=Jsonb(number)) in (
                "resumed",
                "noted",
            )
            if number % (len(ids) // 5) == 0:
                wait_until(lambda number=number: written(1) >= number // 2)
                victim = ("first", "second")[number % 2]
                workers[victim].kill()
                workers[victim].wait()
                start(victim)
        wait_until(queue.is_done)
    finally:
        for worker in workers.values():
            worker.kill()
            worker.wait()
    rows = connection.execute("select id, step, value from ledger order by 1, 2").fetchall()
    numbers = {id: number for number, id in enumerate(order, 1)}
    assert rows == [row for id in ids for row in ((id, 1, None), (id, 2, numbers[id]))]
    assert queue.states() == {"done": len(ids)}
    connection.close()
