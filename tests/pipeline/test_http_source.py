"""An API as a source: whatever it answers, and whoever is killed, its rows arrive once, or a sentence says
why not.
"""

from __future__ import annotations

import gzip
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest

from pipeline.apis import Reply, Request, Server, paged, rows, serving
from pipeline.killing import execute_and_die
from pipeline.piping import Bench
from trunq.errors import InvalidPipeline, TrunqError
from trunq.pipeline import request as requests
from trunq.pipeline.errors import Wait
from trunq.pipeline.source.landing import Landing

SINK = {"format": "table", "table": "moved"}
UPSERT = {**SINK, "mode": "upsert", "key": ["id"]}
CURSOR = {"rows": "data.items", "cursor": {"path": "paging.cursor", "param": "after"}}


@pytest.fixture
def api() -> Iterator[Server]:
    with serving(paged(35, 10)) as server:
        yield server


@pytest.fixture(autouse=True)
def _quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "FIRST_WAIT", 0.001)
    monkeypatch.setattr("pipeline.killing.DIRECTORY", str(tmp_path))
    monkeypatch.chdir(tmp_path)


def make(bench: Bench, api: Server, sink: dict[str, Any] = SINK, **more: Any) -> str:
    url = more.pop("url", f"{api.url}/rows")
    return bench.make({"format": "http", "url": url, **more}, sink)


def moved(bench: Bench) -> Any:
    return bench.sql("select count(*), count(distinct id), coalesce(sum(id), 0)::bigint from moved")[0]


def whole(number: int) -> tuple[int, int, int]:
    return number, number, number * (number - 1) // 2


def link(request: Request) -> Reply:
    page = int(request.params.get("page", 1))
    headers = {"Link": f'</rows?page={page + 1}>; rel="next", </rows?page=1>; rel="first"'}
    return Reply(rows(page * 10 - 10, page * 10), headers=headers if page < 3 else {})


def by_path(request: Request) -> Reply:
    page = int(request.params.get("page", 1))
    return Reply(
        {"rows": rows(page * 10 - 10, page * 10), "@next.link": f"?page={page + 1}" if page < 3 else ""}
    )


def by_number(request: Request) -> Reply:
    page = int(request.params["p"])
    return Reply({"rows": rows(page * 10, min(page * 10 + 10, 30)), "meta": {"pages": 3, "total": "30"}})


def by_offset(request: Request) -> Reply:
    start = int(request.params["skip"])
    return Reply({"rows": rows(start, min(start + 7, 30)), "total": 30})


def by_body(request: Request) -> Reply:
    asked = request.json()
    assert asked["query"] == "all"
    start = asked.get("after", 0)
    return Reply({"rows": rows(start, start + 10), "after": start + 10 if start < 20 else None})


WAYS: dict[str, tuple[Any, dict[str, Any], int]] = {
    "link": (link, {"next": "link"}, 3),
    "path": (by_path, {"next": {"path": "@next.link"}, "rows": "rows"}, 3),
    "page": (by_number, {"page": {"param": "p", "start": 0}, "rows": "rows"}, 4),
    "pages": (by_number, {"page": {"param": "p", "start": 0, "pages": "meta.pages"}, "rows": "rows"}, 3),
    "page total": (by_number, {"page": {"param": "p", "start": 0, "total": "meta.total"}, "rows": "rows"}, 3),
    "offset": (by_offset, {"offset": {"param": "skip"}, "rows": "rows"}, 6),
    "offset total": (by_offset, {"offset": {"param": "skip", "total": "total"}, "rows": "rows"}, 5),
    "body": (
        by_body,
        {
            "method": "POST",
            "body": {"query": "all"},
            "cursor": {"path": "after", "param": "after"},
            "rows": "rows",
        },
        3,
    ),
    "one": (lambda _: Reply(rows(0, 30)), {}, 1),
}


