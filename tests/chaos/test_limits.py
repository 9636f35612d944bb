"""Lanes with limits while workers and the server die, freeze and lose their connections: nothing is lost,
transactional effects happen once, and no limit is ever exceeded.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from chaos.laned import LanedFleet
from chaos.test_chaos import finish, start
from scope import some

STEP = some(12, 25) * 4
"""Messages handled between two blows."""


@pytest.mark.slow
def test_limits_of_lanes_hold_while_workers_die_freeze_and_lose_their_connections(
    laned_fleet: LanedFleet, chance: Callable[[list[str]], str]
) -> None:
    fleet = laned_fleet
    start(fleet, STEP * 5 // 2)
    for handled in (STEP, 2 * STEP, 3 * STEP):
        fleet.wait_for(handled)
        name = chance(["first", "second"])
        fleet.kill_worker(name)
        fleet.start_worker(name)
        # One that cannot connect when it starts ends.
        fleet.wait_until_all_run()
        fleet.terminate_connections()
    fleet.wait_for(4 * STEP)
    fleet.freeze_worker("second")
    fleet.wait_for(5 * STEP)
    fleet.freeze_worker("-third")
    finish(fleet)
    fleet.check_limits()


@pytest.mark.slow
def test_limits_of_lanes_hold_while_the_server_is_restarted_and_killed(laned_fleet: LanedFleet) -> None:
    fleet = laned_fleet
    start(fleet, STEP * 5 // 2)
    for number in range(1, 4):
        fleet.wait_for(number * STEP)
        if number != 2:
            fleet.server.kill()
        fleet.server.restart()
    finish(fleet, crashed=True)
    fleet.check_limits()
