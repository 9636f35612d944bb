"""Programs written for PgQ run unchanged: Debian's python3-pgq and pgqd, where they are installed."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from conftest import QUICK
from trunq import embedded, install
from trunq.embedded import Embedded
from waiting import wait_until

PYTHON = "/usr/bin/python3"
PGQD = Path("/usr/bin/pgqd")
HAS_PGQ = Path("/usr/lib/python3/dist-packages/pgq").exists()
PROGRAM = Path(__file__).with_name("program.py")
PATIENCE = 40.0

needs_pgq = pytest.mark.skipif(not HAS_PGQ, reason="needs Debian's python3-pgq")
needs_pgqd = pytest.mark.skipif(not PGQD.exists(), reason="needs Debian's pgqd")

_numbers = count(1)

SEEN = (
    "create table seen (n serial, consumer text, id bigint, type text, data text, extra1 text, retry integer)"
)


class Site:
    """A database as a program for PgQ finds it: with a queue "jobs", and where to note what it saw."""

    def __init__(self, dsn: str, directory: Path) -> None:
        self.dsn = dsn
        self.directory = directory
        self.connection = psycopg.connect(dsn, autocommit=True)
        self.connection.execute(SEEN)
        self.fetch("select pgq.create_queue('jobs')")
        self.connection.execute(
            "update pgq.queue set queue_ticker_max_lag = '0', queue_ticker_idle_period = '0'"
        )

    def fetch(self, statement: str, *arguments: Any) -> Any:
        row = self.connection.execute(statement.encode(), arguments or None).fetchone()
        return row and row[0]

    def insert(self, *events: tuple[str, str]) -> None:
        """Events of a type with data, and a tick behind them."""
        for kind, data in events:
            self.fetch("select pgq.insert_event('jobs', %s, %s)", kind, data)
        self.fetch("select pgq.ticker('jobs')")

    def seen(self, *columns: str) -> list[tuple[Any, ...]]:
        """What programs noted here, in order."""
        return self.connection.execute(
            f"select {', '.join(columns)} from seen order by n".encode()
        ).fetchall()

    def write_config(self, job: str, target: Site | None = None, **more: str) -> Path:
        """What a program is told: written as PgQ's users write it."""
        path = self.directory / f"{job}.ini"
        settings = {
            "job_name": job,
            "src_db": self.dsn,
            "dst_db": (target or self).dsn,
            "queue_name": "jobs",
            "consumer_name": "reader",
            "local_tracking_file": str(self.directory / "tick"),
            "loop_delay": "0.05",
            "use_skylog": "0",
            "logfile": str(self.directory / f"{job}.log"),
            **more,
        }
        lines = [f"{name} = {value}" for name, value in settings.items()]
        path.write_text("\n".join(["[program]", *lines, ""]))
        return path


