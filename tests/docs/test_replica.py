"""The examples of a table that is copied into another database."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psycopg

from waiting import wait_until

EXAMPLES = Path(__file__).parents[2] / "examples"
REPLICA = EXAMPLES / "replica.py"


def start(source: str, target: str, transfers: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(REPLICA), source, target, str(transfers)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_killed_and_started_again_it_has_applied_each_change_once(new_database: Callable[..., str]) -> None:
    source, target = new_database(), new_database()
    killed = start(source, target, 100_000)
    with psycopg.connect(target, autocommit=True) as look:

        def applied() -> int:
            row = look.execute("select to_regclass('applied')").fetchone()
            if row is None or row[0] is None:
                return 0
            counted = look.execute("select count(*) from applied").fetchone()
            return int(counted[0]) if counted is not None else 0

        try:
            wait_until(lambda: applied() > 60, 60)
        finally:
            killed.kill()
            killed.communicate()
        again = start(source, target, 10)
        out, err = again.communicate(timeout=120)
        assert again.returncode == 0, err
        assert out.endswith("each applied once; the tables are equal\n")
        assert applied() == int(out.split()[0]) > 60
        members = look.execute("select count(distinct member) from applied").fetchone()
    assert members == (3,)


def test_a_pipeline_copies_the_table_and_its_changes(
    new_database: Callable[..., str], environment: dict[str, str]
) -> None:
    source, target = new_database(), new_database()
    environment |= {"TRUNQ_DSN": source, "SHOP": source, "REPORTS": target}
    rows = "select id, balance from account order by id"

    def trunq(*arguments: str) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "trunq", "pipeline", *arguments],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    with psycopg.connect(source, autocommit=True) as here, psycopg.connect(target, autocommit=True) as there:
        here.execute("create table account (id int primary key, balance int)")
        here.execute("insert into account select g, 100 from generate_series(1, 20) g")
        trunq("create", str(EXAMPLES / "replica.toml"))
        trunq("run", "accounts")
        assert there.execute(rows).fetchall() == here.execute(rows).fetchall()
        here.execute("update account set balance = balance + 1 where id % 2 = 0")
        here.execute("delete from account where id % 5 = 0; update account set id = id + 100 where id < 3")
        trunq("run", "accounts")
        copied = there.execute(rows).fetchall()
        assert copied == here.execute(rows).fetchall()
        assert len(copied) == 16
