"""Writers of one Delta table at the same time: who is not first tries again for as long as its run is its
own, keeps what it has written, and leaves nothing behind; and a column that another pipeline renames loses no
value.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from pipeline.piping import Bench
from trunq.arrow import delta as lake_of
from trunq.pipeline.errors import Outrun, RunCancelled, SinkUnwritable
from trunq.pipeline.sink import delta, table
from trunq.pipeline.sink.upsert import Upsert

SOURCE = {"format": "table", "table": "source"}
OTHER = {"format": "table", "table": "other"}
LAKE: dict[str, Any] = {"format": "delta", "path": "lake"}
UPSERT: dict[str, Any] = {**LAKE, "mode": "upsert", "key": ["id"]}


@pytest.fixture(autouse=True)
def _at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No pause between two tries, in a directory of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(lake_of, "pause_after", lambda _: 0.0)


def rows() -> list[tuple[Any, ...]]:
    found = DeltaTable("lake").to_pyarrow_table().to_pylist()
    return sorted(tuple(row.values()) for row in found)


def on_disk() -> set[str]:
    return {str(path.relative_to("lake")) for path in Path("lake").rglob("*.parquet")}


def named() -> set[str]:
    """Files that any version of the table has."""
    return {
        each["path"]
        for version in range(DeltaTable("lake").version() + 1)
        for each in pa.table(DeltaTable("lake", version=version).get_add_actions()).to_pylist()
    }


def meeting(monkeypatch: pytest.MonkeyPatch, times: int, meet: Callable[[int], Any]) -> list[int]:
    """Do something each time that an upsert has read the table, and has written no entry yet."""
    original, met = Upsert.actions, list[int]()

    def actions(self: Upsert, there: DeltaTable) -> Any:
        made = original(self, there)
        if len(met) < times:
            met.append(len(met))
            meet(met[-1])
        return made

    monkeypatch.setattr(Upsert, "actions", actions)
    return met


def appended(number: int) -> None:
    """A row that another writer appends."""
    schema = DeltaTable("lake").to_pyarrow_table().schema
    write_deltalake("lake", pa.table({"id": [100 + number], "word": ["theirs"]}, schema), mode="append")


@pytest.fixture
def filled(bench: Bench) -> Bench:
    bench.sql("create table source (id int, word text); insert into source values (1, 'a'), (2, 'b')")
    bench.sql("create table other (id int, word text)")
    return bench


def test_an_upsert_beside_a_busy_writer_keeps_what_it_wrote_and_leaves_no_file(
    filled: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = filled.make(SOURCE, UPSERT)
    filled.run(name)
    filled.sql("update source set word = 'x' where id = 1; insert into source values (3, 'c')")
    read: list[str] = []
    original = Upsert._meet

    def meet(self: Upsert, fragment: Any, *given: Any) -> Any:
        read.append(fragment.path)
        return original(self, fragment, *given)

    monkeypatch.setattr(Upsert, "_meet", meet)
    met = meeting(monkeypatch, 25, appended)
    filled.run(name)
    assert len(met) == 25
    assert rows() == [(1, "x"), (2, "b"), (3, "c"), *((100 + number, "theirs") for number in range(25))]
    # A file is read once, however often another writer comes first.
    assert len(read) == len(set(read))
    assert on_disk() == named()


def test_two_upserts_of_one_key_at_the_same_time_leave_one_row(
    filled: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, other = filled.make(SOURCE, UPSERT), filled.make(OTHER, UPSERT)
    filled.run(name)
    filled.sql("insert into source values (7, 'ours'); insert into other values (7, 'theirs'), (2, 'theirs')")
    meeting(monkeypatch, 1, lambda _: filled.run(other))
    filled.run(name)
    # Who comes later finds the row that was not there when it began.
    assert rows() == [(1, "a"), (2, "theirs"), (7, "ours")]
    assert on_disk() == named()


def test_a_row_that_is_newer_in_the_table_stays_whenever_it_came(
    filled: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled.sql("alter table source add at int default 5; alter table other add at int")
    sink = {**UPSERT, "newest": "at", "partition_by": ["at"]}
    name, other = filled.make(SOURCE, sink), filled.make(OTHER, sink)
    filled.run(name)
    filled.sql("insert into other values (1, 'newer', 9), (2, 'older', 1), (3, 'newer', 9), (4, 'no', null)")
    filled.sql("update source set word = 'x'; insert into source values (3, 'late', 6), (4, 'yes', 0)")
    meeting(monkeypatch, 1, lambda _: filled.run(other))
    filled.run(name)
    assert rows() == [(1, "newer", 9), (2, "x", 5), (3, "newer", 9), (4, "yes", 0)]
    assert on_disk() == named()
    # Moved to another partition, it is gone from its own.
    filled.sql("update source set at = 7 where id = 2")
    filled.run(name)
    assert rows()[1] == (2, "x", 7)


def test_when_others_are_always_first_the_run_says_so_and_leaves_no_file(
    filled: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = filled.make(SOURCE, UPSERT)
    filled.run(name)
    filled.sql("update source set word = 'x' where id = 1")
    with monkeypatch.context() as patched:
        patched.setattr(lake_of, "PATIENCE", 0.3)
        met = meeting(patched, 1000, appended)
        with pytest.raises(Outrun, match=r"others wrote to lake first at each of \d+ tries of") as told:
            filled.run(name)
    assert "the run is tried again" in told.value.hint
    assert on_disk() == named()
    filled.run(name)
    assert rows()[:2] == [(1, "x"), (2, "b")]
    assert len(rows()) == 2 + len(met)


def test_a_run_that_is_cancelled_while_others_are_first_ends(
    filled: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = filled.make(SOURCE, UPSERT)
    filled.run(name)
    filled.sql("update source set word = 'x' where id = 1")
    is_cancelled = False

    def check(_: Any) -> None:
        if is_cancelled:
            raise RunCancelled("cancelled")

    def meet(number: int) -> None:
        nonlocal is_cancelled
        appended(number)
        is_cancelled = number == 3

    monkeypatch.setattr("trunq.pipeline.monitor.Monitor.check", check)
    met = meeting(monkeypatch, 1000, meet)
    assert filled.run(name)["outcome"] == "cancelled"
    assert (len(met), rows()[0]) == (4, (1, "a"))
    assert on_disk() == named()


def test_values_of_columns_that_a_run_does_not_write_stay(filled: Bench) -> None:
    name, other = filled.make(SOURCE, UPSERT), filled.make(OTHER, UPSERT)
    filled.run(name)
    filled.sql("alter table other add n int; insert into other values (1, 'n', 4), (8, 'n', 5)")
    filled.run(other)
    filled.sql("update source set word = 'x'")
    filled.run(name)
    assert rows() == [(1, "x", 4), (2, "x", None), (8, "n", 5)]


def test_a_table_that_asks_for_more_of_delta_is_merged_by_deltalake(filled: Bench) -> None:
    name = filled.make(SOURCE, UPSERT)
    filled.run(name)
    DeltaTable("lake").alter.set_table_properties({"delta.enableChangeDataFeed": "true"})
    filled.sql("update source set word = 'x' where id = 1")
    filled.run(name)
    assert rows() == [(1, "x"), (2, "b")]
    changes = DeltaTable("lake").load_cdf(starting_version=DeltaTable("lake").version()).read_all()
    assert {"update_preimage", "update_postimage"} <= set(pa.table(changes)["_change_type"].to_pylist())


@pytest.mark.parametrize("mode", ["append", "upsert"])
@pytest.mark.parametrize("at", ["stage", "_try"])
def test_rows_that_were_staged_under_a_column_s_old_name_lose_no_value(
    filled: Bench, mode: str, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = UPSERT if mode == "upsert" else LAKE
    filled.sql("insert into other values (5, 'theirs')")
    other = filled.make(OTHER, sink)
    name = filled.make(SOURCE, sink, evolve={"rename": {"word": "said"}})
    filled.run(name)
    filled.sql("alter table source rename word to said; insert into source values (3, 'c')")
    original, met = getattr(delta.DeltaSink, at), []

    def meet(self: Any, run: Any, *given: Any) -> Any:
        if run.pipeline == other and not met:
            met.append(1)
            filled.run(name)
        return original(self, run, *given)

    monkeypatch.setattr(delta.DeltaSink, at, meet)
    with pytest.raises(Outrun, match='column "word" of lake has got another name, or is gone'):
        filled.run(other)
    assert [row[:2] for row in rows()][-1] == (3, "c")
    filled.run(other)
    found = DeltaTable("lake").to_pyarrow_table(columns=["id", "said", "word"]).to_pylist()
    assert sorted(map(tuple, (row.values() for row in found))) == [
        (1, "a", None), (2, "b", None), (3, "c", None), (5, None, "theirs")
    ]  # fmt: skip


def test_a_table_of_postgres_whose_column_is_renamed_meanwhile_refuses_the_run_in_a_sentence(
    filled: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled.sql("insert into other values (5, 'theirs')")
    sink = {"format": "table", "table": "copy"}
    other, name = filled.make(OTHER, sink), filled.make(SOURCE, sink, evolve={"rename": {"word": "said"}})
    filled.run(name)
    filled.sql("alter table source rename word to said; insert into source values (3, 'c')")
    original, met = table.TableSink.commit, []

    def meet(self: Any, run: Any, *given: Any) -> Any:
        if run.pipeline == other and not met:
            met.append(1)
            filled.run(name)
        return original(self, run, *given)

    monkeypatch.setattr(table.TableSink, "commit", meet)
    with pytest.raises(SinkUnwritable, match="a column of copy got another name, or was dropped"):
        filled.run(other)
    filled.run(other)
    assert filled.sql("select id, said, word from copy order by id") == [
        (1, "a", None), (2, "b", None), (3, "c", None), (5, None, "theirs")
    ]  # fmt: skip