def test_all_pages_are_read(bench: Bench, api: Server) -> None:
    for at, (way, (handler, given, asked)) in enumerate(WAYS.items()):
        api.handler = handler
        api.requests.clear()
        name = make(bench, api, {"format": "table", "table": f"moved_{at}"}, **given)
        assert bench.run(name)["rows_out"] == 30, way
        assert bench.one(f"select count(distinct id) from moved_{at}") == 30, way
        assert len(api.requests) == asked, way
    # The pages of a run that is over are gone.
    assert not list(Path("landing").glob("*/*/*"))


def test_killed_at_each_page_every_row_arrives_once_and_no_page_is_asked_for_twice(
    bench: Bench, api: Server
) -> None:
    name = make(bench, api, **CURSOR)
    message = bench.client.run_pipeline(name)
    for point in ("landed 1", "fetched 2", "landed 2", "landed 3", "fetched 4", "landed 4", "written"):
        assert execute_and_die(bench.dsn, bench.asked(message), point) == -signal.SIGKILL, point
    asked_for = [request.params.get("after") for request in api.requests]
    assert asked_for == [None, "10", "10", "20", "30", "30"]
    # Whatever the API says now: the run has its pages.
    api.handler = lambda _: Reply(status=500)
    assert bench.execute(message)["rows_out"] == 35
    assert len(api.requests) == len(asked_for)
    assert moved(bench) == whole(35)


def test_a_runner_without_the_landing_reads_all_its_own(bench: Bench, api: Server) -> None:
    name = make(bench, api, **CURSOR)
    message = bench.client.run_pipeline(name)
    execute_and_die(bench.dsn, bench.asked(message), "landed 2")
    api.handler = paged(12, 5)
    os.rename("landing", "another machine")
    assert bench.execute(message)["rows_out"] == 12
    assert moved(bench) == whole(12)


def test_of_two_that_fetch_a_page_at_once_both_go_on_from_the_answer_that_was_first(
    bench: Bench, api: Server
) -> None:
    first, second = (Landing(Path("landing/p/00000001-a")) for _ in range(2))
    first.land(1, {"next": "a"}, '["a"]')
    second.land(1, {"next": "b"}, '["b"]')
    assert (second.place(1), second.answer(1)) == ({"next": "a"}, ["a"])
    assert [path.name for path in first.directory.iterdir()] == ["page-000001.json"]


def test_since_asks_for_what_changed_alone(bench: Bench, api: Server) -> None:
    times = ["2030-01-01T00:00:00Z", "2030-01-01T00:00:00.5Z", "2030-01-01T02:00:00+02:00"]
    there = [{"id": at, "meta": {"at": when}} for at, when in enumerate(times)]
    api.handler = lambda request: Reply(there if not request.params else there[3:])
    name = make(bench, api, UPSERT, since={"param": "after", "path": "meta.at"})
    assert bench.run(name)["rows_out"] == 3
    assert bench.client.list_pipelines()[0].state == {"since": times[1]}
    # Nothing new is no run.
    assert bench.run(name) == {"outcome": "nothing new"}
    assert api.requests[-1].params == {"after": times[1]}
    there.append({"id": 3, "meta": {"at": "2030-02-01T00:00:00Z"}})
    assert bench.run(name)["rows_out"] == 1
    assert len(api.requests) == 3
    assert bench.client.list_pipelines()[0].state == {"since": "2030-02-01T00:00:00Z"}


def conditional(request: Request) -> Reply:
    if request.headers.get("if-none-match") == '"v1"' or request.headers.get("if-modified-since") == "v1":
        return Reply(status=304)
    return Reply(rows(0, 5), headers={"ETag": '"v1"', "Last-Modified": "v1"})


def test_an_api_that_has_not_changed_ends_the_run_as_nothing_new(bench: Bench, api: Server) -> None:
    api.handler = conditional
    name = make(bench, api)
    bench.run(name)
    before = bench.client.list_pipelines()[0]
    assert bench.run(name) == {"outcome": "nothing new"}
    (after,) = bench.client.list_pipelines()
    assert after._replace(age=None) == before._replace(age=None)
    assert not list(Path("landing").glob("*/*/*"))
    # It has changed: all of it comes, from the page that told.
    api.handler = lambda _: Reply(rows(5, 8), headers={"ETag": '"v2"'})
    assert bench.run(name)["rows_out"] == 3
    assert len(api.requests) == 3
    # Another address has another mark.
    bench.client.create_pipeline(name, {"source": {"format": "http", "url": f"{api.url}/more"}, "sink": SINK})
    bench.run(name)
    assert "if-none-match" not in api.requests[-1].headers


