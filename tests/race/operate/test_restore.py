"""A database dumped and restored: into a cluster with lower or higher transaction ids, or beside itself."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from calling import (
    answer,
    ask,
    burn,
    call,
    drain,
    fetch,
    lease,
    move_clock,
    named,
    new_names,
    publish,
    refused,
    state,
)
from conftest import TEMPLATE
from laning import make
from race.story import STREAM, Story, read, tell
from trunq import install
from trunq.embedded import Embedded

pytestmark = pytest.mark.slow

Connection = psycopg.Connection[Any]


@pytest.fixture
def shared_database(database: str) -> str:
    """Not shared: a rebase is of all queues, and what other tests left would count too."""
    return database


Copy = Callable[[Embedded, str, Embedded], str]


@pytest.fixture
def new_name(server: Embedded, spare: Embedded) -> Iterator[Callable[[], str]]:
    """Names of databases, dropped in the end on both servers."""
    made: list[str] = []

    def name() -> str:
        made.append(next(new_names("restore")))
        return made[-1]

    yield name
    for each in (server, spare):
        with psycopg.connect(each.dsn, autocommit=True) as connection:
            for database in made:
                connection.execute(f"drop database if exists {database} with (force)".encode())


@pytest.fixture
def copy(new_name: Callable[[], str], tmp_path: Path) -> Copy:
    """Dump a database of one server and restore it on another; its address there."""

    def run(at: Embedded, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [at.binaries / program, *arguments], capture_output=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr.decode()

    def copy_one(source: Embedded, dsn: str, target: Embedded) -> str:
        name = new_name()
        with psycopg.connect(target.dsn, autocommit=True) as connection:
            connection.execute(f"create database {name} template template0".encode())
        file = str(tmp_path / name)
        run(source, "pg_dump", "--format=custom", f"--file={file}", f"--dbname={dsn}")
        run(target, "pg_restore", "--exit-on-error", f"--dbname={named(target.dsn, name)}", file)
        return named(target.dsn, name)

    return copy_one


@pytest.fixture
def original(new_name: Callable[[], str]) -> Callable[[Embedded], str]:
    """Make a database with trunq in it; its address."""

    def make(at: Embedded) -> str:
        name = new_name()
        with psycopg.connect(at.dsn, autocommit=True) as connection:
            # Once a server: an installation takes longer than most tests.
            if not fetch(connection, "select exists (select from pg_database where datname = %s)", TEMPLATE):
                connection.execute(f"create database {TEMPLATE}".encode())
                install.install(named(at.dsn, TEMPLATE))
            connection.execute(f"create database {name} template {TEMPLATE}".encode())
        return named(at.dsn, name)

    return make


def next_xid(dsn: str) -> int:
    """Where the cluster's transaction ids stand."""
    with psycopg.connect(dsn) as connection:
        return int(fetch(connection, "select pg_snapshot_xmax(pg_current_snapshot())::text::bigint"))


AHEAD = 10_000
"""Transaction ids: more than a `pg_restore` and the tests after it use up."""


