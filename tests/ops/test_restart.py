"""A pod of a StatefulSet that is killed: its successor has its name, and takes back at once what it held."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from deploying import pods
from shelling import start
from trunq import Client
from waiting import wait_until

WORKER = "StatefulSet/trunq-worker"

SHOP = """
import asyncio
from pathlib import Path

import trunq

worker = trunq.Worker("orders")


@worker.handler("placed")
async def place(message):
    if not Path("is_mended").exists():
        await asyncio.Event().wait()
"""


@pytest.fixture
def started(tmp_path: Path) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes, of which none outlives the test."""
    (tmp_path / "shop.py").write_text(SHOP)
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        process.kill()
        process.communicate()


def pod(folder: Path, dsn: str, workload: str, name: str) -> subprocess.Popen[str]:
    """What a workload of ops/kubernetes runs, as its pod of this name runs it."""
    (container,) = pods()[workload]["containers"]
    variables = {"$(POD_NAME)": name, "$(POD_NAMESPACE)": "shop"}
    words = []
    for word in container["command"][1:]:
        for variable, value in variables.items():
            word = word.replace(variable, value)  # noqa: PLW2901
        words.append(word)
    for option in {"--health", "--metrics"} & set(words):
        # Others use that port here.
        at = words.index(option)
        del words[at : at + 2]
    return start(*words, directory=folder, TRUNQ_DSN=dsn)


@pytest.mark.slow
def test_a_pod_that_was_killed_gets_back_at_once_what_it_held_and_another_pod_does_not(
    database: str,
    connection: psycopg.Connection[object],
    tmp_path: Path,
    started: list[subprocess.Popen[str]],
) -> None:
    with Client(database) as client:
        client.create_queue("orders")
        # Nobody waits for the end of these leases.
        client.subscribe("orders", "default", lease_time="1 day")
        client.publish_many("orders", [1, 2, 3], kind="placed")

        def states() -> list[str]:
            return [message.state for message in client.list_messages("orders")]

        started.append(pod(tmp_path, database, "Deployment/trunq-leader", "trunq-leader-x"))
        started.append(pod(tmp_path, database, WORKER, "trunq-worker-0"))
        wait_until(lambda: states() == ["leased"] * 3, what="the pod holds all messages")
        started[-1].kill()
        started[-1].wait()
        assert states() == ["leased"] * 3
        (tmp_path / "is_mended").touch()
        started.append(pod(tmp_path, database, WORKER, "trunq-worker-1"))
        client.publish("orders", 4, kind="placed")
        wait_until(lambda: states().count("done") == 1, what="another pod works")
        assert states().count("leased") == 3
        started.append(pod(tmp_path, database, WORKER, "trunq-worker-0"))
        wait_until(lambda: states() == ["done"] * 4, what="what it held is handled")
        started[-1].terminate()
        _, told = started[-1].communicate(timeout=120)
        assert started[-1].returncode == 0
        assert re.search(
            r"took back (a lease|[23] leases) of orders/default from a former worker shop\.trunq-worker-0;",
            told,
        )
        # The attempt that was cut off counts.
        assert {message.attempt for message in client.list_messages("orders") if message.id < 4} == {2}
