"""Two carry a sweep on at once, and one of them is killed: each message is acted on once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import psycopg
import pytest

from calling import ask, call, new_names
from engine import Engine
from waiting import wait_until

PART = 10_000


@pytest.fixture
def work(session: psycopg.Connection[Any]) -> Engine:
    made = Engine(session, next(new_names("sweep"))).create()
    made.run("insert into {log} (kind) select 'k' from generate_series(1, %s)", PART + 500)
    while held := made.lease(10_000):
        made.answer("reject", held)
    return made


def test_one_carries_and_one_that_is_killed_takes_its_part_back(work: Engine, open_session: Any) -> None:
    one, two = open_session(autocommit=False), open_session()
    sweep = work.ask("start_sweep", act="requeue", counted=PART + 500)
    part = {"queue": work.queue, "sweep_id": sweep}
    assert ask(one, "carry_sweep", **part) is True
    # While one does a part, the other passes it over, stops at nothing, and may ask for its end.
    assert ask(two, "carry_sweep", **part) is None
    assert ask(two, "perform_duty", duty="sweep") is not None
    pid = one.info.backend_pid
    two.execute("select pg_terminate_backend(%s, 60000)", [pid])
    with pytest.raises(psycopg.OperationalError):
        one.commit()
    assert work.ask("count_dead") == PART + 500
    while ask(two, "carry_sweep", **part):
        pass
    (row,) = [row for row in work.call("list_sweeps") if row.sweep_id == sweep]
    assert (row.state, row.done, row.kept) == ("finished", PART + 500, 0)
    handled = work.drain()
    assert (len(handled), len({*handled})) == (PART + 500, PART + 500)


def test_who_stops_it_waits_for_no_part(work: Engine, open_session: Any) -> None:
    one, two = open_session(autocommit=False), open_session()
    sweep = work.ask("start_sweep", act="purge")
    part = {"queue": work.queue, "sweep_id": sweep}
    assert ask(one, "carry_sweep", **part) is True
    two.execute("set lock_timeout = '1s'")
    assert ask(two, "stop_sweep", **part) is True
    one.commit()
    assert ask(one, "carry_sweep", **part) is False
    one.commit()
    assert work.ask("count_dead") == 500


def test_a_drop_waits_for_the_part_under_way(work: Engine, open_session: Any) -> None:
    one, two = open_session(autocommit=False), open_session()
    sweep = work.ask("start_sweep", act="purge")
    assert ask(one, "carry_sweep", queue=work.queue, sweep_id=sweep) is True
    two.execute("set lock_timeout = '50ms'")
    with pytest.raises(psycopg.Error):
        ask(two, "drop_queue", queue=work.queue, force=True)
    one.commit()
    ask(two, "drop_queue", queue=work.queue, force=True)
    assert ask(one, "carry_sweep", queue=work.queue, sweep_id=sweep) is False
    one.commit()


def turns_until_it_ends(
    work: Engine, sweep: int, take_turn: Callable[[], object]
) -> dict[int, tuple[str, str | None]]:
    """The state and error of each sweep once this one has ended: other tests may have left sweeps, too."""
    states: dict[int, tuple[str, str | None]] = {}

    def has_ended() -> bool:
        take_turn()
        states.update((row.sweep_id, (row.state, row.error)) for row in call(work.connection, "list_sweeps"))
        return states[sweep][0] != "running"

    wait_until(has_ended)
    return states


def test_a_row_that_somebody_holds_keeps_the_leader_from_nothing_else(
    work: Engine, open_session: Any
) -> None:
    one, two = open_session(autocommit=False), open_session()
    held = [work.ask("start_sweep", act="purge") for _ in range(2)]
    other = Engine(two, next(new_names("other"))).create()
    sweep = other.ask("start_sweep", act="purge")
    assert ask(one, "purge", queue=work.queue, limit=1) == 1
    # Of its line, which rotation is on, too, the budget is a minute.
    two.execute("set statement_timeout = '5s'")
    states = turns_until_it_ends(work, sweep, partial(ask, two, "perform_duty", duty="sweep"))
    assert states[sweep] == ("finished", None)
    assert [(state, "lock timeout" in error) for state, error in (states[each] for each in held)] == [
        ("running", True)
    ] * 2
    one.rollback()


def test_a_part_that_takes_too_long_lets_the_others_have_their_turn(work: Engine, open_session: Any) -> None:
    one, two = open_session(autocommit=False), open_session()
    held = work.ask("start_sweep", act="purge")
    sweep = Engine(two, next(new_names("other"))).create().ask("start_sweep", act="purge")
    assert ask(one, "purge", queue=work.queue, limit=1) == 1
    two.execute("set statement_timeout = '100ms'")
    states = turns_until_it_ends(work, sweep, partial(ask, two, "sweep"))
    assert states[sweep] == ("finished", None)
    assert "statement timeout" in states[held][1]
    one.rollback()
