"""What the server writes to its log of what clients do, with Postgres's own settings (operate/roles.md)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trunq import Client, MessageTooLarge, QueueNotFound, TrunqError
from trunq.embedded import Embedded

SECRET = {"card": "4111 1111 1111 1111"}


@pytest.mark.parametrize(
    ("queue", "given", "refused"),
    [
        ("work", {"key": "k" * 5000}, MessageTooLarge),
        ("work", {"options": {"nonsense": 1}}, TrunqError),
        ("nobody", {}, QueueNotFound),
    ],
)
def test_an_error_in_the_log_tells_no_payload(
    server: Embedded, database: str, queue: str, given: dict[str, Any], refused: type[Exception]
) -> None:
    log = Path(server.directory) / "server.log"
    before = log.stat().st_size
    with Client(database) as client:
        client.create_queue("work")
        with pytest.raises(refused):
            client.publish(queue, SECRET, **given)
        with pytest.raises(refused):
            client.publish_many(queue, [SECRET] * 3, **given)
    told = log.read_bytes()[before:].decode()
    assert "ERROR" in told
    assert SECRET["card"] not in told
