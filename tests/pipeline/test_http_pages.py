"""Ways to the pages of an API: inside of bodies, in GraphQL, behind a key while rows come and go; and what is
asked for as new.
"""

from __future__ import annotations

import datetime as dt
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.apis import Reply, Request, Server, rows, serving
from pipeline.killing import execute_and_die
from pipeline.piping import Bench
from trunq.errors import InvalidPipeline, TrunqError
from trunq.pipeline import request as requests
from trunq.pipeline.definition.endpoint import put
from trunq.pipeline.errors import ApiFailed, Wait
from trunq.pipeline.source.moment import earlier
from trunq.pipeline.source.paging import MISSING, dig

SINK = {"format": "table", "table": "moved"}
UPSERT = {**SINK, "mode": "upsert", "key": ["id"]}


@pytest.fixture
def api() -> Iterator[Server]:
    with serving(lambda _: Reply([])) as server:
        yield server


@pytest.fixture(autouse=True)
def _quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "FIRST_WAIT", 0.001)
    monkeypatch.setattr("pipeline.killing.DIRECTORY", str(tmp_path))
    monkeypatch.chdir(tmp_path)


def make(bench: Bench, api: Server, sink: dict[str, Any] = SINK, **more: Any) -> str:
    return bench.make({"format": "http", "url": f"{api.url}/rows", **more}, sink)


def ids(bench: Bench) -> list[int]:
    return [id for (id,) in bench.sql("select id from moved order by id")]


GRAPHQL = {
    "method": "POST",
    "body": {"query": "query($first: Int, $after: String) { orders { ... } }", "variables": {"first": 10}},
    "rows": "data.orders.edges.*.node",
    "cursor": {
        "path": "data.orders.pageInfo.endCursor",
        "param": "variables.after",
        "more": "data.orders.pageInfo.hasNextPage",
    },
}


def graphql(request: Request) -> Reply:
    variables = request.json()["variables"]
    assert variables["first"] == 10
    start = int(variables.get("after", 0))
    edges = [{"node": row, "cursor": str(row["id"] + 1)} for row in rows(start, min(start + 10, 25))]
    info = {"endCursor": edges[-1]["cursor"], "hasNextPage": start + 10 < 25}
    return Reply({"data": {"orders": {"edges": edges, "pageInfo": info}}})


def test_pages_of_graphql_are_read_to_the_end(bench: Bench, api: Server) -> None:
    api.handler = graphql
    assert bench.run(make(bench, api, **GRAPHQL))["rows_out"] == 25
    assert ids(bench) == list(range(25))
    # The last page has a cursor as well: hasNextPage ends.
    assert [request.json()["variables"].get("after") for request in api.requests] == [None, "10", "20"]
    assert all(request.json()["query"] == GRAPHQL["body"]["query"] for request in api.requests)  # type: ignore[index]


def test_an_answer_of_200_with_errors_fails_the_run_with_the_first(bench: Bench, api: Server) -> None:
    whole = graphql

    def partly(request: Request) -> Reply:
        reply = whole(request)
        return Reply({**reply.body, "errors": [{"message": "no field orderz"}, {"message": "other"}]})

    api.handler = partly
    name = make(bench, api, **GRAPHQL)
    message = bench.client.run_pipeline(name)
    with pytest.raises(ApiFailed, match="answers 200 with errors: no field orderz"):
        bench.execute(message)
    assert "no field orderz" in str(bench.client.list_pipelines()[0].error)
    # No page of it was landed: once the API is well, the run has all.
    api.handler = lambda request: Reply({**whole(request).body, "errors": []})
    assert bench.execute(message)["rows_out"] == 25
    # Others say it elsewhere; and what is called errors elsewhere is no matter of ours.
    api.handler = lambda _: Reply({"fault": "down", "errors": ["mine"], "rows": rows(0, 1)})
    with pytest.raises(ApiFailed, match="answers 200 with fault: down"):
        bench.run(make(bench, api, rows="rows", errors="fault"))
    assert bench.run(make(bench, api, {**SINK, "table": "other"}, rows="rows"))["rows_out"] == 1


def test_too_many_requests_in_an_answer_of_200_put_the_message_off(bench: Bench, api: Server) -> None:
    said = {"errors": [{"message": "slow down", "extensions": {"code": "THROTTLED"}}]}
    api.handler = lambda _: Reply(said)
    name = make(bench, api, **GRAPHQL)
    message = bench.client.run_pipeline(name)
    with pytest.raises(Wait):
        bench.execute(message)
    assert len(api.requests) == 1
    # And others with the same key are told.
    assert bench.one("select held_until > trunq.clock() from trunq.pace") is True
    bench.sql("delete from trunq.pace")
    api.handler = graphql
    assert bench.execute(message)["rows_out"] == 25


