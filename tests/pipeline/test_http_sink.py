"""An API as a sink: every row arrives, those of an attempt that fails do not, and a killed one sends on."""

from __future__ import annotations

import base64
import re
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from standardwebhooks import Webhook

from pipeline.apis import Reply, Request, Server, serving
from pipeline.killing import execute_and_die
from pipeline.piping import Bench
from trunq.errors import InvalidPipeline, TrunqError
from trunq.pipeline import request as requests
from trunq.pipeline.errors import TooManyBad, Wait


@pytest.fixture
def api() -> Iterator[Server]:
    with serving(lambda _: Reply({})) as server:
        yield server


@pytest.fixture(autouse=True)
def _quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "FIRST_WAIT", 0.001)
    monkeypatch.setattr("pipeline.killing.DIRECTORY", str(tmp_path))


def make(bench: Bench, api: Server, rows: int = 25, **more: Any) -> str:
    bench.sql("create table if not exists source (id bigint generated always as identity, word text)")
    bench.sql("insert into source (word) select 'w' from generate_series(1, %s)", rows)
    parts = {name: more.pop(name) for name in ("function", "max_bad") if name in more}
    sink = {"format": "http", "url": f"{api.url}/take", "batch": 10, **more}
    return bench.make({"format": "table", "table": "source"}, sink, **parts)


def ids(request: Request) -> list[int]:
    given = request.json()
    rows = given["rows"] if isinstance(given, dict) and "rows" in given else given
    return [row["id"] for row in (rows if isinstance(rows, list) else [rows])]


def taken(api: Server) -> list[int]:
    return [each for request in api.requests for each in ids(request)]


def left(bench: Bench) -> int:
    """Stages, and rows of what is being sent."""
    stages: int = bench.one("select count(*) from pg_class where relname like 'stage_%%' and relkind = 'r'")
    return stages + int(bench.one("select count(*) from trunq_sink.sending"))


def test_rows_are_posted_in_batches_each_with_a_key_of_its_own(bench: Bench, api: Server) -> None:
    name = make(bench, api)
    assert bench.run(name)["rows_out"] == 25
    assert [len(ids(request)) for request in api.requests] == [10, 10, 5]
    assert taken(api) == list(range(1, 26))
    keys = [request.headers["idempotency-key"] for request in api.requests]
    assert len(set(keys)) == 3
    assert all(re.fullmatch(r"[0-9a-f-]{36}-1-[0-9a-f]{32}", key) for key in keys)
    assert (api.requests[0].method, api.requests[0].headers["content-type"]) == ("POST", "application/json")
    assert left(bench) == 0
    assert bench.run(name) == {"outcome": "nothing new"}


def test_rows_go_in_the_shape_that_is_asked_for(bench: Bench, api: Server) -> None:
    for given, first in (
        ({"shape": "array", "batch": 2}, [{"id": 1, "word": "w"}]),
        ({"batch": 1}, {"id": 1, "word": "w"}),
    ):
        api.requests.clear()
        bench.sql("drop table if exists source")
        bench.run(make(bench, api, 1, **given))
        assert api.requests[0].json() == first


def test_killed_after_a_request_it_is_sent_again_under_the_same_key_and_what_went_before_is_not(
    bench: Bench, api: Server
) -> None:
    name = make(bench, api)
    message = bench.client.run_pipeline(name)
    for point in ("written", "answered", "noted", "noted"):
        assert execute_and_die(bench.dsn, bench.asked(message), point) == -signal.SIGKILL, point
    assert bench.execute(message)["rows_out"] == 25
    keys = [request.headers["idempotency-key"] for request in api.requests]
    times = Counter(keys)
    assert list(times.values()) == [2, 1, 1]
    assert set(taken(api)) == set(range(1, 26))
    # Stages of the dead go with the next run.
    bench.sql("insert into source (word) values ('last')")
    bench.run(name)
    assert left(bench) == 0


