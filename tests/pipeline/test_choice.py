"""Which engine has a slice, and why: by what the pipeline needs, and by how large the slice is."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline.piping import Bench
from trunq.errors import InvalidArgument
from trunq.pipeline import source as sources
from trunq.pipeline.choice import Choice, choose_engine
from trunq.pipeline.definition.pipeline import Pipeline
from trunq.pipeline.source import Size
from trunq.pipeline.source.table import TableSource
from trunq.settings import Pipelines, load

TABLE: dict[str, Any] = {"format": "table", "table": "source"}
MOVED: dict[str, Any] = {"format": "table", "table": "moved"}
MANY = Pipelines(spark_from_rows=1000)


@pytest.fixture(autouse=True)
def _a_block_is_worth_a_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trunq.pipeline.source.share.WORTH_A_SHARE", 1)
    monkeypatch.setattr("trunq.pipeline.source.queue._WORTH_A_SHARE", 1)


def fill(bench: Bench, rows: int) -> None:
    bench.sql("create table if not exists source (id int, word text)")
    bench.sql("insert into source select g, repeat('x', 50) from generate_series(1, %s) g", rows)


def source_of(bench: Bench, pipeline: Pipeline) -> Any:
    return sources.make(pipeline, bench.dsn, bench.executor.control)


def chosen(bench: Bench, settings: Pipelines = MANY, state: Any = None, **parts: Any) -> Choice:
    made = Pipeline("moved", **{"source": TABLE, "sink": MOVED, **parts})
    source = source_of(bench, made)
    slice = source.plan(state or {}).slice
    assert slice is not None
    return choose_engine(made, source, slice, settings)


def told(bench: Bench, pipeline: str) -> tuple[Any, Any]:
    run = bench.client.list_runs(pipeline, limit=1)[0]
    return run.engine, run.engine_reason


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ({"engine": "spark"}, "engine = 'spark'"),
        ({"sql": ["select * from input"]}, "sql needs it"),
        ({"transform": "shop:with_hours"}, "transform needs it"),
        ({"checks": [{"name": "late", "holds": "id > 3"}]}, "the check 'late' needs it"),
    ],
)
def test_what_needs_spark_has_it_however_few_rows_there_are(parts: dict[str, Any], why: str) -> None:
    made = Pipeline("moved", source=TABLE, sink=MOVED, **parts)
    assert choose_engine(made, None, {}, MANY) == ("spark", why)


def test_a_slice_has_spark_from_a_number_of_rows_on(bench: Bench) -> None:
    fill(bench, 2000)
    bench.sql("analyze source")
    assert chosen(bench) == ("spark", "about 2,000 rows: pipeline.spark_from_rows is 1,000")
    few = chosen(bench, Pipelines(spark_from_rows=5000, spark_from_bytes=10**9))
    assert few.engine == "process"
    assert few.reason.startswith("about 2,000 rows (pipeline.spark_from_rows is 5,000) and about ")
    assert few.reason.endswith(" bytes (pipeline.spark_from_bytes is 1,000,000,000)")
    never = chosen(bench, Pipelines(spark_from_rows=0, spark_from_bytes=0))
    assert never.engine == "process"
    assert "pipeline.spark_from_rows is 0" in never.reason
    assert chosen(bench, engine="process") == ("process", "engine = 'process'")


def test_a_table_that_nobody_has_analyzed_is_known_by_its_bytes(bench: Bench) -> None:
    fill(bench, 2000)
    bench.sql("alter table source set (autovacuum_enabled = off)")
    size = source_of(bench, Pipeline("moved", source=TABLE, sink=MOVED)).size({"lo": None, "hi": "3:3:"})
    assert size.rows in (None, 2000)
    assert size.bytes == bench.one("select pg_table_size('source')")
    assert chosen(bench, Pipelines(spark_from_bytes=100_000)).engine == "spark"


def test_a_later_slice_is_as_large_as_what_was_written_since(bench: Bench) -> None:
    fill(bench, 2000)
    source = source_of(bench, Pipeline("moved", source=TABLE, sink=MOVED))
    state = source.plan({}).state
    fill(bench, 3)
    bench.sql("select pg_stat_force_next_flush()")
    few = source.plan(state)
    assert few.slice["size"][0] in range(3, 2004)
    fill(bench, 4000)
    # What a commit has written Postgres counts a moment later; the table has grown at once.
    assert chosen(bench, Pipelines(spark_from_bytes=200_000), state=few.state).engine == "spark"
    again = source.plan(few.state)
    bench.sql("vacuum full source")
    bench.sql("update source set word = 'y' where id = 1")
    shrunk = source.plan(again.state)
    assert shrunk.slice["size"][1] is None
    assert source.size(shrunk.slice).bytes is None


def test_statistics_that_were_reset_make_no_size(bench: Bench) -> None:
    fill(bench, 10)
    source: TableSource = source_of(bench, Pipeline("moved", source=TABLE, sink=MOVED))
    state = source.plan({}).state
    assert state is not None
    fill(bench, 10)
    slice = source.plan({**state, "written": [10**9, 10**9]}).slice
    assert slice is not None
    assert source.size(slice) == Size(None, None)
    unknown = {name: value for name, value in state.items() if name != "written"}
    assert chosen(bench, state=unknown) == ("process", "how large the slice is, only reading tells")


def test_what_one_task_would_read_stays_in_the_process(bench: Bench) -> None:
    fill(bench, 2000)
    bench.sql("analyze source")
    whole = chosen(bench, source={**TABLE, "changes": "all"})
    assert whole.engine == "process"
    assert whole.reason.endswith("but it would be one task")
    unique = chosen(bench, checks=[{"column": "id", "unique": True}])
    assert unique == ("process", "a check with unique sees all rows: they would be one task")
    assert chosen(bench, function="shop:late").reason == "function is given all rows: they would be one task"
    assert "isolate" in chosen(bench, isolate=True).reason


def test_messages_and_files_are_known_by_their_ids_and_sizes(bench: Bench, tmp_path: Path) -> None:
    bench.client.create_queue("orders")
    bench.client.publish_many("orders", [{"n": n} for n in range(300)])
    few = Pipelines(spark_from_rows=200)
    assert chosen(bench, few, source={"format": "queue", "queue": "orders"}).engine == "spark"
    bench.client.publish_many("orders", [{"n": n} for n in range(50)])
    for name in ("a", "b"):
        (tmp_path / f"{name}.csv").write_text("id\n" + "1\n" * 500)
    bench.make({"format": "csv", "path": f"{tmp_path}/*.csv", "settled": "0 s"}, MOVED, name="moved")
    files = {"format": "csv", "path": f"{tmp_path}/*.csv", "settled": "0 s"}
    assert chosen(bench, Pipelines(spark_from_bytes=2000), source=files).engine == "spark"
    assert chosen(bench, Pipelines(spark_from_bytes=9000), source=files).engine == "process"
    (tmp_path / "b.csv").unlink()
    one = chosen(bench, Pipelines(spark_from_bytes=500), source=files)
    assert one == ("process", "about 1,003 bytes: pipeline.spark_from_bytes is 500, but it would be one task")


def test_without_spark_a_large_slice_stays_in_the_process(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(bench, 2000)
    bench.sql("analyze source")
    monkeypatch.setenv("TRUNQ_PIPELINE_SPARK_FROM_ROWS", "1000")
    monkeypatch.setitem(sys.modules, "pyspark", None)
    name = bench.make(TABLE, MOVED)
    assert bench.run(name)["rows_out"] == 2000
    engine, reason = told(bench, name)
    assert engine == "process"
    assert reason.endswith("but Spark is not installed here")


@pytest.mark.usefixtures("spark")
def test_a_run_says_which_engine_had_it_and_both_bring_the_same(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(bench, 2000)
    bench.sql("analyze source")
    monkeypatch.setenv("TRUNQ_PIPELINE_SPARK_FROM_ROWS", "1000")
    name = bench.make(TABLE, MOVED, checks=[{"column": "id", "between": [1, 1990]}])
    assert bench.run(name)["rows_bad"] == 10
    assert told(bench, name) == ("spark", "about 2,000 rows: pipeline.spark_from_rows is 1,000")
    assert bench.one("select cardinality(parts) > 1 from trunq.pipeline_attempt limit 1")
    monkeypatch.setenv("TRUNQ_PIPELINE_SPARK_FROM_ROWS", "1000000")
    fill(bench, 5)
    assert bench.run(name)["rows_out"] == 5
    assert told(bench, name)[0] == "process"
    assert bench.sql("select count(*), count(distinct id) from moved") == [(1995, 1990)]
    assert bench.execute(bench.client.resend_quarantine(name))["rows_bad"] == 10
    assert told(bench, name) == ("process", "rows of the quarantine are one task")


def test_a_setting_that_is_no_number_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRUNQ_PIPELINE_SPARK_FROM_ROWS", "-1")
    with pytest.raises(
        InvalidArgument, match=r"pipeline.spark_from_rows .*is wrong: .*greater than or equal to 0"
    ):
        load()
