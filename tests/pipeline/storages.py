"""A server of S3 and a server of SFTP, in processes of the test's own."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from trunq.pipeline.definition.storage import Storage
from trunq.pipeline.storage import Entry, open_storage, split
from waiting import PATIENCE, wait_until

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")

ENVIRONMENT = {"S3_KEY": "a-key-of-tests", "S3_SECRET": "a-secret-of-tests"}
"""What pipelines name as ${S3_KEY} and ${S3_SECRET}."""


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


class S3Server:
    """Moto, which keeps all in memory."""

    def __init__(self, program: str | None = None, **environment: str) -> None:
        self.port = free_port()
        command = ["-m", "moto.server"] if program is None else ["-c", program]
        self._process = subprocess.Popen(
            [sys.executable, *command, "-H", "127.0.0.1", "-p", str(self.port)],
            env={**os.environ, **environment},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        wait_until(self._answers)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def storage(self) -> dict[str, str]:
        """As a pipeline has it."""
        return {"endpoint": self.url, "key": "${S3_KEY}", "secret": "${S3_SECRET}"}

    @property
    def options(self) -> dict[str, str]:
        """As deltalake has it."""
        return {
            "endpoint": self.url,
            "aws_access_key_id": ENVIRONMENT["S3_KEY"],
            "aws_secret_access_key": ENVIRONMENT["S3_SECRET"],
            "region": "us-east-1",
            "allow_http": "true",
        }

    def bucket(self) -> str:
        """A new bucket; its address."""
        name = f"bucket-{uuid.uuid4().hex[:12]}"
        httpx.put(f"{self.url}/{name}", timeout=PATIENCE).raise_for_status()
        return f"s3://{name}"

    def open(self, address: str) -> Any:
        """The storage of an address."""
        given = {"endpoint": self.url, "key": ENVIRONMENT["S3_KEY"], "secret": ENVIRONMENT["S3_SECRET"]}
        return open_storage("a test", address, Storage.model_construct(**given))

    def write(self, address: str, content: bytes) -> None:
        self.open(address).upload(content, split(address)[1])

    def files(self, address: str) -> list[Entry]:
        return list(self.open(address).walk(split(address)[1]))

    def pause(self) -> None:
        """It answers nothing, and keeps what it has."""
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/moto-api/").is_success
        except httpx.TransportError:
            return False


class SftpServer:
    """OpenSSH, whose files lie below a directory."""

    def __init__(self, directory: Path) -> None:
        if SSHD is None:
            pytest.skip("sshd is not installed: apt install openssh-server")
        self.root, self.port = directory, free_port()
        for name in ("host", "user", "stranger"):
            subprocess.run(
                ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", directory / name], check=True
            )
        (directory / "authorized").write_text((directory / "user.pub").read_text())
        kind, key = (directory / "host.pub").read_text().split()[:2]
        (directory / "known").write_text(f"[127.0.0.1]:{self.port} {kind} {key}\n")
        Path("/run/sshd").mkdir(exist_ok=True)
        (directory / "config").write_text(
            f"Port {self.port}\nListenAddress 127.0.0.1\nHostKey {directory}/host\nPidFile none\n"
            f"AuthorizedKeysFile {directory}/authorized\nStrictModes no\nUsePAM no\nPermitRootLogin yes\n"
            "PasswordAuthentication no\nSubsystem sftp internal-sftp\n"
        )
        self._process: Any = None
        self.start()

    def address(self, path: Path | str) -> str:
        user = os.environ.get("USER") or "root"
        return f"sftp://{user}@127.0.0.1:{self.port}{path}"

    @property
    def storage(self) -> dict[str, str]:
        """As a pipeline has it."""
        return {"key_file": str(self.root / "user"), "known_hosts": str(self.root / "known")}

    def start(self) -> None:
        self._process = subprocess.Popen(
            [SSHD or "", "-D", "-e", "-f", self.root / "config"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        wait_until(self._answers)

    def stop(self) -> None:
        """With the connections that it has."""
        if self._process.poll() is None:
            for each in psutil.Process(self._process.pid).children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    each.kill()
            self._process.kill()
            self._process.wait()

    def _answers(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), 1).close()
        except OSError:
            return False
        return True


def old(path: Path, seconds: float = 60) -> None:
    """As if a file had been written a while ago."""
    then = time.time() - seconds
    os.utime(path, (then, then))