@contextmanager
def started(kind: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [PYTHON, str(PROGRAM), kind, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def run(kind: str, *arguments: object) -> str:
    """Run a program to its end."""
    with started(kind, *arguments) as process:
        said, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, said
    return said


@pytest.fixture(scope="module")
def newest() -> Iterator[tuple[Embedded, str]]:
    """A server of our own, and a database with the facade to make others of. It vacuums: else pgqd would."""
    name = "programs"
    with embedded.start(None, embedded.majors()[0], {**QUICK, "autovacuum": "on"}) as server:
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            connection.execute(f"create database {name}".encode())
        install.install(make_conninfo(server.dsn, dbname=name), "pgq")
        yield server, name


@pytest.fixture
def new_site(newest: tuple[Embedded, str], tmp_path: Path) -> Iterator[Callable[[], Site]]:
    server, template = newest
    made: list[Site] = []

    def make() -> Site:
        name = f"site_{next(_numbers)}"
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            connection.execute(f"create database {name} template {template}".encode())
        # As key=value: a URL has what the programs' ini files take for their own.
        parts: dict[str, Any] = {**conninfo_to_dict(server.dsn), "dbname": name}
        made.append(Site(make_conninfo("", **parts), tmp_path))
        return made[-1]

    yield make
    for site in made:
        site.connection.close()


@pytest.fixture
def site(new_site: Callable[[], Site]) -> Site:
    return new_site()


@needs_pgq
def test_a_consumer_reads_what_producers_insert_and_what_it_sent_back(site: Site) -> None:
    config = site.write_config("reading", pgq_lazy_fetch="2")
    run("Consumer", config, "--register")
    assert run("produce", site.dsn).strip() == "1"
    site.insert(("kind", "again"), ("kind", "last"))
    with started("Consumer", config) as consumer:
        wait_until(lambda: site.fetch("select pgq.maint_retry_events()"), PATIENCE)
        site.insert(("stop", "now"))
        consumer.wait(PATIENCE)
    many = [(n, "many", "by bulk_insert_events", str(n - 2), None) for n in (2, 3, 4)]
    assert sorted(site.seen("id", "type", "data", "extra1", "retry"), key=lambda row: row[0]) == [
        (1, "one", "by insert_event", "x1", None),
        *many,
        (5, "kind", "again", None, 1),
        (6, "kind", "last", None, None),
        (8, "stop", "now", None, None),  # 7: the number that the retry drew
    ]
    run("Consumer", config, "--unregister")
    assert site.fetch("select count(*) from pgq.get_consumer_info()") == 0


@needs_pgq
def test_cooperative_consumers_share_the_work_and_take_over_from_the_dead(site: Site) -> None:
    configs = {
        job: site.write_config(job, subconsumer_name=job, subconsumer_timeout="1 hour")
        for job in ("one", "two")
    }
    for config in configs.values():
        run("CoopConsumer", config, "--register")
    site.connection.execute("select pgq.insert_event('jobs', 'freeze', 'held', 'one', null, null, null)")
    site.insert()
    with started("CoopConsumer", configs["one"]) as frozen:
        held = wait_until(
            lambda: site.fetch("select sub_batch from pgq.subscription where sub_batch is not null"), PATIENCE
        )
        site.insert(("work", "a"))
        with started("CoopConsumer", configs["two"]) as helper:
            wait_until(lambda: len(site.seen("id")) == 1, PATIENCE)
            frozen.kill()
            site.connection.execute(
                "update pgq.subscription set sub_active = now() - interval '2 hours' where sub_batch = %s",
                (held,),
            )
            wait_until(lambda: len(site.seen("id")) == 2, PATIENCE)
            site.insert(("stop", "now"))
            helper.wait(PATIENCE)
    assert site.seen("consumer", "data") == [("two", "a"), ("two", "held"), ("two", "now")]


@needs_pgq
def test_a_local_consumer_goes_on_where_its_file_says(site: Site) -> None:
    config = site.write_config("local")
    site.insert()
    with started("LocalConsumer", config) as consumer:
        wait_until(lambda: site.fetch("select count(*) from pgq.get_consumer_info()"), PATIENCE)
        site.insert(("kind", "first"))
        site.insert(("stop", "now"))
        consumer.wait(PATIENCE)
    tick = (site.directory / "tick").read_text().strip()
    assert int(tick) == site.fetch("select last_tick from pgq.get_consumer_info('jobs', 'reader')")
    # The file is set back by somebody: the queue follows it.
    (site.directory / "tick").write_text(f"{int(tick) - 2}\n")
    run("LocalConsumer", config)
    assert [data for (data,) in site.seen("data")] == ["first", "now", "first", "now"]


@needs_pgq
@pytest.mark.parametrize("kind", ["RemoteConsumer", "SerialConsumer"])
def test_a_batch_takes_effect_once_in_another_database(new_site: Callable[[], Site], kind: str) -> None:
    site, target = new_site(), new_site()
    config = site.write_config("remote", target)
    run(kind, config, "--register")
    site.insert(("kind", "first"), ("stop", "now"))
    # Done over there, and the process dies before it can say so here: the batch comes again.
    with site.connection.cursor() as cursor:
        cursor.execute("select batch_id, cur_tick_id from pgq.next_batch_info('jobs', 'reader')")
        batch, tick = cursor.fetchone() or (None, None)
    if kind == "RemoteConsumer":
        target.fetch("select pgq_ext.set_batch_done('reader', %s)", batch)
    else:
        target.fetch("select pgq_ext.set_last_tick('reader', %s)", tick)
    with started(kind, config) as consumer:
        wait_until(lambda: site.fetch("select sub_batch is null from pgq.subscription"), PATIENCE)
        site.insert(("kind", "second"), ("stop", "now"))
        consumer.wait(PATIENCE)
    assert [data for (data,) in target.seen("data")] == ["second", "now"]
    assert site.seen("data") == []


@needs_pgq
@pytest.mark.parametrize(
    ("kind", "queues"),
    [("Mover", ("moved", "moved")), ("Splitter", ("east", "west"))],
    ids=["mover", "splitter"],
)
def test_a_mover_and_a_splitter_copy_each_event_once_though_they_are_killed(
    new_site: Callable[[], Site], kind: str, queues: tuple[str, str]
) -> None:
    site, target = new_site(), new_site()
    for queue in sorted(set(queues)):
        target.fetch("select pgq.create_queue(%s)", queue)
    config = site.write_config("mover", target)
    run(kind, config, "--register")
    last = "select last_tick from pgq.get_consumer_info('jobs', 'reader')"
    texts = [f"event {n:02}" for n in range(40)]
    for start in range(0, 40, 10):
        with started(kind, config) as process:  # and killed, wherever it is
            before = site.fetch(last)
            for n in range(start, start + 10):
                site.connection.execute(
                    "select pgq.insert_event('jobs', 'kind', %s, %s, 'b', null, 'd')",
                    (texts[n], queues[n % 2]),
                )
                site.insert()
            wait_until(lambda before=before: site.fetch(last) > before + 3, PATIENCE)  # type: ignore[misc]
            assert process.poll() is None
    with started(kind, config):
        tick = site.fetch("select last_tick_id from pgq.get_queue_info('jobs')")
        wait_until(lambda: site.fetch(last) == tick, PATIENCE)
        wait_until(lambda: site.fetch("select sub_batch is null from pgq.subscription"), PATIENCE)
    moved = "select key, payload #>> '{{}}', headers from trunq_log.{} order by id"
    rows = [
        row
        for queue in sorted(set(queues))
        for row in target.connection.execute(moved.format(queue).encode())
    ]
    headers = {"extra2": "b", "extra4": "d"}
    assert sorted(rows, key=lambda row: row[1]) == [(queues[n % 2], texts[n], headers) for n in range(40)]
    for queue in set(queues):
        ours = [row for row in rows if row[0] == queue]
        assert ours == sorted(ours, key=lambda row: row[1])


@needs_pgqd
def test_the_daemon_ticks_retries_and_rotates_several_databases(
    newest: tuple[Embedded, str], new_site: Callable[[], Site], tmp_path: Path
) -> None:
    sites = [new_site(), new_site()]
    for site in sites:
        site.fetch("select pgq.register_consumer('jobs', 'reader')")
        site.connection.execute("update pgq.queue set queue_rotation_period = '1 second'")
        site.fetch("select pgq.insert_event('jobs', 'kind', 'again')")
    where: dict[str, Any] = conninfo_to_dict(newest[0].dsn)
    names = ",".join(site.connection.info.dbname for site in sites)
    config = tmp_path / "pgqd.ini"
    config.write_text(
        "[pgqd]\n"
        f"logfile = {tmp_path}/pgqd.log\npidfile = {tmp_path}/pgqd.pid\n"
        f"base_connstr = host={where['host']} port={where['port']} user={where['user']}\n"
        f"initial_database = {newest[1]}\ndatabase_list = {names}\n"
        "check_period = 1\nretry_period = 1\nmaint_period = 1\nticker_period = 0.2\n"
    )
    with subprocess.Popen([PGQD, "-q", config]) as daemon:
        try:
            for site in sites:
                _read_until(site, "again", None)
                site.fetch("select pgq.event_retry(%s, 1, 0)", _batch(site))
                site.fetch("select pgq.finish_batch(%s)", _batch(site))
                _read_until(site, "again", 1)
                site.fetch("select pgq.finish_batch(%s)", _batch(site))
                wait_until(lambda site=site: _moves_on(site), PATIENCE)  # type: ignore[misc]
        finally:
            daemon.terminate()
    assert "ERROR" not in (tmp_path / "pgqd.log").read_text()


def _batch(site: Site) -> Any:
    return site.fetch("select pgq.next_batch('jobs', 'reader')")


def _read_until(site: Site, data: str, retry: int | None) -> None:
    """Finish batches until one has an event; nobody but the daemon ticks."""

    def found() -> bool:
        batch = _batch(site)
        if batch is None:
            return False
        rows = site.connection.execute(
            "select ev_data, ev_retry from pgq.get_batch_events(%s)", (batch,)
        ).fetchall()
        if not rows:
            site.fetch("select pgq.finish_batch(%s)", batch)
            return False
        assert rows == [(data, retry)]
        return True

    wait_until(found, PATIENCE)


def _moves_on(site: Site) -> bool:
    """Whether the daemon has rotated; a reader that goes on does not hold it up."""
    batch = _batch(site)
    if batch is not None:
        site.fetch("select pgq.finish_batch(%s)", batch)
    return bool(site.fetch("select queue_cur_table > 0 from pgq.queue"))
