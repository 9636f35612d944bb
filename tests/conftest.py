"""Real servers for every test: started once a run, a database of its own for each test that asks for one."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

import scope
from calling import ask, new_names
from memory import in_memory
from scope import ALL
from trunq import embedded, install
from trunq.embedded import Embedded

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Tests in parallel are told the width of a terminal that they do not have.
os.environ.pop("COLUMNS", None)
# A Spark of a test lives for seconds: compiling its code well takes a third of its processor time.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

Connect = Callable[..., psycopg.Connection[Any]]
AsyncConnect = Callable[..., Awaitable[psycopg.AsyncConnection[Any]]]

TESTS = Path(__file__).parent
TEMPLATE = "trunq_template"
ROLLED_BACK = "trunq_rolled_back"

COPIED = "strategy file_copy"
"""How databases are made: files are copied. By its default Postgres writes each page into its log, and has it
in its buffers until the database is dropped: that takes a third longer, and twice as long to drop.
"""

BY_VERSION = (
    "upgrade/test_install.py",
    "upgrade/test_adopt.py",
    "sql/log/test_capture_partition.py",
    "sql/operate/test_publication.py",
    "sql/operate/test_role.py",
    "sql/keep/test_rotate.py",
    "sql/operate/test_specimen.py",
    "race/keep/test_rotation_locks.py",
    "race/keep/test_truncate.py",
)
"""Files whose tests run on each version there is here, as the tests with the mark `each_version` do: in what
they use, such as partitions, locks of DDL and grants, versions differ. The others run on the newest.
"""

IN_TURNS = ("sql", "race", "facade")
"""Folders whose tests run, with TRUNQ_TEST_ALL, on one of the older versions too, in turn: each version meets
every concept. --postgres runs all on those that it names.
"""

SYNC = "client/_sync"
"""Tests that are generated from those of the async client, as that client is from the other."""

OWN_WAYS = (
    "test_bell.py",
    "test_connection.py",
    "test_given.py",
    "test_lease.py",
    "test_listen.py",
    "test_publish.py",
    "test_result.py",
)
"""Of these, the files about what differs between a thread and a task: to wait, connect, hold a lease, copy.
Each of their tests runs once. Of any other file the first test runs: its calls have one shape.
"""

LONGEST_FIRST = (
    "demo/test_main_job.py",
    "docs/test_spark_pages.py",
    "docs/test_pages.py",
    "pipeline/test_engine_key.py",
    "spark/test_cluster.py",
    "pipeline/test_work.py",
    "pipeline/test_chain.py",
    "pipeline/test_telemetry.py",
    "leader/test_metrics.py",
    "ops",
    "pipeline/test_kill.py",
    "pipeline/test_kill_spark.py",
    "pipeline/test_cluster.py",
    "pipeline/test_storage_sink.py",
    "pipeline/test_quarantined_value.py",
    "pipeline/test_evolve_lake.py",
    "pipeline/test_kill_evolve.py",
    "chaos",
    "spark",
    "pipeline/test_protocol.py",
    "pipeline/test_jdbc.py",
    "pipeline/test_jdbc_evolve.py",
    "pipeline/test_jdbc_kill.py",
    "pipeline/test_capture_refusal.py",
    "pipeline/test_capture.py",
    "race/keep/test_archive.py",
    "facade/test_cascade.py",
    "race/operate/test_restore.py",
    "sql/log/test_column.py",
    "stress",
    "demo",
    "race/operate/test_creating.py",
    "race/test_crash.py",
    "race/log/test_schedules.py",
    "pipeline",
    "model",
    "docs",
    "upgrade",
    "web",
    "worker",
    "race",
    "cost",
    "facade",
    "leader",
    "cli",
    "client",
)
"""Files and folders, as long as they take: when two processes share the files, neither should be left with a
long one in the end.
"""

QUICK = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "max_prepared_transactions": "10",
    "autovacuum": "off",
}
"""For speed: the data is thrown away anyway. Tests of crashes start their own servers, where autovacuum runs.

Here it would have a transaction now and then, and make sessions plan anew while a test counts what they read.
"""

_numbers = count(1)
_left: list[tuple[str, str]] = []
"""Databases whose tests are over, with the server of each."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--postgres", metavar="MAJORS", help="run every test on these versions: 16,18, or all")


