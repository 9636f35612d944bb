"""Instances beside every other feature: a test where two meet, and each customer has its rows once."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from conftest import Connect
from engine import Engine
from pipeline.baton import points
from pipeline.killing import execute_and_die, start
from pipeline.piping import Bench
from pipeline.test_instance import EACH, SINK, SOURCE, customers
from pipeline.test_kill import EACH as ROWS
from pipeline.test_kill import SINKS, Moving
from pipeline.test_kill import points as points_of
from pipeline.test_meeting import go_to, ignore
from pipeline.test_meeting import start as begin
from scope import some
from trunq import Client
from trunq.embedded import Embedded
from trunq.errors import InvalidPipeline
from trunq.pipeline.errors import Wait
from trunq.sql import back_migrations, function_files, migrations
from waiting import wait_until

OLD = "3000 days"
KINDS = ("append", "upsert", "queue", "delta", "delta upsert", "parquet")
"""Merges among them: rows that a kill doubled there are what dlt#3023 and dlt#4052 are about."""


def add(bench: Bench, customer: str, id: int, word: str | None = "more") -> None:
    bench.sql(f'insert into "source_{customer}" values (%s, %s)', id, word)


def copied(bench: Bench, customer: str) -> list[int]:
    return [id for (id,) in bench.sql(f'select id from "moved_{customer}" order by id')]


class Customers(Moving):
    """The table and the sink of `test_kill`: runs of one customer, while another has left one half done."""

    def __init__(self, bench: Bench, kind: str) -> None:
        super().__init__(bench, kind)
        bench.client.drop_pipeline(self.pipeline)
        bench.sql("create table sourother (like source)")
        bench.sql("insert into sourother select g + 1000000, g + 1000, 1 from generate_series(1, %s) g", ROWS)
        self.pipeline = bench.make(
            {"format": "table", "table": "sour${message.customer}"}, SINKS[kind], **EACH
        )
        self.other = bench.client.run_pipeline(self.pipeline, {"customer": "other"})
        assert execute_and_die(bench.dsn, bench.asked(self.other), "written") == -signal.SIGKILL

    def ask(self) -> tuple[int, int]:
        self.bench.sql("insert into source (k, part) select g, 1 from generate_series(1, %s) g", ROWS)
        round = next(self.rounds)
        return round, self.bench.client.run_pipeline(self.pipeline, {"customer": "ce", "round": round})

    def end_other(self) -> None:
        """Its own slice, of which its own stage is still there, once."""
        assert self.bench.execute(self.other)["rows_out"] == ROWS
        self.bench.sql("insert into source overriding system value select * from sourother")
        self.check("the other")


@pytest.fixture
def _in_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.killing.DIRECTORY", str(tmp_path))
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow
@pytest.mark.usefixtures("_in_a_directory")
@pytest.mark.parametrize("kind", KINDS)
def test_a_customer_killed_at_each_point_has_its_rows_once_and_so_has_another(
    bench: Bench, kind: str
) -> None:
    moving = Customers(bench, kind)
    for point in points_of(kind):
        round, message = moving.ask()
        assert execute_and_die(bench.dsn, bench.asked(message), point) == -signal.SIGKILL, point
        moving.end(round, message, point)
    moving.end_other()


@pytest.mark.slow
def test_two_customers_killed_at_random_at_the_same_time_have_their_rows_once(bench: Bench) -> None:
    for customer in ("a", "b"):
        bench.sql(f"create table source_{customer} (id bigint generated always as identity, customer text)")
    name = bench.make(SOURCE, {"format": "table", "table": "moved"}, **EACH)
    chance, longest = random.Random(), 0.5
    for round in range(some(4, 20)):
        messages = []
        for customer in ("a", "b"):
            bench.sql(
                f"insert into source_{customer} (customer) select '{customer}' from generate_series(1, 100)"
            )
            messages.append(bench.client.run_pipeline(name, {"customer": customer, "round": round}))
        processes = [start(bench.dsn, bench.asked(message)) for message in messages]
        for process in processes:
            process.join(chance.random() * longest)
            process.kill()
            process.join()
        for message in messages:
            bench.execute(message)
        counts = bench.sql("select customer, count(*), count(distinct id) from moved group by 1 order by 1")
        assert counts == [(each, 100 * (round + 1), 100 * (round + 1)) for each in ("a", "b")]


