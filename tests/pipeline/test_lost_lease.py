"""A runner that comes back after its lease was over: who has its run by then goes on undisturbed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.piping import Bench
from pipeline.test_runner import running
from waiting import wait_until

MOVED = {"format": "table", "table": "moved"}


def in_turn(context: Any) -> Iterator[dict[str, Any]]:
    """Each attempt says by a file in the directory of the message that it is there, and waits for its own."""
    number = len([*Path(context.message).glob("begun-*")]) + 1
    Path(context.message, f"begun-{number}").touch()
    go = Path(context.message, f"go-{number}")
    wait_until(go.exists)
    yield {"id": number}


@pytest.fixture
def name(bench: Bench) -> str:
    bench.client.create_queue("pipelines")
    return bench.make({"format": "python", "function": f"{__name__}:in_turn"}, MOVED)


def hold_of(bench: Bench, name: str) -> Any:
    """Until when somebody says that they are at the run."""
    return bench.one(
        "select held_until from trunq.pipeline_run join trunq.pipeline p using (pipeline_id)"
        " where p.name = %s",
        name,
    )


def is_told_again(bench: Bench, name: str) -> bool:
    """Whether whoever is at the run says so once more."""
    seen = hold_of(bench, name)
    wait_until(lambda: hold_of(bench, name) not in (None, seen))
    return True


def test_a_runner_that_gets_its_own_message_again_goes_on_with_the_second_attempt(
    bench: Bench, name: str, tmp_path: Path
) -> None:
    with running(bench, concurrency=2, lease_time=3.0) as runner:
        message = bench.client.run_pipeline(name, str(tmp_path))
        wait_until((tmp_path / "begun-1").exists)
        worker = bench.client.show_message("pipelines", message)[0].worker
        assert bench.client.reclaim("pipelines", "default", str(worker)) == 1
        wait_until((tmp_path / "begun-2").exists)
        # One that has not heard of it would end the run.
        wait_until(lambda: any(lost.is_set() for lost in list(runner._in_hand.runs)))
        (tmp_path / "go-1").touch()
        wait_until(lambda: len(runner._in_hand.runs) == 1)
        assert is_told_again(bench, name)
        assert is_told_again(bench, name)
        (tmp_path / "go-2").touch()
        wait_until(lambda: bench.client.list_runs(name)[0].outcome)
        wait_until(lambda: bench.client.show_message("pipelines", message)[0].state == "done")
    run = bench.client.list_runs(name)[0]
    assert (run.outcome, run.attempts) == ("done", 2)
    assert bench.sql("select id from moved") == [(2,)]
    assert bench.client.show_message("pipelines", message)[0].error is None