def pytest_configure() -> None:
    # Begun in the background, a shell has us ignore Ctrl-C; so would all that tests start and interrupt.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    places = {name: place for place, name in enumerate(LONGEST_FIRST)}

    def place(item: pytest.Item) -> int:
        path = item.path.relative_to(TESTS)
        return places.get(path.as_posix(), places.get(path.parts[0], len(places)))

    items.sort(key=place)
    left: set[pytest.Item] = set()
    if not ALL and not any(SYNC in argument for argument in config.args):
        left.update(left_to_their_twins(items))
    if (turn := scope.turn()) is not None:
        left.update(left_to_other_turns(items, turn))
    config.hook.pytest_deselected(items=[item for item in items if item in left])
    items[:] = [item for item in items if item not in left]


def left_to_their_twins(items: list[pytest.Item]) -> Iterator[pytest.Item]:
    """Tests of the sync client that make calls of a shape that another test of it makes."""
    seen: set[tuple[Path, str]] = set()
    for item in items:
        if item.path.parent == TESTS / SYNC:
            name = item.name.partition("[")[0] if item.path.name in OWN_WAYS else ""
            if (item.path, name) in seen:
                yield item
            seen.add((item.path, name))


def left_to_other_turns(items: list[pytest.Item], turn: int) -> Iterator[pytest.Item]:
    """Tests that another turn runs: of those that are slow, or ask for a Spark, one turn of four has each, of
    the others one of two, and each turn has those that are in no folder.
    """
    for item in items:
        is_slow = item.get_closest_marker("slow") or "spark" in getattr(item, "fixturenames", ())
        turns = scope.TURNS if is_slow else 1 if item.path.parent == TESTS else 2
        if crc32(f"{item.path.name}::{item.name}".encode()) % turns != turn % turns:
            yield item


def pytest_collection_finish() -> None:
    """What was collected stays to the end: the collector of garbage need not look at it again and again."""
    gc.collect()
    gc.freeze()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "server" in metafunc.fixturenames:
        majors = chosen_majors(metafunc.config, metafunc.definition)
        metafunc.parametrize("server", majors, indirect=True, scope="session", ids=lambda major: f"pg{major}")


def chosen_majors(config: pytest.Config, test: pytest.Function) -> list[int]:
    """The versions a test runs on: of --postgres or TRUNQ_TEST_POSTGRES, else by its file, mark and name."""
    asked = config.getoption("--postgres") or os.environ.get("TRUNQ_TEST_POSTGRES")
    newest, *older = embedded.majors()
    place = test.path.relative_to(TESTS)
    if asked and asked != "all":
        return [int(major) for major in asked.split(",")]
    if asked or place.as_posix() in BY_VERSION or test.get_closest_marker("each_version"):
        return [newest, *older]
    if not ALL or place.parts[0] not in IN_TURNS or not older:
        return [newest]
    # By its name: the same each time, in every process, whatever tests come and go.
    return [newest, older[crc32(test.name.encode()) % len(older)]]


@pytest.fixture(scope="session")
def servers() -> Iterator[Callable[[int], Embedded]]:
    """Start a server of a version when it is first wanted; all run until the end."""
    running: dict[int, Embedded] = {}

    def start(major: int) -> Embedded:
        if major not in running:
            with in_memory():
                running[major] = embedded.start(major=major, settings=QUICK)
            with psycopg.connect(running[major].dsn, autocommit=True) as connection:
                connection.execute(f"create database {TEMPLATE}")
                install.install(make_conninfo(running[major].dsn, dbname=TEMPLATE))
                with psycopg.connect(running[major].dsn, dbname=TEMPLATE, autocommit=True) as template:
                    template.execute("select trunq.let_clock_move()")
                connection.execute(f"create database {ROLLED_BACK} template {TEMPLATE} {COPIED}")
        return running[major]

    yield start
    for server in running.values():
        server.stop()


@pytest.fixture(scope="session")
def server(request: pytest.FixtureRequest, servers: Callable[[int], Embedded]) -> Embedded:
    """The server of the version this test runs on. Others use it too: leave it as it is."""
    return servers(request.param)


