"""Fixtures for tests of the worker."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from serving import Queue


@pytest.fixture
def queue(database: str, connection: psycopg.Connection[Any]) -> Queue:
    """A queue `q` whose messages are retried at once."""
    return Queue(database, connection, backoff="constant", backoff_base="0 s", jitter=0.0)