def test_a_receiver_that_fails_gets_each_row_in_the_end(bench: Bench, api: Server) -> None:
    replies = [Reply({}), Reply(status=503), Reply(b"x" * 100, cut=True), Reply(status=429)]
    api.handler = lambda _: replies.pop(0) if replies else Reply({})
    assert bench.run(make(bench, api))["rows_out"] == 25
    assert Counter(taken(api)) == Counter(
        [*range(1, 11), *range(11, 21)] + [*range(11, 21)] * 3 + [*range(21, 26)]
    )


def test_what_the_api_refuses_fails_the_run_which_goes_on_there(bench: Bench, api: Server) -> None:
    api.handler = lambda request: Reply(b"id 11 is no good", status=422) if 11 in ids(request) else Reply({})
    name = make(bench, api)
    message = bench.client.run_pipeline(name)
    for _ in range(2):
        with pytest.raises(TrunqError, match="answers 422: id 11 is no good"):
            bench.execute(message)
    api.handler = lambda _: Reply(status=429, headers={"Retry-After": "600"})
    for _ in range(2):
        with pytest.raises(Wait):
            bench.execute(message)
    bench.sql("delete from trunq.pace")
    api.handler = lambda _: Reply({})
    assert bench.execute(message)["rows_out"] == 25
    assert Counter(taken(api)).keys() == set(range(1, 26))
    assert Counter(taken(api))[1] == 1
    assert left(bench) == 0


def test_rows_that_the_api_refuses_are_quarantined_one_by_one(bench: Bench, api: Server) -> None:
    api.handler = lambda request: Reply(b"too odd", status=400) if ids(request)[0] % 2 else Reply({})
    name = make(bench, api, 5, batch=1, otherwise="quarantine")
    done = bench.run(name)
    assert (done["rows_out"], done["rows_bad"]) == (2, 3)
    reasons = bench.client.count_quarantine(name)
    assert [(each.reason, each.quarantined) for each in reasons] == [("the API answers 400: too odd", 3)]
    api.handler = lambda _: Reply({})
    assert bench.execute(bench.client.resend_quarantine(name))["rows_out"] == 3


def test_nobody_is_sent_rows_of_a_run_that_breaks_too_many_rules(bench: Bench, api: Server) -> None:
    name = make(bench, api, function="pipeline.transforms:only_even", max_bad=0.1)
    with pytest.raises(TooManyBad):
        bench.run(name)
    assert api.requests == []


def test_a_run_that_is_cancelled_while_it_is_sent_stops(
    bench: Bench, api: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trunq.pipeline.sink.http._LOOK_EVERY", 0.0)
    name = make(bench, api)

    def answer(_: Request) -> Reply:
        bench.client.cancel_pipeline(name)
        return Reply({})

    api.handler = answer
    assert bench.run(name)["outcome"] == "cancelled"
    assert taken(api) == list(range(1, 11))
    assert left(bench) == 0


def test_requests_are_signed_as_standard_webhooks_says(
    bench: Bench, api: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "whsec_" + base64.b64encode(b"x" * 32).decode()
    monkeypatch.setenv("SIGN", f"{secret}\n")
    api.handler = lambda _: Reply(status=503) if len(api.requests) == 1 else Reply({})
    bench.run(make(bench, api, sign="${SIGN}"))
    for request in api.requests:
        Webhook(secret).verify(request.body, request.headers)
        assert request.headers["webhook-id"] == request.headers["idempotency-key"]
    monkeypatch.setenv("SIGN", "not a secret")
    with pytest.raises(InvalidPipeline, match=r"sink\.sign is to be a secret of 24 to 64 bytes") as refused:
        bench.run(make(bench, api, sign="${SIGN}"))
    assert "not a secret" not in str(refused.value)
    # What the hint makes is one.
    made = subprocess.run(
        ["sh", "-c", str(refused.value.hint).partition(" makes")[0]],
        check=True,
        capture_output=True,
        text=True,
    )
    monkeypatch.setenv("SIGN", made.stdout)
    assert bench.run(make(bench, api, sign="${SIGN}"))["outcome"] == "done"
    with pytest.raises(InvalidPipeline, match="sign is a secret"):
        make(bench, api, sign=secret)
