"""Runs of one host and key share a pace, and what the API asks for; others go on."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.apis import Reply, Request, Server, paged, rows, serving
from pipeline.killing import execute_and_die, start
from pipeline.piping import Bench
from trunq.pipeline import request as requests
from trunq.pipeline.errors import Wait
from trunq.pipeline.isolated import Isolation

CURSOR = {"rows": "data.items", "cursor": {"path": "paging.cursor", "param": "after"}}
TOKEN = {"Authorization": "Bearer ${PACED_TOKEN}"}


@pytest.fixture
def api() -> Iterator[Server]:
    with serving(paged(35, 10)) as server:
        yield server


@pytest.fixture(autouse=True)
def _quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "FIRST_WAIT", 0.001)
    monkeypatch.setattr("pipeline.killing.DIRECTORY", str(tmp_path))
    monkeypatch.setattr("pipeline.killing.ENVIRONMENT", {"PACED_TOKEN": "abc123"})
    monkeypatch.setenv("PACED_TOKEN", "abc123")
    monkeypatch.chdir(tmp_path)


def make(bench: Bench, api: Server, table: str = "moved", *, isolate: bool = False, **more: Any) -> str:
    return bench.make(
        {"format": "http", "url": f"{api.url}/rows", "headers": TOKEN, **more},
        {"format": "table", "table": table},
        isolate=isolate,
    )


def test_runs_in_several_processes_keep_one_pace(bench: Bench, api: Server) -> None:
    came: list[float] = []
    whole = paged(35, 10)

    def answer(request: Request) -> Reply:
        came.append(time.monotonic())
        return whole(request)

    api.handler = answer
    names = [make(bench, api, f"moved_{at}", per_second=10, **CURSOR) for at in range(3)]
    asked = [bench.asked(bench.client.run_pipeline(name)) for name in names]
    processes = [start(bench.dsn, each) for each in asked]
    for process in processes:
        process.join(240)
        assert process.exitcode == 0
    assert len(came) == 12
    # A request that is late for its moment comes near to the next one, and over all of them it evens out.
    assert max(came) - min(came) >= 11 / 10 - 0.5
    assert [bench.one(f"select count(*) from moved_{at}") for at in range(3)] == [35] * 3


def test_a_killed_run_leaves_its_pace_to_the_others(bench: Bench, api: Server) -> None:
    message = bench.client.run_pipeline(make(bench, api, per_second=5, **CURSOR))
    assert execute_and_die(bench.dsn, bench.asked(message), "landed 2") == -signal.SIGKILL
    begun = time.monotonic()
    assert bench.run(make(bench, api, "other", per_second=1000, **CURSOR))["rows_out"] == 35
    assert time.monotonic() - begun < 60
    assert bench.execute(message)["rows_out"] == 35


def test_what_one_is_told_all_of_the_key_are_and_no_others(
    bench: Bench, api: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = make(bench, api, **CURSOR)
    api.handler = lambda _: Reply(status=429, headers={"Retry-After": "3600"})
    with pytest.raises(Wait):
        bench.run(name)
    bench.sql("create table source (id bigint generated always as identity)")
    bench.sql("insert into source default values")
    sink = {"format": "http", "url": f"{api.url}/take", "headers": TOKEN}
    api.requests.clear()
    # Another address of that host, and a sink, with the same key.
    others = [
        make(bench, api, url=f"{api.url}/other"),
        bench.make({"format": "table", "table": "source"}, sink),
    ]
    messages = [bench.client.run_pipeline(each) for each in others]
    for message in messages:
        with pytest.raises(Wait) as caught:
            bench.execute(message)
        assert 3000 < caught.value.seconds <= 3600
    assert api.requests == []
    # Another key, and another host, are asked.
    api.handler = lambda _: Reply(rows(0, 5))
    monkeypatch.setenv("OTHER_TOKEN", "def456")
    headers = {"Authorization": "Bearer ${OTHER_TOKEN}"}
    assert bench.run(make(bench, api, "with_another", headers=headers))["rows_out"] == 5
    with serving(lambda _: Reply(rows(0, 5))) as elsewhere:
        assert bench.run(make(bench, elsewhere, "elsewhere"))["rows_out"] == 5
    # And when its time has come, all go on.
    bench.sql("update trunq.pace set held_until = trunq.clock(), next_at = trunq.clock()")
    assert [bench.execute(message)["outcome"] for message in messages] == ["done", "done"]


def test_who_waits_for_a_moment_hears_what_another_was_told(bench: Bench, api: Server) -> None:
    told = threading.Event()

    def answer(request: Request) -> Reply:
        if request.path == "/first":
            # The other one has its moment by now, and waits for it.
            told.wait(120)
            return Reply(status=429, headers={"Retry-After": "3600"})
        return Reply(rows(0, 5))

    api.handler = answer
    first = bench.client.run_pipeline(make(bench, api, url=f"{api.url}/first", per_second=0.5))
    second = bench.client.run_pipeline(make(bench, api, "other", per_second=0.5))
    process = start(bench.dsn, bench.asked(first))
    while not api.requests:
        assert process.is_alive()
    waits = threading.Thread(target=lambda: caught.append(run_error(bench, second)))
    caught: list[Any] = []
    waits.start()
    while (
        bench.one("select count(*) from trunq.pace where next_at > trunq.clock() + interval '2 seconds'") == 0
    ):
        assert waits.is_alive()
    told.set()
    waits.join(120)
    process.join(120)
    assert isinstance(caught[0], Wait)
    assert [each for each in api.paths if each != "/first"] == []


def run_error(bench: Bench, message: int) -> Exception | None:
    try:
        bench.execute(message)
    except Exception as error:
        return error
    return None


def test_no_key_stands_in_the_database(bench: Bench, api: Server) -> None:
    bench.run(make(bench, api, per_second=1000, params={"api_key": "${PACED_TOKEN}"}, **CURSOR))
    (name,) = bench.sql("select name from trunq.pace")[0]
    assert name.startswith(f"{api.url} ")
    assert "abc123" not in name
    # What is no key makes no other pace; a key in the address does.
    tenant = {**TOKEN, "X-Tenant": "acme"}
    bench.run(
        make(bench, api, per_second=1000, headers=tenant, params={"api_key": "${PACED_TOKEN}"}, **CURSOR)
    )
    assert bench.one("select count(*) from trunq.pace") == 1
    bench.run(make(bench, api, per_second=1000, url=f"{api.url}/${{PACED_TOKEN}}", **CURSOR))
    assert bench.one("select count(*) from trunq.pace") == 2


def test_a_run_in_a_process_of_its_own_that_the_api_puts_off_has_not_failed(
    bench: Bench, api: Server
) -> None:
    api.handler = lambda _: Reply(b"", 429, {"Retry-After": "60"})
    bench.executor.isolation = Isolation(bench.dsn)
    name = make(bench, api, isolate=True)
    with pytest.raises(Wait, match="asks to wait for 60 s") as wait:
        bench.run(name)
    assert wait.value.seconds == 60
    assert bench.sql("select failures, error like '%to wait for 60 s' from trunq.pipeline_run") == [(0, True)]
