"""A queue is converted, again and again, while workers and the server die: nothing is lost or done twice."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from calling import ask
from chaos.fleet import Fleet
from chaos.test_chaos import finish, start
from waiting import wait_until

STEPS: tuple[dict[str, Any], ...] = (
    {"retention": "10 days"},
    {"lanes": "priority,key"},
    {"unique": "refuse", "retention": "20 days"},
)


class ConvertedFleet(Fleet):
    def keys(self, count: int) -> list[str | None]:
        return [f"lane {n % 7}" for n in range(count)]

    def convert(self, step: dict[str, Any]) -> None:
        """As often as it takes: handlers hold transactions that have answered."""

        def try_once() -> bool:
            with self.connect() as connection:
                try:
                    return bool(ask(connection, "convert_queue", queue="q", **step))
                except psycopg.Error as error:
                    if error.sqlstate != "TQ009":
                        raise
                    return False

        wait_until(try_once, what=f"the queue is converted: {step}")


@pytest.fixture
def converted_fleet(own_server: Any, tmp_path: Any) -> Any:
    made = ConvertedFleet(own_server, tmp_path)
    yield made
    made.kill()


@pytest.mark.slow
def test_a_queue_is_converted_while_workers_and_the_server_die(converted_fleet: ConvertedFleet) -> None:
    fleet = converted_fleet
    start(fleet, 60)
    for number, step in enumerate(STEPS, 1):
        fleet.wait_for(number * 40)
        fleet.convert(step)
        fleet.kill_worker("first")
        fleet.publish(15)
        fleet.start_worker("first")
        # Without a database to begin with it ends, as it should.
        fleet.wait_until_all_run()
    fleet.publish(60)
    fleet.server.kill()
    fleet.server.restart()
    finish(fleet, crashed=True)
