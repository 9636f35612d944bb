"""Cascaded queues over the facade: PgQ's pgq_node, and workers and admin of Debian's python3-pgq."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psycopg
import pytest

import cascading
import mirroring
from cascading import HAS_PGQ, Node, prepare
from conftest import QUICK
from copying import copied_server
from trunq.embedded import Embedded
from waiting import wait_until

pytestmark = pytest.mark.skipif(
    not HAS_PGQ or not mirroring.NODE_SCRIPT.exists(),
    reason="needs Debian's python3-pgq and postgresql-15-pgq-node",
)

NewNode = Callable[..., Node]


@contextmanager
def serving() -> Iterator[Embedded]:
    with copied_server(settings=QUICK) as server:
        prepare(server)
        try:
            yield server
        finally:
            server.kill()  # what its many databases have in memory is not worth a shutdown's writing


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


@pytest.mark.slow
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
    tick = root.last_tick()
    wait_until(lambda: branch.last_tick() == tick)
    assert branch.fetch("select pgq.seq_getval(queue_tick_seq) from pgq.queue") == tick
    # What all have is let go: the watermark of the whole cascade passes the last event, at the branch too.
    watermark = "select global_watermark from pgq_node.get_node_info('jobs')"
    for node in (root, branch):
        wait_until(lambda: root.fetch("select pgq.ticker()") >= 0 and node.fetch(watermark) >= tick)  # noqa: B023


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
                    with suppress(psycopg.errors.InternalError_):  # Insert into queue disallowed
                        connection.execute("select pgq.insert_event('jobs', 'work', %s)", (data,))
                        self.published.append(data)
                        break
                for connection in connections:
                    with suppress(psycopg.errors.RaiseException):  # This queue has external tick source.
                        connection.execute("select pgq.ticker('jobs')")

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


@pytest.mark.slow
def test_a_switchover_there_and_back_loses_and_doubles_nothing(new_node: NewNode) -> None:
    first, second, leaf = new_node("a2"), new_node("b2"), new_node("c2")
    first.create("root")
    second.create("branch", provider=first)
    leaf.create("leaf", provider=first)
    for node in (first, second, leaf):
        node.start()
    with publishing(first, second) as publishers:
        for old, new in ((first, second), (second, first)):
            count = len(leaf.seen())
            wait_until(lambda: len(leaf.seen()) > count + 20)  # noqa: B023
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


@pytest.mark.slow
def test_a_switchover_waits_for_whoever_has_inserted_and_not_committed(new_node: NewNode) -> None:
    root, branch = new_node("a3"), new_node("b3")
    root.create("root")
    branch.create("branch", provider=root)
    for node in (root, branch):
        node.start()
    insert = "select pgq.insert_event('jobs', 'work', %s)"
    with (
        psycopg.connect(root.dsn) as late,
        psycopg.connect(root.dsn) as idle,
        ThreadPoolExecutor(1) as pool,
    ):
        # One has inserted before, so that its session knows the function; it is in a transaction, and idle.
        idle.execute(insert, ("earlier",))
        idle.commit()
        idle.execute("select 1")
        late.execute(insert, ("late",))
        root.insert("early")
        taking = pool.submit(branch.admin, "takeover", root.name, f"--node={branch.name}", "--all")
        wait_until(
            lambda: root.fetch(
                "select count(*) from pg_stat_activity where datname = current_database()"
                " and wait_event_type = 'Lock' and query like '%%demote_root%%'"
            ),
            what="the old root's last tick waits",
        )
        # One who comes now is refused, whether he waits or not, and can go to the new root.
        with pytest.raises(psycopg.errors.InternalError_, match="Insert into queue disallowed"):
            root.fetch(insert, "too late")
        late.commit()
        taking.result()
        with pytest.raises(psycopg.errors.InternalError_, match="Insert into queue disallowed"):
            idle.execute(insert, ("after the last tick",))
    branch.insert("after")
    root.wait_for("after")
    assert sorted(branch.seen()) == ["earlier", "early", "late"]
    assert root.seen() == ["after"]
    assert root.log() == branch.log()


@pytest.mark.slow
def test_a_branch_takes_the_place_of_a_root_that_is_gone(new_node: NewNode) -> None:
    with serving() as elsewhere:
        root, branch, leaf = new_node("a4", elsewhere), new_node("b4"), new_node("c4")
        root.create("root")
        branch.create("branch", provider=root)
        leaf.create("leaf", provider=root)
        for node in (branch, leaf):
            node.start()
        root.insert(*numbered(1, 10))
        leaf.wait_for("event 010")
        leaf.kill()
        root.insert(*numbered(11, 20))
        branch.wait_for("event 020")
        wait_until(lambda: branch.last_tick() == root.last_tick())
        branch.kill()
        # Nobody has these when it dies, in the midst of work.
        root.insert("lost 1", "lost 2")
        elsewhere.kill()
        branch.start()
        leaf.start()
        branch.admin("takeover", root.name, f"--node={branch.name}", "--dead-root")
        assert branch.type() == "root"
        branch.insert(*numbered(21, 30))
        leaf.wait_for("event 030")
        assert leaf.seen() == numbered(1, 30)

        # It comes back, and takes itself for the root: what only it has is written down, and it begins anew.
        elsewhere.restart()
        root.connection.close()
        root.connect()
        status, said = root.ask_admin("resurrect")
        assert status != 0
        assert "are neither changed nor deleted" in said
        lost = json.loads((root.directory / "resurrect-lost-events.json").read_text())
        assert [event["ev_data"] for event in lost if event["ev_type"] == "work"] == ["lost 1", "lost 2"]
        root.fetch("select pgq_node.drop_node('jobs', %s)", root.name)
        branch.fetch("select pgq_node.drop_node('jobs', %s)", root.name)
        root.create("branch", provider=branch)
        root.start()
        branch.insert("again together")
        root.wait_for("again together")
        leaf.wait_for("again together")
        root.admin("takeover", branch.name, f"--node={root.name}", "--all")
        root.insert("home again")
        leaf.wait_for("home again")
        assert leaf.seen() == [*numbered(1, 30), "again together", "home again"]
        root.close()


@pytest.mark.slow
def test_a_cascaded_consumer_follows_its_node_and_goes_on_at_another_provider(new_node: NewNode) -> None:
    root, branch, leaf = new_node("a5"), new_node("b5"), new_node("c5")
    root.create("root")
    branch.create("branch", provider=root)
    leaf.create("leaf", provider=root)
    for node in (root, branch, leaf):
        node.start()
    leaf.start("CascadedConsumer", "--register", f"--provider={root.dsn}", job="applier")
    leaf.start("CascadedConsumer", job="applier")
    root.insert("one")
    leaf.wait_for("one", "applier")
    branch.wait_for("one")
    # The steps of setadm's change-provider, which (3.7.1) ends at an answer of pgq.register_consumer_at.
    paused = "select * from pgq_node.set_consumer_paused('jobs', 'applier', %s)"
    leaf.fetch(paused, True)
    state = "select completed_tick, uptodate from pgq_node.get_consumer_state('jobs', 'applier')"
    wait_until(lambda: leaf.rows(state)[0][1])
    tick = leaf.fetch(state)
    wait_until(lambda: branch.last_tick() >= tick)
    branch.fetch("select pgq.register_consumer_at('jobs', 'applier', %s)", tick)
    leaf.fetch("select * from pgq_node.change_consumer_provider('jobs', 'applier', %s)", branch.name)
    leaf.fetch(paused, False)
    root.fetch("select pgq.unregister_consumer('jobs', 'applier')")
    root.insert("two")
    leaf.wait_for("two", "applier")

    # Somebody finishes a batch behind its back: it says so, and goes back when it is told to.
    leaf.kill()
    root.insert("three")
    wait_until(lambda: branch.last_tick() == root.last_tick())
    while (batch := branch.fetch("select pgq.next_batch('jobs', 'applier')")) is not None:
        branch.fetch("select pgq.finish_batch(%s)", batch)
    leaf.start("CascadedConsumer", job="applier")
    error = "select cur_error from pgq_node.get_consumer_info('jobs') where consumer_name = 'applier'"
    root.insert("four")
    wait_until(lambda: "Lost position" in (leaf.fetch(error) or ""))
    leaf.kill()
    leaf.start("CascadedConsumer", "--rewind", job="applier")
    leaf.start("CascadedConsumer", job="applier")
    leaf.wait_for("four", "applier")
    assert leaf.seen("applier") == ["one", "two", "three", "four"]


@pytest.mark.slow
def test_queues_are_merged_into_one_and_its_place_is_taken_over(new_node: NewNode) -> None:
    sources = {"east": new_node("e6"), "west": new_node("w6")}
    center, standby = new_node("m6"), new_node("s6")
    merged = "everywhere"
    for queue, source in sources.items():
        source.create("root", queue=queue)
    center.create("root", queue=merged)
    standby.create("branch", provider=center, queue=merged)
    for node in (center, standby):
        for queue, source in sources.items():
            node.create("leaf", f"--merge={merged}", provider=source, queue=queue)
            node.start(queue=queue)
        node.start(queue=merged)

    def publish(first: int, last: int, root: Node, follower: Node) -> None:
        for queue, source in sources.items():
            source.insert(*(f"{queue} {n}" for n in range(first, last + 1)), queue=queue)
            root.wait_for(f"{queue} {last}", f"{queue}_{root.name}")
        root.fetch("select pgq.ticker(%s)", merged)
        wait_until(lambda: len(follower.log(merged)) == 2 * last)

    publish(1, 10, center, standby)
    standby.admin("takeover", center.name, f"--node={standby.name}", "--all", queue=merged)
    assert (standby.type(merged), center.type(merged)) == ("root", "branch")
    standby.connection.execute(
        "update pgq.queue set queue_ticker_max_lag = '0', queue_ticker_idle_period = '0'"
    )
    publish(11, 20, standby, center)
    assert center.log(merged) == standby.log(merged)
    for queue in sources:
        texts = [data for _, _, data in center.log(merged) if data.startswith(queue)]
        assert texts == [f"{queue} {n}" for n in range(1, 21)]
        assert center.seen(f"{queue}_{center.name}") == texts[:10]
        assert standby.seen(f"{queue}_{standby.name}") == texts[10:]
    assert sorted(standby.seen(f"{merged}_{standby.name}")) == sorted(
        f"{queue} {n}" for queue in sources for n in range(1, 11)
    )


@pytest.mark.slow
def test_a_branch_that_is_closed_takes_events_of_its_worker_alone(new_node: NewNode) -> None:
    root, branch = new_node("a7"), new_node("b7")
    root.create("root")
    branch.create("branch", provider=root)
    branch.start()
    # PgQ's switch is for PgQ's calls; trunq's own publishers are kept out by trunq's.
    branch.fetch("select trunq.close_queue('jobs')")
    with pytest.raises(psycopg.Error, match="is closed") as refused:
        branch.fetch("select trunq.publish('jobs', '1')")
    assert refused.value.sqlstate == "TQ018"
    # What was published natively is an event at the root, and a message at the branch.
    root.fetch("""select trunq.publish('jobs', '{"order": 17}', 'work', p_key => 'k')""")
    root.insert("second")
    branch.wait_for("second")
    assert branch.rows("select kind, key, payload from trunq_log.jobs where kind = 'work' order by id") == [
        ("work", "k", '{"order": 17}'),
        ("work", None, "second"),
    ]
    # Over there nobody ticks but the worker, whatever the duties do.
    wait_until(lambda: branch.last_tick() == root.last_tick())
    ticks = branch.fetch("select max(tick_id) from trunq.tick")
    branch.fetch("select count(*) from trunq.perform_duties()")
    assert branch.fetch("select max(tick_id) from trunq.tick") == ticks
    # As a root it takes events when it is open.
    branch.fetch("select pgq_node.promote_branch('jobs')")
    with pytest.raises(psycopg.Error, match="is closed"):
        branch.insert("refused")
    branch.fetch("select trunq.open_queue('jobs')")
    branch.insert("taken")


@pytest.mark.slow
def test_the_page_s_nodes_are_made_and_change_their_places(new_node: NewNode, tmp_path: Path) -> None:
    nodes = {"shop1": new_node("shop1"), "shop2": new_node("shop2")}
    for number in (1, 2):
        text = cascading.PAGE["shop2.ini"].replace("shop2", f"shop{number}").replace("db2", f"db{number}")
        (tmp_path / f"shop{number}.ini").write_text(
            _at_home(text, nodes) + "use_skylog = 0\nloop_delay = 0.05\n"
        )
    for name in ("worker.py", "setadm.py"):
        (tmp_path / name).write_text(cascading.PAGE[name])
    for node in nodes.values():
        node.connection.execute("drop table seen; create table seen (id bigint, data text)")

    def follow(lines: list[str]) -> None:
        for line in lines:
            command = [cascading.PYTHON, *shlex.split(_at_home(line, nodes))[1:]]
            if command[1] == "worker.py":
                command.remove("-d")  # a daemon would outlive the test
                nodes[command[-1].removesuffix(".ini")].spawn(command)
            else:
                subprocess.run(
                    command, cwd=tmp_path, check=True, capture_output=True, timeout=cascading.PATIENCE
                )

    making, switching, _ = _commands()
    follow(making)
    insert = "select pgq.insert_event('orders', 'paid', %s)"
    nodes["shop1"].fetch(insert, "before")
    nodes["shop1"].fetch("select pgq.force_tick('orders')")
    nodes["shop1"].fetch("select pgq.ticker('orders')")
    seen = "select data from seen order by id"
    wait_until(lambda: nodes["shop2"].rows(seen))
    follow(switching)
    nodes["shop2"].fetch(insert, "after")
    nodes["shop2"].fetch("select pgq.force_tick('orders')")
    nodes["shop2"].fetch("select pgq.ticker('orders')")
    wait_until(lambda: nodes["shop1"].rows(seen))
    assert (nodes["shop1"].rows(seen), nodes["shop2"].rows(seen)) == ([("after",)], [("before",)])


def _commands() -> list[list[str]]:
    """The lines of the page's blocks that call setadm."""
    page = (cascading.ROOT / "docs" / "operate" / "pgq.md").read_text()
    found = re.findall(r"^```sh elsewhere\n(python3 setadm.+?)^```$", page, re.DOTALL | re.MULTILINE)
    return [text.splitlines() for text in found]


def _at_home(text: str, nodes: dict[str, Node]) -> str:
    for number, node in enumerate(nodes.values(), 1):
        text = text.replace(f"host=db{number} dbname=shop", node.dsn)
    return text
