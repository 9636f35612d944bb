"""Runs in processes of their own, with a Spark session of their own: killed when they are cancelled, when the
lease is lost and when the runner dies; and when they crash, they crash alone.

A process executes one message. What it says goes over a pipe, so that a user's function may print. It is the
leader of a process group, which its Java process is in, and is killed with that by the kernel when the runner
has exited (trunq.worker.handler.child tells how).
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
from dataclasses import asdict
from time import monotonic
from typing import Any, Final

from trunq.errors import InvalidPipeline
from trunq.pipeline.control import Asked, Control, Run
from trunq.pipeline.errors import RunCrashed, RunFailed, RunOver, raise_wait

_LOOK: Final = 0.5
_LENIENT: Final = 1.5
"""Seconds in which a run that was cancelled may end by itself."""
_COMMAND: Final = "from trunq.pipeline.child import main; main()"


class Isolation:
    """Starts them."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn

    def take(self, run: Run, asked: Asked, lost: threading.Event, control: Control) -> dict[str, Any] | None:
        """What became of a run; None: it is cancelled, and its process was killed.

        Raises RunOver when `lost` was set or another is at it, Wait, RunCrashed, and RunFailed for what else
        the run raised.
        """
        process = _Process({"dsn": self._dsn, "asked": asdict(asked)})
        try:
            said = self._follow(process, run, lost, control)
        finally:
            process.kill()
        if said is None:
            return None
        if said:
            answer = json.loads(said)
            raise_wait([answer])
            if "over" in answer:
                raise RunOver(answer["over"])
            if "failed" in answer:
                raise RunFailed(answer["failed"])
            return dict(answer["done"])
        text = f"the process {process.pid} of run {run.number} of pipeline {run.pipeline} {process.status}"
        raise RunCrashed(text, control.note_crash(run, asked.message_id, text))

    def _follow(self, process: _Process, run: Run, lost: threading.Event, control: Control) -> bytes | None:
        cancelled_at = None
        while True:
            if (said := process.said(_LOOK)) is not None:
                return said
            if lost.is_set():
                raise RunOver(f"run {run.number} of pipeline {run.pipeline} is not ours any more")
            if cancelled_at is None:
                # A database that is away for a moment stops nobody.
                with contextlib.suppress(Exception):
                    cancelled_at = monotonic() if control.is_cancelled(run) else None
            elif monotonic() - cancelled_at > _LENIENT:
                return None


class _Process:
    """One process."""

    def __init__(self, work: dict[str, Any]) -> None:
        if sys.platform == "win32":
            raise InvalidPipeline(
                "isolate = true needs Linux or macOS: on Windows nothing ends processes with their runner"
            )
        reading, self._leash = os.pipe()
        self._answer, writing = os.pipe()
        try:
            self._popen = subprocess.Popen(
                [sys.executable, "-c", _COMMAND, str(reading), str(writing)],
                stdin=subprocess.PIPE,
                pass_fds=[reading, writing],
                # Signals are the runner's, and what a run starts ends with it.
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(each or os.getcwd() for each in sys.path)},
            )
        except BaseException:
            os.close(self._leash)
            os.close(self._answer)
            raise
        finally:
            os.close(reading)
            os.close(writing)
        self.pid = self._popen.pid
        self._said = b""
        assert self._popen.stdin is not None
        with contextlib.suppress(BrokenPipeError), self._popen.stdin as stdin:
            # Not by an argument, which others see: the address may have a password.
            stdin.write(json.dumps(work, default=str).encode())

    @property
    def status(self) -> str:
        """How it ended."""
        code = self._popen.returncode
        if code is not None and code < 0:
            with contextlib.suppress(ValueError):
                return f"was killed by {signal.Signals(-code).name}"
        return f"ended with status {code}"

    def said(self, within: float) -> bytes | None:
        """What it said before it hung up; None: not yet."""
        until = monotonic() + within
        while select.select([self._answer], [], [], max(0.0, until - monotonic()))[0]:
            piece = os.read(self._answer, 1 << 16)
            if not piece:
                self._popen.wait()
                return self._said
            self._said += piece
        return None

    def kill(self) -> None:
        """With all that it started."""
        # It may be waited for: its group has the number as long as somebody is in it.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self._popen.wait()
        os.close(self._answer)
        os.close(self._leash)
