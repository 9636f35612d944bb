"""Fixtures for tests of chaos."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from chaos.fleet import Fleet
from chaos.laned import LanedFleet
from copying import copied_server
from trunq.embedded import Embedded


@pytest.fixture
def own_server() -> Iterator[Embedded]:
    """A server that may be restarted and killed. It loses no commit when killed; a power cut is another
    matter.
    """
    with copied_server(settings={"fsync": "off"}) as server:
        yield server


@pytest.fixture
def fleet(own_server: Embedded, tmp_path: Path) -> Iterator[Fleet]:
    made = Fleet(own_server, tmp_path)
    yield made
    made.kill()


@pytest.fixture
def chance() -> Callable[[list[str]], str]:
    """Picks one of several, the same ones in each run."""
    return random.Random(2011).choice


@pytest.fixture
def laned_fleet(own_server: Embedded, tmp_path: Path) -> Iterator[LanedFleet]:
    made = LanedFleet(own_server, tmp_path)
    yield made
    made.kill()
