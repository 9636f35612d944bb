"""Several workers as one: started together, started again when they die, stopped together.

The supervisor holds a pipe to each of its workers. A word in it stops the worker, another ends it at once;
the end of the pipe stops it too, when the supervisor is killed. Words instead of signals, because whoever
signals all processes of a service means each of them once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections import deque
from collections.abc import Sequence
from time import monotonic
from typing import Final

from trunq.cli.ground.failure import Mistake
from trunq.process.signals import END, STOP

log = logging.getLogger("trunq.worker")

FIRST_WAIT: Final = 1.0
LONGEST_WAIT: Final = 60.0
"""Seconds before a worker that died is started again: doubled each time."""
HEALTHY: Final = 60.0
"""Seconds after which a worker counts as one that runs: its next wait is the first again."""
MOST_DEATHS: Final = 10
WITHIN: Final = 60.0
"""So many deaths in so many seconds: it is no use."""
_STUBBORN: Final = 5.0
"""Seconds that workers have to end at once."""


class Supervisor:
    """Keeps so many workers alive. `command` starts one, but for its name."""

    def __init__(self, command: Sequence[str], name: str, processes: int, done: Sequence[int] = ()) -> None:
        self._command = command
        self._members = [_Member(f"{name}-{number}") for number in range(1, processes + 1)]
        self._done = done
        """Statuses of a worker that has done all there is to do."""
        self._deaths: deque[float] = deque(maxlen=MOST_DEATHS)
        self._is_stopping = False
        self._stopped = asyncio.Event()
        self._hopeless: str | None = None

    async def run(self) -> int:
        """Serve until stopped, or until no worker has anything to do; the largest status of a worker.

        Raises Mistake when they die again and again.
        """
        first, last = self._members[0].name, self._members[-1].name
        log.info("starts %s workers, %s to %s; Ctrl-C ends them", len(self._members), first, last)
        keeping = [asyncio.create_task(self._keep(member)) for member in self._members]
        try:
            done, _ = await asyncio.wait(keeping, return_when=asyncio.FIRST_EXCEPTION)
            # All of them, unless one cannot be started.
            statuses = [task.result() for task in done]
        except BaseException:
            await self._end_at_once()
            raise
        if self._hopeless is not None:
            raise Mistake(self._hopeless)
        log.info("all %s workers have ended", len(self._members))
        return max(statuses)

    def stop(self) -> None:
        """Have all of them finish what runs, and end."""
        if not self._is_stopping:
            self._is_stopping = True
            self._stopped.set()
            running = sum(member.is_running for member in self._members)
            log.info("stopping: %s workers finish what they do; Ctrl-C again ends them", running)
            for member in self._members:
                member.tell(STOP)

    async def _keep(self, member: _Member) -> int:
        """Run a worker, again when it dies, until all are stopped or it has nothing to do."""
        wait = FIRST_WAIT
        while not self._is_stopping:
            began = monotonic()
            status = await member.run(self._command)
            if self._is_stopping:
                # Signalled before it listened: it did nothing yet.
                return 0 if status == -signal.SIGTERM else _shell_status(status)
            if status in self._done:
                return status
            wait = FIRST_WAIT if monotonic() - began >= HEALTHY else wait
            self._count_death(member, status, wait)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopped.wait(), wait)
            wait = min(wait * 2, LONGEST_WAIT)
        return 0

    def _count_death(self, member: _Member, status: int, wait: float) -> None:
        self._deaths.append(monotonic())
        about = {"worker": member.name, "status": status}
        if len(self._deaths) == MOST_DEATHS and self._deaths[-1] - self._deaths[0] < WITHIN:
            log.error("%s %s", member.name, _how(status), extra=about)
            self._hopeless = (
                f"{MOST_DEATHS} workers died within {WITHIN:g} seconds, and the others were stopped."
                " What they wrote above says why."
            )
            self.stop()
        else:
            log.warning("%s %s, and is started again in %g s", member.name, _how(status), wait, extra=about)

    async def _end_at_once(self) -> None:
        for member in self._members:
            member.tell(END)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STUBBORN):
                for member in self._members:
                    await member.ended.wait()
        for member in self._members:
            member.kill()


class _Member:
    """A worker, and the pipe to it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.ended = asyncio.Event()
        self.ended.set()
        self._pipe = -1
        self._process: asyncio.subprocess.Process | None = None

    @property
    def is_running(self) -> bool:
        return not self.ended.is_set()

    async def run(self, command: Sequence[str]) -> int:
        """Start it and wait for its end: its status, negative for the signal that killed it."""
        reading, self._pipe = os.pipe()
        self.ended.clear()
        try:
            try:
                self._process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    *("-m", "trunq.cli.work.member", str(reading), *command, "--name", self.name),
                    stdin=asyncio.subprocess.DEVNULL,
                    pass_fds=[reading],
                    # Ctrl-C is for the supervisor, which tells them.
                    start_new_session=True,
                )
            finally:
                os.close(reading)
            return await self._process.wait()
        finally:
            os.close(self._pipe)
            self._pipe = -1
            self.ended.set()

    def tell(self, word: bytes) -> None:
        """Say something to it, if it is there to hear."""
        if self._pipe >= 0:
            with contextlib.suppress(BrokenPipeError):
                os.write(self._pipe, word)

    def kill(self) -> None:
        if self.is_running and self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()


def _how(status: int) -> str:
    if status >= 0:
        return f"ended with status {status}"
    with contextlib.suppress(ValueError):
        return f"was killed by {signal.Signals(-status).name}"
    return f"was killed by signal {-status}"


def _shell_status(status: int) -> int:
    """A status as a shell would have it."""
    return status if status >= 0 else 128 - status
