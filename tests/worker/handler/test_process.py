"""Handlers with process=True: in processes that can be killed, and die alone."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

import crunching
from serving import Queue, running, said
from trunq.client.message import Message
from trunq.worker import Worker
from waiting import async_wait_until, wait_until

LONG = 60.0


def lines(book: Path) -> list[tuple[int, int, int]]:
    """(message, attempt, process) for each start of a handler."""
    if not book.exists():
        return []
    return [tuple(map(int, line.split())) for line in book.read_text().splitlines()]  # type: ignore[misc]


def outcomes(queue: Queue, id: int) -> list[str]:
    return [attempt["outcome"] for attempt in queue.message(id).attempts]


def family_of(book: Path) -> list[psutil.Process]:
    """The process that wrote into a book, and what it started."""
    found = []
    for _, _, pid in lines(book):
        with suppress(psutil.NoSuchProcess):
            found += [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    return found


def is_alive(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.status() != psutil.STATUS_ZOMBIE
    return False


async def drained(worker: Worker) -> None:
    """Run a worker until nothing is left; its processes take their time to start."""
    worker.until_idle = True
    async with asyncio.timeout(LONG):
        await worker.run_async()


async def test_it_runs_in_another_process_that_inherits_no_connection(queue: Queue) -> None:
    worker = queue.worker(concurrency=1)
    worker.handler("work", process=True, time_out=1000)(crunching.echo)
    worker.handler("async", process=True)(crunching.echo_async)
    ids = [*queue.publish(payload={"n": 1}, count=3), *queue.publish(kind="async")]
    await drained(worker)
    results = [queue.message(id).result for id in ids]
    assert {result["pid"] for result in results} == {results[0]["pid"]}, "one process, one after the other"
    assert results[0]["pid"] != os.getpid()
    assert results[0]["parent"] == os.getpid()
    assert results[0]["payload"] == {"n": 1}
    assert (results[0]["attempt"], results[0]["has_time"]) == (1, True)
    # The socket to its worker, and the pipe it dies by.
    assert sorted(results[0]["files"]) == ["pipe", "socket"]
    assert not psutil.pid_exists(results[0]["pid"]), "it ended with the worker"


async def test_a_payload_of_a_type_and_an_old_version(queue: Queue) -> None:
    worker = queue.worker()
    worker.handler("work", process=True)(crunching.place)
    worker.upcast("work", from_=1)(lambda old: {"id": old["id"], "name": "Ada"})
    (fits,), (misfit,) = queue.publish(payload={"id": 1}), queue.publish(payload={"id": "one"})
    await drained(worker)
    result = queue.message(fits).result
    assert (result["is_order"], result["name"], result["pid"] != os.getpid()) == (True, "Ada", True)
    assert "does not fit Order" in queue.message(misfit).attempts[0]["error"]


ANSWERS = [
    ("raise", "failed", "LookupError: nothing there\n  {file}:"),
    ("raise what cannot be copied", "failed", "Refused: no (7)\n  {file}:"),
    ("raise what cannot be sent", "failed", "HandlerFailed: Inside: no\n  {file}:"),
    ("exit", "failed", "HandlerFailed: SystemExit: 3\n  {file}:"),
    ("interrupt", "failed", "HandlerFailed: KeyboardInterrupt\n  {file}:"),
    ("return what is no JSON", "failed", "TypeError: the handler returned what JSON cannot hold"),
    ("retry", "failed", None),
    ("retry because of", "failed", "LookupError: not yet\nreference "),
    ("reject", "rejected", "bad"),
    ("raise an answer of its own", "rejected", "declined 7\nreference "),
    ("return an answer of its own", "rejected", "declined 7\nreference "),
    ("lose a connection", "failed", "ConnectionResetError: by peer\n  {file}:"),
    ("write to nobody", "failed", "BrokenPipeError: nobody reads\n  {file}:"),
    ("extend", "failed", "InvalidArgument: a handler with process=True has no connection for extend"),
    ("die", "failed", "ended by itself, with status 7"),
    ("crash", "failed", "was killed by SIGSEGV"),
    ("recurse", "failed", "RecursionError: maximum recursion depth exceeded"),
    ("recurse because of", "failed", "LookupError: deep\n  {file}:"),
    ("nothing", "success", None),
]


async def test_what_a_handler_raises_or_dies_of_is_its_answer(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    queue.policy(max_attempts=1)
    worker = queue.worker(concurrency=2)
    worker.handler("work", process=True)(crunching.fail)
    ids = queue.publish(payload=[what for what, *_ in ANSWERS])
    await drained(worker)
    for id, (what, outcome, text) in zip(ids, ANSWERS, strict=True):
        (attempt,) = queue.message(id).attempts
        assert attempt["outcome"] == outcome, what
        assert (text or "").format(file=crunching.__file__) in (attempt.get("error") or ""), what
        assert "child.py" not in (attempt.get("error") or ""), what
        # What it logs is logged here.
        assert ("crunching", logging.WARNING, f"about to {what}") in caplog.record_tuples
    assert "ValueError: the cause" in caplog.text


@pytest.mark.parametrize("why", ["time-out", "cancelled", "lease lost"])
async def test_it_is_killed_whatever_it_does(queue: Queue, tmp_path: Path, why: str) -> None:
    queue.policy(max_attempts=1)
    worker = queue.worker(lease_time=30)
    worker.handler("work", process=True, time_out=0.3 if why == "time-out" else None)(crunching.note)
    books = {what: tmp_path / what for what in ("hang", "sleep in a program")}
    ids = queue.publish(payload=[{"book": str(book), "then": what} for what, book in books.items()])
    async with running(worker):
        await async_wait_until(lambda: all(map(lines, books.values())), LONG)
        family = [each for book in books.values() for each in family_of(book)]
        if why == "cancelled":
            queue.connection.execute("select from trunq.cancel('q', %s)", (ids,))
        elif why == "lease lost":
            queue.connection.execute("select trunq.reclaim('q', 'default', worker) from trunq_data.q_lease")
            # It hears of that when it tries to extend the lease.
            queue.connection.execute("select from trunq.cancel('q', %s)", (ids,))
        await async_wait_until(lambda: not any(is_alive(each) for each in family), LONG)
        await async_wait_until(queue.is_done, LONG)
    outcome = {"time-out": "timed_out", "cancelled": "failed", "lease lost": "lease_expired"}[why]
    if why == "cancelled":
        assert {row.reason for row in queue.dead()} == {"cancelled"}
    assert [outcomes(queue, id) for id in ids] == [[outcome]] * 2
    if why == "time-out":
        error = queue.message(ids[0]).attempts[0]["error"]
        assert said(error) == "TimedOut: the handler ran longer than the 0.3 seconds it was given"


async def test_after_the_grace_it_is_killed(queue: Queue, tmp_path: Path) -> None:
    book = tmp_path / "book"
    worker = queue.worker(grace=1)
    worker.handler("work", process=True)(crunching.note)
    queue.publish(payload={"book": str(book), "then": "hang"})
    async with running(worker) as (task,):
        await async_wait_until(lambda: lines(book), LONG)
        family = family_of(book)
        worker.stop()
        await asyncio.wait_for(task, LONG)
    assert not any(map(is_alive, family))


async def test_time_runs_from_when_the_process_is_ready(queue: Queue, tmp_path: Path) -> None:
    """Importing takes longer than the handler may."""
    (tmp_path / "slow_to_import.py").write_text(
        "import time\ntime.sleep(1)\ndef handle(message):\n    return message.time_left\n"
    )
    pytest.MonkeyPatch().syspath_prepend(tmp_path)
    import slow_to_import  # type: ignore[import-not-found]  # noqa: PLC0415

    queue.policy(max_attempts=1)
    worker = queue.worker()
    worker.handler("work", process=True, time_out=0.9)(slow_to_import.handle)
    (id,) = queue.publish()
    await drained(worker)
    assert outcomes(queue, id) == ["success"]


async def test_a_module_that_does_not_import_there_is_an_error_of_the_message(
    queue: Queue, tmp_path: Path
) -> None:
    module = tmp_path / "only_here.py"
    module.write_text("def handle(message): ...\n")
    pytest.MonkeyPatch().syspath_prepend(tmp_path)
    import only_here  # type: ignore[import-not-found]  # noqa: PLC0415

    module.write_text("raise OSError('not twice')\n")
    queue.policy(max_attempts=1)
    worker = queue.worker()
    worker.handler("work", process=True)(only_here.handle)
    (id,) = queue.publish()
    await drained(worker)
    assert "OSError: not twice" in queue.message(id).attempts[0]["error"]


def has_come_to(queue: Queue, book: Path, starts: float) -> bool:
    return len(lines(book)) > starts or queue.is_done()


async def test_processes_killed_at_random_cost_their_own_message_an_attempt_and_no_other(
    queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trunq.worker.handler.process._TRIES", 100)
    queue.policy(max_attempts=4)
    book, count, kills = tmp_path / "book", 200, 10
    worker = queue.worker(concurrency=4)
    worker.handler("work", process=True)(crunching.note)
    killers = queue.publish(payload={"book": str(book), "then": "die"}, count=2)
    ids = queue.publish(payload={"book": str(book), "then": 0.02}, count=count)
    here, killed = psutil.Process(), 0
    others = set(here.children())  # such as the JVM of a Spark test before this one
    async with running(worker):
        while killed < kills:
            # Those that run, those between two messages, and those that just start.
            next_kill = killed * count / kills
            await async_wait_until(partial(has_come_to, queue, book, next_kill), LONG)
            if queue.is_done():
                break
            if alive := [each for each in here.children() if is_alive(each) and each not in others]:
                random.choice(alive).kill()
                killed += 1
        await async_wait_until(queue.is_done, LONG)
    assert killed > kills / 2
    starts = Counter(id for id, _, _ in lines(book))
    lost = 0
    for id in ids:
        *died, last = queue.message(id).attempts
        lost += len(died)
        assert all("was killed by SIGKILL" in attempt["error"] for attempt in died)
        assert last["outcome"] == "success" or len(died) == 3, "dead by its own attempts alone"
        assert starts[id] == len(died) + 1, "what did not run has lost no attempt"
    assert lost <= killed
    assert {row.id for row in queue.dead()} >= set(killers)
    assert [starts[id] for id in killers] == [4, 4]
    assert [len(queue.message(id).attempts) for id in killers] == [4, 4]
    assert not [each for each in here.children() if is_alive(each) and each not in others]


async def test_a_message_whose_process_cannot_start_is_put_off_and_loses_no_attempt(
    queue: Queue, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    module = tmp_path / "crashes.py"
    module.write_text("def handle(message): ...\n")
    pytest.MonkeyPatch().syspath_prepend(tmp_path)
    import crashes  # type: ignore[import-not-found]  # noqa: PLC0415

    module.write_text("import os\nos._exit(9)\n")
    worker = queue.worker()
    worker.handler("work", process=True)(crashes.handle)
    (id,) = queue.publish()
    async with running(worker):
        await async_wait_until(lambda: worker.statistics.put_off, LONG)
    assert queue.message(id).attempt == 1
    assert "3 processes died before they were ready; the last ended by itself, with status 9" in caplog.text


async def test_an_idle_process_that_is_killed_costs_nobody_anything(queue: Queue) -> None:
    worker = queue.worker()
    worker.handler("work", process=True)(crunching.echo)
    first, second = queue.publish(), []
    async with running(worker):
        await async_wait_until(queue.is_done, LONG)
        pid = queue.message(first[0]).result["pid"]
        os.kill(pid, signal.SIGKILL)
        second += queue.publish()
        await async_wait_until(queue.is_done, LONG)
    assert outcomes(queue, second[0]) == ["success"]
    assert queue.message(second[0]).result["pid"] != pid


async def test_signals_to_all_of_the_group_let_it_finish(queue: Queue, tmp_path: Path) -> None:
    """What systemd does to a service, and Ctrl-C in some terminals."""
    book = tmp_path / "book"
    worker = queue.worker()
    worker.handler("work", process=True)(crunching.note)
    (id,) = queue.publish(payload={"book": str(book), "then": 0.3})
    async with running(worker):
        await async_wait_until(lambda: lines(book), LONG)
        ((_, _, pid),) = lines(book)
        os.kill(pid, signal.SIGTERM)
        os.kill(pid, signal.SIGINT)
        worker.stop()
    assert outcomes(queue, id) == ["success"]


async def test_no_more_run_than_the_pool_has_processes(queue: Queue, tmp_path: Path) -> None:
    worker = queue.worker(concurrency=8, process_pool=2, lead=True)
    worker.handler("work", process=True)(crunching.echo)
    light = []

    @worker.handler("light")
    async def handle(message: Message) -> None:
        light.append(message.id)

    ids = queue.publish(count=10)
    queue.publish(kind="light", count=3)
    await drained(worker)
    assert len({queue.message(id).result["pid"] for id in ids}) <= 2
    assert len(light) == 3


def local() -> Any:
    def inside(message: Message) -> None: ...

    return inside


def with_connection(message: Message, connection: Any) -> None: ...


def with_event(message: Message, stop: threading.Event) -> None: ...


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda _: None, "cannot find a lambda: define it with def at the top"),
        (local(), "cannot find the function local.<locals>.inside, which is inside another"),
        (partial(crunching.fail), "a function that a module has under its name"),
        (with_connection, "no part in a transaction of its worker: leave out the parameter"),
        (with_event, "killed when its lease is lost: leave out 'stop'"),
    ],
)
def test_what_cannot_run_there_is_refused_when_registered(function: Any, why: str) -> None:
    with pytest.raises(TypeError, match=why):
        Worker("q").handler("work", process=True)(function)


def test_one_that_hides_behind_another_of_its_name_is_refused_at_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    worker = Worker("q", dsn="postgresql:///nowhere")
    worker.handler("work", process=True)(crunching.fail)
    monkeypatch.setattr(crunching, "fail", crunching.echo)
    with pytest.raises(ValueError, match="crunching:fail is not the function that was registered"):
        worker.run()


def test_a_test_of_a_handler_calls_it_here() -> None:
    worker = Worker("q")
    worker.handler("work", process=True)(crunching.echo)
    worker.handler("order", process=True)(crunching.place)
    assert worker.handle_now({"n": 1}, kind="work")["pid"] == os.getpid()
    assert worker.handle_now({"id": 1, "name": "Ada"}, kind="order")["is_order"]


async def test_a_log_level_of_the_worker_is_that_of_its_processes(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    worker = queue.worker()
    worker.handler("work", process=True)(crunching.fail)
    queue.publish(payload="nothing")
    await drained(worker)
    assert "about to" not in caplog.text


PROGRAM = """
import re, sys
from trunq.worker import Worker

