"""Handlers of a worker for Django: the ORM's writes and the ack commit together."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from bridging import django_on
from serving import PATIENCE, Queue, drain, take_away
from trunq import Message, Reject, Retry


@pytest.fixture
def django(queue: Queue) -> Iterator[Any]:
    with django_on(queue.dsn) as connection:
        yield connection


@pytest.fixture
def effects(queue: Queue) -> Callable[[], list[int]]:
    """What handlers wrote, as others see it."""
    queue.connection.execute("create table effect (id bigint primary key)")
    return lambda: [id for (id,) in queue.connection.execute("select id from effect order by id")]


def new_worker(queue: Queue, **options: Any) -> Any:
    from trunq.django import Worker  # noqa: PLC0415  # asks for settings

    return Worker(queue.name, lead=False, **options)


def run(worker: Any) -> None:
    asyncio.run(drain(worker))


def write(message: Message) -> None:
    """As the ORM does."""
    from django.db import connection  # noqa: PLC0415

    with connection.cursor() as cursor:
        cursor.execute("insert into effect values (%s)", [message.id])


@pytest.mark.parametrize("way", ["asked for", "by its parameter"])
def test_what_the_orm_writes_and_the_ack_commit_together(
    queue: Queue, django: Any, effects: Callable[[], list[int]], way: str
) -> None:
    ids = queue.publish(count=20)
    worker = new_worker(queue)
    seen = []

    if way == "asked for":

        @worker.handler("work", transaction=True)
        def handle(message: Message) -> str:
            write(message)
            return "written"
    else:

        @worker.handler("work")
        def handle_with(message: Message, connection: Any) -> str:
            seen.append(connection.in_atomic_block)
            with connection.cursor() as cursor:
                cursor.execute("show transaction_isolation")
                seen.append(cursor.fetchone() == ("read committed",))
            write(message)
            return "written"

    run(worker)
    assert effects() == ids
    assert queue.states() == {"done": 20}
    assert queue.message(ids[0]).result == "written"
    assert all(seen)


def test_what_a_batch_writes_and_all_its_outcomes_commit_together(
    queue: Queue, django: Any, effects: Callable[[], list[int]]
) -> None:
    ids = queue.publish(count=5)
    worker = new_worker(queue)

    @worker.batch("work", size=5, wait=5, transaction=True)
    def handle(messages: list[Message]) -> list[Any]:
        for message in messages:
            write(message)
        return [*["written"] * (len(messages) - 1), Reject("the last")]

    run(worker)
    assert effects() == ids
    assert queue.states() == {"done": 4, "dead": 1}


def test_a_failure_is_rolled_back_and_its_bookkeeping_survives(
    queue: Queue, django: Any, effects: Callable[[], list[int]]
) -> None:
    from django.db import DatabaseError, connection, transaction  # noqa: PLC0415

    queue.policy(max_attempts=1)
    ids = queue.publish(payload=["raise", "retry", "reject", "unique", "caught", "savepoint", "fine"])
    worker = new_worker(queue, concurrency=1)

    def twice() -> None:
        with connection.cursor() as cursor:
            cursor.execute("insert into effect select 1 from generate_series(1, 2)")

    @worker.handler("work", transaction=True)
    def handle(message: Message) -> Any:
        write(message)
        match message.payload:
            case "raise":
                raise ValueError("on purpose")
            case "retry":
                return Retry(error="later")
            case "reject":
                return Reject("never")
            case "unique":
                twice()
            case "caught":
                try:
                    with transaction.atomic(savepoint=False):
                        twice()
                except DatabaseError:
                    pass
            case "savepoint":
                with pytest.raises(DatabaseError), transaction.atomic():
                    twice()
        return None

    run(worker)
    assert effects() == ids[-2:]
    dead = {each.id: each.errors[-1]["error"].splitlines()[0] for each in queue.dead()}
    starts = [
        "ValueError: on",
        "later",
        "never",
        "IntegrityError: ",
        "TransactionEnded: the transaction ended",
    ]
    assert [dead[id].startswith(start) for id, start in zip(ids, starts, strict=False)] == [True] * 5
    assert len(dead) == 5


def test_a_handler_whose_lease_was_given_to_another_is_rolled_back(
    queue: Queue, django: Any, effects: Callable[[], list[int]]
) -> None:
    ids = queue.publish()
    worker = new_worker(queue)

    @worker.handler("work", transaction=True)
    def handle(message: Message) -> None:
        write(message)
        if message.attempt == 1:
            take_away(queue, message.id)

    run(worker)
    assert effects() == ids
    assert (worker.statistics.handled, worker.statistics.lost) == (1, 1)


def test_transactions_that_meet_are_run_again_and_cost_no_attempt(queue: Queue, django: Any) -> None:
    from django.db import connection  # noqa: PLC0415

    queue.policy(max_attempts=1)
    queue.publish()
    worker = new_worker(queue)
    runs = []

    @worker.handler("work", transaction=True)
    def handle(message: Message) -> None:
        runs.append(message.id)
        if len(runs) == 1:
            with connection.cursor() as cursor:
                cursor.execute("do $$ begin raise exception 'met' using errcode = '40001'; end $$")

    run(worker)
    assert queue.states() == {"done": 1}
    assert len(runs) == 2


def test_connections_are_closed_before_and_after_each_handler(queue: Queue, django: Any) -> None:
    """One that died meanwhile is opened afresh; with CONN_MAX_AGE 0 none stays open."""
    from django.db import connection  # noqa: PLC0415

    queue.publish(count=3)
    queue.publish("inside", count=3)
    worker = new_worker(queue, concurrency=1)
    seen: list[tuple[str, bool]] = []

    def look(message: Message) -> None:
        assert threading.current_thread() is not threading.main_thread()
        seen.append((message.kind or "", connection.connection is None))
        with connection.cursor() as cursor:
            cursor.execute("select 1")

    worker.handler("work")(look)

    @worker.handler("inside", transaction=True)
    def inside(message: Message) -> None:
        with connection.cursor() as cursor:
            cursor.execute("select 1")

    run(worker)
    assert seen == [("work", True)] * 3
    row = queue.connection.execute(
        "select count(*) from pg_stat_activity where datname = current_database() and application_name = ''"
        " and pid <> pg_backend_pid() and backend_type = 'client backend'"
    ).fetchone()
    assert row == (0,)
    assert queue.states() == {"done": 6}


def test_a_transaction_of_an_async_handler_is_refused(queue: Queue, django: Any) -> None:
    async def handle(message: Message) -> None: ...

    with pytest.raises(TypeError, match="Django's transactions are sync"):
        new_worker(queue).handler("work", transaction=True)(handle)


def test_a_worker_made_before_the_database_of_tests_works_there(queue: Queue) -> None:
    with django_on("host=/nowhere dbname=real user=me port=1"):
        worker = new_worker(queue)
        assert "dbname=real" in worker.dsn
    with django_on(queue.dsn):
        (id,) = queue.publish()
        worker.handler("work", transaction=True)(lambda message: "handled" if message else None)
        run(worker)
    assert queue.message(id).state == "done"


PROJECT = """
import os
from django.conf import settings
from psycopg.conninfo import conninfo_to_dict

