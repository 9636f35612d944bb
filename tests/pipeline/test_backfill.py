"""Backfills in shares, run: killed, failed, cancelled, beside usual runs; each row of the range arrives."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest

from pipeline.killing import execute_and_die
from pipeline.piping import Bench
from pipeline.test_runner import running
from scope import some
from trunq.errors import InvalidPipeline
from trunq.pipeline.errors import TooManyBad
from trunq.pipeline.runner import Runner
from waiting import wait_until

ROWS = 40
UPSERT = {"format": "table", "table": "moved", "mode": "upsert", "key": ["id"], "newest": "at"}


@pytest.fixture
def filled(bench: Bench) -> Bench:
    """Rows of forty days, which have all arrived and then got lost."""
    bench.sql(
        "create table source (id int primary key, day date, at timestamptz default now(), word text);"
        " insert into source select g, date '2030-01-01' + g - 1, now(), 'w'"
        f" from generate_series(1, {ROWS}) g"
    )
    bench.make({"format": "table", "table": "source"}, UPSERT, name="moved")
    bench.run("moved")
    bench.sql("delete from moved")
    return bench


def ask(bench: Bench, every: str = "10 days", **more: Any) -> int:
    whole = {"column": "day", "from": "2030-01-01", "to": "2030-02-10"}
    return bench.client.backfill_pipeline("moved", whole, every, **more)


def there(bench: Bench) -> list[int]:
    return [id for (id,) in bench.sql("select id from moved order by id")]


def states(bench: Bench) -> list[str]:
    return [row.state for row in sorted(bench.client.list_shares("moved"), key=lambda row: row.share)]


def asked_for(bench: Bench) -> int:
    """The message of the share that is under way."""
    return next(row.message_id for row in bench.client.list_shares("moved") if row.state == "running") or 0


def test_a_runner_does_a_share_after_the_other_and_moves_no_state(filled: Bench) -> None:
    before = filled.client.list_pipelines()[0]
    id = ask(filled)
    Runner(filled.dsn, until_empty=True).run()
    assert there(filled) == list(range(1, ROWS + 1))
    (row,) = filled.client.list_backfills("moved")
    assert (row.backfill, row.shares, row.done, row.outcome) == (id, 4, 4, "done")
    assert [each.rows_out for each in filled.client.list_shares("moved", id)] == [10] * 4
    after = filled.client.list_pipelines()[0]
    assert (after.state, after.runs) == (before.state, before.runs)


def test_a_usual_run_comes_between_two_shares(filled: Bench) -> None:
    ask(filled)
    filled.sql("insert into source values (99, '2031-01-01', now(), 'new')")
    run = filled.client.run_pipeline("moved")
    Runner(filled.dsn, until_empty=True).run()
    ended = [
        row.message_id for row in reversed(filled.client.list_runs("moved")) if row.message_id >= run - 1
    ]
    assert run in ended[:2]
    assert there(filled) == [*range(1, ROWS + 1), 99]


@pytest.mark.parametrize("point", some(("begun", "marked", "committed", "finished"), (
    "planned", "begun", "tried", "staged", "written", "marked", "committed", "finished")))  # fmt: skip
def test_killed_at_a_share_a_backfill_goes_on_with_that_share(filled: Bench, point: str) -> None:
    ask(filled)
    filled.execute(asked_for(filled))
    second = asked_for(filled)
    assert execute_and_die(filled.dsn, filled.asked(second), point) == -9
    assert states(filled)[0] == "done"
    filled.execute(second)
    assert states(filled) == ["done", "done", "running", "waiting"]
    while not filled.client.list_backfills("moved")[0].outcome:
        filled.execute(asked_for(filled))
    assert there(filled) == list(range(1, ROWS + 1))
    assert states(filled) == ["done"] * 4


def test_a_share_that_was_planned_of_another_definition_is_planned_anew(filled: Bench) -> None:
    id = ask(filled)
    asked, control = filled.asked(id), filled.executor.control
    slice = {"range": filled.client.list_shares("moved")[0].range}
    opened = control.open(asked)
    filled.sql("create table other as table source")
    filled.make({"format": "table", "table": "other"}, UPSERT, name="moved")
    assert control.begin(asked, opened, slice) is None
    opened = control.open(asked)
    assert opened["definition"]["source"]["table"] == "other"
    # A usual run beside it moves the state, and nothing of the share.
    filled.sql("insert into other values (99, '2031-01-01', now(), 'new')")
    before = filled.client.list_pipelines()[0].state
    filled.run("moved")
    assert filled.client.list_pipelines()[0].state != before
    assert control.begin(asked, opened, slice) is not None
    Runner(filled.dsn, until_empty=True).run()
    assert filled.client.list_backfills("moved")[0].outcome == "done"
    assert there(filled) == [*range(1, ROWS + 1), 99]


def test_a_share_that_fails_three_times_is_left_out_and_the_others_arrive(filled: Bench) -> None:
    filled.sql("alter table moved add check (id <> 15)")
    ask(filled)
    filled.sql("update trunq.subscription set backoff_base = '10 ms'")
    Runner(filled.dsn, until_empty=True, awaited=asked_for(filled)).run()
    wait_until(lambda: drained(filled))
    assert states(filled) == ["done", "failed", "done", "done"]
    assert there(filled) == [id for id in range(1, ROWS + 1) if not 11 <= id <= 20]
    failed = filled.client.list_shares("moved")[0]
    assert failed.share == 2
    assert "moved_id_check" in str(failed.error)
    assert not [row for row in filled.client.list_runs("moved") if row.outcome is None]
    filled.sql("alter table moved drop constraint moved_id_check")
    assert filled.client.rerun_shares("moved", share=2) == 1
    Runner(filled.dsn, until_empty=True).run()
    assert there(filled) == list(range(1, ROWS + 1))
    assert filled.client.list_backfills("moved")[0].outcome == "done"


def drained(bench: Bench) -> bool:
    """Whether a runner has brought the backfill to its end."""
    Runner(bench.dsn, until_empty=True).run()
    return bench.client.list_backfills("moved")[0].outcome is not None


def test_what_lies_in_the_pipeline_fails_a_share_at_once_and_stops_the_backfill(filled: Bench) -> None:
    ask(filled)
    filled.sql("alter table source drop column day")
    Runner(filled.dsn, until_empty=True).run()
    assert states(filled) == ["failed", "failed", "failed", "waiting"]
    (row,) = filled.client.list_backfills("moved")
    assert row.outcome == "failed"
    assert 'no column "day"' in str(row.error)


def test_a_backfill_that_is_cancelled_while_a_share_runs_ends_with_it(filled: Bench) -> None:
    filled.sql(
        "create function wait() returns trigger language plpgsql as $$ begin"
        " perform pg_advisory_xact_lock_shared(4711); return new; end $$;"
        " create trigger wait before insert on moved for each row execute function wait();"
        " select pg_advisory_lock(4711)"
    )
    id = ask(filled)
    with running(filled):
        waiting = "select count(*) from pg_locks where locktype = 'advisory' and objid = 4711 and not granted"
        wait_until(lambda: filled.one(waiting))
        assert filled.client.cancel_pipeline("moved", id)
        filled.sql("select pg_advisory_unlock(4711)")
        wait_until(lambda: "running" not in states(filled))
    # What the sink was taking is in it, or not, and no more shares are asked for.
    assert states(filled)[1:] == ["cancelled"] * 3
    assert filled.client.list_backfills("moved")[0].outcome == "cancelled"
    assert len(there(filled)) == (10 if states(filled)[0] == "done" else 0)


def test_two_runners_do_two_shares_at_once(filled: Bench) -> None:
    ask(filled, "5 days", at_once=2)
    runners = [threading.Thread(target=Runner(filled.dsn, until_empty=True).run) for _ in range(2)]
    for each in runners:
        each.start()
    for each in runners:
        each.join(120)
    Runner(filled.dsn, until_empty=True).run()
    assert states(filled) == ["done"] * 8
    assert there(filled) == list(range(1, ROWS + 1))


def test_partitions_are_filled_share_by_share(
    bench: Bench, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from deltalake import DeltaTable  # noqa: PLC0415  # slow to import

    monkeypatch.chdir(tmp_path)
    bench.sql(
        "create table source (id int, month text);"
        " insert into source select g, '2030-0' || g % 3 + 1 from generate_series(1, 30) g"
    )
    sink = {
        "format": "delta",
        "path": os.fspath(tmp_path / "lake"),
        "mode": "replace_partitions",
        "partition_by": ["id"],
    }
    bench.make({"format": "table", "table": "source", "changes": "all"}, sink, name="moved")
    bench.run("moved")
    bench.sql("update source set month = 'new'")
    bench.client.backfill_pipeline("moved", {"column": "id", "from": "1", "to": "21"}, "10")
    Runner(bench.dsn, until_empty=True).run()
    months = DeltaTable(sink["path"]).to_pyarrow_table().sort_by("id")["month"].to_pylist()
    assert months == ["new"] * 20 + [f"2030-0{g % 3 + 1}" for g in range(21, 31)]


def test_shares_of_an_instance_are_runs_of_that_one_alone(bench: Bench) -> None:
    for each in ("a", "b"):
        bench.sql(
            f"create table source_{each} (id int primary key, day date, at timestamptz default now());"
            f" insert into source_{each} select g, date '2030-01-01' + g - 1, now()"
            f" from generate_series(1, {ROWS}) g"
        )
    source = {"format": "table", "table": "source_${message.customer}"}
    sink = {**UPSERT, "table": "to_${message.customer}"}
    name = bench.make(source, sink, message={"customer": "text"}, per="message.customer")
    for each in ("a", "b"):
        bench.run(name, {"customer": each})
    bench.sql("delete from to_a; delete from to_b")
    whole = {"column": "day", "from": "2030-01-01", "to": "2030-02-10"}
    with pytest.raises(InvalidPipeline, match="no runs of its own") as refused:
        bench.client.backfill_pipeline(name, whole, "10 days")
    assert f"{name}/VALUE" in str(refused.value.hint)
    id = bench.client.backfill_pipeline(f"{name}/a", whole, "10 days", 2)
    assert bench.sql("select distinct key, kind from trunq_log.pipelines where id >= %s", id) == [
        ("a", f"{name}/a")
    ]
    Runner(bench.dsn, until_empty=True).run()
    assert bench.one("select count(*) from to_a") == ROWS
    assert bench.one("select count(*) from to_b") == 0
    (row,) = bench.client.list_backfills(f"{name}/a")
    assert (row.pipeline, row.done, row.outcome) == (f"{name}/a", 4, "done")
    assert bench.client.list_backfills(f"{name}/b") == []


def test_rows_that_attempts_kept_out_go_with_them_when_they_fail(bench: Bench) -> None:
    """Nobody would see them, however often a run is tried, and nobody asks of a share that was given up."""
    bench.sql(
        "create table source (id int primary key, day date, at timestamptz default now(), word text);"
        " insert into source select g, date '2030-01-01' + g, now(), null from generate_series(1, 10) g"
    )
    worded = {"name": "worded", "column": "word", "not_null": True}
    source = {"format": "table", "table": "source"}
    bench.make(source, UPSERT, name="moved", checks=[worded], max_bad=0.5)
    fill = bench.client.backfill_pipeline(
        "moved", {"column": "day", "from": "2030-01-01", "to": "2031-01-01"}
    )
    for asked in (bench.client.run_pipeline("moved"), fill, fill):
        with pytest.raises(TooManyBad):
            bench.execute(asked)
        assert bench.one("select count(*) from trunq.quarantine") == 0
    # As of one that was killed.
    run = bench.one("select run_id from trunq.pipeline_run where backfill <> 0")
    attempt = bench.one("select trunq._try_run(%s)", run)
    bench.sql("select trunq._quarantine(%s, '[[\"worded\"]]', '[{}]')", attempt)
    assert bench.client.cancel_pipeline("moved", fill)
    assert bench.one("select count(*) from trunq.quarantine") == 0
    assert bench.one("select count(*) from trunq.pipeline_attempt") == 0