@pytest.fixture
def new_database(server: Embedded) -> Iterator[Callable[..., str]]:
    """Make databases: `new_database()` with trunq in it, `new_database("template1")` empty. Gives the dsn."""
    made: list[str] = []

    def make(template: str = TEMPLATE) -> str:
        name = f"test_{next(_numbers)}"
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            connection.execute(f"create database {name} template {template} {COPIED}")
        made.append(name)
        return make_conninfo(server.dsn, dbname=name)

    yield make
    # A test later: Postgres sleeps for 100 ms where a connection that was just closed has not quite ended.
    drop_left(server.dsn)
    _left.extend((server.dsn, name) for name in made)


def drop_left(dsn: str) -> None:
    """Drop the databases that tests have left on this server."""
    over = [name for place, name in _left if place == dsn]
    _left[:] = [(place, name) for place, name in _left if place != dsn]
    with psycopg.connect(dsn, autocommit=True) as connection:
        for name in over:
            for (prepared,) in connection.execute(
                "select gid from pg_prepared_xacts where database = %s", (name,)
            ):
                with psycopg.connect(make_conninfo(dsn, dbname=name), autocommit=True) as other:
                    other.execute(f"rollback prepared '{prepared}'")
            connection.execute(f"drop database {name} with (force)")


@pytest.fixture
def database(new_database: Callable[..., str]) -> str:
    """Address of a fresh database with trunq in it."""
    return new_database()


@contextmanager
def opening(address: str) -> Iterator[Connect]:
    """What opens connections there, autocommit unless said otherwise; they are closed in the end."""
    opened: list[psycopg.Connection[Any]] = []

    def open_one(dsn: str = address, *, autocommit: bool = True, **options: Any) -> psycopg.Connection[Any]:
        opened.append(psycopg.connect(dsn, autocommit=autocommit, **options))
        return opened[-1]

    yield open_one
    for connection in opened:
        connection.close()


@pytest.fixture
def connect(database: str) -> Iterator[Connect]:
    """Open connections to `database`."""
    with opening(database) as open_one:
        yield open_one


@pytest.fixture
def connection(connect: Connect) -> psycopg.Connection[Any]:
    """One connection to `database`, in autocommit."""
    return connect()


@pytest.fixture(scope="session")
def shared_database(server: Embedded) -> str:
    """Address of a database that many tests share, each with queues of its own: databases are dear."""
    name = next(new_names("shared"))
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute(f"create database {name} template {TEMPLATE} {COPIED}".encode())
    return make_conninfo(server.dsn, dbname=name)


@pytest.fixture
def open_session(shared_database: str) -> Iterator[Connect]:
    """Open connections to the shared database."""
    with opening(shared_database) as open_one:
        yield open_one


@pytest.fixture
def session(open_session: Connect) -> psycopg.Connection[Any]:
    """A connection to the shared database, in autocommit."""
    return open_session()


@pytest.fixture
def queue(session: psycopg.Connection[Any]) -> str:
    """Name of a queue nobody else has."""
    name = next(new_names("queue"))
    ask(session, "create_queue", queue=name)
    return name


@pytest.fixture
async def async_connect(database: str) -> AsyncIterator[AsyncConnect]:
    """Like `connect`, for async tests."""
    opened: list[psycopg.AsyncConnection[Any]] = []

    async def open_one(
        dsn: str = database, *, autocommit: bool = True, **options: Any
    ) -> psycopg.AsyncConnection[Any]:
        opened.append(await psycopg.AsyncConnection.connect(dsn, autocommit=autocommit, **options))
        return opened[-1]

    yield open_one
    for connection in opened:
        await connection.close()


@pytest.fixture
def sql(server: Embedded) -> Iterator[psycopg.Connection[Any]]:
    """A connection whose transaction is rolled back in the end: the quickest way to try one function."""
    with psycopg.connect(make_conninfo(server.dsn, dbname=ROLLED_BACK)) as connection:
        connection.execute("select 1")
        yield connection
        connection.rollback()


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One Spark session for all files of a run of the tests."""
    import jars  # noqa: PLC0415
    from trunq import spark as trunq_spark  # noqa: PLC0415  # slow to import

    session = trunq_spark.session("tests", "local[2,4]", "768m", jars.SPARK)
    java: subprocess.Popen[bytes] = session.sparkContext._gateway.proc  # type: ignore[attr-defined,union-attr]
    yield session
    session.stop()
    # It would end a moment after us; a run of the tests leaves no process behind.
    assert java.stdin is not None
    java.stdin.close()
    java.wait(120)
