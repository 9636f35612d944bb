"""A column of a message is one migration, the one in CONTRIBUTING: the rest follows from `make format`."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conftest import Connect
from engine import Engine

ROOT = Path(__file__).parent.parent.parent
(MIGRATION,) = re.findall(
    r"^   ```sql\n(   -- Each message.*?)^   ```", (ROOT / "CONTRIBUTING.md").read_text(), re.M | re.S
)
TOLD = "a program"

UPGRADE = "import sys; from trunq import install; install.install(sys.argv[1])"
READ = """
import sys
from trunq import Client
from trunq.spark.source.column import BY_NAME
with Client(sys.argv[1]) as client:
    (message,) = client.lease("plain", worker="w", subscription="own")
    print(message.source, client.ack(message))
    batch = client.next_batch("plain", "stream", worker="w")
    print([row.source for row in client.read_batch("plain", "stream", batch.batch_id)])
    for opened in client.stream("plain", "stream", worker="w"):
        print(opened.to_arrow()["source"].to_pylist())
        break
print(BY_NAME["source"].kind)
"""


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The library and its tools, with the migration."""
    for name in ("src/trunq", "tools"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    lines = MIGRATION.splitlines()
    (tmp_path / "src/trunq/sql/migrations/9999_source.sql").write_text(
        "\n".join(line.removeprefix("   ") for line in lines)
    )
    return tmp_path


def complete(copy: Path, *arguments: str) -> str:
    """Run the tool there; what it complains of."""
    command = [sys.executable, str(copy / "tools" / "column.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False).stderr


def run(copy: Path, program: str, database: str) -> str:
    """What a program over the copy says."""
    command, path = [sys.executable, "-c", program, database], str(copy / "src")
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def sources(engine: Engine, table: str) -> list[Any]:
    return [row for (row,) in engine.run(f"select source from {table} order by id")]


@pytest.mark.slow
def test_a_list_that_lacks_a_column_or_has_another_order_is_named(copy: Path) -> None:
    assert "dead.sql: a list of a message's columns lacks one" in complete(copy, "--check")
    assert complete(copy) == complete(copy, "--check") == ""
    path = copy / "src/trunq/sql/functions/work/dead.sql"
    path.write_text(path.read_text().replace("g.headers, g.source,", "g.headers,"))
    assert "work/dead.sql: a list" in complete(copy, "--check")
    path.write_text(path.read_text().replace("g.payload, g.body", "g.body, g.payload"))
    assert re.search(r"work/dead\.sql:\d+: write kind, key, payload, body, headers in", complete(copy))


def test_a_migration_that_forgets_a_table_is_named(copy: Path) -> None:
    path = copy / "src/trunq/sql/migrations/9999_source.sql"
    path.write_text(re.sub(r"alter table trunq\.dead .*\n", "", path.read_text()))
    assert "trunq.dead" in complete(copy)


@pytest.mark.slow
def test_a_new_column_of_a_message_goes_wherever_the_message_goes(
    copy: Path, connect: Connect, database: str
) -> None:
    connection = connect()
    connection.execute("create role column_publisher")
    kinds = {"plain": {}, "laned": {"lanes": "priority,key"}, "unique": {"unique": "refuse"}, "again": {}}
    engines = {Engine(connection, name): options for name, options in kinds.items()}
    *_, again = engines
    try:
        for engine, options in engines.items():
            begin(engine, **options)
        Engine(connection, "graves").create()
        again.ask("drop_queue", force=True)  # its archive stays
        assert complete(copy) == ""
        run(copy, UPGRADE, database)
        begin(again)
        for engine in engines:
            before = engine.lease()
            assert before.messages[0].source is None
            engine.ack(before)
            follow(engine)
        plain = Engine(connection, "plain")
        plain.ask("subscribe", subscription="own")
        plain.ask("subscribe", subscription="stream", mode="exclusive")
        put(plain)
        plain.run("select trunq.rebase()")
        assert run(copy, READ, database).splitlines() == [f"{TOLD} 1", f"['{TOLD}']", f"['{TOLD}']", "string"]
    finally:
        connection.execute("reset role; drop owned by column_publisher; drop role column_publisher")


def begin(engine: Engine, **options: Any) -> None:
    engine.create(**options).publish()
    engine.ask("create_archive")
    engine.ask("grant_role", role="publisher", grantee="column_publisher")


def follow(engine: Engine) -> None:
    """A message, by every way that leads back to a worker, or to an end."""
    engine.ask("set_dead", into="graves")
    id = put(engine)
    seen = [held := engine.lease()]
    engine.answer("retry", held, delays=["1 hour"])
    assert sources(engine, "trunq.delayed") == [TOLD], "retried"
    with engine.clock("2 hours"):
        engine.ask("promote")
        seen.append(held := engine.lease())
        engine.answer("release", held)
        engine.ask("promote")  # a wider row waits in trunq.delayed, without a delay too
        seen.append(held := engine.lease())
        engine.answer("reject", held)
        assert sources(engine, "trunq.dead") == [TOLD]
        assert sources(engine, "trunq_log.graves") == [TOLD]
        engine.run("truncate trunq_log.graves")
        engine.ask("requeue")
        seen.append(held := engine.lease())
        engine.ack(held)
    put_off = put(engine, due_at="2100-01-01")
    assert sources(engine, "trunq.delayed") == [TOLD], "published for later"
    engine.call("cancel", ids=[put_off])
    assert sources(engine, "trunq.dead") == [TOLD], "cancelled"
    engine.ask("purge")
    assert [(held.ids, held.messages[0].source) for held in seen] == [([id], TOLD)] * 4
    with engine.clock("2 hours"):
        while engine.ask("archive"):
            pass
    assert sources(engine, "trunq_archive.{queue}") == [None, *[TOLD] * 4]


def put(engine: Engine, **more: Any) -> int:
    """A message that a publisher, who is nothing else, inserts."""
    columns = ", ".join(["kind", "source", *more])
    values = ", ".join(["'k'", f"'{TOLD}'", *(f"'{value}'" for value in more.values())])
    engine.run("set role column_publisher")
    try:
        return int(engine.fetch(f"insert into {{log}} ({columns}) values ({values}) returning id"))
    finally:
        engine.run("reset role")