def get_ahead(dsn: str, other: str) -> None:
    """Bring the transaction ids of one cluster well above those of another."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        burn(connection, max(0, next_xid(other) + AHEAD - next_xid(dsn)))


@pytest.fixture(params=["lower", "higher"])
def clusters(request: pytest.FixtureRequest, server: Embedded, spare: Embedded) -> tuple[Embedded, Embedded]:
    """Two servers: from the first to the second, transaction ids get lower or higher."""
    source, target = (server, spare) if request.param == "lower" else (spare, server)
    get_ahead(*((source.dsn, target.dsn) if request.param == "lower" else (target.dsn, source.dsn)))
    return source, target


@dataclass
class Restored:
    """A database as it came out of `pg_restore`: tests make databases of it, which is quicker."""

    name: str
    story: Story
    left_at: int
    """Where the transaction ids of its first cluster stood."""

    def is_lower(self, target: Embedded) -> bool:
        """Is the cluster that it is in still well below that?"""
        return next_xid(target.dsn) + AHEAD // 5 < self.left_at


_restored: dict[tuple[str, str], Restored] = {}


def restore(source: Embedded, target: Embedded, original: Any, copy: Copy) -> Restored:
    """Dump a database in the middle of its life, as far as ids go, and restore it."""
    dsn = original(source)
    with psycopg.connect(dsn, autocommit=True) as session:
        burn(session, 100)
        story = tell(session)
        left_at = next_xid(dsn)
    name = next(new_names("restored"))
    with psycopg.connect(target.dsn, autocommit=True) as connection:
        taken = conninfo_to_dict(copy(source, dsn, target))["dbname"]
        connection.execute(f"alter database {taken} rename to {name}".encode())
    return Restored(name, story, left_at)


@pytest.fixture
def moved(
    request: pytest.FixtureRequest,
    clusters: tuple[Embedded, Embedded],
    original: Any,
    copy: Copy,
    new_name: Callable[[], str],
) -> Iterator[tuple[Connection, Story]]:
    """A session in a restored database, and what happened before."""
    source, target = clusters
    known = _restored.get((source.dsn, target.dsn))
    if known is None or (request.node.callspec.params["clusters"] == "lower" and not known.is_lower(target)):
        known = _restored[source.dsn, target.dsn] = restore(source, target, original, copy)
    name = new_name()
    with psycopg.connect(target.dsn, autocommit=True) as connection:
        connection.execute(f"create database {name} template {known.name}".encode())
    with psycopg.connect(named(target.dsn, name), autocommit=True) as session:
        yield session, deepcopy(known.story)


def test_positions_are_refused_and_the_way_out_is_named(moved: tuple[Connection, Story]) -> None:
    session, story = moved
    for attempt in (
        lambda: lease(session, "q"),
        lambda: call(session, "next_batch", **STREAM, worker="w"),
        lambda: call(session, "read_batch", **STREAM, batch_id=1),
        lambda: ask(session, "position", **STREAM),
        lambda: ask(session, "advance", **STREAM, tick_id=2),
        lambda: call(session, "list_ticks", queue="q"),
        lambda: ask(session, "subscribe", queue="q", subscription="new"),
        lambda: ask(session, "tick", queue="q", force=True),
        lambda: ask(session, "elect", name="leader"),
    ):
        with refused("TQ010", "pg_restore", "call trunq.rebase_each_queue()", "pg_upgrade", "trunq.adopt()"):
            attempt()
    assert publish(session, "q")
    assert [row.id for row in call(session, "list_dead", queue="q")] == story.dead
    # And nothing that helps another trouble.
    told = call(session, "list_warnings", queue="q")
    assert "call trunq.rebase_each_queue()" in told[0].hint
    assert not [row for row in told if "transaction id" in row.warning]


def test_after_rebase_nothing_unanswered_is_lost_and_nothing_answered_doubled(
    moved: tuple[Connection, Story],
) -> None:
    session, story = moved
    # Publishers may have been quicker than whoever noticed.
    early = publish(session, "q", 2)
    sum_due = sum(map(len, story.due.values()))
    assert ask(session, "rebase") == sum_due + 3 * len(early)
    new = publish(session, "q", 2)
    for subscription, due in story.due.items():
        assert read(session, subscription) == sorted([*due, *early, *new])
        assert read(session, subscription) == []
    move_clock(session, "2 hours")
    assert ask(session, "promote", queue="q") == 2
    assert read(session, "default") == sorted(story.delayed)
    assert read(session, "late") == [story.delayed[1]]
    assert [row.id for row in call(session, "list_dead", queue="q")] == story.dead


def test_attempts_errors_and_history_come_along(moved: tuple[Connection, Story]) -> None:
    session, story = moved
    ask(session, "rebase")
    assert {state(session, "q", id).state for id in story.done} == {"done"}
    held = lease(session, "q", 100)
    assert {message.id: message.attempt for message in held.messages if message.attempt > 1} == {
        story.due["default"][0]: 2
    }
    again = state(session, "q", story.due["default"][0])
    assert (again.state, [each["error"] for each in again.attempts]) == ("leased", ["again", None])
    assert state(session, "q", story.dead[0]).state == "dead"
    answer(session, "ack", held)
    ask(session, "rebase")
    again = state(session, "q", story.due["default"][0])
    assert (again.state, [each["outcome"] for each in again.attempts]) == ("done", ["failed", "success"])


def test_answers_to_leases_of_the_old_cluster_are_refused(moved: tuple[Connection, Story]) -> None:
    session, story = moved
    ask(session, "rebase")
    with refused("TQ003"):
        answer(session, "ack", story.open)
    with refused("TQ003"):
        ask(session, "extend", **story.open.named)
    assert answer(session, "ack", story.open, story.open.ids[:1]) == 0
    move_clock(session, "1 day")
    assert ask(session, "reap", queue="q") == 0


def test_new_subscriptions_are_right_after_rebase(moved: tuple[Connection, Story]) -> None:
    session, story = moved
    ask(session, "rebase")
    ask(session, "subscribe", queue="q", subscription="latest")
    ask(session, "subscribe", queue="q", subscription="earliest", start="earliest")
    everything = sorted({*story.done, *story.dead, *story.due["default"], story.delayed[0]})
    new = publish(session, "q", 2)
    assert read(session, "latest") == new
    assert read(session, "earliest") == [*everything, *new]


def test_rebasing_again_doubles_nothing(moved: tuple[Connection, Story]) -> None:
    session, story = moved
    ask(session, "rebase")
    ask(session, "subscribe", queue="q", subscription="earliest", start="earliest")
    answer(session, "ack", lease(session, "q", 3, subscription="earliest"))
    answer(session, "ack", lease(session, "q", 3))
    left = {name: due[3:] if name == "default" else due for name, due in story.due.items()}
    everything = sorted({*story.done, *story.dead, *story.due["default"], story.delayed[0]})
    left["earliest"] = everything[3:]
    for _ in range(2):
        assert ask(session, "rebase") == sum(map(len, left.values()))
    new = publish(session, "q")
    for subscription, due in left.items():
        assert read(session, subscription) == [*due, *new]


def test_restored_a_second_time_nothing_is_lost_or_doubled(
    moved: tuple[Connection, Story], clusters: tuple[Embedded, Embedded], copy: Copy
) -> None:
    session, story = moved
    ask(session, "rebase")
    answer(session, "ack", lease(session, "q", 3))
    new = publish(session, "q", 2)
    source, target = clusters
    back = copy(target, named(target.dsn, session.info.dbname), source)
    with psycopg.connect(back, autocommit=True) as session:
        with refused("TQ010", "call trunq.rebase_each_queue()"):
            lease(session, "q")
        early = publish(session, "q")
        ask(session, "rebase")
        for subscription, due in story.due.items():
            assert read(session, subscription) == [
                *(due[3:] if subscription == "default" else due),
                *new,
                *early,
            ]


def test_a_rebase_rolled_back_has_not_been(moved: tuple[Connection, Story]) -> None:
    session, story = moved
    with session.transaction(force_rollback=True):
        ask(session, "rebase")
    with refused("TQ010"):
        lease(session, "q")
    ask(session, "rebase")
    assert read(session, "default") == story.due["default"]


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_rebase_needs_read_committed(session: Connection, level: str) -> None:
    with refused("TQ007", level.upper()), session.transaction():
        session.execute(f"set transaction isolation level {level}".encode())
        ask(session, "rebase")


def test_positions_ahead_of_the_cluster_are_refused_even_if_it_calls_itself_the_same(
    server: Embedded, spare: Embedded, original: Any, copy: Copy
) -> None:
    get_ahead(server.dsn, spare.dsn)
    dsn = original(server)
    with psycopg.connect(dsn, autocommit=True) as session:
        story = tell(session)
        answer(session, "ack", lease(session, "q", 100))
    with psycopg.connect(copy(server, dsn, spare), autocommit=True) as session:
        session.execute(
            "update trunq.cluster set system_identifier = (select system_identifier from pg_control_system())"
        )
        publish(session, "q")
        with refused("TQ010", "ahead", "call trunq.rebase_each_queue()"):
            lease(session, "q", 100)
            lease(session, "q", 100)
        ask(session, "rebase")
        assert set(read(session, "late")) > set(story.due["late"])


def test_a_copy_beside_the_original_goes_on_by_itself(server: Embedded, original: Any, copy: Copy) -> None:
    dsn = original(server)
    with psycopg.connect(dsn, autocommit=True) as session:
        story = tell(session)
    with psycopg.connect(copy(server, dsn, server), autocommit=True) as session:
        assert answer(session, "ack", story.open, story.open.ids[1:]) == 1
        new = publish(session, "q", 2)
        due = {**story.due, "default": [id for id in story.due["default"] if id not in story.open.ids]}
        for subscription, ids in due.items():
            assert read(session, subscription) == [*ids, *new]


def test_a_queue_that_never_had_a_reader_is_rebased_too(moved: tuple[Connection, Story]) -> None:
    session, _ = moved
    ask(session, "create_queue", queue="fresh")
    ids = publish(session, "fresh", 2)
    ask(session, "rebase")
    assert drain(session, "fresh") == ids


def test_a_rebase_publishes_again_what_a_queue_takes_no_more(session: Connection, queue: str) -> None:
    ids = publish(session, queue, 3)
    ask(session, "set_publishing", queue=queue, kinds=["other"], max_waiting=1, max_per_transaction=1)
    ask(session, "close_queue", queue=queue)
    assert ask(session, "rebase") >= 3  # the database has other queues
    with refused("TQ018"):
        publish(session, queue)
    assert drain(session, queue) == ids


def test_an_unnecessary_rebase_changes_nothing_for_readers(session: Connection, queue: str) -> None:
    ids = publish(session, queue, 5)
    answer(session, "ack", lease(session, queue, 2))
    ask(session, "rebase")
    ids += publish(session, queue)
    assert drain(session, queue) == ids[2:]


def test_what_is_open_while_rebasing_is_delivered(session: Connection, open_session: Any, queue: str) -> None:
    other = open_session(autocommit=False)
    fetch(other, "select pg_current_xact_id()::text")
    burn(session, 2)
    ask(session, "rebase")
    ids = publish(other, queue)
    other.commit()
    assert drain(session, queue) == ids


def test_adopt_goes_on_where_ids_are_higher_and_refuses_where_they_are_lower(
    moved: tuple[Connection, Story], clusters: tuple[Embedded, Embedded], server: Embedded
) -> None:
    session, story = moved
    if clusters[0] is server:
        with refused("TQ010", "ahead", "call trunq.rebase_each_queue()"):
            ask(session, "adopt")
        with refused("TQ010"):
            lease(session, "q")
        return
    assert ask(session, "adopt") is True
    assert answer(session, "ack", story.open, story.open.ids[1:]) == 1
    new = publish(session, "q", 2)
    for subscription, due in story.due.items():
        left = [id for id in due if subscription != "default" or id not in story.open.ids]
        assert read(session, subscription) == [*left, *new]


def test_adopt_refuses_when_messages_were_published_behind_the_positions(
    server: Embedded, spare: Embedded, original: Any, copy: Copy
) -> None:
    """Ids have caught up meanwhile, but these messages would never be read."""
    get_ahead(server.dsn, spare.dsn)
    dsn = original(server)
    with psycopg.connect(dsn, autocommit=True) as session:
        tell(session)
        highest = next_xid(dsn)
    with psycopg.connect(copy(server, dsn, spare), autocommit=True) as session:
        publish(session, "q")
        burn(session, highest - next_xid(spare.dsn) + 100)
        with refused("TQ010", "behind", "call trunq.rebase_each_queue()"):
            ask(session, "adopt")


def test_adopt_refuses_while_a_transaction_older_than_a_position_is_open(
    server: Embedded, spare: Embedded, original: Any, copy: Copy
) -> None:
    """What it publishes would count as read."""
    get_ahead(server.dsn, spare.dsn)
    dsn = original(server)
    with psycopg.connect(dsn, autocommit=True) as session:
        tell(session)
    address = copy(server, dsn, spare)
    with psycopg.connect(address, autocommit=True) as session, psycopg.connect(address) as open_session:
        fetch(open_session, "select pg_current_xact_id()::text")
        get_ahead(spare.dsn, server.dsn)
        with refused("TQ010", "open since before"):
            ask(session, "adopt")
        (id,) = publish(open_session, "q")
        open_session.commit()
        # It has just published behind the positions.
        with refused("TQ010", f"message {id}", "behind"):
            ask(session, "adopt")


def test_adopt_in_its_own_cluster_changes_nothing(session: Connection, queue: str) -> None:
    ids = publish(session, queue, 3)
    held = lease(session, queue)
    assert ask(session, "adopt") is False
    assert answer(session, "ack", held) == 1
    assert drain(session, queue) == ids[1:]


def test_what_a_filter_leaves_out_is_not_published_again(session: Connection, queue: str) -> None:
    ask(session, "subscribe", queue=queue, subscription="mail", filter={"kinds": ["mail"]})
    ids = publish(session, queue, 2, kinds=["mail", "other"])
    answer(session, "retry", lease(session, queue, subscription="mail"), delays=["0"])
    ask(session, "rebase")
    assert drain(session, queue, "mail") == ids[:1]


def test_a_message_that_is_to_be_retried_holds_its_key(session: Connection) -> None:
    laned = make(session)
    laned.ask("subscribe", subscription="default", in_order=True)
    ids = laned.publish(5, keys=["a", "b", "a", "b", "a"])
    held = laned.lease(2)
    laned.answer("retry", held, held.ids[:1], delays=["1 hour"])
    ask(session, "rebase")
    assert laned.drain() == [ids[1], ids[3]]
    with laned.clock("2 hours"):
        laned.ask("promote")
        assert laned.drain() == [ids[0], ids[2], ids[4]]


def test_a_retry_that_is_purged_after_a_rebase_lets_its_key_go_on(session: Connection) -> None:
    laned = make(session)
    laned.ask("subscribe", subscription="default", in_order=True)
    ids = laned.publish(2, keys=["a"])
    laned.answer("retry", laned.lease(), delays=["1 hour"])
    ask(session, "rebase")
    assert not laned.lease()
    laned.ask("cancel", ids=ids[:1])
    assert laned.drain() == ids[1:]


def test_what_a_member_noted_of_its_group_ends_with_a_rebase(session: Connection, queue: str) -> None:
    ask(session, "create_group", queue=queue, group="crew", slots=4)
    crew = {"queue": queue, "subscription": "crew"}
    assert not call(session, "next_batch", **crew, worker="ada")
    # As of a cluster whose transaction ids were higher.
    session.execute("update trunq.member set done = '9000000000:9000000000:'")
    ask(session, "rebase")
    ids = publish(session, queue)
    (batch,) = call(session, "next_batch", **crew, worker="ada")
    assert [row.id for row in call(session, "read_batch", **crew, batch_id=batch.batch_id)] == ids


def test_what_was_requeued_before_the_rebase_is_published_again(moved: tuple[Connection, Story]) -> None:
    """Its row has a transaction id of this cluster, its attempts before have those of the other."""
    session, story = moved
    count = len(story.dead)
    assert ask(session, "requeue", queue="q", subscription="default") == count
    assert ask(session, "rebase") == sum(map(len, story.due.values())) + count
    assert read(session, "default") == sorted([*story.due["default"], *story.dead])
