"""The fixtures that pytest finds where trunq is installed, as its users' tests get them."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

from trunq import embedded

ROOT = Path(__file__).parent.parent

UNUSED = """
import os
import sys
from pathlib import Path

def test_nothing_was_imported_for_nothing(pytestconfig):
    assert pytestconfig.pluginmanager.has_plugin("pytest_trunq")
    assert {"trunq", "psycopg", "pydantic"} & set(sys.modules) == set()
    assert not list(Path(os.environ["TMPDIR"]).glob("trunq-*"))
"""

USED = """
import os

import psycopg
import pytest

import trunq
from trunq.embedded import Embedded

seen = []

@pytest.fixture(scope="session")
def trunq_template(trunq_template):
    with trunq.Client(trunq_template) as client:
        client.create_queue("orders")
    return trunq_template

@pytest.mark.parametrize("turn", [1, 2])
def test_each_has_a_database_for_itself(trunq_server, trunq_dsn, trunq_client, turn):
    assert isinstance(trunq_server, Embedded)
    assert os.environ["TRUNQ_DSN"] == trunq_dsn not in seen
    seen.append(trunq_dsn)
    assert trunq_client.list_messages("orders") == []
    with trunq.Client() as by_the_environment:
        by_the_environment.publish("orders", turn)
    assert [message.payload for message in trunq_client.list_messages("orders")] == [turn]

def test_they_are_dropped_and_the_environment_is_as_it_was(trunq_server, trunq_template):
    assert len(seen) == 2
    assert "TRUNQ_DSN" not in os.environ
    with psycopg.connect(trunq_server.dsn) as connection:
        query = "select count(*) from pg_database where datname like 'trunq%'"
        assert connection.execute(query).fetchone() == (1,)
"""

OWN = """
import types

import psycopg
import pytest

@pytest.fixture(scope="session")
def trunq_server():
    return types.SimpleNamespace(dsn={dsn!r})

def test_a_server_of_ones_own_stands_in(trunq_client, trunq_dsn):
    assert trunq_client.create_queue("orders")
    with psycopg.connect(trunq_dsn) as mine, psycopg.connect({dsn!r}) as other:
        query = "select system_identifier from pg_control_system()"
        assert mine.execute(query).fetchone() == other.execute(query).fetchone()
"""


def run(folder: Path, test: str) -> subprocess.CompletedProcess[str]:
    """Run a test in a project of its own; the plugin is named, for trunq may not be installed."""
    (folder / "test_it.py").write_text(test)
    ours = ("PG", "TRUNQ_", "PYTEST")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    environment |= {"PYTEST_PLUGINS": "pytest_trunq", "TMPDIR": str(folder)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:asyncio"]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=120
    )


def test_a_project_that_does_not_use_the_fixtures_pays_nothing_for_them(tmp_path: Path) -> None:
    done = run(tmp_path, UNUSED)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_test_gets_a_database_and_none_is_left(tmp_path: Path) -> None:
    done = run(tmp_path, USED)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not list(tmp_path.glob("trunq-*"))


def test_a_server_of_ones_own_is_used_and_left_as_it_was(tmp_path: Path, server: embedded.Embedded) -> None:
    done = run(tmp_path, OWN.format(dsn=server.dsn))
    assert done.returncode == 0, done.stdout + done.stderr


def test_pytest_is_told_where_the_fixtures_are() -> None:
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]
    assert [import_module(module).__name__ for module in points.values()] == ["pytest_trunq"]
