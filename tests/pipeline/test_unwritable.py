"""A sink that cannot be written to says why, keeps nothing, and takes all when it can."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from deltalake import DeltaTable
from psycopg.conninfo import make_conninfo

from pipeline.attempting import Attempt, begin
from pipeline.piping import Bench
from trunq.pipeline.errors import SinkUnwritable

TABLE = {"format": "table", "table": "source"}


@pytest.fixture
def filled(bench: Bench) -> Bench:
    """A table `source` of a few hundred kilobytes that do not become less by compression."""
    bench.sql("create table source (id int, word text)")
    bench.sql(
        "insert into source select g, (select string_agg(md5(g.g::text || h.h), '')"
        " from generate_series(1, 20) h) from generate_series(1, 3000) g"
    )
    return bench


@contextmanager
def small_disk(path: Path, size: str) -> Iterator[None]:
    """A file system of that size, where we may mount one."""
    path.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", path], check=False,
                      capture_output=True).returncode:  # fmt: skip
        pytest.skip("nothing can be mounted here")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", path], check=True)


@pytest.mark.parametrize("sink", ["delta", "parquet"])
def test_a_full_disk_is_told_and_with_room_the_run_goes_on(filled: Bench, tmp_path: Path, sink: str) -> None:
    path = tmp_path / "lake"
    with small_disk(path, "256k"):
        name = filled.make(TABLE, {"format": sink, "path": str(path)})
        with pytest.raises(SinkUnwritable, match=f"cannot write to {path}: No space left on device"):
            filled.run(name)
        assert not [*path.glob("*.parquet"), *path.glob("run-*")]
        subprocess.run(["mount", "-o", "remount,size=32m", path], check=True)
        filled.run(name)
        if sink == "delta":
            assert DeltaTable(str(path)).to_pyarrow_table().num_rows == 3000
        else:
            assert len(list(path.glob("run-*"))) == 1
    assert filled.client.list_runs(name)[0].rows_out == 3000


@pytest.mark.parametrize("sink", ["delta", "parquet"])
def test_a_directory_that_is_closed_to_us_is_told(filled: Bench, tmp_path: Path, sink: str) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    path = tmp_path / "lake"
    path.mkdir(mode=0o500)
    with pytest.raises(SinkUnwritable, match=f"cannot write to {path}: Permission denied"):
        filled.run(filled.make(TABLE, {"format": sink, "path": str(path)}))


def test_a_right_that_was_revoked_is_told_and_when_it_is_granted_the_run_goes_on(filled: Bench) -> None:
    writer = f"writer_{filled.one('select pg_current_xact_id()')}"
    filled.sql(f"create role {writer} login; create schema trunq_sink authorization {writer}")
    filled.sql("create table moved (id int, word text)")
    filled.sql(f"grant select, insert on moved to {writer}")
    try:
        dsn = make_conninfo(filled.dsn, user=writer)
        name = filled.make(TABLE, {"format": "table", "table": "moved", "dsn": dsn})
        filled.run(name)
        filled.sql(f"revoke insert on moved from {writer}; insert into source values (0, 'new')")
        with pytest.raises(SinkUnwritable, match=f"{name} may not write to moved: permission denied"):
            filled.run(name)
        assert filled.one("select count(*) from moved") == 3000
        filled.sql(f"grant insert on moved to {writer}")
        filled.run(name)
        assert filled.one("select count(*) from moved") == 3001
    finally:
        filled.sql(f"drop owned by {writer} cascade; drop role {writer}")


def test_a_table_that_is_dropped_between_stage_and_commit_is_told(bench: Bench) -> None:
    bench.sql("create table source (id int); create table moved (id int, word text)")
    name = bench.make(TABLE, {"format": "table", "table": "moved"})
    made, run = begin(bench, name)
    attempt = Attempt(bench, made, run(), "A", 3)
    attempt.write()
    bench.sql("drop table moved")
    with pytest.raises(SinkUnwritable, match='was dropped while a run wrote to moved: relation "moved"'):
        attempt.commit()
    mark = attempt.sink.applied(attempt.run)
    assert mark is not None
    assert mark.number == 0
    again = Attempt(bench, made, run(), "B", 2)
    again.write()
    again.commit()
    assert bench.sql("select distinct word from moved") == [("B",)]


def test_a_row_that_the_table_refuses_is_told(bench: Bench) -> None:
    bench.sql("create table source (id int); create table moved (id int check (id < 5))")
    bench.sql("insert into source values (1), (7)")
    with pytest.raises(SinkUnwritable, match=r"moved refuses a row: .*moved_id_check"):
        bench.run(bench.make(TABLE, {"format": "table", "table": "moved"}))
    assert bench.one("select count(*) from moved") == 0
