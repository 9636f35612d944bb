"""Tokens of OAuth 2.0, from a server that gives them and an API that lets them expire."""

from __future__ import annotations

import base64
import gc
import json
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

from pipeline.apis import Reply, Request, Server, paged, serving
from pipeline.piping import Bench
from trunq.errors import InvalidPipeline, TrunqError
from trunq.pipeline import oauth
from trunq.pipeline import request as requests
from trunq.pipeline.errors import ApiFailed

CURSOR = {"rows": "data.items", "cursor": {"path": "paging.cursor", "param": "after"}}
SECRET = "s3cret & more"


class Provider:
    """Tokens by number, each good for so many seconds, of which it says how many they are."""

    def __init__(self) -> None:
        self.numbers = count(1)
        self.length: float | None = 3600
        self.says: float | None = None
        self.given_at = 0.0
        self.good: dict[str, float] = {}
        self.forms: list[dict[str, str]] = []
        self.basic: list[str] = []
        self.refused = 0
        self.refresh: str | None = None
        self.reply: Reply | None = None
        self.page = paged(35, 10)
        self.of: list[str] = []
        self.lock = threading.Lock()

    def __call__(self, request: Request) -> Reply:
        with self.lock:
            return self.token(request) if request.path == "/token" else self.rows(request)

    def token(self, request: Request) -> Reply:
        assert request.headers["content-type"] == "application/x-www-form-urlencoded"
        form = {key: values[0] for key, values in parse_qs(request.body.decode()).items()}
        self.forms.append(form)
        self.basic.append(request.headers.get("authorization", ""))
        if self.reply is not None:
            return self.reply
        if self.refresh is not None and form.get("refresh_token") != self.refresh:
            return Reply({"error": "invalid_grant", "error_description": "not this one"}, status=400)
        token = f"secret-token-{next(self.numbers)}"
        self.given_at = time.monotonic()
        self.good[token] = time.monotonic() + (3600 if self.length is None else self.length)
        said = self.length if self.says is None else self.says
        more: dict[str, Any] = {} if said is None else {"expires_in": said}
        if self.refresh is not None:
            self.refresh = more["refresh_token"] = f"refresh-{token}"
        return Reply({"access_token": token, "token_type": "Bearer", **more})

    def rows(self, request: Request) -> Reply:
        token = request.headers["authorization"].removeprefix("Bearer ")
        if self.good.get(token, 0) < time.monotonic():
            self.refused += 1
            return Reply({"error": f"no {token}"}, status=401)
        self.of.append(token)
        return self.page(request)


@pytest.fixture
def provider() -> Provider:
    return Provider()


@pytest.fixture
def api(provider: Provider) -> Iterator[Server]:
    with serving(provider) as server:
        yield server


@pytest.fixture(autouse=True)
def _quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "FIRST_WAIT", 0.001)
    monkeypatch.setenv("CLIENT_SECRET", f"{SECRET}\n")
    monkeypatch.setenv("REFRESH", "first")
    monkeypatch.chdir(tmp_path)


def make(bench: Bench, api: Server, table: str = "moved", **more: Any) -> str:
    given = {"token_url": f"{api.url}/token", "client_id": "it:me", **more}
    if "refresh_token" not in given:
        given = {"client_secret": "${CLIENT_SECRET}", **given}
    return bench.make(
        {"format": "http", "url": f"{api.url}/rows", "oauth": given, **CURSOR},
        {"format": "table", "table": table},
    )


def test_a_token_is_asked_for_once_and_kept(bench: Bench, api: Server, provider: Provider) -> None:
    name = make(bench, api, scope="read all", params={"audience": "shop"})
    assert bench.run(name)["rows_out"] == 35
    assert bench.run(name)["rows_out"] == 35
    assert provider.forms == [{"grant_type": "client_credentials", "scope": "read all", "audience": "shop"}]
    # RFC 6749, 2.3.1: both are encoded as in a form.
    pair = base64.b64decode(provider.basic[0].removeprefix("Basic ")).decode()
    assert pair == "it%3Ame:s3cret+%26+more"
    # Another client has its own.
    bench.run(make(bench, api, client_id="other", auth="body"))
    assert provider.forms[1] == {
        "grant_type": "client_credentials",
        "client_id": "other",
        "client_secret": SECRET,
    }
    assert provider.basic[1] == ""


