"""What a source that is read whole has no longer is deleted in the sink, and never much of it by mistake."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from pipeline.apis import Reply, serving
from pipeline.piping import Bench
from trunq.errors import InvalidPipeline, TrunqError
from trunq.pipeline.errors import TooManyMissing

SOURCE = {"format": "table", "table": "source", "changes": "all"}
SINKS: dict[str, dict[str, Any]] = {
    "table": {"format": "table", "table": "copy"},
    "delta": {"format": "delta", "path": "copy"},
}

Make = Callable[..., str]


@pytest.fixture(params=SINKS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def make(bench: Bench, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    monkeypatch.chdir(tmp_path)
    bench.sql("create table source (id int primary key, word text)")
    bench.sql("insert into source values (1, 'a'), (2, 'b'), (3, 'c')")

    def made(*, name: str | None = None, columns: Any = None, checks: Any = (), **more: Any) -> str:
        sink = {**SINKS[kind], "mode": "upsert", "key": ["id"], "missing": "delete", **more}
        return bench.make(SOURCE, sink, name=name, checks=list(checks))

    return made


def copied(bench: Bench, kind: str) -> list[tuple[int, str, bool]]:
    """What the sink has, and whether that is deleted."""
    if kind == "table":
        rows = [row for (row,) in bench.sql("select to_jsonb(c) from copy c order by id")]
    else:
        rows = DeltaTable("copy").to_pyarrow_table().sort_by("id").to_pylist()
    return [(row["id"], row["word"], row.get("deleted_at") is not None) for row in rows]


def test_what_the_source_has_no_longer_is_deleted(bench: Bench, kind: str, make: Make) -> None:
    name = make()
    bench.run(name)
    bench.sql("delete from source where id = 2; update source set word = 'x' where id = 1")
    bench.run(name)
    assert copied(bench, kind) == [(1, "x", False), (3, "c", False)]


def test_a_soft_delete_notes_the_time_and_a_row_that_is_there_again_lives(
    bench: Bench, kind: str, make: Make
) -> None:
    name = make(deletes="soft", newest="word")
    bench.run(name)
    bench.sql("delete from source where id = 2")
    bench.run(name)
    assert copied(bench, kind) == [(1, "a", False), (2, "b", True), (3, "c", False)]
    # Its newest says that it is older than what the sink has, and yet it is there.
    bench.sql("insert into source values (2, 'a')")
    bench.run(name)
    assert copied(bench, kind) == [(1, "a", False), (2, "b", False), (3, "c", False)]


def versions(bench: Bench, kind: str) -> list[tuple[int, str, bool]]:
    """What a history has, in the order of time, and whether it ended."""
    if kind == "table":
        rows = [row for (row,) in bench.sql("select to_jsonb(c) from copy c")]
    else:
        rows = DeltaTable("copy").to_pyarrow_table().to_pylist()
    assert all(row["valid_to"] is None or row["valid_from"] <= row["valid_to"] for row in rows)
    rows.sort(key=lambda row: (row["id"], row["valid_from"]))
    return [(row["id"], row["word"], row["valid_to"] is not None) for row in rows]


@pytest.mark.parametrize("newest", [None, "at"])
def test_in_a_history_the_version_of_a_row_that_is_gone_ends_and_its_return_begins_another(
    bench: Bench, kind: str, make: Make, newest: str | None
) -> None:
    bench.sql("alter table source add at timestamptz default '2030-01-01'")
    name = make(mode="history", **({"newest": newest} if newest else {}))
    bench.run(name)
    bench.sql("delete from source where id = 2; update source set word = 'x', at = '2030-01-02' where id = 1")
    bench.run(name)
    gone = [(1, "a", True), (1, "x", False), (2, "b", True), (3, "c", False)]
    assert versions(bench, kind) == gone
    # What is still gone ends once.
    bench.run(name)
    assert versions(bench, kind) == gone
    # As it was, with the time that it had.
    bench.sql("insert into source values (2, 'b', '2030-01-01')")
    bench.run(name)
    bench.run(name)
    back = [*gone[:3], (2, "b", False), (3, "c", False)]
    assert versions(bench, kind) == back
    bench.sql("update source set word = 'y', at = '2999-01-01' where id = 2")
    bench.run(name)
    assert versions(bench, kind) == [*gone[:3], (2, "b", True), (2, "y", False), (3, "c", False)]
    # A version that is to begin yet ends as it begins.
    bench.sql("delete from source where id = 2")
    bench.run(name)
    assert versions(bench, kind)[-2:] == [(2, "y", True), (3, "c", False)]
    bench.sql("delete from source")
    with pytest.raises(TooManyMissing, match="lacks 2 of the 2 rows"):
        bench.run(name)
    make(name=name, mode="history", max_missing=1, **({"newest": newest} if newest else {}))
    bench.run(name)
    assert {ended for *_, ended in versions(bench, kind)} == {True}
    with pytest.raises(InvalidPipeline, match="deletes = 'soft' is not for mode = 'history'"):
        make(mode="history", deletes="soft")


@pytest.mark.parametrize("left", [0, 1])
def test_a_source_that_lacks_much_of_the_sink_deletes_nothing_until_that_is_said(
    bench: Bench, kind: str, make: Make, left: int
) -> None:
    name = make()
    bench.run(name)
    bench.sql("delete from source where id > %s", left)
    with pytest.raises(TooManyMissing, match=rf"lacks {3 - left} of the 3 rows") as caught:
        bench.run(name)
    assert len(copied(bench, kind)) == 3
    assert "max_missing = 1" in caught.value.hint
    make(name=name, max_missing=1)
    bench.run(name)
    assert [id for id, *_ in copied(bench, kind)] == [1][:left]


def test_an_empty_sink_and_an_empty_source_are_no_reason_to_fail(bench: Bench, kind: str, make: Make) -> None:
    bench.sql("delete from source")
    name = make()
    assert [bench.run(name)["outcome"] for _ in range(2)] == ["done", "done"]


def test_a_row_that_is_kept_out_is_not_there(bench: Bench, kind: str, make: Make) -> None:
    name = make(checks=[{"column": "word", "one_of": ["a", "b", "c"]}])
    bench.run(name)
    bench.sql("update source set word = 'wrong' where id = 2")
    bench.run(name)
    assert [id for id, *_ in copied(bench, kind)] == [1, 3]
    # Sent again, it is all that is read, which is no reason to delete the others.
    bench.make(SOURCE, {**SINKS[kind], "mode": "upsert", "key": ["id"], "missing": "delete"}, name=name)
    bench.execute(bench.client.resend_quarantine(name))
    assert copied(bench, kind) == [(1, "a", False), (2, "wrong", False), (3, "c", False)]


def test_what_an_api_tells_no_longer_is_deleted_and_a_run_that_fails_deletes_nothing(
    bench: Bench, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    told: list[Any] = [{"id": id, "word": word} for id, word in ((1, "a"), (2, "b"), (3, "c"))]
    sink = {**SINKS[kind], "mode": "upsert", "key": ["id"], "missing": "delete"}
    with serving(lambda _: Reply({"rows": told} if told else {})) as api:
        source = {"format": "http", "url": f"{api.url}/rows", "rows": "rows"}
        since = {"param": "since", "path": "id"}
        with pytest.raises(InvalidPipeline, match=r"read whole each time.*without since"):
            bench.make({**source, "since": since}, sink)
        name = bench.make(source, sink)
        bench.run(name)
        told[:] = [{"id": 1, "word": "x"}, {"id": 3, "word": "c"}]
        bench.run(name)
        assert copied(bench, kind) == [(1, "x", False), (3, "c", False)]
        told.clear()
        with pytest.raises(TrunqError):
            bench.run(name)
    assert copied(bench, kind) == [(1, "x", False), (3, "c", False)]
