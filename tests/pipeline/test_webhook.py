"""Webhooks: what is signed becomes one message, all else none; a database that is away costs nothing."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import psycopg
import pytest
import uvicorn
from psycopg import sql
from psycopg.conninfo import make_conninfo

from copying import copied_server
from trunq import AsyncClient, Client
from trunq.embedded import Embedded
from trunq.errors import InvalidArgument, QueueNotFound
from trunq.webhook import app
from waiting import wait_until

SECRET = "not told"
BAD = ("", "{", "NaN", '"\\u0000"', '"\\ud800"', "[" * 100_000, b'"\xff"')
KEY = {"S": SECRET, "EMPTY": ""}


def sign(content: bytes, secret: str = SECRET) -> str:
    return hmac.new(secret.encode(), content, hashlib.sha256).hexdigest()


@contextmanager
def serving(dsn: str) -> Iterator[httpx.Client]:
    """A server of its own, in a thread, and a client of it."""
    servers: list[uvicorn.Server] = []

    async def serve() -> None:
        async with AsyncClient(dsn, timeout=1) as client:
            config = uvicorn.Config(
                app(client, environment=KEY), port=0, log_config=None, ws="none", lifespan="off"
            )
            servers.append(uvicorn.Server(config))
            await servers[0].serve()

    thread = threading.Thread(target=asyncio.run, args=(serve(),), daemon=True)
    thread.start()
    wait_until(lambda: bool(servers) and servers[0].started)
    port = servers[0].servers[0].sockets[0].getsockname()[1]
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as http:
            yield http
    finally:
        servers[0].should_exit = True
        thread.join(120)


@pytest.fixture
def client(database: str) -> Iterator[Client]:
    with Client(database, max_connections=2) as made:
        made.create_queue("plain")
        made.create_queue("keyed", unique="refuse")
        yield made


def post(http: httpx.Client, name: str, body: bytes | str, **headers: str) -> httpx.Response:
    raw = body.encode() if isinstance(body, str) else body
    given = {key.replace("_", "-"): value for key, value in headers.items()}
    return http.post(f"/hook/{name}", content=raw, headers={"X-Signature": sign(raw)} | given)


def logged(connection: psycopg.Connection[Any], queue: str) -> list[Any]:
    query = sql.SQL("select kind, payload, body, headers from {} order by id")
    return connection.execute(query.format(sql.Identifier("trunq_log", queue))).fetchall()


def test_a_signed_request_is_a_message_and_others_are_none(
    database: str, client: Client, connection: psycopg.Connection[Any]
) -> None:
    client.create_webhook("shop", "plain", "S", kind="sold", headers=["X-Event"])
    client.create_webhook("raw", "plain", "S", body="bytes", prefix="v=")
    client.create_webhook("empty", "plain", "EMPTY")
    client.create_webhook("unset", "plain", "UNSET")
    with serving(database) as http:
        # Numbers stay as they are, whatever Python makes of them.
        text = '{"n": 12345678901234567890.10}'
        assert post(http, "shop", text, X_Event="push").status_code == 202
        binary = b"\xff\x00"
        assert post(http, "raw", binary, X_Signature=f"v={sign(binary)}").status_code == 202
        answers = {
            401: [
                post(http, "shop", text, X_Signature=sign(b"other")),
                post(http, "shop", text, X_Signature=""),
                post(http, "shop", text, X_Signature=sign(text.encode(), "guess")),
                post(http, "raw", b"x", X_Signature=sign(b"x")),
            ],
            404: [post(http, "other", text), http.post("/hook/shop/more"), http.get("/hook")],
            405: [http.get("/hook/shop")],
            400: [post(http, "shop", bad) for bad in BAD],
            503: [post(http, "empty", text, X_Signature=sign(text.encode(), "")), post(http, "unset", text)],
        }  # fmt: skip
        for status, replies in answers.items():
            assert [reply.status_code for reply in replies] == [status] * len(replies)
        assert all(SECRET not in reply.text for replies in answers.values() for reply in replies)
        assert answers[503][0].headers["retry-after"] == "60"
        assert http.get("/health").json() == {"status": "ok"}
    assert [(kind, body, headers) for kind, _, body, headers in logged(connection, "plain")] == [
        ("sold", None, {"webhook": "shop", "x-event": "push"}),
        (None, b"\xff\x00", {"webhook": "raw"}),
    ]
    assert connection.execute("select payload::text from trunq_log.plain order by id").fetchone() == (text,)


def test_the_schemes_of_others(database: str, client: Client, connection: psycopg.Connection[Any]) -> None:
    for scheme in ("github", "stripe", "slack"):
        client.create_webhook(scheme, "keyed", "S", scheme=scheme)  # type: ignore[arg-type]
    client.create_webhook("timed", "keyed", "S", timestamp_header="X-Time", header="X-Sign", tolerance=60)
    body = json.dumps({"id": "evt_1", "event_id": "Ev1"}).encode()

    def send(http: httpx.Client, scheme: str, off: int = 0, body: bytes = body) -> int:
        now = str(int(time.time()) + off)
        stamped = sign(now.encode() + b"." + body)
        headers: dict[str, dict[str, str]] = {
            "github": {"X-Hub-Signature-256": f"sha256={sign(body)}", "X-GitHub-Delivery": "7"},
            "stripe": {"Stripe-Signature": f"t={now},v1={'0' * 64},v1={stamped},v0=x"},
            "slack": {
                "X-Slack-Signature": f"v0={sign(b'v0:' + now.encode() + b':' + body)}",
                "X-Slack-Request-Timestamp": now,
            },
            "timed": {"X-Sign": stamped, "X-Time": now},
        }
        reply = http.post(f"/hook/{scheme}", content=body, headers=headers[scheme])
        if scheme == "slack" and b"challenge" in body:
            assert reply.json() == {"challenge": "c"}
        return reply.status_code

    with serving(database) as http:
        for scheme in ("github", "stripe", "slack"):
            # Sent again, it is taken again, and is one message.
            assert [send(http, scheme) for _ in range(2)] == [202, 202]
        assert send(http, "timed") == 202
        for scheme, off in (
            # Far ahead: a time that comes nearer while the request is under way stays one that is refused.
            ("stripe", 400),
            ("stripe", -302),
            ("slack", -302),
            ("timed", 160),
            ("timed", -62),
        ):
            assert send(http, scheme, off) == 401, scheme
        for stamp in ("", "x", "²", "9" * 30, "-1"):
            stripe = f"t={stamp},v1={sign(stamp.encode() + b'.' + body)}".encode()
            assert (
                http.post("/hook/stripe", content=body, headers={b"Stripe-Signature": stripe}).status_code
                == 401
            )
        challenge = json.dumps({"type": "url_verification", "challenge": "c"}).encode()
        assert send(http, "slack", body=challenge) == 200
    assert len(logged(connection, "keyed")) == 4


def test_a_large_body_is_refused_before_it_is_read(database: str, client: Client) -> None:
    client.create_webhook("shop", "plain", "S")
    client.create_webhook("small", "plain", "S", max_bytes=10)
    with serving(database) as http:
        assert post(http, "small", '"12345678"').status_code == 202
        assert post(http, "small", '"123456789"').status_code == 413
        host, port = str(http.base_url.host), int(http.base_url.port or 0)
        for header in (b"Content-Length: 20000000", b"Transfer-Encoding: chunked"):
            with socket.create_connection((host, port), timeout=30) as raw:
                raw.sendall(b"POST /hook/shop HTTP/1.1\r\nHost: x\r\n" + header + b"\r\n\r\n")
                sent = flood(raw) if b"chunked" in header else 0
                assert b" 413 " in answer(raw)
                # What the network holds may be on its way.
                assert sent < 20_000_000
        assert http.get("/health").status_code == 200


def flood(raw: socket.socket) -> int:
    """Send chunks until 20 MB are sent, or nobody takes them; how many bytes."""
    chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    sent = 0
    try:
        while sent < 20_000_000:
            raw.sendall(chunk)
            sent += len(chunk)
    except OSError:
        pass
    return sent


def answer(raw: socket.socket) -> bytes:
    try:
        return raw.recv(100)
    except ConnectionResetError:
        # It hung up before it was read: what it said went with the connection.
        return b" 413 "


def test_it_works_as_a_role_that_may_publish_to_that_queue_alone(
    database: str, client: Client, connection: psycopg.Connection[Any]
) -> None:
    role = f"hook_{os.urandom(4).hex()}"
    connection.execute(f"create role {role} login".encode())
    try:
        client.grant_role("keyed", "publisher", role)
        client.create_webhook("github", "keyed", "S", scheme="github")
        client.create_webhook("other", "plain", "S")
        with serving(make_conninfo(database, options=f"-c role={role}")) as http:
            body = b"{}"
            headers = {"X-Hub-Signature-256": f"sha256={sign(body)}", "X-GitHub-Delivery": "7"}
            assert http.post("/hook/github", content=body, headers=headers).status_code == 202
            assert post(http, "other", "{}").status_code == 500
        assert len(logged(connection, "keyed")) == 1
        client.revoke_role("keyed", "publisher", role)
    finally:
        connection.execute(f"drop owned by {role}; drop role {role}".encode())


def test_webhooks_are_data(database: str, client: Client, trunq_here: Callable[..., Any]) -> None:
    assert client.create_webhook("shop", "plain", "S")
    assert not client.create_webhook("shop", "keyed", "S", kind="k")
    (row,) = client.list_webhooks()
    assert (row.queue, row.kind, row.secret, row.max_bytes, row.is_unique) == (
        "keyed",
        "k",
        "S",
        1048576,
        True,
    )
    for given in (
        {"secret": "not a name"},
        {"scheme": "none"},
        {"body": "x"},
        {"max_bytes": 0},
        {"scheme": "github", "header": "x"},
        {"header": ""},
        {"id_header": "X-Id\nX-Other"},
        {"headers": ["X-Event", "two words"]},
        {"headers": ["X-Event", None]},
        {"headers": [["X-Event"]]},
    ):
        with pytest.raises(InvalidArgument):
            client.create_webhook(**{"webhook": "w", "queue": "plain", "secret": "S", **given})  # type: ignore[arg-type]
    with pytest.raises(QueueNotFound):
        client.create_webhook("w", "nothing", "S")
    assert "created" in trunq_here(
        "create", "gh", "plain", "--secret", "S", "--scheme", "github", "--keep", "X-A"
    )
    assert [each["webhook"] for each in json.loads(trunq_here("list", "--json"))] == ["gh", "shop"]
    assert "dropped" in trunq_here("drop", "gh")
    client.drop_queue("keyed", force=True)
    assert client.list_webhooks() == []


@pytest.fixture
def trunq_here(database: str) -> Callable[..., str]:
    def run(*arguments: str) -> str:
        command = [sys.executable, "-m", "trunq.cli", "webhook", *arguments, "--dsn", database]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return done.stdout + done.stderr

    return run


def test_the_command_serves_until_it_is_stopped(database: str, client: Client) -> None:
    client.create_webhook("shop", "plain", "S")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "trunq.cli",
        "webhook",
        "serve",
        "--port",
        str(port),
        "--dsn",
        database,
    ]
    process = subprocess.Popen(command, env=os.environ | {"S": SECRET})
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as http:

            def is_up() -> bool:
                try:
                    return http.get("/health").status_code == 200
                except httpx.TransportError:
                    return False

            wait_until(is_up, 120)
            assert post(http, "shop", "{}").status_code == 202
    finally:
        process.terminate()
        process.wait(120)


@pytest.fixture(scope="module")
def own_server() -> Iterator[Embedded]:
    with copied_server(settings={"fsync": "off"}) as server:
        yield server


def test_while_the_database_is_away_it_says_so_and_then_goes_on(own_server: Embedded) -> None:
    with Client(own_server.dsn) as client:
        client.create_queue("plain")
        client.create_webhook("shop", "plain", "S")
    with serving(own_server.dsn) as http:
        assert post(http, "shop", "1").status_code == 202
        own_server.kill()
        away = [post(http, "shop", "2") for _ in range(2)] + [http.get("/health")]
        assert [(reply.status_code, reply.headers["retry-after"]) for reply in away] == [(503, "5")] * 3
        own_server.restart()
        wait_until(lambda: post(http, "shop", "3").status_code == 202, 120)
    with psycopg.connect(own_server.dsn) as connection:
        assert [payload for _, payload, _, _ in logged(connection, "plain")] == [1, 3]