worker = Worker("q", dsn=sys.argv[1], lead=False, name="pod-0")


class Odd(Exception):
    pass


@worker.handler("work", process=True, max_attempts=1)
def handle(message):
    if message.payload == "hang":
        open("hangs", "w").close()
        re.match("(a+)+$", "a" * 60 + "b")
    raise Odd("of the program itself")


"""
GUARDED = 'if __name__ == "__main__":\n    worker.run()\n'


@pytest.fixture
def program(queue: Queue, tmp_path: Path) -> Iterator[Callable[[str], subprocess.Popen[bytes]]]:
    """Starts a program of so many lines more."""
    started: list[subprocess.Popen[bytes]] = []

    def start(rest: str) -> subprocess.Popen[bytes]:
        (tmp_path / "program.py").write_text(PROGRAM + rest)
        started.append(subprocess.Popen([sys.executable, "program.py", queue.dsn], cwd=tmp_path))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_a_worker_that_is_killed_leaves_no_process_behind_and_gets_its_own_back(
    queue: Queue, tmp_path: Path, program: Callable[[str], subprocess.Popen[bytes]]
) -> None:
    """Not even one that never lets go of the interpreter."""
    queue.policy(lease_time="1 hour", max_attempts=2)
    (id,) = queue.publish(payload="hang")
    worker = program(GUARDED)
    wait_until((tmp_path / "hangs").exists, LONG)
    (child,) = psutil.Process(worker.pid).children()
    worker.kill()
    worker.wait()
    wait_until(lambda: not is_alive(child), LONG)
    (tmp_path / "hangs").unlink()
    assert queue.message(id).state == "leased"
    program(GUARDED)
    wait_until((tmp_path / "hangs").exists, LONG, "it goes on, an hour before the end of the lease")


@pytest.mark.parametrize(
    ("rest", "said"),
    [(GUARDED, "Odd: of the program itself"), ("worker.run()\n", "put worker.run() under if __name__")],
    ids=["guarded", "not guarded"],
)
def test_handlers_of_the_program_itself(
    queue: Queue, program: Callable[[str], subprocess.Popen[bytes]], rest: str, said: str
) -> None:
    (id,) = queue.publish()
    program(rest)
    wait_until(queue.is_done, LONG)
    assert said in queue.message(id).attempts[0]["error"]
