"""The processes of a run end with it, and one that dies is told of."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from trunq_demo import fleet
from trunq_demo.fleet import Fleet, ProcessDied
from waiting import wait_until

STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if len(sys.argv) == 1:
    subprocess.Popen([sys.executable, "-m", "stubborn", "child"])
print("ready", flush=True)
while True:
    time.sleep(60)
"""


@pytest.fixture
def modules(tmp_path: Path) -> dict[str, str]:
    """Environment in which modules are found in the test's directory."""
    (tmp_path / "stubborn.py").write_text(STUBBORN)
    (tmp_path / "failing.py").write_text(
        "import sys\nprint('some output')\nsys.exit('error: the lake is dry.')\n"
    )
    (tmp_path / "crashing.py").write_text("1 / 0\n")
    return {"PYTHONPATH": str(tmp_path)}


def test_a_process_that_fails_is_told_with_its_last_word(tmp_path: Path, modules: dict[str, str]) -> None:
    with Fleet(tmp_path, modules) as running:
        member = running.start("lake pipeline", "failing")
        member.process.wait(timeout=120)
        with pytest.raises(ProcessDied, match=r"The lake pipeline ended with status 1\. the lake is dry\."):
            running.check()


def test_a_process_that_crashes_is_told_with_the_end_of_its_log(
    tmp_path: Path, modules: dict[str, str]
) -> None:
    with Fleet(tmp_path, modules) as running:
        running.start("lake pipeline", "crashing").process.wait(timeout=120)
        with pytest.raises(ProcessDied, match=r"lake-pipeline\.log:\n(.*\n)+.*ZeroDivisionError"):
            running.check()


def test_processes_that_do_not_listen_are_killed_with_their_children(
    tmp_path: Path, modules: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "GRACE", 0.2)
    with Fleet(tmp_path, modules) as running:
        member = running.start("stubborn one", "stubborn")
        wait_until(lambda: member.log.read_text().count("ready") == 2, timeout=120, what="both are there")
        processes = [psutil.Process(member.process.pid), *psutil.Process(member.process.pid).children()]
        assert len(processes) == 2
        running.check()
    assert not any(map(fleet.is_alive, processes))
    assert running.members == []


def test_a_process_that_ended_well_is_no_failure(tmp_path: Path, modules: dict[str, str]) -> None:
    with Fleet(tmp_path, modules) as running:
        running.start("quick one", "this").process.wait(timeout=120)
        running.check()
