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

T = TypeVar("T")

_SECONDS: Final = 30.0
"""For a connection, and for an answer."""
_AHEAD: Final = 1 << 20
_LOST: Final = (EOFError, paramiko.SSHException, ConnectionError, TimeoutError)


class SftpStorage:
    """A host. One connection, which is made anew when it was lost."""

    def __init__(self, pipeline: str, base: str, given: Mapping[str, str]) -> None:
        self.base, self._who = base, f"pipeline {pipeline}:"
        self._given = given
        self._client: paramiko.SFTPClient | None = None
        self._holds = threading.RLock()

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
        return cast(BinaryIO, self._do(lambda client: client.open(_whole(path), "rb", _AHEAD)))

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
            for _ in range(tries - 1):
                try:
                    return work(self._connected())
                except _LOST:
                    self._forget()
            try:
                return work(self._connected())
            except _LOST:
                self._forget()
                raise

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except _LOST as error:
            raise StorageFailed(
                f"{self._who} {self.base} does not answer: {str(error) or type(error).__name__}",
                "the run is tried again",
            ) from None
        except PermissionError as error:
            raise self._refused(error) from None

    def _refused(self, error: OSError) -> StorageFailed:
        return StorageFailed(
            f"{self._who} {self.base} refuses: {error}", "give the user the right, and the run is tried again"
        )

    def _connected(self) -> paramiko.SFTPClient:
        with self._holds:
            channel = None if self._client is None else self._client.get_channel()
            if self._client is None or channel is None or channel.closed:
                self._client = self._connect()
            return self._client

    def _forget(self) -> None:
        with self._holds:
            if self._client is not None:
                with suppress(Exception):
                    if (channel := self._client.get_channel()) is not None:
                        channel.get_transport().close()
                    self._client.close()
            self._client = None

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


def _whole(path: str) -> str:
    return f"/{path.lstrip('/')}"


def _entry(path: str, found: paramiko.SFTPAttributes) -> Entry:
    return Entry(path, found.st_size or 0, (found.st_mtime or 0) * 1_000_000_000)


def make(pipeline: str, base: str, given: Mapping[str, str]) -> SftpStorage:
    """The storage of a host."""
    return SftpStorage(pipeline, base, given)