def test_a_list_as_a_cursor_goes_back_as_it_came(bench: Bench, api: Server) -> None:
    def search(request: Request) -> Reply:
        asked = request.json()
        start = asked["search_after"][0] + 1 if "search_after" in asked else 0
        hits = [{"_source": row, "sort": [row["id"], "$x"]} for row in rows(start, min(start + 10, 25))]
        return Reply({"hits": {"hits": hits}})

    api.handler = search
    given = {"method": "POST", "body": {"size": 10}, "rows": "hits.hits.*._source"}
    assert (
        bench.run(make(bench, api, **given, cursor={"path": "hits.hits.-1.sort", "param": "search_after"}))[
            "rows_out"
        ]
        == 25
    )
    assert ids(bench) == list(range(25))
    assert api.requests[1].json() == {"size": 10, "search_after": [9, "$x"]}


def test_where_the_paths_lead_nowhere_a_sentence_says_so(bench: Bench, api: Server) -> None:
    api.handler = graphql
    cursor: dict[str, str] = GRAPHQL["cursor"]  # type: ignore[assignment]
    refused = {
        r'has at more = "data.pageInfo.hasNextPage" nothing': {
            "cursor": {**cursor, "more": "data.pageInfo.hasNextPage"}
        },
        "says that there are more pages, and has no cursor": {"cursor": {**cursor, "path": "data.end"}},
        r'has at rows = "data.orders.edges.\*.row" nothing': {"rows": "data.orders.edges.*.row"},
    }
    for words, given in refused.items():
        with pytest.raises(TrunqError, match=words):
            bench.run(make(bench, api, **{**GRAPHQL, **given}))
    with pytest.raises(
        InvalidPipeline, match=r"variables\.after stands in variables, which the body has as 'x'"
    ):
        make(bench, api, **{**GRAPHQL, "body": {"query": "{ a }", "variables": "x"}})
    bench.run(make(bench, api, **GRAPHQL))


def test_paths_lead_into_bodies_and_out_of_answers() -> None:
    body: dict[str, Any] = {"a.b": 1, "c": {"d": 1}}
    kept = body["c"]
    for path in ("a.b", "c.e", "f.g.h", "plain"):
        put(body, path, 2)
    assert body == {"a.b": 2, "c": {"d": 1, "e": 2}, "f": {"g": {"h": 2}}, "plain": 2}
    assert kept == {"d": 1}, "what the definition has stays what it is"
    answer = {"a": [{"id": 1}, {"id": 2}], "x.y": {"z": 3}}
    assert [dig(answer, path) for path in ("a.-1.id", "a.0.id", "x.y.z")] == [2, 1, 3]
    assert [dig(answer, path) for path in ("a.2.id", "a.id", "a.-3")] == [MISSING] * 3


class Moving:
    """Rows that come and go while they are read."""

    def __init__(self, number: int, size: int = 10) -> None:
        self.rows = [{"id": at, "at": moment(at)} for at in range(number)]
        self.size = size

    def __call__(self, request: Request) -> Reply:
        after = request.params.get("after")
        found = sorted(self.rows, key=lambda row: (dt.datetime.fromisoformat(row["at"]), row["id"]))
        if after is not None:
            found = [row for row in found if self.is_behind(row, after)]
        return Reply(found[: self.size])

    def is_behind(self, row: Any, after: str) -> bool:
        return bool(row["id"] > int(after))


class ByTime(Moving):
    """Asked for from a time on, that time included."""

    def is_behind(self, row: Any, after: str) -> bool:
        return bool(dt.datetime.fromisoformat(row["at"]) >= dt.datetime.fromisoformat(after))


def moment(second: float) -> str:
    made = dt.datetime(2030, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=second)
    return made.isoformat().replace("+00:00", "Z")


def test_rows_that_go_while_pages_are_read_hide_no_others(bench: Bench, api: Server) -> None:
    def moving(page: Any) -> Any:
        def answer(request: Request) -> Reply:
            reply = page(request)
            # Those that were read go, and by their number all others move up.
            there.rows = [row for row in there.rows if row not in reply.body[:5]]
            return reply

        return answer

    there = Moving(35)
    api.handler = moving(there)
    assert bench.run(make(bench, api, after={"param": "after", "path": "id"}))["rows_out"] == 35
    assert ids(bench) == list(range(35))
    assert api.requests[-1].params == {"after": "34"}
    # By a number of rows, some are not seen: what after is for.
    there = Moving(35)
    api.handler = moving(lambda request: Reply(there.rows[int(request.params["skip"]) :][:10]))
    assert bench.run(make(bench, api, {**SINK, "table": "other"}, offset={"param": "skip"}))["rows_out"] < 35


