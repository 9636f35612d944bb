"""Units of systemd: systemd's own tools read them, and they stop what they start in time."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from deploying import OPS, parse, units

UNITS = units()
EXPOSURE = 30
"""Tenths, as `systemd-analyze security` measures it: below is "OK"; a unit without any of it has 96."""

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is missing: apt-get install systemd"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The units, with a program that is there and instances."""
    for name in UNITS:
        text = (OPS / "systemd" / name).read_text()
        # It looks whether the program and the directory are there.
        text = text.replace("/opt/trunq/bin/trunq", sys.executable)
        (tmp_path / name.replace("@.", "@1.")).write_text(text)
    return tmp_path


@needs_systemd
def test_systemd_finds_nothing_wrong_with_them(folder: Path) -> None:
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *map(str, sorted(folder.glob("*.service")))],
        capture_output=True,
        text=True,
        check=False,
    )
    complaints = [line for line in done.stderr.splitlines() if str(folder) in line or "trunq" in line]
    assert complaints == []
    (folder / "trunq-web.service").write_text("[Service]\nType=exec\nExecStrat=/bin/true\n")
    wrong = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(folder / "trunq-web.service")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "ExecStrat" in wrong.stderr


@needs_systemd
def test_they_may_do_little_besides(folder: Path) -> None:
    done = subprocess.run(
        [
            *("systemd-analyze", "security", "--offline=true", f"--threshold={EXPOSURE}", "--no-pager"),
            *map(str, sorted(folder.glob("*.service"))),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    assert len(re.findall("Overall exposure level", done.stdout)) == len(UNITS)


@pytest.mark.parametrize("name", UNITS)
def test_a_unit_starts_again_what_ended_and_gives_it_time_to_end(name: str) -> None:
    service = {key: values[-1] for key, values in UNITS[name]["Service"].items()}
    assert service["Type"] == "exec"
    assert service["User"] == "trunq"
    assert (service["Restart"], service["RestartPreventExitStatus"]) == ("always", "2")
    assert UNITS[name]["Unit"]["StartLimitIntervalSec"] == ["0"]
    assert (service["KillSignal"], service["KillMode"]) == ("SIGTERM", "mixed")
    grace = parse(service["ExecStart"].split()[1:]).params.get("grace")
    if "worker" in service["ExecStart"]:
        assert grace is not None
        assert int(service["TimeoutStopSec"]) >= grace.total_seconds() + 5
    assert service["NoNewPrivileges"] == "yes"
    assert UNITS[name]["Install"]["WantedBy"] == ["multi-user.target"]


def test_each_worker_has_a_name_of_its_own_and_leaves_the_duties_to_the_leader() -> None:
    names = set()
    for each in UNITS.values():
        words = each["Service"]["ExecStart"][0].split()
        if words[1] == "worker":
            given = parse(words[1:]).params
            assert "%H" in given["name"]
            assert given["lead"] is False
            names.add(given["name"])
    assert len(names) == 2
    (worker,) = (each for name, each in UNITS.items() if "@" in name)
    assert "%i" in worker["Service"]["ExecStart"][0]


def test_the_user_of_the_units_is_made() -> None:
    made = (OPS / "systemd" / "trunq.sysusers.conf").read_text()
    assert re.search(r"^u trunq ", made, re.MULTILINE)
