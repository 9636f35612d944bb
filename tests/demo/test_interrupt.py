"""A run that is stopped in the middle says so, leaves no process, and can be started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from waiting import wait_until

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A run that has just begun, in a process group of its own as a terminal would give it."""
    with subprocess.Popen(
        [sys.executable, "-m", "trunq.cli", "demo", "--replay", "60"],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if not name.startswith("TRUNQ_")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        yield process
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def processes_of(directory: Path) -> list[str]:
    """Command lines of the processes that have to do with a directory."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            traces = [*process.cmdline(), process.cwd(), process.environ().get("TRUNQ_DSN", "")]
            if process.pid != os.getpid() and any(str(directory) in trace for trace in traces):
                found.append(" ".join(process.cmdline()))
    return found


def logs_say(directory: Path, what: str) -> bool:
    """Whether the logs of both workers have a text."""
    logs = [directory / "demo" / "log" / f"worker-{number}.log" for number in (1, 2)]
    return all(log.exists() and what in log.read_text() for log in logs)


@pytest.mark.parametrize(
    ("way", "when"),
    [
        pytest.param(signal.SIGINT, "did not answer", id="ctrl-c while flights are handled"),
        pytest.param(signal.SIGTERM, "serves flights", id="sigterm while Spark starts"),
    ],
)
def test_stopped_in_the_middle(
    run: subprocess.Popen[str], tmp_path: Path, way: signal.Signals, when: str
) -> None:
    wait_until(lambda: logs_say(tmp_path, when), timeout=150, what=f"the workers' logs say {when!r}")
    os.killpg(run.pid, way)
    said, _ = run.communicate(timeout=60)
    assert run.returncode == 130
    assert "Stopped, and nothing was left running. trunq demo demo starts over." in said
    assert "Traceback" not in said
    assert processes_of(tmp_path) == []


def test_killed_outright_it_takes_its_processes_along(run: subprocess.Popen[str], tmp_path: Path) -> None:
    wait_until(lambda: logs_say(tmp_path, "serves flights"), timeout=100, what="both workers run")
    run.kill()
    run.wait()
    wait_until(lambda: processes_of(tmp_path) == [], timeout=60, what="nothing is left")


def test_a_place_that_cannot_be_used_is_told_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "thesis.tex").write_text("years of work")
    done = subprocess.run(
        [sys.executable, "-m", "trunq.cli", "demo"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "holds other things (thesis.tex)" in done.stderr
    assert "Traceback" not in done.stderr
