"""A server of webhooks holds as many connections as it can, waits for none, and takes a body once."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from pipeline.test_webhook import client, post, serving, sign
from trunq import Client
from trunq.webhook.serving import configure
from waiting import PATIENCE, wait_until

__all__ = ["client"]

HEAD = b"GET /health HTTP/1.1\r\nHost: here\r\n"


async def health(_: Request) -> PlainTextResponse:
    return PlainTextResponse("ok")


@contextmanager
def bounded(connections: int, headers_within: float) -> Iterator[tuple[str, int]]:
    """Where a server of its own listens, in a thread."""
    config = configure(
        Starlette(routes=[Route("/health", health)]),
        host="127.0.0.1",
        port=0,
        connections=connections,
        headers_within=headers_within,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    wait_until(lambda: server.started)
    try:
        yield server.servers[0].sockets[0].getsockname()
    finally:
        server.should_exit = True
        thread.join(60)


def is_closed(connection: socket.socket) -> bool:
    """Whether the server closes this connection, which is waited for."""
    try:
        return connection.recv(1000) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize(
    "said", [b"", b"GET /heal", HEAD], ids=["nothing", "half a line", "half of the headers"]
)
def test_a_connection_that_says_no_whole_headers_is_closed(said: bytes) -> None:
    with bounded(100, 0.3) as where, socket.create_connection(where, timeout=PATIENCE) as silent:
        silent.sendall(said)
        assert is_closed(silent)


def test_the_same_after_a_first_request_and_not_between_two() -> None:
    with bounded(100, 0.3) as where, socket.create_connection(where, timeout=PATIENCE) as connection:
        connection.sendall(HEAD + b"\r\n")
        assert b"200 OK" in connection.recv(1000)
        connection.sendall(HEAD)
        assert is_closed(connection)


def test_one_connection_too_many_is_closed_and_the_others_are_served() -> None:
    with bounded(3, 60) as where:
        held = [socket.create_connection(where, timeout=PATIENCE) for _ in range(3)]
        try:
            for each in held:
                each.sendall(HEAD + b"\r\n")
                assert b"200 OK" in each.recv(1000)
            with socket.create_connection(where, timeout=PATIENCE) as other:
                assert is_closed(other)
            held[0].sendall(HEAD + b"\r\n")
            assert b"200 OK" in held[0].recv(1000)
        finally:
            for each in held:
                each.close()


def test_a_body_that_is_sent_again_as_another_delivery_is_refused(client: Client, database: str) -> None:
    client.create_webhook("gh", "keyed", "S", scheme="github")
    body = json.dumps({"action": "opened"}).encode()
    with serving(database) as http:

        def send(delivery: str, content: bytes = body) -> int:
            headers = {"X-Hub-Signature-256": f"sha256={sign(content)}", "X-GitHub-Delivery": delivery}
            return post(http, "gh", content, **headers).status_code

        assert [send("1"), send("1"), send("2"), send("3")] == [202, 202, 409, 409]
        assert send("2", b'{"action": "closed"}') == 202
    assert len(client.list_messages("keyed")) == 2


def test_a_body_that_was_not_taken_may_come_again_as_another_delivery(client: Client, database: str) -> None:
    client.create_webhook("gh", "keyed", "S", scheme="github")
    client.close_queue("keyed")
    body = b"{}"
    with serving(database) as http:
        for delivery, status in (("1", 503), ("2", 503)):
            headers = {"X-Hub-Signature-256": f"sha256={sign(body)}", "X-GitHub-Delivery": delivery}
            assert post(http, "gh", body, **headers).status_code == status


def test_a_body_is_remembered_no_longer_than_its_webhook_says(client: Client, database: str) -> None:
    client.create_webhook("slow", "keyed", "S", scheme="github", tolerance="1 hour")
    client.create_webhook("quick", "keyed", "S", scheme="github", tolerance=0.1)
    body = b"{}"
    with serving(database) as http:

        def send(webhook: str, delivery: str) -> int:
            headers = {"X-Hub-Signature-256": f"sha256={sign(body)}", "X-GitHub-Delivery": delivery}
            return post(http, webhook, body, **headers).status_code

        assert [send("slow", "1"), send("quick", "2")] == [202, 202]
        wait_until(lambda: send("quick", "3") == 202, timeout=20)
        assert send("slow", "4") == 409
