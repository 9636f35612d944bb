"""Rows of a customer, for `customers.py`: one is slow, one fails."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

from trunq.pipeline.source import Context

GO_ON = threading.Event()
"""What the slow one waits for."""


def rows(context: Context) -> Iterator[dict[str, Any]]:
    """A hundred rows."""
    customer = context.message["customer"]
    if customer == "fails":
        raise RuntimeError("the customer's server is away")
    while customer == "slow" and not GO_ON.wait(0.2):
        context.check()
    for id in range(100):
        yield {"customer": customer, "id": id, "number": context.number}
