"""trunq worker --push."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from shelling import Shell
from trunq import Client

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"  # of an example


@pytest.fixture
def url() -> Iterator[str]:
    """A server that takes all it is sent."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def test_messages_are_posted(trunq: Shell, client: Client, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRUNQ_PUSH_SECRET", SECRET)
    client.create_queue("mail")
    client.publish_many("mail", [1, 2, 3])
    given = ("worker", "--push", url, "--queue", "mail", "--push-private", "--until-empty", "--json")
    done = trunq(*given)
    assert (done.status, done.json["handled"]) == (0, 3), done.said


def test_what_cannot_be_pushed_is_refused(
    trunq: Shell, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRUNQ_PUSH_SECRET", raising=False)
    client.create_queue("mail")
    assert "TRUNQ_PUSH_SECRET is to be a secret" in trunq("worker", "--push", "http://x", "-q", "mail").said
    monkeypatch.setenv("TRUNQ_PUSH_SECRET", SECRET)
    assert "--queue NAME" in trunq("worker", "--push", "http://x").said
    assert "http:// or https://" in trunq("worker", "--push", "ftp://x", "-q", "mail").said
    assert "MODULE:APP, or with --push" in trunq("worker").said
    assert "give MODULE:APP or --push, not both" in trunq("worker", "a:b", "--push", "http://x").said
    said = trunq("worker", "--push", "http://x", "-q", "mail", "--spark", "local[1]").said
    assert "give one of them" in said
