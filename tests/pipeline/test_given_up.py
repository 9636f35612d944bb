"""Runs that cannot succeed, and how to get out of them: cancelled, changed, skipped; sinks that were set
back.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.attempting import FIRST, TABLE, Attempt, begin, words
from pipeline.piping import Bench
from trunq.errors import InvalidPipeline, TrunqError
from trunq.pipeline.control import Control
from trunq.pipeline.errors import RunOver
from trunq.pipeline.monitor import Monitor

SOURCE = {"format": "table", "table": "source"}
FITS = {"format": "table", "table": "fits"}


@pytest.fixture
def narrow(bench: Bench) -> Bench:
    """A source whose numbers are too wide for the table `moved`."""
    bench.sql("create table source (id int); insert into source values (1)")
    bench.sql("create table moved (id smallint)")
    return bench


def fail(bench: Bench, name: str, times: int = 1) -> None:
    for _ in range(times):
        with pytest.raises(TrunqError):
            bench.run(name)


def state(bench: Bench, name: str) -> Any:
    (row,) = (row for row in bench.client.list_pipelines() if row.pipeline == name)
    return row


def outcomes(bench: Bench, name: str) -> list[str | None]:
    return [run.outcome for run in reversed(bench.client.list_runs(name))]


def test_a_run_that_nobody_is_at_ends_as_soon_as_it_is_cancelled(narrow: Bench) -> None:
    name = narrow.make(SOURCE, TABLE)
    message = narrow.client.run_pipeline(name)
    with pytest.raises(InvalidPipeline, match="smallint"):
        narrow.execute(message)
    other = {"format": "table", "table": "elsewhere"}
    with pytest.raises(InvalidPipeline, match="open run") as caught:
        narrow.make(other, TABLE, name=name)
    assert f"trunq pipeline cancel {name}" in str(caught.value)
    assert narrow.client.cancel_pipeline(name)
    assert not narrow.client.cancel_pipeline(name)
    assert (state(narrow, name).open_run, outcomes(narrow, name)) == (None, ["cancelled"])
    narrow.sql("create table elsewhere (id smallint); insert into elsewhere values (7)")
    narrow.make(other, TABLE, name=name)
    # The message that asked for it has its answer, and the next run is of what the pipeline is now.
    assert narrow.execute(message)["outcome"] == "cancelled"
    assert narrow.run(name)["number"] == 2
    assert narrow.sql("select id from moved") == [(7,)]
    # Its sink has noted by then that the first run brought nothing.
    assert narrow.one("select bool_and(is_settled) from trunq.pipeline_run")


def test_what_does_not_change_the_slice_of_an_open_run_may_change(narrow: Bench, tmp_path: Path) -> None:
    name = narrow.make(SOURCE, TABLE)
    fail(narrow, name)
    narrow.sql("insert into source values (2)")
    narrow.make(SOURCE, FITS, name=name)
    assert narrow.run(name)["number"] == 2
    assert narrow.sql("select id from fits") == [(1,), (2,)]
    assert [run.rows_out for run in narrow.client.list_runs(name)] == [1, 1]

    (tmp_path / "a.csv").write_text("id\n1\nx\n")
    files = {"format": "csv", "path": f"{tmp_path}/*.csv", "settled": 0, "types": {"id": "int64"}}
    sink = {"format": "table", "table": "of_files"}
    name = narrow.make(files, sink)
    fail(narrow, name)
    narrow.make({**files, "types": {"id": "string"}}, sink, name=name)
    narrow.run(name)
    assert [(run.outcome, run.rows_out) for run in narrow.client.list_runs(name)] == [("done", 2)]


def test_a_slice_is_skipped_and_says_what_it_had(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "bad.csv").write_text("id\n1\nx\n")
    files = {"format": "csv", "path": f"{tmp_path}/*.csv", "settled": 0, "types": {"id": "int64"}}
    name = bench.make(files, TABLE)
    assert bench.client.skip_pipeline(name) is None
    fail(bench, name)
    skipped = bench.client.skip_pipeline(name)
    assert skipped["number"] == 1
    assert [path for path, *_ in skipped["slice"]["files"]] == [str(tmp_path / "bad.csv")]
    (tmp_path / "good.csv").write_text("id\n2\n")
    assert bench.run(name)["rows_out"] == 1
    assert bench.run(name)["outcome"] == "nothing new"
    assert bench.sql("select id from moved") == [(2,)]
    assert outcomes(bench, name) == ["skipped", "done"]

    bench.sql("create table source (id int); insert into source values (1)")
    bench.sql("create table narrow (id smallint)")
    name = bench.make(SOURCE, {"format": "table", "table": "narrow"})
    fail(bench, name)
    skipped = bench.client.skip_pipeline(name)
    assert skipped["slice"]["hi"] == skipped["after"]["snapshot"]
    bench.sql("alter table narrow alter id type int; insert into source values (2)")
    bench.run(name)
    assert bench.sql("select id from narrow") == [(2,)]
    # What a function has read, only its end tells.
    name = bench.make({"format": "python", "function": "pipeline.transforms:nothing_there"}, TABLE)
    fail(bench, name)
    bench.sql("select trunq._begin_run(%s, 1, '{}', pg_current_snapshot()::text, 0)", name)
    with pytest.raises(InvalidPipeline, match="where the next one begins") as caught:
        bench.client.skip_pipeline(name)
    assert f"trunq pipeline cancel {name}" in str(caught.value)


@pytest.mark.parametrize("kind", FIRST)
@pytest.mark.parametrize("way", ["cancel", "skip"])
def test_what_is_given_up_is_in_the_sink_once_or_never_whoever_still_works_at_it(
    bench: Bench, made: Callable[[str], str], kind: str, way: str
) -> None:
    """Staged, and frozen for longer than its hold, an attempt wakes up before or after the next run begins.

    One that has not staged all may not any more.
    """
    name = made(kind)
    bench.sql("insert into source values (1, 'next', 'run')")

    def give_up(*, is_staged: bool) -> Attempt:
        pipeline, run = begin(bench, name, {"of": "test", "after": {}})
        frozen = Attempt(bench, pipeline, run(), "frozen", 3)
        if is_staged:
            next(frozen.steps)()
            assert frozen.is_staged
        bench.sql("update trunq.pipeline_run set held_until = null")
        if way == "cancel":
            assert bench.client.cancel_pipeline(name)
        else:
            assert bench.client.skip_pipeline(name)["number"] == frozen.run.number
        assert state(bench, name).open_run is None
        return frozen

    def go_on() -> int:
        """How many rows the next run brings that asks for all."""
        before = len(words(bench, kind))
        bench.client.set_pipeline_state(name, {})
        bench.run(name)
        return len(words(bench, kind)) - before

    late = give_up(is_staged=False)
    next(late.steps)()
    assert late.is_staged is False
    assert bench.executor.control.hold(late.run, late.run.message_id) == "over"
    assert go_on() == 1

    # Woken up before the next run: what it commits counts.
    early = give_up(is_staged=True)
    next(early.steps)()
    assert words(bench, kind).count("frozen") == 3
    assert go_on() == 1
    next(early.steps)()

    # After it: the sink refuses.
    late = give_up(is_staged=True)
    assert go_on() == 1
    next(late.steps)()
    next(late.steps)()
    assert sorted(words(bench, kind)) == ["frozen"] * 3 + ["next"] * 3
    ended = "cancelled" if way == "cancel" else "skipped"
    assert outcomes(bench, name) == [ended, "done", "done", "done", ended, "done"]


def test_a_run_that_is_given_up_while_its_rows_are_staged_is_not_committed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.sql("create table source (id int); insert into source values (1)")
    name = bench.make(SOURCE, TABLE)
    stage = Control.stage

    def late(self: Control, *given: Any) -> bool:
        bench.sql("update trunq.pipeline_run set held_until = null")
        assert bench.client.cancel_pipeline(name)
        return stage(self, *given)

    with monkeypatch.context() as patch, pytest.raises(RunOver):
        patch.setattr(Control, "stage", late)
        bench.run(name)
    assert bench.one("select count(*) from moved") == 0
    assert bench.run(name)["rows_out"] == 1
    assert outcomes(bench, name) == ["cancelled", "done"]


def test_a_state_that_was_set_after_a_run_was_given_up_stays(
    bench: Bench, made: Callable[[str], str]
) -> None:
    name = made("append")
    pipeline, run = begin(bench, name)
    frozen = Attempt(bench, pipeline, run(), "frozen", 3)
    next(frozen.steps)()
    bench.sql("update trunq.pipeline_run set held_until = null")
    bench.client.cancel_pipeline(name)
    bench.client.set_pipeline_state(name, {"mine": 1})
    next(frozen.steps)()
    next(frozen.steps)()
    assert outcomes(bench, name) == ["done"]
    assert state(bench, name).state == {"mine": 1}


def test_a_runner_hears_that_its_run_was_skipped(
    bench: Bench, made: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = made("append")
    bench.sql("insert into source values (1, 'a', 'run')")
    skipped = []

    def check(watch: Monitor) -> None:
        if not skipped:
            skipped.append(bench.client.skip_pipeline(name))
            watch._tell()
        original(watch)

    original = Monitor.check
    monkeypatch.setattr(Monitor, "check", check)
    with pytest.raises(RunOver):
        bench.run(name)
    bench.sql("insert into source values (2, 'b', 'run')")
    bench.run(name)
    assert words(bench, "append") == ["b"]
    assert outcomes(bench, name) == ["skipped", "done"]


def test_a_run_that_failed_three_times_is_named_with_the_way_out(narrow: Bench) -> None:
    name = narrow.make(SOURCE, TABLE)
    fail(narrow, name, 2)
    assert narrow.client.list_warnings() == []
    fail(narrow, name)
    (warning,) = narrow.client.list_warnings("pipelines")
    assert f'run 1 of pipeline "{name}" has failed since 20' in warning.warning
    assert "smallint" in warning.warning
    assert warning.hint.startswith("it failed 3 times. ")
    assert f"trunq pipeline skip {name}" in warning.hint
    assert "trunq pipeline create FILE" in warning.hint
    assert f"trunq pipeline cancel {name}" in warning.hint
    assert narrow.client.cancel_pipeline(name)
    assert narrow.client.list_warnings() == []


def test_after_a_failover_that_lost_a_run_a_pipeline_goes_on_when_that_is_accepted(bench: Bench) -> None:
    bench.sql("create table source (id int); insert into source values (1)")
    name = bench.make(SOURCE, TABLE)
    bench.run(name)
    assert bench.client.accept_pipeline(name) is None
    bench.sql("create table kept as select state from trunq.pipeline; insert into source values (2)")
    bench.run(name)
    # As a standby has it that had not heard of the second run.
    bench.sql("delete from trunq.pipeline_run where number = 2")
    bench.sql("update trunq.pipeline set state = (select state from kept), done = 1, marked = 1")
    with pytest.raises(InvalidPipeline, match="holds run 2, or an attempt at it, that this") as caught:
        bench.run(name)
    assert f"trunq pipeline accept {name}" in str(caught.value)
    (warning,) = bench.client.list_warnings("pipelines")
    assert f"trunq pipeline accept {name}" in warning.hint
    assert bench.client.accept_pipeline(name) == 2
    assert bench.client.list_warnings() == []
    # What was lost comes again.
    assert bench.run(name)["number"] == 3
    assert bench.sql("select id from moved order by id") == [(1,), (2,), (2,)]
    assert bench.run(name)["outcome"] == "nothing new"


def test_a_sink_that_was_set_back_is_noticed_and_accepted(bench: Bench) -> None:
    bench.sql("create table source (id int); insert into source values (1)")
    name = bench.make(SOURCE, TABLE)
    bench.run(name)
    bench.sql("insert into source values (2)")
    bench.run(name)
    bench.sql("delete from moved where id = 2; update trunq_sink.mark set number = 1")
    bench.sql("insert into source values (3)")
    with pytest.raises(InvalidPipeline, match="holds run 1, and has held run 2") as caught:
        bench.run(name)
    assert f"trunq pipeline accept {name}" in str(caught.value)
    assert bench.client.accept_pipeline(name) == 1
    bench.run(name)
    assert bench.sql("select id from moved order by id") == [(1,), (3,)]
    # To have it again, its state is set instead.
    bench.sql("delete from moved; update trunq_sink.mark set number = 1; insert into source values (4)")
    with pytest.raises(InvalidPipeline, match="has held run 3"):
        bench.run(name)
    bench.client.cancel_pipeline(name)
    bench.client.set_pipeline_state(name, {})
    bench.run(name)
    assert bench.sql("select id from moved order by id") == [(1,), (2,), (3,), (4,)]
    # Another sink has no runs, and that is as it should be.
    bench.make(SOURCE, FITS, name=name)
    bench.sql("delete from trunq_sink.mark; insert into source values (5)")
    bench.run(name)
    assert bench.sql("select id from fits") == [(5,)]