def test_the_last_page_behind_a_key_is_known_by_its_size_or_by_what_it_says(
    bench: Bench, api: Server
) -> None:
    there = Moving(25)
    api.handler = there
    after = {"param": "after", "path": "id"}
    for given, asked in (({}, 4), ({"size": 10}, 3)):
        api.requests.clear()
        assert bench.run(make(bench, api, UPSERT, after={**after, **given}))["rows_out"] == 25
        assert len(api.requests) == asked

    def says(request: Request) -> Reply:
        found = there(request).body
        return Reply({"data": found, "has_more": bool(found) and found[-1]["id"] < 24})

    # One that says so, and gives none, would be taken for the end.
    api.handler = lambda _: Reply({"data": ["no row"], "has_more": True})
    with pytest.raises(ApiFailed, match="more pages, and gives no row"):
        bench.run(make(bench, api, UPSERT, rows="data", after={**after, "more": "has_more"}))
    api.handler = says
    api.requests.clear()
    name = make(bench, api, UPSERT, rows="data", after={**after, "more": "has_more"})
    assert bench.run(name)["rows_out"] == 25
    assert len(api.requests) == 3


LOOK_BACK = {"param": "after", "path": "at", "look_back": "3 seconds", "key": "id", "size": 10}


def test_rows_that_come_late_are_read_and_those_that_were_there_once(bench: Bench, api: Server) -> None:
    there = ByTime(25)
    late = [[{"id": 100, "at": moment(8)}, {"id": 101, "at": moment(9)}], [{"id": 102, "at": moment(14.5)}]]

    def answer(request: Request) -> Reply:
        reply = there(request)
        if late:
            there.rows += late.pop(0)
        return reply

    api.handler = answer
    assert bench.run(make(bench, api, after=LOOK_BACK))["rows_out"] == 28
    assert ids(bench) == [*range(25), 100, 101, 102]
    assert api.requests[1].params == {"after": moment(6)}


def test_a_row_that_changed_within_the_look_back_comes_again(bench: Bench, api: Server) -> None:
    there = ByTime(12)

    def answer(request: Request) -> Reply:
        reply = there(request)
        there.rows[9] = {"id": 9, "at": moment(11.5)}
        return reply

    api.handler = answer
    assert bench.run(make(bench, api, UPSERT, after=LOOK_BACK))["outcome"] == "done"
    assert bench.one("select at::text from moved where id = 9") == moment(11.5)
    assert ids(bench) == list(range(12))


def test_killed_between_pages_that_look_back_every_row_arrives_once(bench: Bench, api: Server) -> None:
    api.handler = ByTime(25)
    name = make(bench, api, after=LOOK_BACK)
    message = bench.client.run_pipeline(name)
    for point in ("landed 1", "fetched 2", "landed 2", "landed 3", "landed 4", "written"):
        assert execute_and_die(bench.dsn, bench.asked(message), point) == -signal.SIGKILL, point
    assert bench.execute(message)["rows_out"] == 25
    assert ids(bench) == list(range(25))


def test_numbers_look_back_by_a_number(bench: Bench, api: Server) -> None:
    api.handler = Moving(25)
    after = {"param": "after", "path": "id", "look_back": 3, "key": "id", "size": 10}
    assert bench.run(make(bench, api, after=after))["rows_out"] == 25
    assert [request.params.get("after") for request in api.requests] == [None, "6", "13", "20"]


def test_what_look_back_cannot_go_by_is_refused_and_the_way_out_works(bench: Bench, api: Server) -> None:
    there = ByTime(30)
    for row in there.rows[5:20]:
        row["at"] = moment(7)
    api.handler = there
    # More rows of one time than a page has would never end.
    name = make(bench, api, after=LOOK_BACK)
    message = bench.client.run_pipeline(name)
    with pytest.raises(ApiFailed, match=r"a whole page .* is within look_back") as refused:
        bench.execute(message)
    assert refused.value.hint == "ask for larger pages, or look back less"
    there.size = 20
    bench.client.cancel_pipeline(name)
    bench.execute(message)
    assert bench.run(make(bench, api, after={**LOOK_BACK, "size": 20}))["rows_out"] == 30
    # Newest first, it would end after one page.
    api.handler = lambda request: Reply(there(request).body[::-1])
    with pytest.raises(InvalidPipeline, match="not in the order of at, oldest first"):
        bench.run(make(bench, api, after=LOOK_BACK))
    api.handler = there
    with pytest.raises(InvalidPipeline, match="look_back is a number, and a row has at = '2030"):
        bench.run(make(bench, api, after={**LOOK_BACK, "look_back": 3}))
    with pytest.raises(InvalidPipeline, match='no text or number at "when"'):
        bench.run(make(bench, api, after={**LOOK_BACK, "path": "when"}))
    with pytest.raises(InvalidPipeline, match=r'has no "name", which after\.key names'):
        bench.run(make(bench, api, after={**LOOK_BACK, "key": "name"}))
    for given, words in (
        ({"look_back": "3 s"}, "look_back and key go together"),
        ({"key": "id"}, "look_back and key go together"),
        ({"look_back": "3 s", "key": "id"}, "with look_back no page is empty"),
    ):
        with pytest.raises(InvalidPipeline, match=words):
            make(bench, api, after={"param": "after", "path": "at", **given})