def test_a_token_is_replaced_before_it_expires(bench: Bench, api: Server, provider: Provider) -> None:
    provider.says = 1
    whole = provider.page

    def slow(request: Request) -> Reply:
        if request.params.get("after") == "10":
            # Answered when the time of the token is over. (The API takes it for longer: a machine that is
            # slow is not refused.)
            end = provider.given_at + 1
            while time.monotonic() < end:
                threading.Event().wait(end - time.monotonic())
        return whole(request)

    provider.page = slow
    assert bench.run(make(bench, api))["rows_out"] == 35
    assert provider.of[1] != provider.of[2]
    assert provider.refused == 0


def test_a_token_that_is_not_taken_any_more_is_replaced_once(
    bench: Bench, api: Server, provider: Provider
) -> None:
    provider.length = None
    name = make(bench, api)
    message = bench.client.run_pipeline(name)
    whole = provider.page

    def revoking(request: Request) -> Reply:
        if request.params.get("after") == "20" and len(provider.forms) == 1:
            provider.good.clear()
            provider.refused += 1
            return Reply(status=401)
        return whole(request)

    provider.page = revoking
    assert bench.execute(message)["rows_out"] == 35
    assert (len(provider.forms), provider.refused) == (2, 1)
    # An API that takes none is not asked for ever.
    provider.page = lambda _: Reply(f"not {provider.of[-1]}".encode(), status=401)
    with pytest.raises(
        InvalidPipeline, match=r"answers 401: it takes no credentials, or not these: not \*\*\*"
    ):
        bench.run(name)
    assert len(provider.forms) == 3


def test_a_refresh_token_gives_tokens_and_its_successor(
    bench: Bench, api: Server, provider: Provider
) -> None:
    provider.refresh, provider.length = "first", 0
    name = make(bench, api, refresh_token="${REFRESH}")  # the name of a variable
    # Good for no time, each is asked for anew, by the refresh token that came with the one before.
    provider.page = lambda _: Reply({"data": {"items": []}, "paging": {}})
    with pytest.raises(InvalidPipeline):
        bench.run(name)
    provider.length = 3600
    assert bench.run(name)["outcome"] == "done"
    assert [form["refresh_token"] for form in provider.forms] == [
        "first",
        "refresh-secret-token-1",
        "refresh-secret-token-2",
    ]
    assert provider.forms[0] == {
        "grant_type": "refresh_token",
        "refresh_token": "first",
        "client_id": "it:me",
    }


def test_where_there_is_no_token_a_sentence_says_why(bench: Bench, api: Server, provider: Provider) -> None:
    for reply, words in (
        (Reply({"error": "invalid_client", "error_description": f"not {SECRET}"}, status=401),
         r"/token answers 401, and gives no token: invalid_client: not \*\*\*"),
        (Reply(b"<html>", status=404), "answers 404, and gives no token: <html>"),
        (Reply({"token": "x"}), "answers 200, and gives no token"),
        (Reply({"access_token": "x", "token_type": "mac"}), "a token of type mac, not bearer"),
    ):  # fmt: skip
        provider.reply = reply
        name = make(bench, api)
        with pytest.raises(InvalidPipeline, match=words) as refused:
            bench.run(name)
        assert SECRET not in str(refused.value)
    provider.reply = Reply(status=503)
    name = make(bench, api)
    message = bench.client.run_pipeline(name)
    with pytest.raises(ApiFailed, match="/token answers 503"):
        bench.execute(message)
    provider.reply = None
    assert bench.execute(message)["rows_out"] == 35
    for given, words in (
        ({"client_secret": "abc"}, "does not belong into a pipeline"),
        ({"client_secret": None}, "needs client_secret, or refresh_token"),
        ({"token_url": "shop/token"}, "begins with http"),
        ({"params": {"api_key": "abc"}}, "looks like a secret"),
    ):
        with pytest.raises(InvalidPipeline, match=words):
            make(bench, api, **given)
    with pytest.raises(InvalidPipeline, match="oauth gives the header Authorization"):
        bench.make(
            {
                "format": "http",
                "url": api.url,
                "headers": {"Authorization": "Bearer ${X}"},
                "oauth": {"token_url": api.url, "client_id": "a", "client_secret": "${CLIENT_SECRET}"},
            },
            {"format": "table", "table": "moved"},
        )


