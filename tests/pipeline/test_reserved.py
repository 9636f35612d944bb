"""Columns of users that are called as one that trunq works with: each is refused in a sentence."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from pipeline.piping import Bench
from trunq.errors import InvalidPipeline
from trunq.pipeline import Pipeline
from trunq.pipeline.errors import WorkFailed
from trunq.pipeline.plan import plan_pipeline

TABLE = {"format": "table", "table": "source"}
CHECK = {"name": "even", "holds": "id % 2 = 0"}
TO_TABLE = {"format": "table", "table": "moved"}
UPSERT = {**TO_TABLE, "mode": "upsert", "key": ["id"]}
LAKE = {"format": "delta", "path": "lake"}
CASES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("trunq part", TO_TABLE, {}),
    ("trunq part", TO_TABLE, {"engine": "spark"}),
    ("Trunq Row", UPSERT, {}),
    ("trunq at", {**UPSERT, "mode": "history"}, {}),
    ("valid_from", {**UPSERT, "mode": "history"}, {}),
    ("trunq row", {**LAKE, "mode": "upsert", "key": ["id"]}, {}),
    ("trunq closes", {**LAKE, "mode": "history", "key": ["id"]}, {}),
    ("trunq_blank", LAKE, {}),
    ("_at", LAKE, {"stamp": True}),
    ("_Broken", LAKE, {"checks": [CHECK], "engine": "spark"}),
    ("_broken_key_0", LAKE, {"checks": [{"column": "id", "unique": True}], "sql": ["select * from input"]}),
]


@pytest.fixture(autouse=True)
def _in_a_directory_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(("column", "sink", "more"), CASES)
def test_such_a_column_is_refused_by_plan_and_run_and_another_name_helps(
    bench: Bench, column: str, sink: dict[str, Any], more: dict[str, Any]
) -> None:
    bench.sql(f'create table source (id int, "{column}" int); insert into source values (2, 7)')
    name = bench.make(TABLE, sink, **more)
    refused = f'rows have a column "{column}", '
    if "sql" not in more:
        assert refused in " ".join(each["message"] or "" for each in plan_pipeline(name, bench.dsn).refused)
    with pytest.raises((InvalidPipeline, WorkFailed), match=refused) as raised:
        bench.run(name)
    hint = raised.value.hint or ""
    written = hint.partition("columns = ")[2].partition(", or by")[0].replace("...", "another")
    columns = tomllib.loads(f"columns = {written}")["columns"]
    assert columns == {"rename": {column: "another"}}
    bench.client.cancel_pipeline(name)
    done = bench.run(bench.make(TABLE, sink, **more, columns=columns))
    assert (done["outcome"], done["rows_out"]) == ("done", 1)


@pytest.mark.parametrize("columns", [{"rename": {"a": "trunq part"}}, {"constant": {"trunq at": 1}}])
def test_such_a_name_is_refused_in_the_definition(columns: dict[str, Any]) -> None:
    with pytest.raises(InvalidPipeline, match=r"rows have a column .trunq (part|at)., as trunq.s own are"):
        Pipeline("p", source=TABLE, sink=TO_TABLE, columns=columns)


@pytest.mark.parametrize("mode", ["append", "apply"])
def test_a_captured_table_with_such_a_column_is_refused(bench: Bench, mode: str) -> None:
    bench.sql('create table source (id int primary key, "trunq row" int); insert into source values (1, 1)')
    name = bench.make({**TABLE, "changes": "capture"}, {**TO_TABLE, "mode": mode})
    with pytest.raises(InvalidPipeline, match='source has a column "trunq row", which captured rows') as told:
        bench.run(name)
    assert 'alter table source rename "trunq row" to' in (told.value.hint or "")
    bench.client.drop_pipeline(name)
    left_out = bench.make(
        {**TABLE, "changes": "capture"}, {**TO_TABLE, "mode": mode}, columns={"exclude": ["trunq row"]}
    )
    assert bench.run(left_out)["rows_out"] == 1
    bench.sql("insert into source values (2, 2)")
    assert bench.run(left_out)["rows_out"] == 1
