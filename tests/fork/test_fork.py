"""A client before and after a fork: gunicorn with preload, Celery's prefork, multiprocessing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from serving import PATIENCE, Queue

CHILDREN = Path(__file__).parent / "children.py"


@pytest.fixture
def queue(database: str, connection: Any) -> Queue:
    """A queue `q`."""
    return Queue(database, connection)


def run(queue: Queue, *scenario: str) -> Any:
    """What a scenario of children.py says, run as a program of its own."""
    done = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", str(CHILDREN), queue.dsn, *scenario],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONDEVMODE": ""},
        timeout=3 * PATIENCE,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def published(queue: Queue) -> dict[int, Any]:
    """What is in the log, by id."""
    return dict(queue.connection.execute("select id, payload from trunq_log.q").fetchall())


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_children_of_a_pool_of_processes_publish_and_nothing_is_lost(queue: Queue, method: str) -> None:
    answers = run(queue, "pool", method)
    assert len(answers) == 250
    log = published(queue)
    assert {id: log.get(id) for id, _ in answers} == dict(answers)


def test_children_forked_in_the_middle_of_calls_get_ids_of_their_own(queue: Queue) -> None:
    answers = run(queue, "forked")
    log = published(queue)
    assert len({id for id, _ in answers}) == len(answers) > 200
    assert {id: log.get(id) for id, _ in answers} == dict(answers)


def test_a_child_neither_writes_into_nor_ends_the_transaction_of_its_parent(queue: Queue) -> None:
    refused, leaving, id = run(queue, "transaction")
    assert leaving == 42
    assert "InvalidArgument: this connection belongs to the process" in refused
    assert sorted(published(queue).values()) == ["before", "of its own", "parent"]
    assert published(queue)[id] == "of its own"


def test_a_connection_of_the_parent_is_refused_in_a_child(queue: Queue) -> None:
    refused, copied, id = run(queue, "connection")
    for said in (refused, copied):
        assert said.startswith("InvalidArgument: this connection belongs to the process")
    assert published(queue)[id] == "parent"


def test_a_pool_of_the_parent_is_refused_in_a_child(queue: Queue) -> None:
    by_client, by_connection, id = run(queue, "own_pool")
    assert by_client.startswith("InvalidArgument: the pool of this client belongs to the process")
    assert by_connection.startswith("InvalidArgument: this connection belongs to the process")
    assert published(queue)[id] == "parent"


def test_an_async_client_of_a_parent_works_in_the_loop_of_a_child(queue: Queue) -> None:
    child, own = run(queue, "loops")
    assert (published(queue)[child], published(queue)[own]) == ("child", "parent")


def test_a_child_listens_by_itself_and_the_loop_of_its_parent_goes_on(queue: Queue) -> None:
    assert run(queue, "listening") == ["InvalidArgument", "before", "after"]


def test_without_what_is_local_a_parent_hears_its_child_and_the_child_not_itself(queue: Queue) -> None:
    assert run(queue, "not_local") == ["other", "child"]
