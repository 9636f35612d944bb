"""Commands that run until they are stopped, as processes of their own."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from shelling import Shell, start
from trunq import Client
from waiting import wait_until

APP = """
from trunq.worker import Worker

post = Worker("mail")


@post.handler("letter")
async def deliver(message):
    return {"delivered": message.payload}
"""


@pytest.fixture
def office(tmp_path: Path, client: Client) -> Path:
    """A directory with an application, and the queue it serves."""
    (tmp_path / "office.py").write_text(APP)
    client.create_queue("mail")
    return tmp_path


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[str]]]:
    """Processes started by a test; none outlives it."""
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        process.kill()
        process.communicate()


def done(client: Client) -> int:
    return client.status("mail")[0].done_last_minute


def test_a_worker_serves_the_application_until_it_is_told_to_end(
    office: Path, client: Client, database: str, processes: list[subprocess.Popen[str]]
) -> None:
    client.publish_many("mail", [1, 2, 3], kind="letter")
    worker = start("worker", "office:post", "--name", "clerk", "--json", directory=office, TRUNQ_DSN=database)
    processes.append(worker)
    wait_until(lambda: done(client) == 3, what="three letters delivered")
    worker.send_signal(signal.SIGINT)
    out, err = worker.communicate(timeout=120)
    assert worker.returncode == 0, err
    assert json.loads(out)["handled"] == 3
    assert "clerk serves mail; kinds: letter;" in err
    assert {message.worker for message in client.list_messages("mail")} == {"clerk"}


@pytest.mark.parametrize(("left", "handled"), [("--until-empty", 1), ("--until-idle", 2)])
def test_a_worker_ends_when_nothing_is_left(
    office: Path,
    client: Client,
    database: str,
    processes: list[subprocess.Popen[str]],
    left: str,
    handled: int,
) -> None:
    client.publish("mail", 1, kind="letter")
    client.publish("mail", 2, kind="letter", delay={"--until-empty": 3600, "--until-idle": 0.2}[left])
    processes.append(worker := start("worker", "office:post", left, directory=office, TRUNQ_DSN=database))
    _, err = worker.communicate(timeout=120)
    assert worker.returncode == 0, err
    assert f"{handled} handled" in err


def test_a_worker_without_its_database_says_so(office: Path, processes: list[subprocess.Popen[str]]) -> None:
    address = f"postgresql:///x?host={office}"
    processes.append(worker := start("worker", "office:post", directory=office, TRUNQ_DSN=address))
    _, err = worker.communicate(timeout=120)
    assert worker.returncode == 1
    assert "No Postgres answers on the socket" in err
    assert "Traceback" not in err


def test_a_worker_of_a_queue_that_is_not_there_says_so(
    tmp_path: Path, database: str, processes: list[subprocess.Popen[str]]
) -> None:
    (tmp_path / "office.py").write_text(APP)
    processes.append(worker := start("worker", "office:post", directory=tmp_path, TRUNQ_DSN=database))
    _, err = worker.communicate(timeout=120)
    assert worker.returncode == 1
    assert 'There is no queue "mail". Create it with trunq queue create' in err
    assert "Traceback" not in err


def test_an_application_that_does_not_load_shows_where(
    tmp_path: Path, database: str, processes: list[subprocess.Popen[str]]
) -> None:
    (tmp_path / "office.py").write_text("import nosuchlibrary\n")
    processes.append(worker := start("worker", "office:post", directory=tmp_path, TRUNQ_DSN=database))
    _, err = worker.communicate(timeout=120)
    assert worker.returncode == 1
    assert err == (
        "error: office.py, line 1: import nosuchlibrary\n"
        "    ModuleNotFoundError: No module named 'nosuchlibrary'\n"
    )


@pytest.mark.parametrize(
    ("files", "first"),
    [
        (
            {"office.py": "x = (\n"},
            ["error: office.py, line 1: x = (", "    SyntaxError: '(' was never closed"],
        ),
        (
            {"office.py": "import desk\n", "desk.py": "import json\n\njson.loads('{')\n"},
            ["error: desk.py, line 3: json.loads('{')", "    json.decoder.JSONDecodeError: Expecting"],
        ),
    ],
)
def test_the_first_line_is_the_user_s_own_wherever_it_failed(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], first: list[str]
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name, text in files.items():
        monkeypatch.delitem(sys.modules, name.removesuffix(".py"), raising=False)
        (tmp_path / name).write_text(text)
    done = shell("worker", "office:post")
    assert done.status == 1
    assert [line[: len(start)] for line, start in zip(done.err.splitlines(), first, strict=False)] == first
    assert "trunq/cli" not in done.err
    assert "importlib" not in done.err


def test_a_worker_serves_the_queue_and_subscription_of_the_command_line(
    office: Path, client: Client, database: str, processes: list[subprocess.Popen[str]]
) -> None:
    client.create_queue("post")
    client.subscribe("post", "audit")
    client.publish("post", 1, kind="letter")
    given = ("--queue", "post", "--subscription", "audit", "--until-empty", "--json")
    processes.append(worker := start("worker", "office:post", *given, directory=office, TRUNQ_DSN=database))
    out, err = worker.communicate(timeout=120)
    assert worker.returncode == 0, err
    assert json.loads(out)["handled"] == 1
    assert {row.subscription: row.ready for row in client.status("post")} == {"audit": 0, "default": 1}


def test_a_leader_promotes_what_is_due(
    tmp_path: Path, client: Client, database: str, processes: list[subprocess.Popen[str]]
) -> None:
    client.create_queue("mail")
    client.publish("mail", 1, delay=0.01)
    processes.append(leader := start("leader", "--json", directory=tmp_path, TRUNQ_DSN=database))
    wait_until(lambda: client.status("mail")[0].ready == 1, timeout=120, what="the message is promoted")
    leader.send_signal(signal.SIGTERM)
    out, err = leader.communicate(timeout=120)
    assert leader.returncode == 0, err
    assert json.loads(out)["promote"] == 1


def test_status_ends_quietly_with_ctrl_c(
    tmp_path: Path, client: Client, database: str, processes: list[subprocess.Popen[str]]
) -> None:
    client.create_queue("mail")
    process = start(
        "status", "--every", "0.2", directory=tmp_path, TRUNQ_DSN=database, FORCE_COLOR="1", TERM="xterm"
    )
    processes.append(process)
    assert process.stdout is not None
    first = process.stdout.readline()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "mail" in first + out
    assert "Traceback" not in err


@pytest.mark.parametrize("command", [["db", "sql"], ["--version"]], ids=" ".join)
def test_output_that_nobody_reads_any_more_ends_a_command_without_a_traceback(
    tmp_path: Path, command: list[str]
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    ended = subprocess.run(
        [sys.executable, "-m", "trunq.cli", *command],
        cwd=tmp_path,
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (1, "")


def test_the_command_is_a_module_too(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "trunq", "--help"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, "Usage: trunq" in done.stdout) == (0, True), done.stderr


def test_a_worker_of_a_queue_that_cannot_be_has_one_sentence(
    tmp_path: Path, database: str, processes: list[subprocess.Popen[str]]
) -> None:
    (tmp_path / "office.py").write_text(APP.replace('"mail"', '"Mail"'))
    processes.append(worker := start("worker", "office:post", directory=tmp_path, TRUNQ_DSN=database))
    _, err = worker.communicate(timeout=120)
    assert worker.returncode == 1
    assert err == (
        'error: office:post cannot run: "Mail" cannot be the name of a queue. '
        "1 to 48 of a-z, 0-9 and _, starting with a letter.\n"
    )


@pytest.mark.parametrize("arguments", [["queue", "list"], ["queue", "list", "--help"], ["queue", "nosuch"]])
@pytest.mark.parametrize(("variable", "is_plain"), [("1", True), ("", False)])
def test_no_color_leaves_no_escape_on_a_terminal(
    client: Client, database: str, arguments: list[str], variable: str, is_plain: bool
) -> None:
    client.create_queue("mail")
    environment = {**os.environ, "TRUNQ_DSN": database, "TERM": "xterm", "NO_COLOR": variable}
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "trunq.cli", *arguments],
        env=environment,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    said = b""
    try:
        while part := os.read(ours, 65536):
            said += part
    except OSError:  # Linux tells the end of a terminal so
        pass
    finally:
        process.wait(timeout=120)
        os.close(ours)
    assert b"queue" in said
    assert (b"\x1b[" not in said) == is_plain


def test_the_log_of_a_leader_as_json_is_an_object_a_line(
    tmp_path: Path, database: str, processes: list[subprocess.Popen[str]]
) -> None:
    leader = start("leader", "--log-format", "json", directory=tmp_path, TRUNQ_DSN=database)
    processes.append(leader)
    assert leader.stderr is not None
    first = leader.stderr.readline() + leader.stderr.readline()
    leader.send_signal(signal.SIGTERM)
    _, rest = leader.communicate(timeout=120)
    told = [json.loads(line)["message"] for line in (first + rest).splitlines()]
    assert told[0].endswith("stands for election; Ctrl-C ends it")
    assert told[1] == "leading, term 1"
    assert told[-1].startswith("ended; what it did: ")


def test_a_leader_prints_the_address_of_its_own_database_as_a_line_to_paste(
    processes: list[subprocess.Popen[str]],
) -> None:
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)  # the server may run as another user than the tests
        processes.append(leader := start("leader", "--embedded", directory=Path(folder)))
        assert leader.stderr is not None
        line = leader.stderr.readline().partition("The database: ")[2]
        pasted = f'{line.strip()}; printf %s "$TRUNQ_DSN"'
        address = subprocess.run(["sh", "-c", pasted], capture_output=True, text=True, check=True).stdout
        with Client(address) as client:
            assert client.list_queues() == []
        leader.send_signal(signal.SIGTERM)
        leader.communicate(timeout=120)
        assert leader.returncode == 0
