"""`engine`: where rows pass, and that Spark's tasks do all that one process does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from pipeline.attempting import FIRST, SINKS, words
from pipeline.piping import Bench
from scope import some
from trunq.errors import InvalidPipeline
from trunq.pipeline import Pipeline
from trunq.pipeline.engine import Engine
from trunq.pipeline.errors import CheckFailed, TooManyBad
from trunq.pipeline.runner import _needs_our_session

TABLE = {"format": "table", "table": "source"}
MOVED = {"format": "table", "table": "moved"}
SPARK: Any = {"engine": "spark"}
LARGE = some(1_000_000, 10_000_000)


def yielding(context: Any) -> Any:
    """A source: ten rows, from where its last run ended."""
    start = context.state.get("next", 0)
    context.state = {"next": start + 10}
    return [{"id": id} for id in range(start, start + 10)]


def doubled(rows: Any, context: Any) -> Any:
    """A function of a pipeline."""
    context.quarantine(rows.slice(0, 1), "the first")
    return rows.slice(1)


def fill(bench: Bench, rows: int) -> None:
    bench.sql("create table if not exists source (id int, word text, run text)")
    bench.sql("insert into source select g, 'w' || g, 'r' from generate_series(1, %s) g", rows)


def test_what_needs_spark_is_refused_in_a_process_and_the_way_out_is_one() -> None:
    given: Any = {"source": TABLE, "sink": MOVED, "sql": ["select * from input"]}
    with pytest.raises(InvalidPipeline, match=r"engine = 'process' is without Spark.*write engine = 'spark'"):
        Pipeline("moved", **given, engine="process")
    made = Pipeline("moved", **given, engine="spark")
    assert made.definition["engine"] == "spark"
    assert made.needs_spark
    assert not Pipeline("moved", source=TABLE, sink=MOVED, engine="process").needs_spark
    with pytest.raises(InvalidPipeline, match="engine"):
        Pipeline("moved", source=TABLE, sink=MOVED, engine="cluster")


def test_a_runner_starts_its_session_for_a_pipeline_of_spark() -> None:
    assert _needs_our_session({"engine": "spark"})
    assert not _needs_our_session({"engine": "spark", "isolate": True})
    assert not _needs_our_session({"engine": "process"})


WAITING = """
import threading
from trunq.pipeline.engine import Engine
from trunq.pipeline.errors import Wait

engine, told = Engine(master="spark://127.0.0.1:1"), []
engine.is_patient = True


def need():
    try:
        engine.require_warm()
    except Exception as error:
        told.append(type(error).__name__)
    else:
        told.append("ready")


