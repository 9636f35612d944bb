"""Small files of a Delta table are merged, and old ones deleted, beside runs, and whatever is killed."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from pipeline.piping import Bench
from pipeline.storages import ENVIRONMENT, S3Server
from scope import some
from trunq.errors import InvalidPipeline
from trunq.pipeline import Pipeline
from trunq.pipeline.compaction import compact_now
from trunq.pipeline.control import Control
from trunq.pipeline.definition.sink import DeltaSink
from trunq.pipeline.errors import Outrun
from trunq.pipeline.sink import compacting
from trunq.pipeline.sink.compacting import Compacted, compact_table

TABLE = {"format": "table", "table": "source"}
LAKE = {"format": "delta", "path": "lake"}


@pytest.fixture(autouse=True)
def _in_a_directory_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def filled(bench: Bench) -> Bench:
    bench.sql("create table source (id int primary key, day date, n int)")
    return bench


def insert(bench: Bench, *ids: int) -> None:
    for id in ids:
        bench.sql("insert into source values (%s, make_date(2030, 1, 1 + %s %% 2), 1)", id, id)


def ids(path: str = "lake") -> list[int]:
    return sorted(DeltaTable(path).to_pyarrow_table()["id"].to_pylist())


def files(path: str = "lake") -> int:
    return len(DeltaTable(path).file_uris())


def on_disk() -> set[str]:
    return {str(path.relative_to("lake")) for path in Path("lake").rglob("*.parquet")}


def age(days: float, *paths: str) -> None:
    for path in paths:
        seen = Path("lake", path).stat().st_mtime - days * 86400
        os.utime(Path("lake", path), (seen, seen))


def shown(bench: Bench, name: str) -> Any:
    return bench.client.show_compaction(name)[0]


@pytest.mark.slow
def test_a_table_is_compacted_after_as_many_runs_as_its_pipeline_says(filled: Bench) -> None:
    name = filled.make(TABLE, {**LAKE, "compact": 3, "partition_by": ["day"]})
    for id in range(4):
        insert(filled, 2 * id, 2 * id + 1)
        filled.run(name)
        assert files() == [2, 4, 2, 4][id]
    assert ids() == list(range(8))
    done = shown(filled, name)
    assert (done.files_merged, done.files_made, done.files_deleted, done.failures, done.error) == (
        6,
        2,
        0,
        0,
        None,
    )
    # It is no run: what was written stays, and is not written again.
    assert filled.run(name) == {"outcome": "nothing new"}


@pytest.mark.slow
def test_versions_of_the_retention_can_be_read_and_what_is_older_is_deleted(filled: Bench) -> None:
    name = filled.make(TABLE, {**LAKE, "vacuum": "2 days"})
    for id in range(3):
        insert(filled, id)
        filled.run(name)
    before = DeltaTable("lake").version()
    assert compact_now(Control(filled.client), name) == Compacted(3, 1, 0)
    assert DeltaTable("lake", version=before).to_pyarrow_table().num_rows == 3
    sink = DeltaSink(**LAKE).model_copy(update={"vacuum": timedelta(0)})
    assert compact_table(Pipeline(name, source=TABLE, sink=LAKE), sink) == Compacted(0, 0, 3)
    assert len(on_disk()) == 1
    assert ids() == [0, 1, 2]


@pytest.mark.slow
def test_files_that_no_entry_names_go_when_they_are_old_and_others_stay(filled: Bench) -> None:
    name = filled.make(TABLE, {**LAKE, "partition_by": ["day"]})
    insert(filled, 1)
    filled.run(name)
    lost, young = "day=2030-01-02/run-00000001-9-x.parquet", "day=2030-01-02/run-00000001-8-x.parquet"
    staged, foreign, below = "_trunq_stage/a/part.parquet", "note.parquet", "other/run-00000001-1-x.parquet"
    for path in (lost, young, staged, foreign, below):
        Path("lake", path).parent.mkdir(parents=True, exist_ok=True)
        Path("lake", path).write_text("")
    age(8, lost, staged, foreign, below)
    assert compact_now(Control(filled.client), name) == Compacted(0, 0, 1)
    assert on_disk() > {young, staged, foreign, below}
    assert lost not in on_disk()


@pytest.mark.slow
def test_strange_partitions_are_compacted_and_cleaned(bench: Bench) -> None:
    bench.sql("create table source (id int, shop text)")
    name = bench.make(TABLE, {**LAKE, "partition_by": ["shop"]})
    for id in range(2):
        for shop in ("a b", "50% \u00fc/x=:", None):
            bench.sql("insert into source values (%s, %s)", id, shop)
        bench.run(name)
    assert compact_now(Control(bench.client), name) == Compacted(6, 3, 0)
    sink = DeltaSink(**LAKE).model_copy(update={"vacuum": timedelta(0)})
    compact_table(Pipeline(name, source=TABLE, sink=LAKE), sink)
    assert (len(on_disk()), ids()) == (3, [0, 0, 0, 1, 1, 1])


def met(monkeypatch: pytest.MonkeyPatch, meet: Callable[[], Any]) -> None:
    """Do something while a compaction has read the table, and written nothing yet."""
    original = compacting.open_table

    def opened(*given: Any) -> Any:
        table = original(*given)
        monkeypatch.setattr(compacting, "open_table", original)
        meet()
        return table

    monkeypatch.setattr(compacting, "open_table", opened)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["append", "upsert", "replace", "replace_partitions"])
def test_a_run_that_writes_meanwhile_is_right_and_comes_first(
    filled: Bench, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    more: dict[str, Any] = {"upsert": {"key": ["id"]}, "replace_partitions": {"partition_by": ["day"]}}
    source = {**TABLE, **({"changes": "all"} if "replace" in mode else {})}
    name = filled.make(source, {**LAKE, "mode": mode, **more.get(mode, {})})
    insert(filled, *range(4))
    filled.run(name)
    write_deltalake("lake", DeltaTable("lake").to_pyarrow_table().slice(0, 0), mode="append")
    filled.sql("delete from source; insert into source values (0, '2030-01-01', 2), (8, '2030-01-01', 2)")
    for _ in range(2):
        rows = pa.table({"id": [9], "day": [None], "n": [1]}, DeltaTable("lake").to_pyarrow_table().schema)
        write_deltalake("lake", rows, mode="append")
    met(monkeypatch, lambda: filled.run(name))
    control = Control(filled.client)
    if mode == "append":
        # Nothing that it merges was changed.
        assert compact_now(control, name) == Compacted(3, 1, 0)
    else:
        with pytest.raises(Outrun, match="a run replaced files of lake while they were merged"):
            compact_now(control, name)
        assert shown(filled, name).failures == 1
        assert compact_now(control, name) is not None
    expected = {
        "append": [0, 0, 1, 2, 3, 8, 9, 9],
        "upsert": [0, 1, 2, 3, 8, 9, 9],
        "replace": [0, 8],
        "replace_partitions": [0, 1, 3, 8, 9, 9],
    }
    assert ids() == expected[mode]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["upsert", "replace", "replace_partitions"])
def test_a_run_that_read_files_which_are_merged_meanwhile_begins_anew(
    filled: Bench, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trunq.pipeline.sink.delta import DeltaSink as Sink  # noqa: PLC0415

    more: dict[str, Any] = {"upsert": {"key": ["id"]}, "replace_partitions": {"partition_by": ["day"]}}
    source = {**TABLE, **({"changes": "all"} if "replace" in mode else {})}
    name = filled.make(source, {**LAKE, "mode": mode, **more.get(mode, {})})
    insert(filled, *range(4))
    filled.run(name)
    rows = DeltaTable("lake").to_pyarrow_table().slice(0, 1)
    write_deltalake("lake", pa.table({**dict(zip(rows.schema.names, rows.columns, strict=True)), "id": [9]},
                                     rows.schema), mode="append")  # fmt: skip
    filled.sql("update source set n = 2")
    original = Sink._marks
    merged: list[Compacted | None] = []

    def marks(self: Sink, run: Any, table: DeltaTable) -> Any:
        if not merged:
            merged.append(None)
            merged.append(compact_now(Control(filled.client), name))
        return original(self, run, table)

    monkeypatch.setattr(Sink, "_marks", marks)
    filled.run(name)
    assert merged[1] is not None
    assert merged[1].files_merged >= 2
    table = DeltaTable("lake").to_pyarrow_table()
    found = sorted(zip(table["id"].to_pylist(), table["n"].to_pylist(), strict=True))
    assert found == [(id, 2) for id in range(4)] + ([(9, 1)] if mode == "upsert" else [])


def _compact_and_die(dsn: str, name: str, directory: str, at: str, environment: dict[str, str]) -> None:
    from trunq import Client  # noqa: PLC0415
    from trunq.pipeline.sink.lake import LakeStage  # noqa: PLC0415
    from trunq.pipeline.sink.stored import StoredStage  # noqa: PLC0415

    os.environ.update(environment)
    os.chdir(directory)

    def die(*_: Any, **__: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    if at.startswith("after "):
        signal.setitimer(signal.ITIMER_REAL, float(at.removeprefix("after ")))
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
    for stage in (LakeStage, StoredStage):
        if at in ("sync_entries", "delete"):
            setattr(stage, at, die)
    if at == "noted":
        Control.end_compaction = die  # type: ignore[method-assign]
    with Client(dsn, max_connections=2) as client:
        compact_now(Control(client), name)


def killed(bench: Bench, name: str, at: str) -> int | None:
    process = multiprocessing.get_context("forkserver").Process(
        target=_compact_and_die, args=(bench.dsn, name, os.getcwd(), at, ENVIRONMENT), daemon=True
    )
    process.start()
    process.join(120)
    return process.exitcode


POINTS = ["sync_entries", "delete", "noted"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "at", [*POINTS, *(f"after {0.3 + number * 0.15:.2f}" for number in range(some(3, 20)))]
)
def test_a_compaction_that_is_killed_loses_no_row_and_the_next_one_does_it(filled: Bench, at: str) -> None:
    name = filled.make(TABLE, LAKE)
    for id in range(4):
        insert(filled, id)
        filled.run(name)
    code = killed(filled, name, at)
    assert code in ((-signal.SIGKILL,) if at in POINTS else (-signal.SIGALRM, 0))
    assert ids() == [0, 1, 2, 3]
    insert(filled, 4)
    filled.run(name)
    # Whoever died at it holds others from it for an hour.
    filled.sql("update trunq.pipeline_compaction set held_until = now()")
    done = compact_now(Control(filled.client), name)
    assert done is not None
    assert (ids(), files()) == ([0, 1, 2, 3, 4], 1)
    sink = DeltaSink(**LAKE).model_copy(update={"vacuum": timedelta(0)})
    compact_table(Pipeline(name, source=TABLE, sink=LAKE), sink)
    assert (ids(), len(on_disk())) == ([0, 1, 2, 3, 4], 1)


@pytest.mark.slow
def test_two_do_not_compact_at_once(filled: Bench) -> None:
    name = filled.make(TABLE, LAKE)
    control = Control(filled.client)
    holder = control.begin_compaction(name)
    assert holder is not None
    assert compact_now(control, name) is None
    control.end_compaction(name, holder)
    assert compact_now(control, name) == Compacted()


@pytest.mark.slow
def test_a_compaction_that_fails_stops_no_run_and_is_a_warning_whose_way_out_works(filled: Bench) -> None:
    name = filled.make(TABLE, {**LAKE, "compact": 1})
    insert(filled, 0)
    filled.run(name)
    broken = Path(DeltaTable("lake").file_uris()[0])
    content = broken.read_bytes()
    for id in range(1, 4):
        broken.write_bytes(b"no parquet")
        insert(filled, id)
        # It is tried again after a while.
        filled.sql("update trunq.pipeline_compaction set retry_at = now()")
        assert filled.run(name)["outcome"] == "done"
        assert shown(filled, name).failures == id
    (found,) = [each for each in filled.client.list_warnings("pipelines") if "compaction" in each.warning]
    assert f'compaction of pipeline "{name}" fails: ' in found.warning
    assert found.hint.endswith(f"trunq pipeline compact {name}")
    broken.write_bytes(content)
    assert compact_now(Control(filled.client), name) is not None
    assert not [each for each in filled.client.list_warnings("pipelines") if "compaction" in each.warning]
    assert (ids(), files()) == ([0, 1, 2, 3], 1)


@pytest.mark.slow
def test_what_cannot_be_compacted_is_refused(filled: Bench) -> None:
    name = filled.make(TABLE, {"format": "table", "table": "moved"})
    with pytest.raises(InvalidPipeline, match="there is nothing to compact"):
        compact_now(Control(filled.client), name)
    for words, wrong in (
        ({"vacuum": "1 hour"}, "vacuum is a day at least"),
        ({"compact": True}, "after how many runs"),
        ({"compact": 0}, "after how many runs"),
        ({"compact": -1}, "compact"),
        ({"vacuum": 0}, "vacuum is a length of time, or false"),
    ):
        with pytest.raises(InvalidPipeline, match=wrong):
            Pipeline("p", source=TABLE, sink={**LAKE, **words})
    never = filled.make(TABLE, {"format": "delta", "path": "other", "compact": False, "vacuum": False})
    insert(filled, 1)
    filled.run(never)
    assert filled.client.show_compaction(never) == []


@pytest.mark.slow
@pytest.mark.usefixtures("_secrets")
@pytest.mark.parametrize("at", ["", "delete"])
def test_a_table_at_an_object_store_is_compacted(filled: Bench, s3: S3Server, at: str) -> None:
    bucket = s3.bucket()
    sink = {"format": "delta", "path": f"{bucket}/lake", "storage": s3.storage}
    name = filled.make(TABLE, sink)
    for id in range(3):
        insert(filled, id)
        filled.run(name)
    if at:
        assert killed(filled, name, at) == -signal.SIGKILL
        filled.sql("update trunq.pipeline_compaction set held_until = now()")
    else:
        assert compact_now(Control(filled.client), name) == Compacted(3, 1, 0)
    table = DeltaTable(f"{bucket}/lake", storage_options=s3.options)
    assert (sorted(table.to_pyarrow_table()["id"].to_pylist()), len(table.file_uris())) == ([0, 1, 2], 1)
    pipeline = Pipeline(name, source=TABLE, sink=sink).expanded()
    assert isinstance(pipeline.sink, DeltaSink)
    old = pipeline.sink.model_copy(update={"vacuum": timedelta(0)})
    assert compact_table(pipeline, old).files_deleted == 3
    insert(filled, 3)
    filled.run(name)
    table = DeltaTable(f"{bucket}/lake", storage_options=s3.options)
    assert sorted(table.to_pyarrow_table()["id"].to_pylist()) == [0, 1, 2, 3]


@pytest.mark.slow
def test_that_of_an_instance_is_its_own(bench: Bench) -> None:
    bench.sql("create table source_acme (id int)")
    source = {"format": "table", "table": "source_${message.customer}"}
    sink = {"format": "delta", "path": "lake/${message.customer}", "compact": 2}
    name = bench.make(source, sink, message={"customer": "text"}, per="message.customer")
    for id in range(3):
        bench.sql("insert into source_acme values (%s)", id)
        bench.run(name, {"customer": "acme"})
    assert files("lake/acme") == 2
    assert shown(bench, f"{name}/acme").files_merged == 2
    assert compact_now(Control(bench.client), f"{name}/acme") == Compacted(2, 1, 0)
    assert (files("lake/acme"), ids("lake/acme")) == (1, [0, 1, 2])
    with pytest.raises(InvalidPipeline, match="has instances, and each writes into a table") as caught:
        compact_now(Control(bench.client), name)
    assert caught.value.hint == f"trunq pipeline instances {name}"


@pytest.mark.slow
def test_that_of_a_table_of_many_is_its_own(bench: Bench) -> None:
    bench.sql("create schema shop; create table shop.orders (id int primary key)")
    source = {"format": "table", "tables": "shop.*"}
    name = bench.make(source, {"format": "delta", "path": "lake_${table}"}, name="shop")
    bench.execute(bench.client.run_pipeline(name))
    for id in range(2):
        bench.sql("insert into shop.orders values (%s)", id)
        bench.run("shop/shop.orders")
    assert compact_now(Control(bench.client), "shop/shop.orders") == Compacted(2, 1, 0)
    with pytest.raises(InvalidPipeline, match="has instances, and each writes into a table"):
        compact_now(Control(bench.client), name)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["append", "upsert", "replace"])
def test_runs_and_compactions_at_once_lose_and_double_nothing(filled: Bench, mode: str) -> None:
    source = {**TABLE, **({"changes": "all"} if mode == "replace" else {})}
    name = filled.make(source, {**LAKE, "mode": mode, **({"key": ["id"]} if mode == "upsert" else {})})
    insert(filled, 0)
    filled.run(name)
    sink = DeltaSink(**LAKE)
    pipeline = Pipeline(name, source=TABLE, sink=LAKE)
    is_over = threading.Event()
    outcomes: list[str] = []

    def compact_again_and_again() -> None:
        while not is_over.is_set():
            try:
                done = compact_table(pipeline, sink)
                outcomes.append("merged" if done.files_merged else "nothing")
            except Outrun:
                outcomes.append("outrun")

    thread = threading.Thread(target=compact_again_and_again)
    thread.start()
    try:
        for id in range(1, some(12, 60)):
            insert(filled, id)
            filled.sql("update source set n = n + 1 where id = %s", id - 1)
            filled.run(name)
    finally:
        is_over.set()
        thread.join()
    last = some(12, 60) - 1
    # An append has the row again that was updated.
    expected = sorted([*range(last + 1), *(range(last) if mode == "append" else [])])
    assert ids() == expected
    assert outcomes
