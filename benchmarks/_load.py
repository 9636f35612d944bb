"""How much of the machine other work takes while a benchmark measures."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trunq.embedded import Embedded

_TICK = os.sysconf("SC_CLK_TCK")
_servers: set[int] = set()
_ended: list[float] = []
"""What servers had taken when they ended."""


class Watch:
    """What others took of the processors, from one `share` to the next: not the program, its children and its
    servers. Linux only; elsewhere nothing is known, and 0 is said."""

    def __init__(self) -> None:
        self._before = _now()

    def share(self) -> float:
        """The share of the whole machine since it was last asked."""
        before, self._before = self._before, _now()
        elapsed, busy, own = (now - then for now, then in zip(self._before, before, strict=True))
        return min(1.0, max(0.0, (busy - own) / (elapsed * (os.cpu_count() or 1)))) if elapsed else 0.0


@contextmanager
def watched(running: Embedded) -> Iterator[None]:
    """A server whose work counts as the program's."""
    pid = int((running.data / "postmaster.pid").read_text().split("\n", 1)[0])
    _servers.add(pid)
    try:
        yield
    finally:
        _servers.discard(pid)
        _ended.append(_taken({pid}))


def _now() -> tuple[float, float, float]:
    """Seconds: of the clock, of all processors that worked, of ours."""
    return time.monotonic(), _busy(), sum(_ended) + _taken({os.getpid(), *_servers})


def _busy() -> float:
    stat = Path("/proc/stat")
    if not stat.exists():
        return 0.0
    # user, nice, system, idle, iowait, irq, softirq, and what the host took away.
    times = [int(each) for each in stat.read_text().split("\n", 1)[0].split()[1:9]]
    return (sum(times) - times[3] - times[4]) / _TICK


def _taken(roots: set[int]) -> float:
    """Seconds of these processes and their descendants, those that they have waited for too."""
    parents: dict[int, int] = {}
    taken: dict[int, float] = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The name, which may have blanks, stands in brackets.
            fields = file.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        pid = int(file.parent.name)
        parents[pid] = int(fields[1])
        taken[pid] = sum(int(each) for each in fields[11:15]) / _TICK

    def is_ours(pid: int) -> bool:
        while pid in parents and pid not in roots:
            pid = parents[pid]
        return pid in roots

    return sum(each for pid, each in taken.items() if is_ours(pid))
