"""`trunq worker --processes N`: several workers as one."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from shelling import start
from trunq import Client
from trunq.cli.ground.failure import Mistake
from trunq.cli.work import supervisor
from trunq.cli.work.supervisor import Supervisor
from waiting import async_wait_until, wait_until

LONG = 90.0

APP = """
import asyncio, os, pathlib
from trunq.worker import Worker

post = Worker("mail", lease_time=600)


@post.handler("letter")
async def deliver(message):
    return {"delivered": message.payload}


@post.handler("parcel")
async def carry(message):
    pathlib.Path(f"carried-{message.attempt}").touch()
    while not pathlib.Path("go").exists():
        await asyncio.sleep(0.01)
"""


@pytest.fixture
def office(tmp_path: Path, client: Client) -> Path:
    (tmp_path / "office.py").write_text(APP)
    client.create_queue("mail")
    return tmp_path


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[str]]]:
    """Processes started by a test; neither they nor their workers outlive it."""
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        family = members(process)
        process.kill()
        for each in family:
            with suppress(psutil.NoSuchProcess):
                each.kill()
        process.communicate()


def members(process: subprocess.Popen[str]) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        return [
            each for each in psutil.Process(process.pid).children() if each.status() != psutil.STATUS_ZOMBIE
        ]
    return []


def is_over(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_they_are_kept_alive_get_their_own_back_and_are_drained_together(
    office: Path, client: Client, database: str, processes: list[subprocess.Popen[str]]
) -> None:
    parcel = client.publish("mail", 1, kind="parcel")
    shell = start(
        *("worker", "office:post", "--processes", "2", "--name", "clerk", "--no-lead"),
        directory=office,
        TRUNQ_DSN=database,
    )
    processes.append(shell)
    wait_until((office / "carried-1").exists, LONG)
    # The one that carries dies. Its lease would hold for ten minutes; under its name it ends it.
    (held,) = client.list_messages("mail", state="leased")
    assert held.worker in {"clerk-1", "clerk-2"}
    (carrier,) = (each for each in members(shell) if held.worker in each.cmdline())
    carrier.kill()
    wait_until((office / "carried-2").exists, LONG)
    wait_until(lambda: len(members(shell)) == 2, LONG)
    # One signal, to all processes as a service manager sends it: what runs is finished.
    family = members(shell)
    shell.send_signal(signal.SIGTERM)
    for each in family:
        each.terminate()
    assert shell.stderr is not None
    while "stopping: 2 workers" not in shell.stderr.readline():
        pass
    (office / "go").touch()
    _, err = shell.communicate(timeout=LONG)
    assert shell.returncode == 0, err
    assert client.show_message("mail", parcel)[0].state == "done"
    assert all(map(is_over, family))


def test_killed_it_leaves_workers_that_finish_what_runs_and_end(
    office: Path, client: Client, database: str, processes: list[subprocess.Popen[str]]
) -> None:
    parcel = client.publish("mail", 1, kind="parcel")
    shell = start("worker", "office:post", "--processes", "2", directory=office, TRUNQ_DSN=database)
    processes.append(shell)
    wait_until((office / "carried-1").exists, LONG)
    wait_until(lambda: len(members(shell)) == 2, LONG)
    family = members(shell)
    shell.kill()
    shell.wait()
    wait_until(lambda: any(map(is_over, family)), LONG, "the idle one ends")
    (office / "go").touch()
    wait_until(lambda: all(map(is_over, family)), LONG)
    assert client.show_message("mail", parcel)[0].state == "done"


def test_a_second_signal_ends_all_at_once(
    office: Path, client: Client, database: str, processes: list[subprocess.Popen[str]]
) -> None:
    client.publish("mail", 1, kind="parcel")
    shell = start("worker", "office:post", "--processes", "2", directory=office, TRUNQ_DSN=database)
    processes.append(shell)
    wait_until((office / "carried-1").exists, LONG)
    family = members(shell)
    assert shell.stderr is not None
    shell.send_signal(signal.SIGINT)
    while "stopping: " not in shell.stderr.readline():
        pass
    shell.send_signal(signal.SIGTERM)
    shell.communicate(timeout=LONG)
    assert shell.returncode == 128 + signal.SIGTERM
    assert all(map(is_over, family))
    assert [row.state for row in client.list_messages("mail")] == ["leased"]


def test_without_anything_left_to_do_they_end(
    office: Path, client: Client, database: str, processes: list[subprocess.Popen[str]]
) -> None:
    client.publish_many("mail", [1, 2, 3], kind="letter")
    shell = start(
        *("worker", "office:post", "--processes", "2", "--until-empty"), directory=office, TRUNQ_DSN=database
    )
    processes.append(shell)
    _, err = shell.communicate(timeout=LONG)
    assert shell.returncode == 0, err
    assert client.status("mail")[0].done_last_minute == 3


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Workers that are a line of shell, started again soon."""
    monkeypatch.setattr(supervisor, "FIRST_WAIT", 0.01)
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "member"
    script.write_text('#!/bin/sh\necho "$4" >> started\n. ./does\n')
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    return tmp_path


async def test_it_gives_up_when_they_die_again_and_again(
    soon: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(supervisor, "LONGEST_WAIT", 0.02)
    (soon / "does").write_text("exit 7\n")
    with pytest.raises(Mistake, match="10 workers died within 60 seconds"):
        await asyncio.wait_for(Supervisor(["worker"], "clerk", 2).run(), LONG)
    started = (soon / "started").read_text().split()
    assert 10 <= len(started) <= 11
    assert "clerk-1 ended with status 7, and is started again in 0.01 s" in caplog.text


async def test_the_wait_grows_and_begins_anew_after_a_while_of_health(
    soon: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(supervisor, "LONGEST_WAIT", 0.03)
    (soon / "does").write_text("kill -9 $$\n")
    watched = Supervisor(["worker"], "clerk", 1)
    task = asyncio.create_task(watched.run())
    await async_wait_until(lambda: caplog.text.count("was killed by SIGKILL") >= 4, LONG)
    assert [text in caplog.text for text in ("in 0.01 s", "in 0.02 s", "in 0.03 s")] == [True] * 3
    monkeypatch.setattr(supervisor, "HEALTHY", 0.0)
    caplog.clear()
    await async_wait_until(lambda: "in 0.01 s" in caplog.text, LONG)
    watched.stop()
    assert await asyncio.wait_for(task, LONG) == 0


async def test_the_status_is_the_worst_of_theirs(soon: Path) -> None:
    (soon / "does").write_text('[ "$5" = clerk-2 ] && exit 3\nexit 0\n')
    assert await asyncio.wait_for(Supervisor([], "clerk", 2, done=(0, 3)).run(), LONG) == 3