for _ in range(20):
    threads = [threading.Thread(target=need) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
print(len(told), *sorted(set(told) - {"Wait"}))
"""


@pytest.mark.slow
def test_all_runs_that_wait_for_a_session_hear_that_it_does_not_start() -> None:
    """An archive needs a name."""
    done = subprocess.run(
        [sys.executable, "-c", WAITING],
        env={**os.environ, "TRUNQ_SPARK_ARCHIVES": "venv.tar.gz"},
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout.split() == ["160", "SparkError"], done.stderr[-3000:]


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("kind", FIRST)
def test_every_sink_takes_what_tasks_staged(
    bench: Bench, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    fill(bench, 500)
    if kind == "queue":
        bench.client.create_queue("moved")
    name = bench.make(TABLE, SINKS[kind], **SPARK)
    done = bench.run(name)
    assert (done["rows_in"], done["rows_out"], done["rows_bad"]) == (500, 500, 0)
    assert sorted(words(bench, kind)) == sorted(f"w{id}" for id in range(1, 501))
    assert bench.run(name) == {"outcome": "nothing new"}


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
def test_shares_are_read_beside_each_other_and_each_row_arrives_once(bench: Bench) -> None:
    fill(bench, 1)
    bench.sql("insert into source select g, repeat('x', 500), 'r' from generate_series(2, 30000) g")
    name = bench.make(TABLE, MOVED, **SPARK, checks=[{"column": "id", "between": [1, 29990]}])
    done = bench.run(name)
    assert (done["rows_in"], done["rows_out"], done["rows_bad"]) == (30000, 29990, 10)
    assert bench.sql("select count(*), count(distinct id) from moved") == [(29990, 29990)]
    assert bench.one("select cardinality(parts) > 1 from trunq.pipeline_attempt limit 1")
    assert len(bench.client.list_quarantine(name)) == 10
    # Sent again, they pass in a task, too.
    bench.make(TABLE, MOVED, **SPARK, name=name)
    assert bench.execute(bench.client.resend_quarantine(name))["rows_out"] == 10
    assert bench.one("select count(distinct id) from moved") == 30000
    assert bench.client.list_quarantine(name) == []


@pytest.mark.usefixtures("spark")
def test_a_function_and_rows_that_have_to_be_unique_are_one_task(bench: Bench) -> None:
    fill(bench, 3)
    bench.sql("insert into source select * from source where id = 2")
    unique = [{"column": "id", "unique": True}]
    name = bench.make(TABLE, MOVED, **SPARK, function=f"{__name__}:doubled", checks=unique)
    done = bench.run(name)
    assert (done["rows_in"], done["rows_out"], done["rows_bad"]) == (4, 1, 3)
    assert sorted(row.reasons[0] for row in bench.client.list_quarantine(name)) == [
        "id unique",
        "id unique",
        "the first",
    ]


@pytest.mark.usefixtures("spark")
def test_a_source_of_a_function_goes_on_where_it_stood(bench: Bench) -> None:
    name = bench.make({"format": "python", "function": f"{__name__}:yielding"}, MOVED, **SPARK)
    assert [bench.run(name)["rows_out"] for _ in range(2)] == [10, 10]
    assert bench.sql("select min(id), max(id), count(*) from moved") == [(0, 19, 20)]


@pytest.mark.usefixtures("spark")
def test_a_run_that_a_check_or_too_many_fail_writes_nothing(bench: Bench) -> None:
    fill(bench, 10)
    below = {"column": "id", "between": [1, 9], "otherwise": "fail"}
    name = bench.make(TABLE, MOVED, **SPARK, checks=[below])
    with pytest.raises(CheckFailed, match="id between"):
        bench.run(name)
    bench.make(TABLE, MOVED, **SPARK, checks=[{**below, "otherwise": "quarantine"}], max_bad=0.05, name=name)
    with pytest.raises(TooManyBad, match="1 of 10"):
        bench.run(name)
    assert bench.one("select count(*) from moved") == 0
    assert bench.client.list_quarantine(name) == []


@pytest.mark.usefixtures("spark")
def test_no_row_passes_the_driver(bench: Bench) -> None:
    """What comes back to it is of about one size for a small slice and one of a hundred times that."""
    fill(bench, 1)
    pipeline, sizes = bench.make(TABLE, MOVED, **SPARK), []
    for rows in (300, 30_000):
        bench.sql("insert into source select g, repeat('y', 50), 'r' from generate_series(1, %s) g", rows)
        sizes.append(result_bytes(bench.executor.engine, lambda: bench.run(pipeline)))
    small, large = sizes
    assert small[0] > 0
    assert large[0] < small[0] + 20_000
    assert (small[1], large[1]) == (0, 0)


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
def test_the_memory_of_the_driver_is_flat(bench: Bench) -> None:
    """Of its Python process and its Java process: ten times as many rows take no more."""
    fill(bench, 1)
    pipeline, java = bench.make(TABLE, MOVED, **SPARK), java_of(bench.executor.engine)
    bench.run(pipeline)
    grown = []
    for rows in (LARGE // 10, LARGE):
        bench.sql("insert into source select g, repeat('y', 100), 'r' from generate_series(1, %s) g", rows)
        before = {pid: resident(pid, "VmRSS") for pid in (os.getpid(), java)}
        for pid in before:
            Path(f"/proc/{pid}/clear_refs").write_text("5")
        assert bench.run(pipeline)["rows_out"] == rows
        grown.append([resident(pid, "VmHWM") - resident_before for pid, resident_before in before.items()])
    (small, small_java), (large, large_java) = grown
    # The rows of the large one are 130 MB and more in Arrow's memory.
    assert large < small + 20_000_000
    assert large_java < small_java + 60_000_000


def java_of(engine: Engine) -> int:
    """Its process, which is also that of the tasks' threads here."""
    gateway: Any = engine.session().sparkContext._gateway
    pid: int = gateway.jvm.java.lang.ProcessHandle.current().pid()
    return pid


def resident(pid: int, what: str) -> int:
    """Bytes of a process: VmRSS now, VmHWM at most since that was cleared."""
    (line,) = [each for each in Path(f"/proc/{pid}/status").read_text().splitlines() if each.startswith(what)]
    return int(line.split()[1]) * 1024


def result_bytes(engine: Engine, run: Any) -> tuple[int, int]:
    """Bytes of results, and of shuffles, of what Spark does meanwhile."""
    java: Any = engine.session().sparkContext._jsc
    before = _stages(java)
    run()
    java.sc().listenerBus().waitUntilEmpty(10_000)
    new = [each for id, each in _stages(java).items() if id not in before]
    assert new
    return sum(each.resultSize() for each in new), sum(each.shuffleWriteBytes() for each in new)


def _stages(java: Any) -> dict[int, Any]:
    store, found = java.sc().statusStore(), {}
    for id in range(10_000):
        try:
            found[id] = store.lastStageAttempt(id)
        except Exception:
            return found
    return found


def dying(context: Any) -> Any:
    """A source whose first reader dies when some of its rows are staged."""
    for start in range(0, 3000, 1000):
        yield pa.table({"id": pa.array(range(start, start + 1000), pa.int64())})
        died = Path(context.message["at"])
        if start == 1000 and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("kind", ["append", "delta"])
def test_a_task_that_is_killed_while_it_stages_brings_each_row_once(
    bench: Bench, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = bench.make({"format": "python", "function": f"{__name__}:dying"}, SINKS[kind], **SPARK)
    died = tmp_path / "died"
    assert bench.run(name, {"at": str(died)})["rows_out"] == 3000
    assert died.exists()
    if kind == "delta":
        ids = DeltaTable("moved").to_pyarrow_table()["id"].to_pylist()
    else:
        ids = [id for (id,) in bench.sql("select id from moved")]
    assert sorted(ids) == list(range(3000))


def test_each_of_many_tables_passes_in_tasks_of_spark(bench: Bench) -> None:
    bench.sql(
        'create schema shop; create schema copy; create table shop."a.b" (id int primary key, word text)'
    )
    bench.sql("create table shop.orders (id int primary key); insert into shop.orders values (1), (2)")
    bench.sql("insert into shop.\"a.b\" values (1, 'x')")
    sink = {"format": "table", "table": "copy.${table}", "mode": "upsert"}
    name = bench.make({"format": "table", "tables": "shop.*"}, sink, **SPARK)
    bench.executor.engine.session()
    assert bench.run(name)["asked"] == 2
    for message in bench.client.lease("pipelines", "default", "bench", 10):
        bench.client.release(message)
        assert bench.execute(message.id)["outcome"] == "done"
    assert bench.one("select count(*) from copy.orders") == 2
    assert bench.sql('select word from copy."a.b"') == [("x",)]
