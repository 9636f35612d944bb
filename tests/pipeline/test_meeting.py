"""Moments in which runs, and people, meet: found by tests/model/test_pipeline.py, each here by itself."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.baton import Execution, points
from pipeline.piping import Bench
from trunq.pipeline.run import Executor

SINK = {"format": "table", "table": "moved"}


def start(bench: Bench, message: int) -> Execution:
    return Execution(Executor(bench.client, bench.dsn), bench.asked(message), is_attentive=False)


def go_to(execution: Execution, point: str) -> None:
    while execution.point != point:
        assert not execution.is_over, execution.error
        execution.step()


def ignore(*_: Any) -> None:
    """Nothing is noted."""


@pytest.fixture
def filled(bench: Bench) -> Bench:
    bench.sql("create table source (id int); insert into source values (1), (2)")
    return bench


@pytest.mark.parametrize("new", [0, 1])
def test_a_state_that_is_set_while_a_run_is_planned_counts(filled: Bench, new: int) -> None:
    name = filled.make({"format": "table", "table": "source"}, SINK)
    filled.run(name)
    filled.sql(f"insert into source select 3 from generate_series(1, {new})")
    with points(ignore):
        planned = start(filled, filled.client.run_pipeline(name))
        go_to(planned, "plan")
        filled.client.set_pipeline_state(name, {})
        planned.to_end()
    if new:
        assert planned.result is not None
        assert planned.result["rows_out"] == 3, "it begins at the beginning"
    else:
        assert filled.run(name)["rows_out"] == 2


def test_another_source_that_is_set_while_a_run_is_planned_counts(filled: Bench) -> None:
    name = filled.make({"format": "table", "table": "source"}, SINK)
    filled.sql("create table other (id int); insert into other values (7)")
    with points(ignore):
        planned = start(filled, filled.client.run_pipeline(name))
        go_to(planned, "plan")
        filled.client.create_pipeline(name, {"source": {"format": "table", "table": "other"}, "sink": SINK})
        planned.to_end()
    assert filled.one("select array_agg(id) from moved") == [7]


def test_who_comes_late_to_a_run_that_others_ended_blames_nothing(filled: Bench) -> None:
    name = filled.make({"format": "table", "table": "source"}, SINK)
    message = filled.client.run_pipeline(name)
    with points(ignore):
        late = start(filled, message)
        go_to(late, "begin")
        assert filled.execute(message)["number"] == 1
        filled.sql("insert into source values (3)")
        assert filled.run(name)["number"] == 2
        late.to_end()
    assert late.result is not None, repr(late.error)
    assert late.result["number"] == 1, "what became of it"
    assert filled.one("select count(*) from moved") == 3


def test_a_pipeline_that_is_made_again_while_a_run_is_planned_has_that_run_under_its_own_mark(
    filled: Bench,
) -> None:
    name = filled.make({"format": "table", "table": "source"}, SINK)
    with points(ignore):
        planned = start(filled, filled.client.run_pipeline(name))
        go_to(planned, "plan")
        filled.client.drop_pipeline(name)
        filled.make({"format": "table", "table": "source"}, SINK, name=name)
        planned.to_end()
    assert planned.error is None
    identity = filled.one("select identity::text from trunq.pipeline")
    assert filled.sql("select mark, number from trunq_sink.mark") == [(identity, 1)]
    filled.sql("insert into source values (3)")
    assert filled.run(name)["rows_out"] == 1
