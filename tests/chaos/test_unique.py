"""Unique keys while workers and the server die, freeze and lose their connections: nothing is lost, no key is
held by two messages, and none is held for ever.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos.keyed import KeyedFleet
from chaos.test_chaos import start
from scope import some
from trunq.embedded import Embedded

STEP = some(30, 60)
"""Messages handled between two blows."""


@pytest.fixture(params=["refuse", "replace"])
def keyed_fleet(own_server: Embedded, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[KeyedFleet]:
    made = KeyedFleet(own_server, tmp_path, request.param)
    yield made
    made.kill()


@pytest.mark.slow
def test_unique_keys_are_held_by_one_and_freed_whatever_dies(keyed_fleet: KeyedFleet) -> None:
    fleet = keyed_fleet
    start(fleet, 1)
    fleet.press(STEP)
    fleet.kill_worker("first")
    fleet.start_worker("first")
    fleet.wait_until_all_run()
    fleet.press(2 * STEP)
    fleet.terminate_connections()
    fleet.press(3 * STEP)
    fleet.server.kill()
    fleet.server.restart()
    fleet.press(4 * STEP)
    fleet.freeze_worker("second")
    fleet.press(5 * STEP)
    fleet.kill_worker("-third")
    fleet.start_worker("-third")
    fleet.wait_until_all_run()
    fleet.server.restart()
    fleet.press(6 * STEP)
    fleet.wait_for_end()
    if fleet.unique == "refuse":
        fleet.check_ledger(crashed=True)
    else:
        fleet.check_replaced()
    fleet.check_keys()
    fleet.wait_for_end()
    fleet.stop()
