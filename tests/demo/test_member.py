"""A process of a run: a command that ends when the process that started it is gone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from trunq import Client
from waiting import wait_until

APP = """
from trunq.worker import Worker

post = Worker("mail")


@post.handler("letter")
async def deliver(message):
    return {"delivered": message.payload}
"""


def test_a_member_ends_when_the_process_that_started_it_is_gone(tmp_path: Path, database: str) -> None:
    (tmp_path / "office.py").write_text(APP)
    with Client(database) as client:
        client.create_queue("mail")
    reading, writing = os.pipe()
    with (
        Client(database) as client,
        subprocess.Popen(
            [sys.executable, "-m", "trunq_demo.member", "worker", "office:post"],
            stdin=reading,
            stderr=subprocess.PIPE,
            cwd=tmp_path,
            env={**os.environ, "TRUNQ_DSN": database},
            text=True,
        ) as process,
    ):
        os.close(reading)
        client.publish("mail", 1, kind="letter")
        wait_until(lambda: client.status("mail")[0].done_last_minute == 1, timeout=120, what="it works")
        assert process.poll() is None
        os.close(writing)
        assert process.wait(timeout=120) == 0