@pytest.mark.slow
def test_a_customer_that_is_dropped_while_its_run_goes_on_brings_nothing_and_begins_anew(
    bench: Bench,
) -> None:
    customers(bench, "acme", "other")
    name = bench.make(SOURCE, SINK, **EACH)
    bench.run(name, {"customer": "other"})
    bench.run(name, {"customer": "acme"})
    add(bench, "acme", 2)
    with points(ignore):
        late = begin(bench, bench.client.run_pipeline(name, {"customer": "acme", "more": True}))
        go_to(late, "begin")
        bench.client.drop_pipeline(f"{name}/acme")
        late.to_end()
    assert late.error is not None
    assert copied(bench, "acme") == [1]
    bench.sql("truncate moved_acme")
    assert bench.run(name, {"customer": "acme"})["number"] == 1
    assert copied(bench, "acme") == [1, 2]
    assert {row.value: row.runs for row in bench.client.list_instances(name)} == {"acme": 1, "other": 1}


@pytest.mark.slow
def test_another_sink_that_is_set_while_a_run_of_a_customer_is_planned_counts(bench: Bench) -> None:
    customers(bench, "acme")
    name = bench.make(SOURCE, SINK, **EACH)
    with points(ignore):
        planned = begin(bench, bench.client.run_pipeline(name, {"customer": "acme"}))
        go_to(planned, "plan")
        bench.make(SOURCE, {**SINK, "table": "again_${message.customer}"}, **EACH, name=name)
        planned.to_end()
    assert bench.sql("select id from again_acme") == [(1,)]
    assert bench.one("select to_regclass('moved_acme')") is None


@pytest.mark.slow
def test_a_state_of_one_customer_that_is_set_while_another_is_planned_is_its_own(bench: Bench) -> None:
    customers(bench, "acme", "other")
    name = bench.make(SOURCE, SINK, **EACH)
    for customer in ("acme", "other"):
        bench.run(name, {"customer": customer})
    add(bench, "other", 2)
    with points(ignore):
        planned = begin(bench, bench.client.run_pipeline(name, {"customer": "other", "more": True}))
        go_to(planned, "plan")
        bench.client.set_pipeline_state(f"{name}/acme", {})
        planned.to_end()
    assert planned.result is not None
    assert planned.result["rows_out"] == 1
    assert bench.run(f"{name}/acme")["rows_out"] == 1


@pytest.mark.slow
def test_rotation_keeps_what_customers_have_asked_for(bench: Bench) -> None:
    customers(bench, "acme", "other")
    name = bench.make(SOURCE, SINK, **EACH)
    bench.run(name, {"customer": "other"})
    message = bench.client.run_pipeline(name, {"customer": "acme"})
    engine = Engine(bench.connection, "pipelines")
    assert bench.one("select count(*) from trunq_log.pipelines") == 2
    engine.rotate(OLD)
    assert bench.execute(message)["rows_out"] == 1
    engine.rotate(OLD)
    assert {row.value: row.runs for row in bench.client.list_instances(name)} == {"acme": 1, "other": 1}
    assert bench.run(f"{name}/acme") == {"outcome": "nothing new"}
    add(bench, "acme", 2)
    assert bench.run(f"{name}/acme")["number"] == 2


@pytest.mark.slow
def test_the_archive_has_the_requests_of_each_customer(bench: Bench) -> None:
    customers(bench, "acme", "other")
    name = bench.make(SOURCE, SINK, **EACH)
    bench.client.create_archive("pipelines")
    for customer in ("acme", "other"):
        bench.run(name, {"customer": customer})
    bench.client.drop_pipeline(f"{name}/acme")
    Engine(bench.connection, "pipelines").ask("archive")
    found = bench.sql("select kind, key, payload->>'customer' from trunq_archive.pipelines order by id")
    assert found == [(name, "acme", "acme"), (name, "other", "other")]


