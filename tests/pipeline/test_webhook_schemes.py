"""Webhooks of Standard Webhooks, Shopify and Meta, and several secrets at the same time."""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import hmac
import time
from collections.abc import Iterator
from typing import Any

import httpx
import psycopg
import pytest
from standardwebhooks import Webhook

from pipeline import test_webhook
from pipeline.test_webhook import SECRET, logged, serving, sign
from trunq import Client
from trunq.errors import InvalidArgument

NEW, OLD = ("whsec_" + base64.b64encode(each * 32).decode() for each in (b"n", b"o"))
KEYS = {
    "S": SECRET,
    "S_2": "the one before",
    "S_4": "of another time",
    "STANDARD": NEW,
    "STANDARD_2": OLD,
    "BROKEN": "whsec_no base64",
    "META": "app secret",
    "META_VERIFY_TOKEN": "verify me",
    "BARE": "app secret",
}


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_webhook, "KEY", KEYS)


@pytest.fixture
def client(database: str) -> Iterator[Client]:
    with Client(database, max_connections=2) as made:
        made.create_queue("plain")
        made.create_queue("keyed", unique="refuse")
        yield made


def standard(body: bytes, secret: str = NEW, id: str = "msg_1", off: float = 0) -> dict[str, str]:
    when = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=off)
    return {
        "webhook-id": id,
        "webhook-timestamp": str(int(when.timestamp())),
        "webhook-signature": Webhook(secret).sign(id, when, body.decode()),
    }


def test_standard_webhooks(database: str, client: Client, connection: psycopg.Connection[Any]) -> None:
    client.create_webhook("svix", "keyed", "STANDARD", scheme="standard")
    client.create_webhook("broken", "keyed", "BROKEN", scheme="standard")
    body = '{"type": "é"}'.encode()
    with serving(database) as http:

        def post(given: dict[str, str], content: bytes = body, name: str = "svix") -> int:
            return http.post(f"/hook/{name}", content=content, headers=given).status_code

        good = standard(body)
        # Sent again it is one message; by the secret before, another.
        assert [post(good), post(good), post(standard(body, OLD, "msg_2"))] == [202] * 3
        several = f"v1a,x v1,{'A' * 43}= {good['webhook-signature']}"
        assert post({**good, "webhook-signature": several}) == 202
        other = "whsec_" + base64.b64encode(b"x" * 32).decode()
        for given in (
            standard(body, other),
            standard(body, off=400),
            standard(body, off=-302),
            {**good, "webhook-id": "msg_3"},
            {**good, "webhook-timestamp": "x"},
            {**good, "webhook-timestamp": str(int(time.time()) - 1)},
            {**good, "webhook-signature": "v1"},
            {**good, "webhook-signature": "v1,é"},
            {**good, "webhook-signature": good["webhook-signature"].replace("v1", "v2")},
            {"webhook-id": "msg_1"},
            {},
        ):
            encoded = {key: value.encode() for key, value in given.items()}
            assert http.post("/hook/svix", content=body, headers=encoded).status_code == 401, given
        assert post(good, b'{"type": "e"}') == 401
        assert post(good, b"\xff") == 401
        answer = http.post("/hook/broken", content=body, headers=good)
        assert (answer.status_code, "the secret BROKEN of the server is none" in answer.text) == (503, True)
    assert len(logged(connection, "keyed")) == 2


def test_shopify(database: str, client: Client, connection: psycopg.Connection[Any]) -> None:
    client.create_webhook("shop", "keyed", "S", scheme="shopify", headers=["X-Shopify-Topic"])
    body = b'{"id": 1}'

    def signed(secret: str) -> str:
        return base64.b64encode(hmac.digest(secret.encode(), body, "sha256")).decode()

    with serving(database) as http:

        def post(signature: str, id: str = "d1", content: bytes = body) -> int:
            headers = {
                "X-Shopify-Hmac-Sha256": signature,
                "X-Shopify-Webhook-Id": id,
                "X-Shopify-Topic": "orders/create",
            }
            return http.post("/hook/shop", content=content, headers=headers).status_code

        assert [post(signed(SECRET)), post(signed(SECRET))] == [202, 202]
        # Base64 has letters of both cases, and another spelling is another signature.
        wrong = (signed(SECRET).swapcase(), sign(body), "", signed("guess"))
        assert [post(each) for each in wrong] == [401] * len(wrong)
        assert post(signed(SECRET), content=b'{"id": 2}') == 401
        # The name of a delivery is not signed: under another one the body is refused for a while.
        assert post(signed(SECRET), "d2") == 409
    assert [(payload, headers) for _, payload, _, headers in logged(connection, "keyed")] == [
        ({"id": 1}, {"webhook": "shop", "x-shopify-topic": "orders/create"})
    ]


def test_meta_asks_first_and_signs_then(
    database: str, client: Client, connection: psycopg.Connection[Any]
) -> None:
    client.create_webhook("meta", "plain", "META", scheme="meta")
    client.create_webhook("bare", "plain", "BARE", scheme="meta")
    client.create_webhook("github", "plain", "S", scheme="github")

    def ask(http: httpx.Client, name: str = "meta", **given: str) -> httpx.Response:
        asked = {"mode": "subscribe", "verify_token": "verify me", "challenge": "1158201444", **given}
        return http.get(f"/hook/{name}", params={f"hub.{key}": value for key, value in asked.items()})

    with serving(database) as http:
        answer = ask(http)
        assert (answer.status_code, answer.text) == (200, "1158201444")
        assert answer.headers["content-type"].startswith("text/plain")
        refused = {
            403: [ask(http, verify_token="guess"), ask(http, verify_token=""), ask(http, verify_token="é")],
            400: [ask(http, mode="x"), ask(http, challenge="<script>"), ask(http, challenge="")],
            405: [ask(http, "github"), ask(http, "none")],
            503: [ask(http, "bare")],
        }
        for status, answers in refused.items():
            assert [each.status_code for each in answers] == [status] * len(answers)
        assert "BARE_VERIFY_TOKEN" in refused[503][0].text
        body = b'{"object": "page"}'
        headers = {"X-Hub-Signature-256": f"sha256={sign(body, 'app secret')}"}
        assert http.post("/hook/meta", content=body, headers=headers).status_code == 202
        # What the token is, signs nothing.
        headers = {"X-Hub-Signature-256": f"sha256={sign(body, 'verify me')}"}
        assert http.post("/hook/meta", content=body, headers=headers).status_code == 401
    assert len(logged(connection, "plain")) == 1


def test_while_one_secret_takes_the_place_of_another_both_are_good(database: str, client: Client) -> None:
    client.create_webhook("shop", "plain", "S")
    with serving(database) as http:
        signatures = [sign(b"{}", secret) for secret in (SECRET, "the one before", "of another time")]
        answers = [
            http.post("/hook/shop", content=b"{}", headers={"X-Signature": each}).status_code
            for each in (*signatures, sign(b"{}", "guess"), hashlib.sha256(b"{}").hexdigest())
        ]
    assert answers == [202, 202, 202, 401, 401]


def test_the_library_has_its_own_tolerance(client: Client) -> None:
    with pytest.raises(InvalidArgument, match="tolerance of 5 minutes") as refused:
        client.create_webhook("svix", "plain", "STANDARD", scheme="standard", tolerance=60)
    assert refused.value.hint == "leave tolerance out"
    assert client.create_webhook("svix", "plain", "STANDARD", scheme="standard")