def test_no_token_stands_in_the_database_or_goes_to_another_host(
    bench: Bench, api: Server, provider: Provider
) -> None:
    with serving(lambda _: Reply(b"no", status=400)) as other:
        provider.page = lambda _: Reply(status=302, headers={"Location": f"{other.url}/x"})
        with pytest.raises(TrunqError):
            bench.run(make(bench, api))
        assert "authorization" not in other.requests[0].headers
    provider.page = lambda _: Reply(f"not {provider.of[-1]}".encode(), status=400)
    with pytest.raises(TrunqError, match=r"answers 400: not \*\*\*"):
        bench.run(make(bench, api))
    told = bench.sql(
        "select p::text || coalesce(r::text, '')"
        " from trunq.pipeline p left join trunq.pipeline_run r using (pipeline_id)"
    )
    assert not [text for (text,) in told if "secret-token" in text or SECRET in text]


def test_a_sink_has_tokens_and_each_customer_its_own(
    bench: Bench, api: Server, provider: Provider, tmp_path: Path
) -> None:
    keys = {each: {"id": each, "secret": f"secret-of-{each}"} for each in ("acme", "bolt")}
    (tmp_path / "keys.json").write_text(json.dumps(keys))
    for customer in keys:
        bench.sql(f"create table orders_{customer} (id bigint generated always as identity)")
        bench.sql(f"insert into orders_{customer} default values")
    sink = {
        "format": "http",
        "url": f"{api.url}/rows",
        "oauth": {
            "token_url": f"{api.url}/token",
            "client_id": "${credentials.id}",
            "client_secret": "${credentials.secret}",
        },
    }
    name = bench.make(
        {"format": "table", "table": "orders_${message.customer}"},
        sink,
        message={"customer": "text"},
        per="message.customer",
        credentials={"from": "file", "path": str(tmp_path / "keys.json")},
    )
    for customer in keys:
        assert bench.run(name, {"customer": customer})["rows_out"] == 1
    pairs = [base64.b64decode(each.removeprefix("Basic ")).decode() for each in provider.basic]
    assert pairs == ["acme:secret-of-acme", "bolt:secret-of-bolt"]
    assert provider.of == ["secret-token-1", "secret-token-2"]


def test_of_many_clients_the_one_that_was_not_asked_for_longest_is_forgotten(
    bench: Bench, api: Server, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oauth, "_MOST", 3)
    monkeypatch.setattr(oauth, "_kept", OrderedDict())
    provider.refresh = "first"
    rotated = make(bench, api, "rotated", refresh_token="${REFRESH}")
    assert bench.run(rotated)["rows_out"] == 35
    provider.refresh, rotating = None, provider.refresh
    names = [make(bench, api, f"of_{number}", scope=str(number)) for number in range(5)]
    for name in names:
        assert bench.run(name)["rows_out"] == 35
    assert len(oauth._kept) == 3
    asked = len(provider.forms)
    bench.run(names[4])
    assert len(provider.forms) == asked, "it is remembered"
    # What a run had may be in a circle.
    gc.collect()
    bench.run(names[0])
    assert len(provider.forms) == asked + 1, "it is asked for anew"
    # Whose newest refresh token nobody tells again is the last to be forgotten.
    provider.refresh, provider.good = rotating, {}
    assert bench.run(rotated)["rows_out"] == 35


def test_a_client_that_a_run_has_is_not_forgotten_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oauth, "_MOST", 1)
    monkeypatch.setattr(oauth, "_kept", OrderedDict())
    held = oauth._find("held", is_told_once=True)
    oauth._find("other", is_told_once=True)
    assert list(oauth._kept) == ["other"]
    assert oauth._find("held", is_told_once=True) is held
