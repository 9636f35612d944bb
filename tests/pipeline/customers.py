"""Sources of many customers: one is slow, one fails."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trunq.pipeline.source import Context

GO_ON = threading.Event()
"""What the slow one waits for."""
BEGUN = threading.Event()
"""It has begun."""


def rows(context: Context) -> Iterator[dict[str, Any]]:
    """One row of a customer."""
    customer = context.message["customer"]
    if customer == "fails":
        raise RuntimeError("the customer's server is away")
    if customer == "slow":
        BEGUN.set()
        while not GO_ON.wait(0.2):
            context.check()
    yield {"customer": customer, "number": context.number}


def secrets_of(customer: str) -> dict[str, str]:
    """Credentials, of a file that a test writes."""
    return dict(json.loads(Path(os.environ["SECRETS"]).read_text())[customer])


def broken(customer: str) -> dict[str, str]:
    raise RuntimeError(f"the password of {customer} is hunter22")


def broken_off(context: Context) -> Iterator[dict[str, Any]]:
    """Two thousand rows, and an error behind them if the message says so."""
    for id in range(2000):
        yield {"id": id, "customer": context.message["customer"], "number": context.number}
    if context.message.get("fails"):
        raise RuntimeError("the line broke off")
