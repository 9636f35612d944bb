"""The README's program does what the README says, run as it is written there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def block(after: str, language: str) -> str:
    """The first block of a language after a text."""
    found = re.search(rf"```{language}\n(.*?)```", README[README.index(after) :], re.DOTALL)
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
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "done" in done.stdout
    orders = connection.execute("select id, customer, total from orders").fetchall()
    assert orders == [(1, "Ada", 42)]
    assert connection.execute("select order_id from invoice").fetchall() == [(1,)]


def test_the_program_is_among_the_examples() -> None:
    assert (ROOT / "examples" / "shop.py").read_text() == block("## Your own program", "python")


def test_the_statements_of_the_readme_publish(database: str, connection: psycopg.Connection[Any]) -> None:
    connection.execute("select trunq.create_queue('orders')")
    *statements, copy, _ = block("## Publishing", "sql").split(";")
    for statement in statements:
        connection.execute(statement.encode())
    with connection.cursor() as cursor, cursor.copy(copy.encode()) as rows:
        rows.write_row(("placed", '{"order": 2}'))
    states = connection.execute("select state from trunq.list_messages('orders') order by id").fetchall()
    assert [state for (state,) in states] == ["ready", "ready", "scheduled", "ready"]


def test_what_the_readme_says_of_several_readers_runs(
    database: str, connection: psycopg.Connection[Any]
) -> None:
    from trunq import Client  # noqa: PLC0415

    with Client(database) as client:
        client.create_queue("orders")
        subscribing, _, reading = block("## Several readers", "python").partition("\n\n")
        names: dict[str, Any] = {"client": client}
        exec(compile(subscribing, "README.md", "exec"), names)  # noqa: S102
        client.publish("orders", {"order": 1})
        client.tick("orders", force=True)
        exec(compile(reading, "README.md", "exec"), names)  # noqa: S102
        assert names["message"].payload == {"order": 1}
        assert client.next_batch("orders", "ledger", "ledger-1") is None
        assert {row.subscription for row in client.status("orders")} == {"default", "audit", "ledger"}


def test_the_first_screen_has_the_two_commands_and_the_program() -> None:
    screen = README.splitlines()[:30]
    assert any(line.startswith("make demo") for line in screen)
    assert any(line.startswith("make test") for line in screen)
    assert "## Your own program" in screen
