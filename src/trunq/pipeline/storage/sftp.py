"""Directories of another machine, over SSH. Hosts are known by their keys; a name that is there is never
written over, and a directory is renamed in one step.
"""

from __future__ import annotations

import io
import socket
import stat
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final, TypeVar, cast
from urllib.parse import urlsplit

import paramiko

from trunq.errors import InvalidPipeline
from trunq.pipeline.errors import StorageFailed
from trunq.pipeline.storage import Entry
from trunq.pipeline.storage.reader import Reader

T = TypeVar("T")

_SECONDS: Final = 30.0
"""For a connection, and for an answer."""
_AHEAD: Final = 1 << 20
_LOST: Final = (
    EOFError,
    paramiko.SSHException,
    ConnectionError,
    TimeoutError,
    paramiko.ssh_exception.NoValidConnectionsError,
)


class SftpStorage:
    """A host. Connections are kept; one that was lost is made anew."""

    def __init__(self, pipeline: str, base: str, given: Mapping[str, str]) -> None:
        self.base, self._who = base, f"pipeline {pipeline}:"
        self._given = given
        self._idle: list[paramiko.SFTPClient] = []
        self._holds = threading.Lock()

    def walk(self, directory: str, depth: int | None = None) -> Iterator[Entry]:
        waiting = [(directory.strip("/"), 1)]
        while waiting:
            at, level = waiting.pop()
            for each in self._listed(at):
                path = f"{at}/{each.filename}".lstrip("/")
                if stat.S_ISDIR(each.st_mode or 0):
                    if depth is None or level < depth:
                        waiting.append((path, level + 1))
                elif stat.S_ISREG(each.st_mode or 0):
                    yield _entry(path, each)

    def names(self, directory: str) -> list[str]:
        """The names in a directory."""
        return [each.filename for each in self._listed(directory)]

    def look(self, path: str) -> Entry | None:
        try:
            found = self._do(lambda client: client.stat(_whole(path)))
        except FileNotFoundError:
            return None
        return _entry(path, found) if stat.S_ISREG(found.st_mode or 0) else None

    def has_directory(self, directory: str) -> bool:
        try:
            return stat.S_ISDIR(self._do(lambda client: client.stat(_whole(directory))).st_mode or 0)
        except FileNotFoundError:
            return False

    def open(self, path: str) -> BinaryIO:
        with self._told():
            return cast(BinaryIO, io.BufferedReader(_Reader(self, path), _AHEAD))

    def read(self, path: str) -> bytes | None:
        try:
            with self.open(path) as file:
                return file.read()
        except FileNotFoundError:
            return None

    def upload(self, file: Path | bytes, path: str) -> None:
        self.make_directory(path.rpartition("/")[0])

        def write(client: paramiko.SFTPClient) -> None:
            # From its beginning, where the connection was lost in between.
            with io.BytesIO(file) if isinstance(file, bytes) else file.open("rb") as source:
                client.putfo(source, _whole(path))

        try:
            self._do(write)
        except OSError as error:
            raise StorageFailed(
                f"{self._who} {self.base} does not take {path}: {error}",
                "make room, or give the user the right, and the run is tried again",
            ) from None

    def remove(self, paths: Iterable[str]) -> None:
        for path in paths:
            with suppress(FileNotFoundError):
                self._do(lambda client, path=path: client.remove(_whole(path)))  # type: ignore[misc]

    def make_directory(self, directory: str) -> None:
        """Make it, and those above it, unless it is there."""
        if not directory or self.has_directory(directory):
            return
        self.make_directory(directory.rpartition("/")[0])
        try:
            self._do(lambda client: client.mkdir(_whole(directory)))
        except OSError as error:
            if not self.has_directory(directory):
                raise self._refused(error) from None

    def remove_tree(self, directory: str) -> None:
        """Remove a directory with the files in it."""
        self.remove([entry.path for entry in self.walk(directory)])
        with suppress(OSError):
            self._do(lambda client: client.rmdir(_whole(directory)))

    def rename(self, directory: str, target: str) -> None:
        """Give a directory another name. Raises OSError where that is taken."""
        self._do(lambda client: client.rename(_whole(directory), _whole(target)), tries=1)

    def _listed(self, directory: str) -> Iterable[paramiko.SFTPAttributes]:
        try:
            return self._do(lambda client: client.listdir_attr(_whole(directory)))
        except FileNotFoundError:
            return []

    def _do(self, work: Callable[[paramiko.SFTPClient], T], tries: int = 2) -> T:
        """Do what may be done twice; where the connection was lost, over another one."""
        with self._told():
            while True:
                tries -= 1
                try:
                    with self._connected() as client:
                        return work(client)
                except Exception as error:
                    if not tries or not _is_lost(error):
                        raise

    @contextmanager
    def _connected(self) -> Iterator[paramiko.SFTPClient]:
        """A connection that nobody else uses meanwhile: paramiko mixes up the answers of two threads."""
        client = self.take()
        try:
            yield client
        except OSError as error:
            # What the server said of a file.
            if not _is_lost(error):
                self.give_back(client)
            raise
        except BaseException:
            _close(client)
            raise
        self.give_back(client)

    def take(self) -> paramiko.SFTPClient:
        """A connection of the caller's own, until it is given back."""
        with self._holds:
            while self._idle:
                client = self._idle.pop()
                channel = client.get_channel()
                if channel is not None and not channel.closed:
                    return client
        return self._connect()

    def give_back(self, client: paramiko.SFTPClient) -> None:
        """Keep it for the next one."""
        with self._holds:
            self._idle.append(client)

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except PermissionError as error:
            raise self._refused(error) from None
        except Exception as error:
            if not _is_lost(error):
                raise
            raise StorageFailed(
                f"{self._who} {self.base} does not answer: {str(error) or type(error).__name__}",
                "the run is tried again",
            ) from None

    def _refused(self, error: OSError) -> StorageFailed:
        return StorageFailed(
            f"{self._who} {self.base} refuses: {error}", "give the user the right, and the run is tried again"
        )

    def _connect(self) -> paramiko.SFTPClient:
        address = urlsplit(self.base)
        host, secret = address.hostname or "", self._given.get("secret")
        ssh = paramiko.SSHClient()
        self._know(ssh)
        ssh.set_missing_host_key_policy(paramiko.RejectPolicy())
        try:
            ssh.connect(
                host,
                port=address.port or 22,
                username=address.username,
                password=secret,
                passphrase=secret if "key_file" in self._given else None,
                key_filename=self._given.get("key_file"),
                allow_agent="key_file" not in self._given,
                look_for_keys=not {"key_file", "secret"} & set(self._given),
                timeout=_SECONDS,
                banner_timeout=_SECONDS,
                auth_timeout=_SECONDS,
            )
            client = ssh.open_sftp()
            channel = client.get_channel()
            assert channel is not None
            channel.settimeout(_SECONDS)
            return client
        except BaseException as error:
            ssh.close()
            if (known := self._wrong(host, error)) is None:
                raise
            raise known from None

    def _know(self, ssh: paramiko.SSHClient) -> None:
        if (path := self._given.get("known_hosts")) is None:
            ssh.load_system_host_keys()
            return
        try:
            ssh.load_host_keys(path)
        except OSError as error:
            raise InvalidPipeline(
                f"{self._who} the file {path} of known hosts cannot be read: {error.strerror}",
                "correct storage.known_hosts",
            ) from None

    def _wrong(self, host: str, error: BaseException) -> InvalidPipeline | None:
        if isinstance(error, socket.gaierror):
            return InvalidPipeline(f"{self._who} the host of {self.base} is not known", "correct path")
        if isinstance(error, paramiko.BadHostKeyException):
            return InvalidPipeline(
                f"{self._who} {self.base} has another key than the one that is known: somebody may"
                " stand in between",
                "find out why, and then put its new key into storage.known_hosts",
            )
        if isinstance(error, paramiko.SSHException) and "not found in known_hosts" in str(error):
            return InvalidPipeline(
                f"{self._who} the key of {self.base} is not known, so nobody can say whether it is that host",
                f"ssh-keyscan {host} >> FILE, look at it, and write storage = {{ known_hosts = 'FILE' }}",
            )
        if isinstance(error, (paramiko.AuthenticationException, paramiko.PasswordRequiredException)) or (
            type(error) is paramiko.SSHException and "No authentication methods" in str(error)
        ):
            return InvalidPipeline(
                f"{self._who} {self.base} refuses our credentials",
                "storage = { key_file = '...' }, or { secret = '${NAME}' }, or an agent where the runner is",
            )
        if isinstance(error, FileNotFoundError):
            return InvalidPipeline(
                f"{self._who} there is no file {error.filename}", "correct storage.key_file"
            )
        return None


