"""Lanes ranked by a function of the user's: leaders, workers, failures."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from calling import call, lease
from serving import PATIENCE, Queue, running
from trunq import Rank, Ranks, Worker
from trunq.client.message import Message
from trunq.leader import Leader
from trunq.leader.rank.order import BadOrder, order
from trunq.record import Fleet, Lane
from waiting import async_wait_until, wait_until

PROGRAM = """
from trunq import Ranks

ranks = Ranks()

@ranks.register("by_need")
def by_need(lanes, fleet, connection):
    need = dict(connection.execute("select tenant, need from need").fetchall())
    return {lane: -need.get(lane.lane, 0) for lane in lanes}
"""


def a_lane(name: str, priority: int = 0) -> Lane:
    return Lane(name, priority, 1, False, 0, None, False, None, None, None, None, 1, None)


class Mail:
    """A queue whose lanes are ranked by the function `by_need`."""

    def __init__(self, dsn: str, connection: psycopg.Connection[Any]) -> None:
        self.dsn = dsn
        self.connection = connection
        connection.execute("select trunq.create_queue('mail', p_lanes => 'key')")
        connection.execute("select trunq.set_lanes('mail', p_policy => 'ranked', p_function => 'by_need')")
        connection.execute("create table need (tenant text primary key, need int)")
        connection.execute("insert into need values ('a', 1), ('b', 5), ('c', 3)")
        connection.execute(
            "insert into trunq_log.mail (key, payload)"
            " select t, '1' from generate_series(1, 40), unnest(array['a', 'b', 'c']) t"
        )

    def ranks(self) -> dict[str, int | None]:
        return {row.lane: row.rank for row in call(self.connection, "list_lanes", queue="mail")}

    def ranking(self) -> Any:
        (row,) = call(self.connection, "list_rankings", queue="mail")
        return row

    def next(self) -> str:
        """The lane of the next message."""
        return str(lease(self.connection, "mail").messages[0].key)


@pytest.fixture
def mail(database: str, connection: psycopg.Connection[Any]) -> Mail:
    return Mail(database, connection)


@asynccontextmanager
async def leading(*leaders: Leader) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(leader.run_async()) for leader in leaders]
    try:
        yield
        for leader in leaders:
            leader.stop()
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def ranks_of(function: Callable[..., Any], name: str = "by_need", time_limit: float = 5.0) -> Ranks:
    ranks = Ranks()
    ranks.register(name, time_limit=time_limit)(function)
    return ranks


@contextmanager
def as_process(mail: Mail, directory: Path, name: str) -> Iterable[subprocess.Popen[bytes]]:  # type: ignore[misc]
    (directory / "need.py").write_text(PROGRAM)
    process = subprocess.Popen(
        [sys.executable, "-m", "trunq", "leader", "need:ranks", "--name", name],
        cwd=directory,
        env={**os.environ, "TRUNQ_DSN": mail.dsn},
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_the_order_follows_a_table_of_the_user_and_when_the_leader_is_killed_the_next_one_ranks(
    mail: Mail, tmp_path: Path
) -> None:
    with as_process(mail, tmp_path, "first") as first:
        wait_until(lambda: mail.ranks() == {"a": -1, "b": -5, "c": -3}, PATIENCE)
        assert mail.ranking().ranker == "first"
        assert mail.next() == "b"
        mail.connection.execute("update need set need = 9 where tenant = 'c'")
        wait_until(lambda: mail.ranks()["c"] == -9, PATIENCE)
        assert mail.next() == "c"
        with as_process(mail, tmp_path, "second"):
            leader = "select name from trunq.leader"
            wait_until(lambda: mail.connection.execute(leader).fetchone() == ("first",), PATIENCE)
            first.kill()
            wait_until(lambda: mail.ranking().ranker == "second", PATIENCE)
            mail.connection.execute("update need set need = 50 where tenant = 'a'")
            wait_until(lambda: mail.ranks()["a"] == -50, PATIENCE)
            assert mail.next() == "a"


async def test_a_worker_ranks_and_so_does_a_process_that_is_not_elected(mail: Mail) -> None:
    mail.connection.execute("select trunq.elect('somebody', '1 hour')")
    seen: list[Fleet] = []

    def by_need(lanes: list[Lane], fleet: Fleet) -> Iterable[Rank]:
        seen.append(fleet)
        return (Rank(lane, 7, max_running=3) for lane in lanes)

    async with leading(Leader(mail.dsn, "leader", ranks=ranks_of(by_need))):
        await async_wait_until(lambda: mail.ranking().ranker == "leader", PATIENCE)
        await async_wait_until(lambda: mail.ranks() == dict.fromkeys("abc", 7))
    # It gave its right back.
    assert mail.ranking().ranker is None
    await async_wait_until(lambda: seen)
    assert seen[-1] == Fleet("mail", "default", 0, 0, 0)
    queue = Queue(mail.dsn, mail.connection, "other")
    worker = queue.worker(ranks=ranks_of(lambda lanes, _: dict.fromkeys(lanes, 8)))

    @worker.handler("work")
    async def handle(message: Message) -> None: ...

    async with running(worker):
        await async_wait_until(lambda: mail.ranks() == dict.fromkeys("abc", 8), PATIENCE)
        limits = {row.max_running for row in call(mail.connection, "list_lanes", queue="mail")}
        assert limits == {None}


async def test_only_a_process_that_has_the_function_ranks(mail: Mail) -> None:
    called = threading.Event()

    def other(lanes: list[Lane], fleet: Fleet) -> dict[Lane, int]:
        called.set()
        return {}

    leader = Leader(mail.dsn, "leader", ranks=ranks_of(other, "other"))
    async with leading(leader):
        await async_wait_until(lambda: leader.term)
        mail.connection.execute("select trunq.create_queue('more', p_lanes => 'key')")
        mail.connection.execute("select trunq.set_lanes('more', p_policy => 'ranked', p_function => 'other')")
        await async_wait_until(called.is_set, PATIENCE)
        assert mail.ranking().ranker is None
        told = [row.warning for row in call(mail.connection, "list_warnings", queue="mail")]
        assert told == [
            'no process ranks the lanes of subscription "default" of queue "mail" by the function by_need'
        ]


async def test_the_last_ranks_stay_when_it_raises_and_it_is_reported(
    mail: Mail, caplog: pytest.LogCaptureFixture
) -> None:
    says: list[Any] = [{"a": 1, "b": 2, "c": 3}]

    def by_need(lanes: list[Lane], fleet: Fleet) -> Any:
        if isinstance(says[0], Exception):
            raise says[0]
        return says[0]

    async with leading(Leader(mail.dsn, "leader", ranks=ranks_of(by_need))):
        await async_wait_until(lambda: mail.ranks() == says[0], PATIENCE)
        says[0] = LookupError("no table of needs")
        await async_wait_until(lambda: mail.ranking().error, PATIENCE)
        assert mail.ranking().error == "LookupError: no table of needs"
        assert mail.ranks() == {"a": 1, "b": 2, "c": 3}
        assert "the last ranks stay: LookupError: no table of needs" in caplog.text
        # One that is wrong in one place changes nothing at all.
        says[0] = {"a": 3, "b": float("nan")}
        await async_wait_until(lambda: "nan" in mail.ranking().error, PATIENCE)
        assert mail.ranks() == {"a": 1, "b": 2, "c": 3}
        says[0] = {"a": 3}
        await async_wait_until(lambda: mail.ranks() == {"a": 3, "b": None, "c": None}, PATIENCE)
        await async_wait_until(lambda: mail.ranking().error is None, PATIENCE)


async def test_one_that_stalls_is_reported_and_another_process_ranks(mail: Mail) -> None:
    go_on, stalled = threading.Event(), threading.Event()

    def stall(lanes: list[Lane], fleet: Fleet) -> dict[Lane, int]:
        stalled.set()
        go_on.wait()
        return dict.fromkeys(lanes, 1)

    def by_need(lanes: list[Lane], fleet: Fleet) -> dict[Lane, int]:
        return dict.fromkeys(lanes, 2)

    try:
        async with leading(Leader(mail.dsn, "first", ranks=ranks_of(stall, time_limit=0.2))):
            await async_wait_until(lambda: mail.ranking().error, PATIENCE)
            assert mail.ranking().error == "it has been running for more than 0.2 s"
            assert stalled.is_set()
            assert mail.ranks() == dict.fromkeys("abc")
            async with leading(Leader(mail.dsn, "second", ranks=ranks_of(by_need))):
                await async_wait_until(lambda: mail.ranks() == dict.fromkeys("abc", 2), PATIENCE)
                assert (mail.ranking().ranker, mail.ranking().error) == ("second", None)
            # What it returns in the end is too late; then it ranks again.
            assert mail.ranks() == dict.fromkeys("abc", 2)
            go_on.set()
            await async_wait_until(lambda: mail.ranks() == dict.fromkeys("abc", 1), PATIENCE)
    finally:
        go_on.set()


async def test_its_statements_end_at_its_time_limit(mail: Mail) -> None:
    def by_need(lanes: list[Lane], fleet: Fleet, connection: psycopg.Connection[Any]) -> dict[Lane, int]:
        connection.execute("update need set need = 0")
        connection.execute("select pg_sleep(1000)")
        return {}

    async with leading(Leader(mail.dsn, "first", ranks=ranks_of(by_need, time_limit=0.2))):
        await async_wait_until(lambda: "statement timeout" in (mail.ranking().error or ""), PATIENCE)
        # And what it wrote is undone.
        total = mail.connection.execute("select sum(need) from need").fetchone()
        assert total == (9,)


async def test_a_fleet_has_the_slots_of_its_workers(mail: Mail) -> None:
    queue = Queue(mail.dsn, mail.connection, "other")
    go_on = asyncio.Event()
    worker = Worker("other", dsn=mail.dsn, lead=False, concurrency=5, prefetch=0)

    @worker.handler("work")
    async def handle(message: Message) -> None:
        await go_on.wait()

    def slots() -> tuple[int, int, int]:
        (row,) = call(mail.connection, "fleet", queue="other")
        return row.workers, row.slots, row.free_slots

    async with running(worker):
        await async_wait_until(lambda: slots() == (1, 5, 5))
        queue.publish(count=3)
        await async_wait_until(lambda: slots() == (1, 5, 2))
        go_on.set()
        await async_wait_until(lambda: slots() == (1, 5, 5))
    assert slots() == (0, 0, 0)


LANES = [a_lane("a"), a_lane("b"), a_lane("a", 3)]


@pytest.mark.parametrize(
    ("said", "columns"),
    [
        ({}, ([], [], [], [])),
        ({"a": 1, LANES[2]: None}, (["a", "a"], [0, 3], [1, None], [None, None])),
        ([Rank(LANES[2], -100, 1000), Rank("b")], (["a", "b"], [3, 0], [-100, None], [1000, None])),
        ((Rank(lane, 1) for lane in LANES), (["a", "b", "a"], [0, 0, 3], [1, 1, 1], [None] * 3)),
    ],
)
def test_an_order_is_ranks_by_lane_or_ranks(said: Any, columns: Any) -> None:
    found = order(said, LANES)
    assert (found.lanes, found.priorities, found.ranks, found.max_running) == columns


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (None, "it returned None, not ranks by lane"),
        ("ab", "it returned 'ab', not ranks by lane"),
        (["a"], "it returned 'a' among its ranks"),
        ({"c": 1}, 'there is no lane "c" among those that it was given'),
        ({a_lane("b", 3): 1}, 'there is no lane "b" with priority 3'),
        ({5: 1}, "5 is no lane"),
        ({"a": float("nan")}, 'the rank of lane "a" is nan: give a whole number from -100 to 100'),
        ({"a": 1.0}, 'the rank of lane "a" is 1.0: give a whole number'),
        ({"a": True}, 'the rank of lane "a" is True: give a whole number'),
        ({"a": "1"}, "the rank of lane \"a\" is '1': give a whole number"),
        ({"a": 101}, 'the rank of lane "a" is 101, not one from -100 to 100'),
        ([Rank("a", 1, 0)], 'max_running of lane "a" is 0, not one from 1 to 1000'),
        ([Rank("a", 1), Rank("b", 1), Rank("a", 2)], 'it ranks lane "a" twice'),
        ({"a": 1, LANES[0]: 1}, 'it ranks lane "a" twice'),
    ],
)
def test_what_is_no_order_is_said_to_be_none(said: Any, why: str) -> None:
    with pytest.raises(BadOrder, match="^" + why.replace("(", r"\(")):
        order(said, LANES)


def test_functions_have_a_name_each_and_can_be_called() -> None:
    ranks = ranks_of(lambda _, fleet: dict(fleet or ()))
    with pytest.raises(ValueError, match=r"'by_need' is registered already: .*lambda"):
        ranks.register("by_need")(lambda _, fleet: dict(fleet or ()))
    with pytest.raises(ValueError, match="is registered by a name"):
        ranks.register("")
    with pytest.raises(ValueError, match="is registered by a name"):
        ranks.register(lambda _, fleet: dict(fleet))  # type: ignore[arg-type]  # @ranks.register without ()
    with pytest.raises(ValueError, match="a number of seconds, not 0"):
        ranks.register("x", time_limit=0)

    async def slow(lanes: list[Lane], fleet: Fleet) -> dict[Lane, int]:
        return {}

    for wrong, why in {
        slow: "is async",
        (lambda lanes: {lanes: 1}): "cannot be called",
        5: "is a int",
    }.items():
        with pytest.raises(TypeError, match=why):
            ranks.register("wrong")(wrong)  # type: ignore[type-var]
    assert list(ranks.functions) == ["by_need"]
