"""The programs of the README and of the tour do what the pages say, run as they are written there."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from trunq import Client
from waiting import wait_until

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
TOUR = (ROOT / "docs/tour.md").read_text()

PUBLISH = "select trunq.publish('orders', jsonb_build_object('order', %s::int))"


def block(after: str, language: str) -> str:
    """The first block of a language after a text."""
    page = README if after in README else TOUR
    found = re.search(rf"```{language}\n(.*?)```", page[page.index(after) :], re.DOTALL)
    assert found
    return found[1]


def test_the_program_publishes_handles_and_commits(
    tmp_path: Path, database: str, connection: psycopg.Connection[Any]
) -> None:
    (tmp_path / "shop.py").write_text(block("## Your own program", "python"))
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block("## Your own program", "sh")],
        cwd=tmp_path,
        env={**os.environ, "TRUNQ_DSN": database, "PATH": programs},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "done" in done.stdout
    orders = connection.execute("select id, customer, total from orders").fetchall()
    assert orders == [(1, "Ada", 42)]
    assert connection.execute("select order_id from invoice").fetchall() == [(1,)]


@pytest.mark.parametrize(
    ("program", "after"),
    [("shop.py", "## Your own program"), ("ledger.py", "## Several readers"), ("lake.py", "## Spark")],
)
def test_the_programs_are_among_the_examples(program: str, after: str) -> None:
    assert (ROOT / "examples" / program).read_text() == block(after, "python")


def test_the_page_about_spark_runs_the_program_of_the_tour() -> None:
    assert (
        f"`lake.py`:\n\n```python\n{block('## Spark', 'python')}```"
        in (ROOT / "docs/pipeline/spark.md").read_text()
    )


def test_the_statements_of_the_tour_publish(database: str, connection: psycopg.Connection[Any]) -> None:
    connection.execute("select trunq.create_queue('orders')")
    *statements, copy, _ = block("## Publishing", "sql").split(";")
    for statement in statements:
        connection.execute(statement.encode())
    with connection.cursor() as cursor, cursor.copy(copy.encode()) as rows:
        rows.write_row(("placed", '{"order": 2}'))
    states = connection.execute("select state from trunq.list_messages('orders') order by id").fetchall()
    assert [state for (state,) in states] == ["ready", "ready", "scheduled", "ready"]


@pytest.fixture
def following(tmp_path: Path, database: str, connection: psycopg.Connection[Any]) -> Iterator[Path]:
    """The tour's batch reader with its leader, in a folder that was empty; one order is there."""
    connection.execute("select trunq.create_queue('orders')")
    connection.execute(PUBLISH, (1,))
    (tmp_path / "ledger.py").write_text(block("## Several readers", "python"))
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    log = tmp_path / "log"
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", block("## Several readers", "sh")],
            cwd=tmp_path,
            env={**os.environ, "TRUNQ_DSN": database, "PATH": programs, "HOME": str(tmp_path)},
            stderr=stderr,
            start_new_session=True,
        )
    yield log
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def test_the_batch_reader_reads_what_is_there_and_what_comes(
    following: Path, connection: psycopg.Connection[Any]
) -> None:
    def ledger() -> list[Any]:
        if connection.execute("select to_regclass('ledger')").fetchone() == (None,):
            return []
        return connection.execute("select order_id from ledger order by message").fetchall()

    wait_until(lambda: ledger() == [(1,)], 120, f"see {following}")
    connection.execute(PUBLISH, (2,))
    wait_until(lambda: ledger() == [(1,), (2,)], 120, f"see {following}")


def test_several_pools_of_workers_see_every_message(database: str) -> None:
    with Client(database) as client:
        client.create_queue("orders")
        for call in re.findall(r'`(client\.subscribe\("[^`]*\))`', TOUR):
            eval(call, {"client": client})  # noqa: S307
        client.publish("orders", {"order": 1})
        assert {(row.subscription, row.ready) for row in client.status("orders")} == {
            ("default", 1),
            ("audit", 1),
        }


def test_the_first_screen_has_the_two_commands_and_the_program() -> None:
    screen = README.splitlines()[:30]
    assert any(line.startswith("make demo") for line in screen)
    assert any(line.startswith("make test") for line in screen)
    assert "## Your own program" in screen


def test_the_readme_is_read_in_five_minutes() -> None:
    assert len(README.split()) < 1200
