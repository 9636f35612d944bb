"""Endpoints that depend on each other: a list, then each of its items; whatever fails, or is killed, every
row arrives once, with the columns of its item.
"""

from __future__ import annotations

import json
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from pipeline.apis import Reply, Request, Server, serving
from pipeline.killing import execute_and_die
from pipeline.piping import Bench
from trunq.errors import InvalidPipeline, TrunqError
from trunq.pipeline import request as requests
from trunq.pipeline.errors import ApiFailed, Wait
from waiting import PATIENCE

SINK = {"format": "table", "table": "moved"}
UPSERT = {**SINK, "mode": "upsert", "key": ["order_id", "line"]}
LIST = {"rows": "orders", "cursor": {"path": "next", "param": "after"}, "columns": {"order_id": "id"}}


class Shop:
    """Orders, ten a page, and the lines of each, two a page: of order n there are n modulo 4."""

    def __init__(self, orders: int = 15) -> None:
        self.orders: list[Any] = [{"id": at, "at": f"2030-01-01T00:00:{at:02}Z"} for at in range(orders)]
        self.replies: dict[str, Reply] = {}

    def __call__(self, request: Request) -> Reply:
        if request.path in self.replies:
            return self.replies[request.path]
        if request.path == "/orders":
            found = [each for each in self.orders if each["at"] > request.params.get("from", "")]
            start = int(request.params.get("after", 0))
            more = start + 10 if start + 10 < len(found) else None
            return Reply({"orders": found[start : start + 10], "next": more})
        order, page = int(request.path.split("/")[2]), int(request.params.get("page", 1))
        lines = [{"line": at} for at in range(order % 4)][page * 2 - 2 : page * 2]
        return Reply({"lines": lines, "pages": (order % 4 + 1) // 2})


@pytest.fixture
def shop() -> Shop:
    return Shop()


@pytest.fixture
def api(shop: Shop) -> Iterator[Server]:
    with serving(shop) as server:
        yield server


@pytest.fixture(autouse=True)
def _quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "FIRST_WAIT", 0.001)
    monkeypatch.setattr("pipeline.killing.DIRECTORY", str(tmp_path))
    monkeypatch.chdir(tmp_path)


def make(bench: Bench, api: Server, sink: dict[str, Any] = SINK, **more: Any) -> str:
    each = {"url": f"{api.url}/orders", **LIST, **more.pop("each", {})}
    given = {
        "url": f"{api.url}/orders/${{item.id}}/lines",
        "rows": "lines",
        "page": {"pages": "pages"},
        "each": each,
        **more,
    }
    return bench.make({"format": "http", **given}, sink)


def moved(bench: Bench) -> list[tuple[int, int]]:
    return [tuple(row) for row in bench.sql("select order_id, line from moved order by 1, 2")]


def whole(orders: range) -> list[tuple[int, int]]:
    return [(order, line) for order in orders for line in range(order % 4)]


@pytest.mark.parametrize("at_once", [1, 4])
def test_each_item_of_all_pages_is_asked_for(bench: Bench, api: Server, at_once: int) -> None:
    name = make(bench, api, each={"at_once": at_once})
    assert bench.run(name)["rows_out"] == len(whole(range(15)))
    assert moved(bench) == whole(range(15))
    # Items with three lines have two pages.
    assert Counter(api.paths)["/orders/3/lines"] == 2
    assert Counter(api.paths)["/orders"] == 2
    assert not list(Path("landing").glob("*/*/*"))


@pytest.mark.parametrize("at_once", [1, 4])
def test_killed_at_the_items_every_row_arrives_once_and_none_is_asked_for_again(
    bench: Bench, api: Server, at_once: int
) -> None:
    name = make(bench, api, each={"at_once": at_once})
    message = bench.client.run_pipeline(name)
    # The first page of each item, and of the list, is page 1: who dies there has landed one more.
    points = ("landed 1", "landed 2", "landed 1", "landed 1", "landed 2", "fetched 1", "written")
    for point in points:
        assert execute_and_die(bench.dsn, bench.asked(message), point) == -signal.SIGKILL, point
    api.handler = lambda _: Reply(status=500)
    assert bench.execute(message)["rows_out"] == len(whole(range(15)))
    assert moved(bench) == whole(range(15))
    assert Counter(api.paths)["/orders"] == 2
    if at_once == 1:
        # Only what was on its way when one died.
        assert max(Counter((each.path, each.params.get("page")) for each in api.requests).values()) <= 2


def test_at_once_is_how_many_are_asked_for_at_the_same_time(bench: Bench, api: Server, shop: Shop) -> None:
    met = threading.Barrier(3)
    shop.orders = [{"id": at, "at": "x"} for at in (1, 2, 3)]

    def answer(request: Request) -> Reply:
        if request.path != "/orders":
            # Nobody is answered before all three are there.
            met.wait(PATIENCE)
        return shop(request)

    api.handler = answer
    assert bench.run(make(bench, api, page=None, each={"at_once": 3}))["rows_out"] == 1 + 2 + 2


def test_only_items_that_changed_are_asked_for(bench: Bench, api: Server, shop: Shop) -> None:
    bench.sql("create table moved (order_id bigint, line bigint, primary key (order_id, line))")
    name = make(bench, api, UPSERT, each={"since": {"param": "from", "path": "at"}})
    assert bench.run(name)["rows_out"] == len(whole(range(15)))
    assert bench.client.list_pipelines()[0].state == {"since": "2030-01-01T00:00:14Z"}
    api.requests.clear()
    assert bench.run(name) == {"outcome": "nothing new"}
    assert api.paths == ["/orders"]
    shop.orders.append({"id": 18, "at": "2030-02-01T00:00:00Z"})
    assert bench.run(name)["rows_out"] == 2
    assert Counter(api.paths) == {"/orders": 2, "/orders/18/lines": 1}
    assert moved(bench) == [*whole(range(15)), (18, 0), (18, 1)]


def test_values_are_parts_of_an_address_and_have_their_types_in_a_body(bench: Bench, api: Server) -> None:
    name = "a/b?c=&d #é%2F"
    items = [{"id": name, "n": 7, "of": {"is": True}, "token": "t"}]
    api.handler = lambda request: Reply(items if request.path == "/list" else [{"got": 1}])
    given = {
        "url": f"{api.url}/x/${{item.id}}/$${{item.n}}?q=${{item.id}}",
        "method": "POST",
        "params": {"n": "n${item.n}", "page_token": "${item.token}"},
        "body": {"n": "${item.n}", "all": ["${item.of.is}", "a ${item.n}"], "of": "${item.of}"},
        "each": {"url": f"{api.url}/list", "columns": {"number": "n"}},
    }
    bench.run(bench.make({"format": "http", **given}, SINK))
    request = api.requests[-1]
    assert unquote(request.path) == f"/x/{name}/${{item.n}}"
    assert request.path.count("/") == 3
    assert request.params == {"q": name, "n": "n7", "page_token": "t"}
    assert request.json() == {"n": 7, "all": [True, "a 7"], "of": {"is": True}}
    assert bench.sql("select number, got from moved") == [(7, 1)]


NO_ITEMS: dict[str, Any] = {
    "has no id": {"n": 1},
    "neither text nor a number": {"id": {"a": 1}},
    "would have '.' or '..'": {"id": ".."},
    "has nothing where a component": {"id": ""},
}


def test_an_item_that_lacks_what_is_named_goes_by_the_rule(bench: Bench, api: Server, shop: Shop) -> None:
    for words, item in NO_ITEMS.items():
        shop.orders = [{"id": 1, "at": "x"}, {**item, "at": "x"}]
        with pytest.raises(InvalidPipeline, match=words) as refused:
            bench.run(make(bench, api))
        assert refused.value.hint == "each.otherwise = 'quarantine' keeps such items out"
        name = make(bench, api, {**SINK, "table": "other"}, each={"otherwise": "quarantine"})
        done = bench.run(name)
        assert (done["rows_out"], done["rows_bad"]) == (1, 1)
        (kept,) = bench.client.list_quarantine(name)
        assert kept.content == {"item": {**item, "at": "x"}}
        assert words in kept.reasons[0]
    assert not [path for path in api.paths if path not in ("/orders", "/orders/1/lines")]


@pytest.mark.parametrize("at_once", [1, 3])
def test_an_item_that_the_api_refuses_goes_by_the_rule(
    bench: Bench, api: Server, shop: Shop, at_once: int
) -> None:
    shop.replies["/orders/2/lines"] = Reply({"error": "gone"}, status=404)
    name = make(bench, api, each={"at_once": at_once})
    message = bench.client.run_pipeline(name)
    with pytest.raises(ApiFailed, match=r"/orders/2/lines answers 404: .*gone"):
        bench.execute(message)
    # It is there again, and the run goes on behind what was landed.
    del shop.replies["/orders/2/lines"]
    assert bench.execute(message)["rows_out"] == len(whole(range(15)))
    shop.replies["/orders/2/lines"] = Reply({"error": "gone"}, status=410)
    for otherwise, bad in (("quarantine", 1), ("drop", 0)):
        table = {**SINK, "table": otherwise}
        name = make(bench, api, table, each={"otherwise": otherwise, "at_once": at_once})
        done = bench.run(name)
        assert (done["rows_out"], done["rows_bad"]) == (len(whole(range(15))) - 2, bad)
        assert [(row.content["item"]["id"], "answers 410" in row.reasons[0])
                for row in bench.client.list_quarantine(name)] == [(2, True)] * bad  # fmt: skip


def test_what_is_no_matter_of_one_item_fails_the_run(bench: Bench, api: Server, shop: Shop) -> None:
    for status, error in ((401, InvalidPipeline), (503, ApiFailed), (429, Wait)):
        shop.replies["/orders/2/lines"] = Reply(
            status=status, headers={"Retry-After": "60"} if status == 429 else {}
        )
        name = make(bench, api, each={"otherwise": "drop", "at_once": 3})
        message = bench.client.run_pipeline(name)
        with pytest.raises(error):
            bench.execute(message)
        bench.sql("delete from trunq.pace")
        del shop.replies["/orders/2/lines"]
        assert bench.execute(message)["rows_out"] == len(whole(range(15)))
        bench.sql("drop table moved")


def test_an_item_that_is_refused_half_way_leaves_no_rows(bench: Bench, api: Server, shop: Shop) -> None:
    def answer(request: Request) -> Reply:
        if request.path == "/orders/3/lines" and request.params.get("page") == "2":
            return Reply(status=404)
        return shop(request)

    api.handler = answer
    name = make(bench, api, each={"otherwise": "quarantine"})
    assert bench.run(name)["rows_bad"] == 1
    assert moved(bench) == [row for row in whole(range(15)) if row[0] != 3]


def test_what_is_refused_says_the_way_out(bench: Bench, api: Server, shop: Shop) -> None:
    lines = f"{api.url}/orders/${{item.id}}/lines"
    for given, words in (
        ({"url": lines}, "there is no each"),
        ({"url": api.url, "each": {"url": api.url}}, r"neither url, params nor body names \$\{item"),
        ({"url": lines, "each": {"url": lines}}, "each is the list itself"),
        ({"url": lines, "each": {"url": "http://other.example/"}}, "another host than url, other.example"),
        ({"url": lines, "headers": {"X": "${item.id}"}, "each": {"url": api.url}}, "headers has .*alone"),
        ({"url": lines, "each": {"url": api.url, "columns": {"a": "${item.id}"}}}, "each is the list itself"),
        ({"url": lines, "since": {"param": "a", "path": "b"}, "each": {"url": api.url}}, "into each"),
        ({"url": lines, "each": {"url": api.url, "at_onse": 2}}, "is it at_once"),
    ):
        with pytest.raises(InvalidPipeline, match=words):
            bench.make({"format": "http", **given}, SINK)
    with pytest.raises(
        InvalidPipeline, match=r'no item of a page has "nr", which each\.columns has as order_id'
    ):
        bench.run(make(bench, api, each={"columns": {"order_id": "nr"}}))
    with pytest.raises(TrunqError, match="rows have a column 'line' of their own") as refused:
        bench.run(make(bench, api, each={"columns": {"line": "id"}}))
    assert 'columns = { item_line = "..." }' in str(refused.value.hint)
    bench.run(make(bench, api, each={"columns": {"item_line": "id"}}))
    shop.orders = [{"id": 1, "at": "x"}, "no order"]
    api.handler = lambda request: Reply(shop.orders) if request.path == "/orders" else shop(request)
    name = make(bench, api, {**SINK, "table": "other"}, each={"rows": None, "cursor": None})
    assert bench.run(name)["rows_bad"] == 1
    assert bench.client.list_quarantine(name)[0].content == {"item": "no order"}


def test_each_goes_by_customer_too(bench: Bench, api: Server, shop: Shop, tmp_path: Path) -> None:
    (tmp_path / "keys.json").write_text(
        json.dumps({each: {"token": f"t-{each}"} for each in ("acme", "bolt")})
    )

    def answer(request: Request) -> Reply:
        customer = request.headers["authorization"].removeprefix("Bearer t-")
        assert request.params.pop("of") == customer
        return shop(request)

    api.handler = answer
    source = {
        "format": "http",
        "url": f"{api.url}/orders/${{item.id}}/lines",
        "headers": {"Authorization": "Bearer ${credentials.token}"},
        "params": {"of": "${message.customer}"},
        "rows": "lines",
        "page": {"pages": "pages"},
        "each": {
            "url": f"{api.url}/orders",
            "params": {"of": "${message.customer}"},
            **LIST,
            "since": {"param": "from", "path": "at"},
        },
    }
    name = bench.make(
        source,
        {"format": "table", "table": "lines_${message.customer}"},
        message={"customer": "text"},
        per="message.customer",
        credentials={"from": "file", "path": str(tmp_path / "keys.json")},
    )
    for customer in ("acme", "bolt"):
        assert bench.run(name, {"customer": customer})["rows_out"] == len(whole(range(15)))
        assert bench.run(name, {"customer": customer}) == {"outcome": "nothing new"}
        assert bench.one(f"select count(*) from lines_{customer}") == len(whole(range(15)))
