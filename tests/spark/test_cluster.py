"""A standalone cluster of two executors: sources and workers on it, and what is killed in the middle."""

from __future__ import annotations

import json
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from spark.cluster import SOURCE, Cluster, cluster_in, program
from trunq import Client
from trunq.worker.executor import Spread
from waiting import wait_until

pytestmark = pytest.mark.timeout(600)

MESSAGES = 3000
KEYS = 10
OF_EACH_KEY = 30

LIBRARY = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"

ON_SPARK = ("-m", "trunq", "worker", "spreading:worker", "--json", "--spark")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    shutil.copy(Path(__file__).parent / "spreading.py", folder)
    with cluster_in(folder) as running:
        yield running


@pytest.fixture
def client(database: str, connection: psycopg.Connection[Any]) -> Iterator[Client]:
    """With the queues of the worker, and a table of effects."""
    connection.execute(
        "create table effect (place bigint generated always as identity, queue text, key text,"
        " message_id bigint, n int, process int)"
    )
    with Client(database) as connected:
        connected.create_queue("work")
        connected.create_queue("ordered", lanes="key")
        connected.subscribe("work", "default", lease_time=5)
        connected.subscribe("ordered", "default", lease_time=5, in_order=True)
        yield connected


def publish(connection: psycopg.Connection[Any], queue: str, kind: str, count: int, keys: int = 1) -> None:
    """So many of each key, in order; every fifth is of a kind of its own."""
    connection.execute(
        f"insert into trunq_log.{queue} (kind, key, payload)"
        " select case when n %% 5 = 0 then %s else 'effect' end, 'key' || k, jsonb_build_object('n', n)"
        " from generate_series(1, %s) n, generate_series(1, %s) k order by n",
        (kind, count, keys),
    )


def value(connection: psycopg.Connection[Any], query: str) -> Any:
    row = connection.execute(query).fetchone()
    assert row is not None
    return row[0]


@pytest.fixture
def start(cluster: Cluster, database: str) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a driver; it is killed when the test has failed before its end."""
    started: list[subprocess.Popen[str]] = []

    def begin(*arguments: str, **variables: str) -> subprocess.Popen[str]:
        started.append(program(cluster, database, *arguments, **variables))
        return started[-1]

    yield begin
    for process in started:
        if process.poll() is None:
            process.kill()
            process.communicate()


def ended(process: subprocess.Popen[str]) -> str:
    """What a driver printed in the end."""
    out, said = process.communicate(timeout=400)
    assert process.returncode == 0, f"{out}\n{said}"
    return out


@pytest.mark.slow
def test_each_effect_once_and_in_order_though_an_executor_and_a_daemon_are_killed(
    cluster: Cluster,
    connection: psycopg.Connection[Any],
    client: Client,
    start: Callable[..., subprocess.Popen[str]],
) -> None:
    publish(connection, "work", "effect", MESSAGES)
    publish(connection, "ordered", "stumble", OF_EACH_KEY, KEYS)
    driver = start(*ON_SPARK, cluster.master, "--until-idle", "--queue", "work", "--queue", "ordered")

    def effects(more_than: int) -> Callable[[], bool]:
        def are_there() -> bool:
            assert driver.poll() is None, driver.communicate()
            return bool(value(connection, f"select count(*) > {more_than} from effect"))

        return are_there

    wait_until(lambda: value(connection, "select count(distinct process) = 2 from effect"), 300)
    cluster.executors()[0].kill()
    wait_until(effects(value(connection, "select count(*) from effect") + 200), 120)
    cluster.kill("worker.Worker-2")
    done = json.loads(ended(driver))
    cluster.start_worker("2")
    everything = MESSAGES + OF_EACH_KEY * KEYS
    assert value(connection, "select count(*) from effect") == everything
    assert value(connection, "select count(distinct (queue, message_id)) from effect") == everything
    assert value(connection, "select count(distinct process) from effect") >= 2
    late = connection.execute(
        "select key, n from (select key, n, lag(n) over (partition by key order by place) as before"
        " from effect where queue = 'ordered') e where before >= n"
    ).fetchall()
    assert late == []
    assert done["workers"] >= 2
    assert sum(done["hosts"].values()) == done["handled"]


@pytest.mark.slow
def test_a_stop_lets_handlers_finish(
    cluster: Cluster,
    connection: psycopg.Connection[Any],
    client: Client,
    start: Callable[..., subprocess.Popen[str]],
    tmp_path: Path,
) -> None:
    go_on = tmp_path / "go on"
    running = [client.publish("work", str(go_on), kind="long") for _ in range(2)]
    driver = start(*ON_SPARK, cluster.master, "-c", "1", "--queue", "work", "--grace", "60s", "--verbose")
    wait_until(lambda: len(client.list_messages("work", state="leased")) == 2, 300)
    driver.send_signal(signal.SIGTERM)
    assert driver.stderr is not None
    told = 0
    while told < len(running) and (line := driver.stderr.readline()):
        told += "stopping: 1 handler still runs" in line
    go_on.touch()
    assert json.loads(ended(driver))["handled"] == len(running)


@pytest.mark.slow
def test_executors_use_what_they_unpacked_though_one_is_lost_and_errors_are_told(
    connection: psycopg.Connection[Any],
    client: Client,
    start: Callable[..., subprocess.Popen[str]],
    tmp_path: Path,
) -> None:
    publish(connection, "work", "where", 1000)
    out = ended(
        start(
            "spreading.py",
            TRUNQ_SPARK_ARCHIVES=f"{pack(tmp_path)}#environment",
            TRUNQ_SPARK_CONF='{"spark.executor.memory": "512m"}',
        )
    )
    place = f"{LIBRARY}/trunq/__init__.py"
    assert out.splitlines() == ["read 1000", place, "handled 1000", "told QueueNotFound"]
    told = connection.execute("select distinct key from effect where key <> 'key1'").fetchall()
    assert told
    assert all(key.endswith(f"/environment/{place}") for (key,) in told), told


def test_workers_that_ended_keep_no_process_until_their_grace_is_over() -> None:
    over, before = threading.Event(), threading.enumerate()
    job = SimpleNamespace(collect=lambda: [] if over.wait(60) else None)
    context: Any = SimpleNamespace(
        getConf=lambda: {"spark.driver.host": "127.0.0.1"},
        setJobGroup=lambda *_: None,
        parallelize=lambda *_: SimpleNamespace(mapPartitionsWithIndex=lambda _: job),
    )
    workers = Spread(context, "trunq:worker", 1, {"grace": 60.0})
    workers.stop()
    over.set()
    workers.wait(120)
    assert [thread for thread in threading.enumerate() if thread not in before and not thread.daemon] == []


def pack(folder: Path) -> Path:
    """As venv-pack does, but with the interpreter of the tests, which imports the trunq that was unpacked."""
    script = folder / "python"
    script.write_text(
        "#!/bin/sh\n"
        f'PYTHONPATH="$(cd "$(dirname "$0")/../{LIBRARY}" && pwd):$PYTHONPATH"'
        f' exec {shlex.quote(sys.executable)} "$@"\n'
    )
    script.chmod(0o755)
    archive = folder / "venv.tar.gz"
    with tarfile.open(archive, "w:gz", compresslevel=1) as packing:
        packing.add(script, "bin/python")
        packing.add(Path(SOURCE) / "trunq", f"{LIBRARY}/trunq")
    return archive
