"""A cluster brought to another version by pg_upgrade: transaction ids continue, and so does everything."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from calling import answer, ask, call, drain, lease, publish, refused
from trunq import embedded, install
from trunq.embedded import Embedded
from trunq.embedded.server import _account, _as_account

STREAM = {"queue": "q", "subscription": "stream"}


def upgraded(old: Path, new: Path, major: int) -> Embedded:
    """A server on what pg_upgrade makes in `new` of the cluster in `old`, which has stopped."""
    with embedded.start(new, major=major) as server:
        binaries, sockets = server.binaries, server._socket_directory()
        account = _account()
    command = [binaries / "pg_upgrade", "--username=postgres", f"--socketdir={sockets}"]
    command += [f"--old-datadir={old / 'data'}", f"--new-datadir={new / 'data'}"]
    command += [f"--old-bindir={binaries}", f"--new-bindir={binaries}"]
    prefix = _as_account(account, [binaries, new]) if account else []
    done = subprocess.run([*prefix, *command], cwd=new, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (new / "delete_old_cluster.sh").unlink()
    return embedded.start(new, major=major)


@pytest.fixture
def places() -> Iterator[tuple[Path, Path]]:
    """Directories of two clusters."""
    with (
        tempfile.TemporaryDirectory(prefix="trunq-") as old,
        tempfile.TemporaryDirectory(prefix="trunq-") as new,
    ):
        yield Path(old), Path(new)


@pytest.mark.slow
def test_after_pg_upgrade_adopt_lets_everything_go_on(server: Embedded, places: tuple[Path, Path]) -> None:
    old, new = places
    with embedded.start(old, major=server.major) as before:
        install.install(before.dsn)
        with psycopg.connect(before.dsn, autocommit=True) as session:
            story = tell(session)
    with (
        upgraded(old, new, server.major) as after,
        psycopg.connect(after.dsn, autocommit=True) as session,
    ):
        with refused("TQ010", "pg_upgrade", "trunq.adopt()"):
            lease(session, "q")
        early = publish(session, "q")
        assert ask(session, "adopt") is True
        assert ask(session, "adopt") is False
        assert call(session, "list_ticks", queue="q") == story["ticks"]
        (batch,) = call(session, "next_batch", **STREAM, worker="w")
        # The token is a new one each time somebody asks.
        assert batch._replace(token=0, attempt=1) == story["batch"]._replace(token=0)
        assert batch.attempt == 2, "asked for again, it is at the next"
        read = [row.id for row in call(session, "read_batch", **STREAM, batch_id=batch.batch_id)]
        assert read == story["read"]
        assert ask(session, "finish_batch", **STREAM, batch_id=batch.batch_id, token=batch.token)
        held = story["held"]
        assert answer(session, "ack", held, held.ids[:1]) == 1
        assert drain(session, "q") == [*story["left"], *early]


def tell(session: psycopg.Connection[Any]) -> dict[str, Any]:
    """Have an open lease, an open batch, and messages that nobody has read."""
    ask(session, "create_queue", queue="q")
    ask(session, "subscribe", **STREAM, mode="exclusive")
    ids = publish(session, "q", 5)
    ask(session, "tick", queue="q", force=True)
    (batch,) = call(session, "next_batch", **STREAM, worker="w", lease_time="1 hour")
    return {
        "held": lease(session, "q", 2, lease_time="1 hour"),
        "left": ids[2:],
        "batch": batch,
        "read": ids,
        "ticks": call(session, "list_ticks", queue="q"),
    }