@pytest.mark.slow
def test_an_older_release_and_back_keeps_each_customer(bench: Bench) -> None:
    """Of the migrations since instances there are; before them, `downgrade` refuses."""
    customers(bench, "acme", "other")
    name = bench.make(SOURCE, SINK, **EACH)
    for customer in ("acme", "other"):
        bench.run(name, {"customer": customer})
    with pytest.raises(InvalidPipeline):
        bench.run(name, {"customer": "gone"})
    before = bench.client.list_instances(name)
    [made] = [each for each in migrations() if each.name.endswith("_pending")]
    back = back_migrations()[made.number]
    bench.sql(back.sql)
    assert bench.one("select count(*) from trunq.pipeline where parent_id is not null") == 3
    bench.sql(made.sql)
    for path, text in function_files():
        if "pipeline" in path or path.split("/")[-1] in PIPELINES:
            bench.sql(text)
    after = {row.pipeline: row for row in bench.client.list_instances(name)}
    assert {row.pipeline: (row.runs, row.state) for row in before} == {
        each: (row.runs, row.state) for each, row in after.items()
    }
    assert after[f"{name}/gone"].failures == 0, "the older release does not know it"
    assert bench.run(f"{name}/acme") == {"outcome": "nothing new"}
    add(bench, "acme", 2)
    assert bench.run(f"{name}/acme")["number"] == 2
    assert copied(bench, "acme") == [1, 2]


PIPELINES = (
    "figure.sql",
    "instance.sql",
    "left.sql",
    "pending.sql",
    "pipeline.sql",
    "quarantine.sql",
    "run.sql",
)


@pytest.mark.slow
def test_a_database_that_is_restored_from_a_dump_goes_on_for_each_customer(
    bench: Bench, server: Embedded, new_database: Callable[..., str], tmp_path: Path
) -> None:
    customers(bench, "acme", "other")
    # The restored source tells nobody which of its rows are new.
    sink = {**SINK, "mode": "upsert", "key": ["id"]}
    name = bench.make(SOURCE, sink, **EACH, limits={"rows_a_day": 1000})
    for customer in ("acme", "other"):
        bench.run(name, {"customer": customer})
    add(bench, "acme", 2)
    left = bench.client.run_pipeline(name, {"customer": "acme", "more": True})
    file, dsn = str(tmp_path / "dump"), new_database("template0")
    for program, given in (
        ("pg_dump", ["--format=custom", f"--file={file}", f"--dbname={bench.dsn}"]),
        ("pg_restore", ["--exit-on-error", f"--dbname={dsn}", file]),
    ):
        done = subprocess.run([server.binaries / program, *given], capture_output=True, check=False)
        assert done.returncode == 0, done.stderr.decode()
    with psycopg.connect(dsn, autocommit=True) as connection:
        there = Bench(dsn, connection)
        before, after = (each.client.list_instances(name) for each in (bench, there))
        assert [row[:4] + row[14:] for row in before] == [row[:4] + row[14:] for row in after]
        assert there.client.list_warnings("pipelines") == bench.client.list_warnings("pipelines")
        # As after every restore.
        there.client.rebase()
        assert there.execute(left)["number"] == 2
        assert there.run(f"{name}/other")["number"] == 2
        assert (copied(there, "acme"), copied(there, "other")) == ([1, 2], [1])
        assert [row.runs for row in there.client.list_instances(name)] == [2, 2]
        there.close()


@pytest.mark.slow
def test_a_pipeline_that_is_dropped_and_made_again_has_other_customers(bench: Bench) -> None:
    customers(bench, "acme")
    after = bench.make(SOURCE, {**SINK, "table": "after_${message.customer}"}, **EACH)
    name = bench.make(SOURCE, SINK, **EACH, then=[after])
    bench.run(name, {"customer": "acme"})
    waiting = bench.client.run_pipeline(name, {"customer": "acme", "again": True})
    with pytest.raises(InvalidPipeline, match=r"runs .* after itself"):
        bench.client.drop_pipeline(after)
    bench.client.drop_pipeline(name)
    assert bench.one("select count(*) from trunq.pipeline where parent_id is not null") == 0
    bench.client.drop_pipeline(after)
    bench.sql("drop table moved_acme")
    bench.make(SOURCE, SINK, **EACH, name=name)
    assert bench.execute(waiting)["number"] == 1, "what waited asks the one that has the name"
    assert copied(bench, "acme") == [1]
    assert bench.one("select count(*) from trunq_sink.mark") == 2, "that of the one before says nothing"