def test_of_several_pages_the_first_says_nothing_of_the_others(bench: Bench, api: Server) -> None:
    def answer(request: Request) -> Reply:
        reply = link(request)
        reply.headers["ETag"] = '"page"'
        return Reply(status=304) if "if-none-match" in request.headers else reply

    api.handler = answer
    assert [bench.run(make(bench, api, UPSERT, next="link"))["rows_out"] for _ in range(2)] == [30, 30]
    name = make(bench, api, UPSERT, next="link", etag=True)
    assert [bench.run(name)["outcome"] for _ in range(2)] == ["done", "nothing new"]


def failing(times: int, *replies: Reply) -> Any:
    left = [reply for _ in range(times) for reply in replies]

    def answer(_: Request) -> Reply:
        return left.pop(0) if left else Reply(rows(0, 5))

    return answer


BROKEN = {
    "503": Reply(status=503),
    "500": Reply(b"<html>", status=500),
    "429": Reply(status=429),
    "429 with a moment": Reply(status=429, headers={"Retry-After": "0"}),
    "503 with a date": Reply(status=503, headers={"Retry-After": formatdate(usegmt=True)}),
    "cut": Reply(rows(0, 5), cut=True),
    "no gzip": Reply(b"not at all", headers={"Content-Encoding": "gzip"}),
}


def test_what_may_pass_is_tried_again(bench: Bench, api: Server) -> None:
    for what, reply in BROKEN.items():
        api.handler = failing(2, reply)
        api.requests.clear()
        assert bench.run(make(bench, api))["rows_out"] == 5, what
        assert len(api.requests) == 3, what


def test_what_does_not_pass_fails_with_a_sentence(bench: Bench, api: Server) -> None:
    api.handler = failing(100, Reply(b"no, not now", status=503))
    name = make(bench, api)
    with pytest.raises(TrunqError, match=r"/rows answers 503: no, not now"):
        bench.run(name)
    assert len(api.requests) == requests.ATTEMPTS
    assert "answers 503" in str(bench.client.list_pipelines()[0].error)


def test_a_slow_api_is_given_up(bench: Bench, api: Server) -> None:
    given_up = threading.Event()

    def answer(_: Request) -> Reply:
        if len(api.requests) == 1:
            given_up.wait(120)
        given_up.set()
        return Reply(rows(0, 5))

    api.handler = answer
    assert bench.run(make(bench, api, time_out="300ms"))["rows_out"] == 5
    assert len(api.requests) >= 2


def test_a_long_retry_after_puts_the_message_off_and_nobody_asks_meanwhile(bench: Bench, api: Server) -> None:
    for after in ("3600", formatdate(time.time() + 3600, usegmt=True)):
        api.requests.clear()
        api.handler = lambda _, after=after: Reply(status=429, headers={"Retry-After": after})
        name = make(bench, api)
        for _ in range(2):
            with pytest.raises(Wait) as caught:
                bench.run(name)
            assert 3500 < caught.value.seconds < 3700
        assert len(api.requests) == 1
        bench.sql("delete from trunq.pace")
    api.handler = lambda _: Reply(rows(0, 5))
    assert bench.run(name)["rows_out"] == 5