class _Reader(Reader):
    """A file over a connection of its own; the requests for what is read at once are sent at once."""

    _client: paramiko.SFTPClient | None = None
    """None: it could not be opened, and the connection is another's by now. Python closes it all the same."""

    def __init__(self, storage: SftpStorage, path: str) -> None:
        self._storage = storage
        client = storage.take()
        try:
            self._file = client.open(_whole(path), "rb")
            super().__init__(self._file.stat().st_size or 0)
        except FileNotFoundError:
            storage.give_back(client)
            raise
        except BaseException:
            _close(client)
            raise
        self._client = client

    def _fetch(self, start: int, length: int) -> bytes:
        with self._storage._told():
            found = b"".join(self._file.readv([(start, length)]))
        if not found:
            raise StorageFailed(
                f"{self._storage.base} has no more of a file than was read", "the run is tried again"
            )
        return found

    def close(self) -> None:
        if self.closed:
            return
        super().close()
        if self._client is not None:
            # Answers to what nobody waits for any more would meet the next user.
            _close(self._client)


def _is_lost(error: Exception) -> bool:
    return isinstance(error, _LOST) or (isinstance(error, OSError) and str(error) == "Socket is closed")


def _close(client: paramiko.SFTPClient) -> None:
    with suppress(Exception):
        if (channel := client.get_channel()) is not None:
            channel.get_transport().close()
        client.close()


def _whole(path: str) -> str:
    return f"/{path.lstrip('/')}"


def _entry(path: str, found: paramiko.SFTPAttributes) -> Entry:
    return Entry(path, found.st_size or 0, (found.st_mtime or 0) * 1_000_000_000)


def make(pipeline: str, base: str, given: Mapping[str, str]) -> SftpStorage:
    """The storage of a host."""
    return SftpStorage(pipeline, base, given)
