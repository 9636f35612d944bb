"""Whatever is killed between two tables that are read and written by JDBC, every row arrives once.

A push kills the runner at two of the points of its commit, and a task, of one database and mode each.
TRUNQ_TEST_ALL, or TRUNQ_KILLS, kills at each point, on both databases, in both modes.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any, Final

import pytest

from pipeline.databases import KINDS, Other, opened
from pipeline.killing import POINTS, die, execute_and_die
from pipeline.piping import Bench
from pipeline.test_frozen import frozen
from scope import EVERY

pytestmark = pytest.mark.usefixtures("spark", "_jdbc")

MODES: Final[dict[str, dict[str, Any]]] = {"append": {}, "upsert": {"mode": "upsert", "key": ["k"]}}
CASES: Final = (
    [(kind, mode) for kind in KINDS for mode in MODES]
    if EVERY
    else [("mariadb", "append"), ("postgresql", "upsert")]
)
OF_COMMIT: Final = ("staged", "committing", "marked", "committed")
EACH: Final = 100

_numbers = count(1)


@pytest.fixture(scope="module")
def other_servers() -> Iterator[dict[str, Any]]:
    """Those that were started."""
    running: dict[str, Any] = {}
    yield running
    for _, each in running.values():
        next(each, None)


@pytest.fixture
def other(other_servers: dict[str, Any], request: pytest.FixtureRequest) -> Other:
    """A database of its own."""
    kind = request.getfixturevalue("case")[0]
    if kind not in other_servers:
        starting = opened(kind)
        other_servers[kind] = (next(starting), starting)
    return Other(other_servers[kind][0], f"kill_{next(_numbers)}")


class Moving:
    """A table `source`, and what is to be in `moved`."""

    def __init__(self, bench: Bench, other: Other, mode: str, **parts: Any) -> None:
        self.bench, self.other, self.mode = bench, other, mode
        self.rounds = count(1)
        other.sql("create table source (id bigint primary key, k int)")
        if mode == "upsert":
            other.sql("create table moved (id bigint, k int primary key)")
        self.pipeline = bench.make(
            {**other.place, "table": "source", "cursor": "id"},
            {**other.place, "table": "moved", **MODES[mode]},
            **parts,
        )

    def ask(self, payload: Any = None) -> tuple[int, int]:
        """Another slice; the run that is to take it, and the message that asks for it."""
        round = next(self.rounds)
        self.other.sql(f"insert into source select {round * EACH} + n, n from {self.other.series(1, EACH)}")
        return round, self.bench.client.run_pipeline(self.pipeline, payload)

    def end(self, round: int, message: int, at: str) -> None:
        """Whoever comes next brings it to its end, and all is as if nobody had been killed."""
        done = self.bench.execute(message)
        assert (done["number"], done["outcome"]) == (round, "done"), at
        query = "select id from source order by id"
        if self.mode == "upsert":
            query = "select max(id) from source group by k order by 1"
        assert self.other.sql("select id from moved order by id") == self.other.sql(query), at
        assert self.other.sql("select number from trunq_mark") == [(str(round),)]

    def check_leftovers(self) -> None:
        """What the dead left behind goes with the next run."""
        round, message = self.ask()
        self.end(round, message, "last")
        assert self.other.tables() == ["moved", "source", "trunq_mark"]


def strikes(frame: Any, context: Any) -> Any:
    """A transform: the first task that has seen some rows dies."""
    if context.message is None:
        return frame
    struck = Path(context.message["struck"])

    def passed(batches: Any) -> Any:
        for batch in batches:
            yield batch
            if not struck.exists():
                struck.touch()
                die()

    from trunq.pipeline.work.hop import map_batches  # noqa: PLC0415  # needs pyspark

    return map_batches(frame, passed, frame.schema)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_a_runner_is_killed_at_each_point(bench: Bench, other: Other, case: tuple[str, str]) -> None:
    moving = Moving(bench, other, case[1])
    chosen = POINTS if EVERY else [random.choice(OF_COMMIT[:2]), random.choice(OF_COMMIT[2:])]
    for point in chosen[: None if EVERY or case[1] == "append" else 1]:
        round, message = moving.ask()
        assert execute_and_die(bench.dsn, bench.asked(message), point) == -signal.SIGKILL, point
        moving.end(round, message, point)
    moving.check_leftovers()


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_a_task_is_killed_while_it_stages(
    bench: Bench, other: Other, case: tuple[str, str], tmp_path: Path
) -> None:
    moving = Moving(bench, other, case[1], transform=f"{__name__}:strikes")
    round, message = moving.ask({"struck": str(tmp_path / "struck")})
    moving.end(round, message, "task")
    assert (tmp_path / "struck").exists()
    # Spark did the task again, and the run knows of no failure.
    assert bench.client.list_runs(moving.pipeline)[0].attempts == 1
    moving.check_leftovers()


@pytest.mark.slow
@pytest.mark.parametrize("point", ["marked", "committed"] if EVERY else ["marked"])
@pytest.mark.parametrize("case", CASES[:1], ids="-".join)
def test_the_java_process_is_killed_in_a_commit(
    bench: Bench, other: Other, case: tuple[str, str], point: str
) -> None:
    moving = Moving(bench, other, case[1])
    round, message = moving.ask()
    # The runner lives, and its attempt has failed, whether the commit was done or not.
    assert execute_and_die(bench.dsn, bench.asked(message), f"java {point}") == 1
    error = bench.client.list_runs(moving.pipeline)[0].error
    assert error is not None
    assert error.startswith("EngineDied: the Java process of Spark ended during run")
    moving.end(round, message, point)
    assert bench.client.list_runs(moving.pipeline)[0].attempts == (2 if point == "marked" else 1)
    moving.check_leftovers()


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES if EVERY else CASES[:1], ids="-".join)
def test_a_runner_that_is_frozen_in_its_commit_keeps_others_no_longer_than_it_may(
    bench: Bench, other: Other, case: tuple[str, str]
) -> None:
    moving = Moving(bench, other, case[1])
    for point in ("committing", "marked") if EVERY else [random.choice(["committing", "marked"])]:
        round, message = moving.ask()
        with frozen(bench, message, point):
            moving.end(round, message, point)
    moving.check_leftovers()


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES[:1], ids="-".join)
def test_a_server_that_is_killed_has_what_it_committed(
    bench: Bench, other: Other, case: tuple[str, str]
) -> None:
    if case[0] != "mariadb":
        pytest.skip("of MariaDB alone")
    moving = Moving(bench, other, case[1])
    round, message = moving.ask()
    other.server.kill()
    with pytest.raises(Exception, match="cannot be reached"):
        bench.execute(message)
    other.server.start()
    moving.end(round, message, "killed")