# ruff: noqa: E501
REFUSED = {
    "no credentials": (Reply(b"who are you", status=401), {}, "answers 401: .*who are you"),
    "forbidden": (Reply(status=403), {}, "answers 403"),
    "not there": (Reply({"error": "no such thing"}, status=404), {}, "answers 404: .*no such thing"),
    "html": (Reply(b"<html> <body>Welcome", headers={"Content-Type": "text/html"}), {}, "no JSON .text/html.: <html> <body>Welcome"),
    "no list": (Reply({"items": [], "n": 1}), {}, "is an object with items, n, not a list"),
    "no such list": (Reply({"items": []}), {"rows": "data"}, 'has at rows = "data" nothing, not a list'),
    "a wrong charset": (Reply(b'[{"a": "\xff"}]', headers={"Content-Type": "application/json; charset=nope"}), {}, "no JSON"),
    "cut short": (Reply(b'[{"id": 1'), {}, "no JSON"),
    "the same page": (Reply(rows(0, 2)), {"page": {}}, 'the same page again: {"params": {"page": 2}}'),
    "the same link": (Reply({"rows": rows(0, 1), "next": "/rows"}), {"rows": "rows", "next": {"path": "next"}}, "never end"),
    "no link": (Reply({"rows": rows(0, 1), "next": "http://a:b/"}), {"rows": "rows", "next": {"path": "next"}}, "names a page that is no address"),
    "no address": (Reply(rows(0, 1)), {"url": "http://a:b/"}, "its url is no address"),
    "no end": (link, {"next": "link", "max_pages": 2}, "more than 2 pages"),
    "no since": (Reply(rows(0, 1)), {"since": {"param": "a", "path": "at"}}, 'no row of a page has "at"'),
    "mixed": (Reply([{"a": 1}, {"a": "b"}]), {}, 'do not fit: column "a"'),
    "a loop": (Reply(status=302, headers={"Location": "/rows"}), {}, "redirects in a circle"),
}  # fmt: skip


def test_what_is_no_answer_is_refused_in_a_sentence(bench: Bench, api: Server) -> None:
    for reply, given, words in REFUSED.values():
        api.handler = reply if callable(reply) else lambda _, reply=reply: reply
        name = make(bench, api, **given)
        with pytest.raises(TrunqError, match=words) as caught:
            bench.run(name)
        assert f"pipeline {name}: " in str(caught.value)


def test_answers_are_read_whatever_they_are_written_in(bench: Bench, api: Server) -> None:
    text = json.dumps([{"id": 1, "word": "é\u2028"}], ensure_ascii=False)
    answers = [
        Reply(gzip.compress(text.encode()), headers={"Content-Encoding": "gzip"}),
        Reply(text.encode("utf-8-sig")),
        Reply(text.encode("utf-16")),
        Reply(text.encode(), headers={"Content-Type": "application/json; charset=latin-1"}),
        Reply(b'[{"id": 1, "word": "\xe9"}]', headers={"Content-Type": "application/json; charset=latin-1"}),
    ]
    for reply in answers:
        api.handler = lambda _, reply=reply: reply
        bench.run(make(bench, api))
    assert {word[0] for (word,) in bench.sql("select word from moved")} == {"é"}


