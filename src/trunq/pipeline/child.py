"""The process of an isolated run: what goes on in it. `isolated` is the runner's side."""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any
from uuid import UUID

from trunq import Client
from trunq.pipeline.control import Asked
from trunq.pipeline.errors import RunOver, Wait, wait_told
from trunq.pipeline.run import Executor
from trunq.worker.handler.child import die_with


def main() -> None:
    """Execute one message, and say what became of it."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    die_with(int(sys.argv[1]))
    answer = int(sys.argv[2])
    # Whatever it starts does not keep the pipe open.
    os.set_inheritable(answer, False)
    work = json.loads(sys.stdin.buffer.read())
    said: dict[str, Any]
    try:
        said = {"done": _execute(work["dsn"], work["asked"])}
    except Wait as wait:
        said = wait_told(wait)
    except RunOver as over:
        said = {"over": str(over)}
    except Exception as error:
        said = {"failed": f"{type(error).__name__}: {error}"}
    with open(answer, "wb") as pipe:
        pipe.write(json.dumps(said, default=str).encode())


def _execute(dsn: str, told: dict[str, Any]) -> dict[str, Any]:
    chain = told.pop("chain")
    asked = Asked(**told, chain=None if chain is None else UUID(chain))
    with Client(dsn, max_connections=3) as client:
        executor = Executor(client, dsn)
        try:
            return executor.execute(asked)
        finally:
            executor.engine.close()