EPOCH = 1_900_000_000


@pytest.mark.parametrize(
    ("since", "value", "asked"),
    [
        ({}, "2030-01-01T00:00:10.5Z", "2030-01-01T00:00:10.5Z"),
        ({"lag": "10 seconds"}, "2030-01-01T00:00:10Z", "2030-01-01T00:00:00Z"),
        ({"lag": "10 seconds"}, "2030-01-01T02:00:10+02:00", "2030-01-01T02:00:00+02:00"),
        ({"lag": "1 day"}, "2030-01-02", "2030-01-01"),
        ({"format": "iso"}, "2030-01-01T02:00:10+02:00", "2030-01-01T00:00:10Z"),
        ({"format": "epoch"}, "2030-01-01T00:00:10.9Z", "1893456010"),
        ({"format": "epoch_ms", "lag": "1 second"}, "2030-01-01T00:00:10.9Z", "1893456009900"),
        ({"format": "epoch", "lag": "1 minute"}, EPOCH, str(EPOCH - 60)),
        ({"format": "epoch_ms", "lag": "1 minute"}, EPOCH * 1000, str(EPOCH * 1000 - 60_000)),
        ({"format": "date"}, "2030-01-01T23:30:00-02:00", "2030-01-02"),
        ({"format": "iso", "write": "updated_at:>'{}'"}, "2030-01-01", "updated_at:>'2030-01-01T00:00:00Z'"),
    ],
)  # fmt: skip
def test_what_is_new_is_asked_for_as_the_api_wants(
    bench: Bench, api: Server, since: dict[str, Any], value: Any, asked: str
) -> None:
    api.handler = lambda _: Reply([{"id": 1, "at": value}])
    name = make(bench, api, UPSERT, since={"param": "from", "path": "at", **since})
    bench.run(name)
    bench.run(name)
    assert [request.params.get("from") for request in api.requests] == [None, asked]
    # What is kept is what the row has.
    assert bench.client.list_pipelines()[0].state == {"since": value}


def test_the_first_run_begins_where_it_says(bench: Bench, api: Server) -> None:
    since = {"param": "from", "path": "at", "start": "2029-01-01", "format": "epoch", "until": "to"}
    api.handler = lambda _: Reply([])
    name = make(bench, api, {**UPSERT, "newest": "at"}, since=since)
    for _ in range(2):
        bench.run(name)
    assert {request.params["from"] for request in api.requests} == {"1861920000"}
    api.handler = lambda _: Reply([{"id": 1, "at": "2030-01-01T00:00:00Z"}])
    bench.run(name)
    bench.run(name)
    assert api.requests[-1].params == {"from": "1893456000"}
    bench.execute(bench.client.backfill_pipeline(name, {"from": "2020-01-01", "to": "2020-02-01"}))
    assert api.requests[-1].params == {"from": "1577836800", "to": "1580515200"}


def test_what_no_time_is_in_is_refused(bench: Bench, api: Server) -> None:
    api.handler = lambda _: Reply([{"id": 1, "at": "v7"}])
    for given, words in (
        ({"format": "epoch"}, "since.format = 'epoch' is for times, and 'v7' is none"),
        ({"lag": "5 s"}, "since.lag is a length of time, and at is 'v7'"),
    ):
        name = make(bench, api, UPSERT, since={"param": "from", "path": "at", **given})
        bench.run(name)
        with pytest.raises(InvalidPipeline, match=re.escape(words)):
            bench.run(name)
    # Without them it goes on.
    name = make(bench, api, UPSERT, since={"param": "from", "path": "at"})
    assert [bench.run(name)["outcome"] for _ in range(2)] == ["done", "done"]
    for given, words in (
        ({"write": "a {} {}", "format": "iso"}, "with {} once"),
        ({"write": "a {}"}, "write needs format"),
    ):
        with pytest.raises(InvalidPipeline, match=words):
            make(bench, api, since={"param": "from", "path": "at", **given})


def test_a_time_is_written_as_the_one_that_it_comes_from() -> None:
    minute = dt.timedelta(minutes=1)
    assert earlier("2030-01-01 00:01:00", minute) == "2030-01-01 00:00:00"
    assert earlier("2030-01-01T00:01:00", minute) == "2030-01-01T00:00:00"
    assert earlier(10, 3) == 7
    for value, by in ((True, 1), ("x", minute), (5, minute), ("2030-01-01", 1), (None, 1)):
        with pytest.raises(TypeError):
            earlier(value, by)