@pytest.mark.slow
def test_the_pause_of_all_and_that_of_one_are_two(bench: Bench) -> None:
    customers(bench, "acme", "other", "new")
    name = bench.make(SOURCE, SINK, **EACH)
    for customer in ("acme", "other"):
        bench.run(name, {"customer": customer})
        add(bench, customer, 2)
    bench.client.pause_pipeline(f"{name}/acme")
    bench.client.pause_pipeline(name)
    first = bench.client.run_pipeline(name, {"customer": "new"})
    with pytest.raises(Wait):
        bench.execute(first)
    assert bench.client.resume_pipeline(name)
    assert bench.execute(first)["rows_out"] == 1
    assert bench.run(f"{name}/other")["rows_out"] == 1
    with pytest.raises(Wait):
        bench.run(f"{name}/acme")
    assert [row.value for row in bench.client.list_instances(name) if row.paused] == ["acme"]
    assert bench.client.resume_pipeline(f"{name}/acme")
    assert bench.run(name, {"customer": "acme", "again": True})["rows_out"] == 1


@pytest.mark.slow
def test_a_backfill_of_one_customer_goes_on_beside_its_runs_and_those_of_others(bench: Bench) -> None:
    customers(bench, "acme", "other")
    bench.sql(
        "create table moved_acme (id int unique, word text);"
        " create table moved_other (like moved_acme including all)"
    )
    name = bench.make(SOURCE, {**SINK, "mode": "upsert", "key": ["id"], "newest": "word"}, **EACH)
    for customer in ("acme", "other"):
        bench.run(name, {"customer": customer})
        add(bench, customer, 2)
    bench.sql("delete from moved_acme")
    with points(ignore):
        backfill = begin(
            bench, bench.client.backfill_pipeline(f"{name}/acme", {"column": "id", "from": "0", "to": "2"})
        )
        go_to(backfill, "stage")
        for customer in ("acme", "other"):
            assert bench.run(name, {"customer": customer, "more": True})["number"] == 2
        bench.client.pause_pipeline(f"{name}/other")
        backfill.to_end()
    assert backfill.result is not None
    assert backfill.result["rows_out"] == 1
    assert copied(bench, "acme") == copied(bench, "other") == [1, 2]


@pytest.mark.slow
def test_what_is_quarantined_is_of_a_customer_and_is_sent_again_for_it_alone(bench: Bench) -> None:
    customers(bench, "acme", "other")
    checks = [{"name": "no word", "column": "word", "not_null": True}]
    name = bench.make(SOURCE, SINK, **EACH, checks=checks)
    for customer in ("acme", "other"):
        add(bench, customer, 2, None)
        bench.run(name, {"customer": customer})
    rows = bench.client.list_quarantine(name)
    assert [(row.pipeline, row.content["id"]) for row in rows] == [(f"{name}/other", 2), (f"{name}/acme", 2)]
    assert [row.pipeline for row in bench.client.list_quarantine(f"{name}/acme")] == [f"{name}/acme"]
    assert bench.client.count_quarantine(name)[0].quarantined == 2
    bench.make(SOURCE, SINK, **EACH, name=name)
    assert bench.execute(bench.client.resend_quarantine(f"{name}/acme"))["rows_out"] == 1
    assert (copied(bench, "acme"), copied(bench, "other")) == ([1, 2], [1])
    assert [row.pipeline for row in bench.client.list_quarantine(name)] == [f"{name}/other"]
    assert bench.client.purge_quarantine(f"{name}/other") == 1


@pytest.mark.slow
def test_rows_for_a_function_are_sent_again_in_the_types_that_they_had(bench: Bench) -> None:
    bench.sql("create table source_acme (id int, at timestamptz, price numeric(9,2), raw bytea, note text)")
    bench.sql(
        "insert into source_acme values (1, '2030-01-01', 1.50, '\\x00ff', 'a'),"
        " (2, '2030-01-02', 2.25, null, 'b')"
    )
    name = bench.make(SOURCE, SINK, **EACH, function="pipeline.transforms:all_refused")
    assert bench.run(name, {"customer": "acme"})["rows_bad"] == 2
    bench.make(SOURCE, SINK, **EACH, function="pipeline.transforms:even_or_fixed", name=name)
    assert bench.execute(bench.client.resend_quarantine(f"{name}/acme"))["rows_out"] == 2
    both = [bench.sql(f"select * from {table} order by id") for table in ("source_acme", "moved_acme")]
    assert both[0] == both[1]
    types = (
        "select attname, format_type(atttypid, atttypmod) from pg_attribute"
        " where attrelid = %s::regclass and attnum > 0"
    )
    assert bench.sql(types, "moved_acme") == bench.sql(types, "source_acme")