def test_rows_have_types_that_fit_all_pages_and_what_is_no_object_is_quarantined(
    bench: Bench, api: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trunq.pipeline.source.http._ROWS", 2)
    pages = [
        [{"id": 1, "note": None, "size": 1, "of": {"a": 1}}, {"id": 2}],
        ["no row", {"id": 3, "note": "late", "size": 1.5, "of": {"b": "x"}, "at": "2030-01-01T00:00:00Z"}],
        [],
    ]
    api.handler = lambda request: Reply(pages[int(request.params["page"]) - 1])
    name = make(bench, api, page={}, types={"at": "timestamp[us]"})
    done = bench.run(name)
    assert (done["rows_out"], done["rows_bad"]) == (3, 1)
    assert bench.sql("select id, note, size, of->>'b', at::text from moved order by id") == [
        (1, None, 1.0, None, None),
        (2, None, None, None, None),
        (3, "late", 1.5, "x", "2030-01-01 00:00:00"),
    ]
    assert bench.client.list_quarantine(name)[0].content == {"page": 2, "row": "no row"}


SECRET = "s3cret/+ value"


def test_secrets_go_to_the_host_of_the_url_alone_and_stand_nowhere(
    bench: Bench, api: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_KEY", SECRET + "\n")

    def answer(request: Request) -> Reply:
        if "page" in request.params:
            assert request.params["key"].strip() == SECRET
            return Reply(status=302, headers={"Location": f"{other.url}/elsewhere"})
        # Some repeat the key in the link, some do not.
        return Reply({"rows": rows(0, 1), "next": "/rows?page=2&key=s3cret%2F%2B+value"})

    api.handler = answer
    given = {
        "headers": {"Authorization": "Bearer ${API_KEY}", "X-Key": "${API_KEY}"},
        "params": {"key": "${API_KEY}"},
        "rows": "rows",
        "next": {"path": "next"},
    }
    with serving(lambda _: Reply(SECRET.encode(), status=400)) as other:
        name = make(bench, api, **given)
        with pytest.raises(TrunqError, match=r"answers 400: \*\*\*"):
            bench.run(name)
        assert [request.headers["authorization"] for request in api.requests] == [f"Bearer {SECRET}"] * 2
        assert {"authorization", "x-key"}.isdisjoint(other.requests[0].headers)
    told = bench.sql(
        "select r.error, slice::text, state::text, definition::text"
        " from trunq.pipeline join trunq.pipeline_run r using (pipeline_id)"
    )
    landed = "".join(path.read_text() for path in Path("landing").rglob("page-*.json"))
    assert "${API_KEY:" in landed.partition("\n")[0]
    for text in (*told[0], landed.partition("\n")[0]):
        assert "s3cret" not in text


def test_a_secret_in_an_error_leaves_it_what_it_is(
    bench: Bench, api: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_KEY", SECRET)
    url = f"{api.url}/${{API_KEY}}/rows"
    api.handler = lambda _: Reply(f"not with {SECRET}".encode(), status=401)
    with pytest.raises(InvalidPipeline, match=r"not with \*\*\*") as refused:
        bench.run(make(bench, api, url=url))
    api.handler = lambda _: Reply(status=429, headers={"Retry-After": "3600"})
    name = make(bench, api, url=url)
    for _ in range(2):
        with pytest.raises(Wait) as waited:
            bench.run(name)
        assert waited.value.seconds > 3500
    assert "s3cret" not in f"{refused.value}{refused.value.hint}{waited.value}"


def test_a_link_without_the_key_is_given_it(
    bench: Bench, api: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_KEY", SECRET)
    api.handler = lambda request: Reply(
        {"rows": rows(0, 1), "next": None if "page" in request.params else "/rows?page=2"}
    )
    bench.run(make(bench, api, params={"key": "${API_KEY}", "size": 5}, rows="rows", next={"path": "next"}))
    assert [request.params for request in api.requests] == [
        {"key": SECRET, "size": "5"},
        {"key": SECRET, "page": "2"},
    ]


def test_requests_keep_their_pace(bench: Bench, api: Server) -> None:
    begun = time.monotonic()
    bench.run(make(bench, api, per_second=20, **CURSOR))
    assert time.monotonic() - begun >= 3 / 20


def test_a_range_is_asked_for_beside_the_runs(bench: Bench, api: Server) -> None:
    there = [{"id": 1, "at": 5}]
    api.handler = lambda _: Reply(there)
    since = {"param": "from", "path": "at", "until": "until"}
    name = make(bench, api, {**UPSERT, "newest": "at"}, since=since)
    bench.run(name)
    bench.execute(bench.client.backfill_pipeline(name, {"from": "1", "to": "3"}))
    assert api.requests[-1].params == {"from": "1", "until": "3"}
    assert bench.client.list_pipelines()[0].state == {"since": 5}
    with pytest.raises(InvalidPipeline, match="a range of an API"):
        bench.execute(bench.client.backfill_pipeline(name, {"path": "x"}))


def test_pages_are_kept_where_it_says_so_and_what_cancelled_runs_left_goes(bench: Bench, api: Server) -> None:
    name = make(bench, api, keep=True, **CURSOR)
    bench.run(name)
    kept = sorted(path.name for path in Path("landing", name).rglob("page-*"))
    assert kept == [f"page-{number:06d}.json" for number in range(1, 5)]
    name = make(bench, api, **CURSOR)
    message = bench.client.run_pipeline(name)
    execute_and_die(bench.dsn, bench.asked(message), "landed 2")
    bench.client.cancel_pipeline(name)
    bench.execute(message)
    bench.run(name)
    assert not list(Path("landing", name).rglob("page-*"))
