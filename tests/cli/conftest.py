"""Commands run as a user runs them: in this process where that is the same, as processes where it is not."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shelling import Done, Shell
from trunq import Client
from trunq.cli import main


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    """Run `trunq` with arguments, in an empty directory; `input` is what is piped in."""
    monkeypatch.chdir(tmp_path)
    for name in ("TRUNQ_DSN", "TRUNQ_EMBEDDED", "PGHOST", "PGDATABASE", "PGUSER"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: str, input: str = "") -> Done:
        monkeypatch.setattr(sys, "stdin", io.StringIO(input))
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        printed = capsys.readouterr()
        code = ended.value.code
        return Done(code if isinstance(code, int) else 0 if code is None else 1, printed.out, printed.err)

    return run


@pytest.fixture
def trunq(shell: Shell, database: str, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """Run `trunq` on a database that has trunq in it."""
    monkeypatch.setenv("TRUNQ_DSN", database)
    return shell


@pytest.fixture
def client(database: str) -> Iterator[Client]:
    """A client of the same database, to prepare and to look."""
    with Client(database) as connected:
        yield connected
