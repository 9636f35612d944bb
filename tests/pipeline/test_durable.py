"""What a crash of a machine, or of one server of two, must not take; and what looks like one and is none."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from pipeline.attempting import begin
from pipeline.piping import Bench
from trunq.pipeline.control import Control, Run
from trunq.pipeline.run import Executor
from trunq.pipeline.sink import directory, lake, parquet
from trunq.pipeline.sink.directory import StageDirectory
from trunq.pipeline.sink.table import TableSink

TABLE = {"format": "table", "table": "source"}
DELTA = {"format": "delta", "path": "moved"}
SINKS: dict[str, dict[str, Any]] = {
    "append": DELTA,
    "upsert": {**DELTA, "mode": "upsert", "key": ["id"]},
    "partitions": {**DELTA, "partition_by": ["word"]},
}


@pytest.fixture
def filled(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A table `source` of two rows."""
    monkeypatch.chdir(tmp_path)
    bench.sql("create table source (id int, word text); insert into source values (1, 'a'), (2, 'b')")
    return bench


@pytest.mark.slow
@pytest.mark.parametrize("mode", SINKS)
def test_a_delta_table_is_on_the_disk_before_its_run_ends(
    filled: Bench, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    synced: set[str] = set()
    sync = lake.sync
    monkeypatch.setattr(lake, "sync", lambda path: (synced.add(str(path)), sync(path)))
    finish = Control.finish

    def check(self: Control, run: Run, number: int, attempt: int) -> Any:
        table = DeltaTable("moved")
        log = Path("moved/_delta_log")
        paths = {*map(Path, table.to_pyarrow_dataset().files)}
        files = {Path("moved", each) for each in paths}
        needed = {log, *log.glob("*.json"), *files, *(each.parent for each in files)}
        assert {str(each) for each in needed} <= synced
        return finish(self, run, number, attempt)

    monkeypatch.setattr(Control, "finish", check)
    name = filled.make(TABLE, SINKS[mode])
    assert filled.run(name)["rows_out"] == 2
    filled.sql("insert into source values (3, 'c')")
    assert filled.run(name)["rows_out"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["append", "partitions"])
def test_files_are_on_the_disk_before_the_log_names_them(
    filled: Bench, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    synced: set[int] = set()
    named: list[Path] = []
    sync, write = lake.sync, DeltaTable.create_write_transaction
    for module in (directory, lake):
        monkeypatch.setattr(module, "sync", lambda path: (synced.add(path.stat().st_ino), sync(path)))

    def check(self: DeltaTable, actions: list[Any], *given: Any, **more: Any) -> None:
        named.extend(Path("moved", unquote(action.path)) for action in actions)
        # A file keeps its number when it is moved to where the table has it.
        assert {each.stat().st_ino for file in named for each in (file, file.parent)} <= synced
        write(self, actions, *given, **more)

    monkeypatch.setattr(DeltaTable, "create_write_transaction", check)
    filled.run(filled.make(TABLE, SINKS[mode]))
    assert len(named) == (2 if mode == "partitions" else 1)


@pytest.mark.slow
def test_parquet_files_are_on_the_disk_before_their_directory_has_its_name(
    filled: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And that name is before the run ends."""
    synced: set[int] = set()
    sync, rename, finish = directory.sync, Path.rename, Control.finish
    for module in (directory, parquet):
        monkeypatch.setattr(module, "sync", lambda path: (synced.add(path.stat().st_ino), sync(path)))

    def check_files(self: Path, target: Path) -> Path:
        assert {each.stat().st_ino for each in (self, *self.iterdir())} <= synced
        synced.clear()
        return rename(self, target)

    def check_name(self: Control, run: Run, number: int, attempt: int) -> Any:
        assert Path("moved").stat().st_ino in synced
        return finish(self, run, number, attempt)

    monkeypatch.setattr(Path, "rename", check_files)
    monkeypatch.setattr(Control, "finish", check_name)
    assert filled.run(filled.make(TABLE, {"format": "parquet", "path": "moved"}))["rows_out"] == 2
    assert len([*Path("moved").glob("run-*/*.parquet")]) == 1


@pytest.mark.slow
def test_a_sink_commits_to_the_disk_where_others_need_not(filled: Bench) -> None:
    how = "text default current_setting('synchronous_commit')"
    filled.sql(f"create table moved (id int, word text, how {how})")
    assert filled.one("show synchronous_commit") == "off"
    filled.run(filled.make(TABLE, {"format": "table", "table": "moved"}))
    assert filled.sql("select distinct how from moved") == [("on",)]


@pytest.mark.slow
def test_one_who_is_frozen_in_a_commit_is_waited_for_as_long_as_the_database_says_else_for_a_minute(
    filled: Bench,
) -> None:
    how = "text default current_setting('idle_in_transaction_session_timeout')"
    filled.sql(f"create table moved (id int, word text, how {how})")
    name = filled.make(TABLE, {"format": "table", "table": "moved"})
    filled.run(name)
    assert filled.sql("select distinct how from moved") == [("1min",)]
    database = filled.one("select current_database()")
    filled.sql(f"alter database {database} set idle_in_transaction_session_timeout = '30s'")
    filled.sql("delete from source; insert into source values (3, 'c')")
    filled.run(name)
    assert filled.sql("select id, how from moved where id = 3") == [(3, "30s")]


@pytest.mark.slow
def test_what_discards_a_stage_leaves_no_setting_to_who_uses_its_connection_next(filled: Bench) -> None:
    made, run = begin(filled, filled.make(TABLE, {"format": "table", "table": "moved"}))
    sink = TableSink(made, filled.dsn)
    sink._connected = lambda: nullcontext(filled.connection)  # type: ignore[method-assign,assignment,return-value]
    sink.discard(run())
    assert filled.one("show lock_timeout") == "0"


@pytest.mark.slow
def test_the_row_of_an_attempt_is_on_the_disk_before_a_sink_has_its_number(filled: Bench) -> None:
    with filled.connection.transaction():
        filled.sql("select trunq._stage_run(1, '{}', 0, 0, 0)")
        assert filled.one("show synchronous_commit") == "local"


@pytest.mark.slow
def test_a_commit_that_fails_after_its_entry_is_in_the_log_keeps_its_files(
    filled: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = DeltaTable.create_write_transaction

    def fail(*given: Any, **named: Any) -> None:
        write(*given, **named)
        raise CommitFailedError("the answer was lost")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", fail)
    assert filled.run(filled.make(TABLE, DELTA))["rows_out"] == 2
    assert sorted(DeltaTable("moved").to_pyarrow_table()["id"].to_pylist()) == [1, 2]


@pytest.mark.slow
def test_a_run_that_was_killed_behind_the_commit_is_done_by_its_mark(
    filled: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = filled.client.run_pipeline(filled.make(TABLE, {"format": "table", "table": "moved"}))

    def kill(*given: Any) -> None:
        raise OSError("killed")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="killed"):
        patch.setattr(Control, "finish", kill)
        filled.execute(message)
    assert filled.one("select count(*) from moved") == 2
    done = filled.execute(message)
    assert (done["number"], done["outcome"], done["rows_out"]) == (1, "done", 2)
    assert filled.one("select count(*) from moved") == 2


@pytest.mark.slow
def test_a_run_that_begins_leaves_the_stage_of_a_backfill(tmp_path: Path) -> None:
    stage = StageDirectory("p", str(tmp_path))
    filling = Run("p", "0a-1b", 1, 1, 5, {}, backfill=5, attempt=7)
    old = Run("p", "0a-1b", 2, 9, 6, {}, attempt=8)
    stage.begin(filling), stage.begin(old)
    stage.begin(Run("p", "0a-1b", 3, 10, 7, {}, attempt=9))
    assert stage.directory(filling).exists()
    assert not stage.directory(old).exists()


@pytest.mark.slow
def test_one_who_finds_that_others_have_ended_its_run_and_the_next_is_answered(
    filled: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = filled.make(TABLE, {"format": "table", "table": "moved"})
    message = filled.client.run_pipeline(name)
    asked = filled.asked(message)
    attempt = Control.attempt

    def slow(self: Control, run: Run) -> int | None:
        monkeypatch.setattr(Control, "attempt", attempt)
        Executor(filled.client, filled.dsn).execute(asked)
        filled.sql("insert into source values (3, 'c')")
        assert filled.run(name)["number"] == 2
        return attempt(self, run)

    monkeypatch.setattr(Control, "attempt", slow)
    done = filled.executor.execute(asked)
    assert (done["number"], done["outcome"], done["rows_out"]) == (1, "done", 2)
    assert filled.one("select count(*) from moved") == 3
