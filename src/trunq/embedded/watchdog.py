"""Stops an embedded server once nobody uses it any more, however its users ended.

`python watchdog.py DIRECTORY PLACES...` waits for the exclusive lock on `DIRECTORY/users`, which every user
of the server holds shared while it lives. The kernel gives that lock back for a process that was killed
too, so no server outlives its last user. PLACES are removed afterwards: temporary directories.

It imports nothing but the standard library: it runs beside each embedded server for as long as that lives.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

PATIENCE = 20.0
"""Seconds a server gets for each way of stopping it, from the polite to the last."""


def postmaster(directory: Path) -> int | None:
    """Process id of the server that runs on `directory`/data, None when there is none."""
    pid = _recorded(directory)
    return pid if pid is not None and _is_server_of(pid, directory / "data") else None


def _recorded(directory: Path) -> int | None:
    try:
        return int((directory / "data" / "postmaster.pid").read_text().split("\n", 1)[0])
    except (OSError, ValueError):
        return None


def await_burial(directory: Path) -> None:
    """Wait for the system to forget a server that was killed: while its number is there, none will start."""
    pid = _recorded(directory)
    deadline = time.monotonic() + PATIENCE
    while pid is not None and _state(pid) == "Z" and time.monotonic() < deadline:
        time.sleep(0.005)


def _state(pid: int) -> str | None:
    """State of a process as Linux tells it, None when there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return None


def _is_server_of(pid: int, data: Path) -> bool:
    """Whether `pid` is alive and ours: after a crash of the machine the number may be anybody's."""
    if Path("/proc/self").exists():
        try:
            return _state(pid) != "Z" and Path(f"/proc/{pid}/cwd").samefile(data)
        except OSError:
            return False
    command = subprocess.run(["ps", "-p", str(pid), "-o", "command="], capture_output=True, check=False)
    return os.fsencode(data) in command.stdout


def stop_server(directory: Path) -> None:
    """Stop the server on `directory`: by fast shutdown, if that hangs at once, if that hangs by force."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL):
        pid = postmaster(directory)
        if pid is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        if gone(pid, directory, PATIENCE):
            return


def gone(pid: int, directory: Path, patience: float) -> bool:
    """Wait until the server `pid` has ended; False when it has not within `patience` seconds."""
    deadline = time.monotonic() + patience
    while _is_server_of(pid, directory / "data"):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def watch(directory: Path, places: list[Path]) -> None:
    """Wait for the last user, stop the server, remove the `places`."""
    with (directory / "users").open("rb") as users:
        fcntl.flock(users, fcntl.LOCK_EX)
        stop_server(directory)
        for place in places:
            shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    os.chdir("/")
    watch(Path(sys.argv[1]), [Path(place) for place in sys.argv[2:]])