parts = conninfo_to_dict(os.environ["DATABASE"])
SECRET_KEY = "of a test"
INSTALLED_APPS = ["trunq.django"]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts["dbname"], "USER": parts["user"], "HOST": parts["host"], "PORT": parts["port"],
    }
}
"""

TASKS = """
from django.apps import apps
from django.db import connection
from trunq.django import Worker

apps.check_models_ready()
worker = Worker("q")

@worker.handler("work", transaction=True)
def handle(message):
    return "handled"

@worker.handler("apart", process=True)
def handle_apart(message):
    with connection.cursor() as cursor:
        cursor.execute("select 42")
        return cursor.fetchone()[0]

other = 5
"""


def test_the_command_runs_the_worker_of_a_project(queue: Queue, tmp_path: Any) -> None:
    (id,), (apart,) = queue.publish(), queue.publish(kind="apart")
    (tmp_path / "project.py").write_text(PROJECT)
    (tmp_path / "tasks.py").write_text(TASKS)

    def command(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "django", "trunq_worker", *arguments],
            cwd=tmp_path,
            env={**environment(), "DATABASE": queue.dsn, "DJANGO_SETTINGS_MODULE": "project"},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    done = command("tasks:worker", "--until-empty", "--concurrency", "2", "--name", "w7")
    assert done.returncode == 0, done.stderr
    message = queue.message(id)
    assert (message.state, message.result, message.worker) == ("done", "handled", "w7")
    assert queue.message(apart).result == 42
    for where, trouble in (
        ("tasks:nothing", "there is no worker at tasks:nothing"),
        ("nothing:worker", "there is no worker at nothing:worker"),
        ("tasks:other", "tasks:other is no worker, but of int"),
    ):
        failed = command(where)
        assert failed.returncode == 1
        assert trouble in failed.stderr


def environment() -> dict[str, str]:
    path = os.pathsep.join(["."] + [each for each in sys.path if each])
    return {**os.environ, "PYTHONPATH": path}


def test_one_that_takes_too_long_is_rolled_back_and_goes_by_the_policy_of_its_kind(
    queue: Queue, django: Any, effects: Callable[[], list[int]]
) -> None:
    (id,) = queue.publish()
    worker = new_worker(queue)

    @worker.handler("work", transaction=True, time_out=0.5, max_attempts=1)
    def handle(message: Message, stop: threading.Event) -> Retry:
        write(message)
        assert stop.wait(PATIENCE)
        return Retry(error="told to give up")

    run(worker)
    assert effects() == []
    (dead,) = queue.dead()
    assert (dead.id, dead.attempts, dead.reason) == (id, 1, "max_attempts")
    assert "ran longer than the 0.5 seconds" in dead.errors[0]["error"]


def test_the_handler_of_a_schedule_runs_in_a_transaction_too(
    queue: Queue, django: Any, effects: Callable[[], list[int]]
) -> None:
    from django.db import connection  # noqa: PLC0415

    (id,) = queue.publish("nightly")
    worker = new_worker(queue)
    seen = []

    @worker.schedule("nightly", cron="@daily", transaction=True)
    def handle(message: Message) -> None:
        seen.append(connection.in_atomic_block)
        write(message)

    run(worker)
    assert (effects(), seen) == ([id], [True])
    assert [each.schedule for each in worker.schedules] == ["nightly"]
