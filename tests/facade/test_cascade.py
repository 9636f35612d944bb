"""Cascaded queues of PgQ over the facade: its pgq_node, and the workers and the admin of Debian's python3-pgq."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg
import pytest

import mirroring
from cascading import HAS_PGQ, Node, prepare
from conftest import QUICK
from copying import copied_server
from trunq.embedded import Embedded
from waiting import wait_until, wait_until_blocked

pytestmark = pytest.mark.skipif(
    not HAS_PGQ or not mirroring.NODE_SCRIPT.exists(),
    reason="needs Debian's python3-pgq and postgresql-15-pgq-node",
)

NewNode = Callable[..., Node]


@contextmanager
def serving() -> Iterator[Embedded]:
    with copied_server(settings=QUICK) as server:
        prepare(server)
        yield server


@pytest.fixture(scope="module")
def place() -> Iterator[Embedded]:
    """A server with room for nodes."""
    with serving() as server:
        yield server


@pytest.fixture
def new_node(place: Embedded, tmp_path: Path) -> Iterator[NewNode]:
    made: list[Node] = []

    def make(name: str, server: Embedded = place) -> Node:
        made.append(Node(name, server, tmp_path))
        return made[-1]

    yield make
    for node in made:
        node.close()


def numbered(first: int, last: int) -> list[str]:
    return [f"event {n:03}" for n in range(first, last + 1)]


def test_a_branch_repeats_its_root_and_a_leaf_gets_each_event_once_though_workers_are_killed(
    new_node: NewNode,
) -> None:
    root, branch, leaf = new_node("r1"), new_node("b1"), new_node("l1")
    root.create("root")
    branch.create("branch", provider=root)
    leaf.create("leaf", provider=branch)
    for node in (root, branch, leaf):
        node.start()
    for n in range(0, 60, 20):
        root.insert(*numbered(n + 1, n + 10))
        for node in (branch, leaf):
            node.kill()
            node.start()
        root.insert(*numbered(n + 11, n + 20))
    leaf.wait_for("event 060")
    assert branch.seen() == leaf.seen() == numbered(1, 60)
    assert branch.log() == root.log()


class Publisher(threading.Thread):
    """Publishes what has numbers into whichever node takes it, until it is told to stop."""

    def __init__(self, name: str, nodes: Sequence[Node]) -> None:
        super().__init__()
        self.name = name
        self.nodes = [node.dsn for node in nodes]
        self.published: list[str] = []
        self.is_to_stop = threading.Event()

    def run(self) -> None:
        with ExitStack() as stack:
            connections = [stack.enter_context(psycopg.connect(dsn, autocommit=True)) for dsn in self.nodes]
            while not self.is_to_stop.wait(0.005):
                data = f"{self.name} {len(self.published)}"
                for connection in connections:
                    try:
                        connection.execute("select pgq.insert_event('jobs', 'work', %s)", (data,))
                        connection.execute("select pgq.ticker('jobs')")
                    except psycopg.Error as refused:
                        assert "disallowed" in str(refused) or "external tick source" in str(refused), refused
                        continue
                    self.published.append(data)
                    break

    def stop(self) -> list[str]:
        self.is_to_stop.set()
        self.join()
        return self.published


@contextmanager
def publishing(*nodes: Node) -> Iterator[list[Publisher]]:
    publishers = [Publisher(name, nodes) for name in ("x", "y")]
    for publisher in publishers:
        publisher.start()
    try:
        yield publishers
    finally:
        for publisher in publishers:
            publisher.stop()


def test_a_switchover_there_and_back_loses_and_doubles_nothing(new_node: NewNode) -> None:
    first, second, leaf = new_node("a2"), new_node("b2"), new_node("c2")
    first.create("root")
    second.create("branch", provider=first)
    leaf.create("leaf", provider=first)
    for node in (first, second, leaf):
        node.start()
    with publishing(first, second) as publishers:
        for old, new in ((first, second), (second, first)):
            wait_until(lambda count=len(leaf.seen()): len(leaf.seen()) > count + 20)  # type: ignore[misc]
            new.admin("takeover", old.name, f"--node={new.name}", "--all")
            assert (old.type(), new.type()) == ("branch", "root")
        published = [publisher.stop() for publisher in publishers]
    first.insert("last")
    leaf.wait_for("last")
    seen = leaf.seen()
    for publisher, texts in zip(publishers, published, strict=True):
        assert [text for text in seen if text.split()[0] == publisher.name] == texts
    assert len(seen) == sum(map(len, published)) + 1
    second.wait_for("last")
    assert first.log() == second.log()
