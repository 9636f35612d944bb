"""What `trunq worker` tells on its way, and how it ends."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shelling import start
from trunq import Client
from trunq.cli.work.worker import UNFINISHED
from waiting import wait_until

APP = """
import asyncio
from trunq import Reject, Worker

post = Worker("mail", lead=False)


@post.handler("letter")
async def deliver(message):
    if message.payload == "fail":
        raise ValueError("no such street")
    if message.payload == "never":
        return Reject("no stamp")
    if message.payload == "hang":
        print("hanging", flush=True)
        await asyncio.Event().wait()
"""

Worker = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def worker(tmp_path: Path, client: Client, database: str) -> Iterator[Worker]:
    """Start the worker of a small application; none outlives its test."""
    (tmp_path / "office.py").write_text(APP)
    client.create_queue("mail")
    started: list[subprocess.Popen[str]] = []

    def begin(*options: str) -> subprocess.Popen[str]:
        started.append(start("worker", "office:post", *options, directory=tmp_path, TRUNQ_DSN=database))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def states(client: Client) -> list[str]:
    return sorted(message.state for message in client.list_messages("mail"))


def test_until_empty_has_a_status_and_a_sentence_when_messages_died(worker: Worker, client: Client) -> None:
    client.subscribe("mail", "default", max_attempts=1)
    client.publish_many("mail", ["fail", "never", "fine"], kind="letter")
    process = worker("--until-empty", "--json")
    out, err = process.communicate(timeout=120)
    assert process.returncode == UNFINISHED == 3, err
    assert json.loads(out)["dead"] == 2
    assert err.splitlines()[-1].endswith("2 messages died: trunq dead list mail shows why")
    assert err.count("ended after") == 1
    assert "1 handled, 1 failed, 1 rejected, 2 dead" in err


def test_until_empty_has_a_sentence_for_messages_without_a_handler(worker: Worker, client: Client) -> None:
    client.publish("mail", 1, kind="parcel")
    process = worker("--until-empty")
    _, err = process.communicate(timeout=120)
    assert process.returncode == UNFINISHED, err
    assert err.splitlines()[-1].endswith(
        "1 message waits for a worker with a handler: trunq message list mail shows the kinds"
    )
    assert states(client) == ["retrying"]


def test_unknown_kinds_are_rejected_when_asked_to(worker: Worker, client: Client) -> None:
    client.publish("mail", 1, kind="parcel")
    process = worker("--until-empty", "--unknown-kinds", "reject")
    _, err = process.communicate(timeout=120)
    assert process.returncode == UNFINISHED, err
    assert states(client) == ["dead"]


def test_status_names_kinds_without_a_handler(
    worker: Worker, client: Client, tmp_path: Path, database: str
) -> None:
    client.publish("mail", 1, kind="parcel")
    worker("--until-empty").communicate(timeout=120)
    out, _ = start("status", "--once", directory=tmp_path, TRUNQ_DSN=database).communicate(timeout=120)
    assert '! no handler for kind parcel in subscription "default" of queue "mail"; 1 message waits' in out


def test_the_log_as_json_is_an_object_a_line(worker: Worker, client: Client) -> None:
    client.publish_many("mail", ["fail", "fine"], kind="letter")
    process = worker("--log-format", "json", "-v")
    wait_until(lambda: states(client) == ["done", "retrying"], 120)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    told: list[dict[str, Any]] = [json.loads(line) for line in err.splitlines()]
    (failed,) = [each for each in told if each.get("outcome") == "failed"]
    about = {name: failed[name] for name in ("level", "logger", "queue", "kind", "attempt")}
    assert about == {
        "level": "WARNING",
        "logger": "trunq.worker",
        "queue": "mail",
        "kind": "letter",
        "attempt": 1,
    }
    assert "ValueError: no such street" in failed["traceback"]
    assert 0 < failed["next_try_in"] <= 1
    assert [each["level"] for each in told if each.get("outcome") == "done"] == ["DEBUG"]
    assert told[-1]["message"].startswith("ended after")
    assert {"time"} <= set.intersection(*map(set, told))


def test_a_higher_level_says_less(worker: Worker, client: Client) -> None:
    client.subscribe("mail", "default", max_attempts=2, backoff_base=0, jitter=0)
    client.publish_many("mail", ["fail", "fine"], kind="letter")
    process = worker("--until-empty", "--log-level", "error")
    _, err = process.communicate(timeout=120)
    assert process.returncode == UNFINISHED, err
    first, last = err.splitlines()
    assert "is dead (max_attempts), attempt 2/2, kind letter: ValueError: no such street" in first
    assert last.endswith("1 message died: trunq dead list mail shows why")


def test_an_application_that_configures_its_log_keeps_it_unless_a_format_is_asked_for(
    worker: Worker, tmp_path: Path
) -> None:
    own = "import logging\nlogging.basicConfig(level='INFO', format='MINE %(message)s')\n"
    (tmp_path / "office.py").write_text(own + APP)
    _, err = worker("--until-empty").communicate(timeout=120)
    assert all(line.startswith("MINE ") for line in err.splitlines()), err
    _, err = worker("--until-empty", "--log-format", "json").communicate(timeout=120)
    assert all(line.startswith("{") for line in err.splitlines()), err


def test_a_second_ctrl_c_ends_what_still_runs_and_says_so(worker: Worker, client: Client) -> None:
    client.publish_many("mail", ["hang", "hang"], kind="letter")
    process = worker()
    assert process.stdout is not None
    assert process.stderr is not None
    assert [process.stdout.readline() for _ in range(2)] == ["hanging\n"] * 2
    process.send_signal(signal.SIGINT)
    told = ""
    while "stopping" not in told:
        told = process.stderr.readline()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert told.rstrip().endswith("stopping: 2 handlers still run, Ctrl-C again ends them")
    assert "ended at once: 2 handlers were cut off" in err
    assert "Traceback" not in err


def test_a_second_worker_of_one_name_and_the_first_say_what_happened(worker: Worker, client: Client) -> None:
    client.subscribe("mail", "default", lease_time=3)
    client.publish("mail", "hang", kind="letter")
    first = worker("--name", "clerk")
    assert first.stdout is not None
    assert first.stdout.readline() == "hanging\n"
    second = worker("--name", "clerk")
    assert told_by(second, "took back") == (
        "took back 1 lease of mail/default from a former worker clerk; "
        "if it still runs, each needs a name of its own"
    )
    assert told_by(first, "lost the lease").startswith(
        "lost the lease of 1 message of mail/default: it ran out,"
    )


def told_by(process: subprocess.Popen[str], beginning: str) -> str:
    """The first line of its log that begins so."""
    assert process.stderr is not None
    return next(line[at:].strip() for line in process.stderr if (at := line.find(beginning)) >= 0)