@pytest.mark.slow
def test_another_column_says_how_fresh_a_copy_is_from_the_moment_it_is_named(bench: Bench) -> None:
    bench.sql("create table source_acme (id int, made date, sold date)")
    bench.sql("insert into source_acme values (1, '2030-01-01', '2031-01-01')")
    name = bench.make(SOURCE, SINK, **EACH, freshness="made")
    with points(ignore):
        run = begin(bench, bench.client.run_pipeline(name, {"customer": "acme"}))
        go_to(run, "stage")
        bench.make(SOURCE, SINK, **EACH, freshness="sold", name=name)
        run.to_end()
    assert run.error is None
    [row] = bench.client.list_pipelines(f"{name}/acme")
    assert row.fresh_by is None, "nothing is known of that column yet, and nothing is told of the other"
    bench.sql("insert into source_acme values (2, '2030-01-02', '2031-01-02')")
    bench.run(f"{name}/acme")
    [row] = bench.client.list_pipelines(f"{name}/acme")
    assert (row.fresh_by, row.fresh_at.date().isoformat()) == ("sold", "2031-01-02")


@pytest.mark.slow
def test_children_of_one_client_ask_for_customers_side_by_side(bench: Bench) -> None:
    names = [f"c{number}" for number in range(6)]
    customers(bench, *names)
    name = bench.make(SOURCE, SINK, **EACH)
    bench.client.list_instances(name)
    pids = []
    for customer in names:
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                bench.client.run_pipeline(name, {"customer": customer})
                status = 0
            finally:
                os._exit(status)
        pids.append(pid)
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0] * len(names)
    held = bench.client.lease("pipelines", "default", "bench", 10)
    assert sorted(str(each.key) for each in held) == names
    bench.client.release(held)
    for each in held:
        assert bench.execute(each.id)["rows_out"] == 1


@pytest.mark.slow
def test_who_may_publish_asks_for_customers_and_changes_none(bench: Bench, connect: Connect) -> None:
    customers(bench, "acme")
    name = bench.make(SOURCE, SINK, **EACH)
    role = f"asks_{conninfo_to_dict(bench.dsn)['dbname']}"
    bench.sql(f"create role {role}")
    try:
        bench.client.grant_role("pipelines", "publisher", role)
        asking = connect()
        asking.execute(f"set role {role}".encode())
        id = asking.execute(
            "select trunq.publish('pipelines', %s::jsonb, %s, 'acme')",
            (json.dumps({"customer": "acme"}), name),
        ).fetchone()
        assert id is not None
        assert bench.execute(id[0])["rows_out"] == 1
        for call in (
            f"trunq.drop_pipeline('{name}/acme')",
            f"trunq.pause_pipeline('{name}/acme')",
            f"trunq.set_pipeline_state('{name}/acme', '{{}}')",
            f"trunq.purge_quarantine('{name}/acme')",
            "trunq._forget_left('x')",
            "trunq._note_plan('x')",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                asking.execute(f"select {call}".encode())
        # A header that names what is left names no place: there has to be a row of it.
        asking.execute(
            "select trunq.publish('pipelines', null, %s, p_headers => %s::jsonb)",
            (name, json.dumps({"left": {"identity": "x", "definition": {}}})),
        )
        message = bench.one("select max(id) from trunq_log.pipelines")
        assert bench.execute(message) == {"outcome": "nothing left"}
    finally:
        bench.sql(f"drop owned by {role} cascade; drop role {role}")


@pytest.mark.slow
def test_a_client_of_another_process_sees_the_same_customers(bench: Bench) -> None:
    customers(bench, "acme")
    name = bench.make(SOURCE, SINK, **EACH)
    message = bench.client.run_pipeline(name, {"customer": "acme"})
    process = start(bench.dsn, bench.asked(message))
    process.join(60)
    with Client(bench.dsn) as other:
        wait_until(lambda: other.list_instances(name)[0].runs == 1)
