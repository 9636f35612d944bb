"""An HTTP API of a test's own, which misbehaves as it is told."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit


@dataclass
class Request:
    """What came."""

    method: str
    path: str
    params: dict[str, str]
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Reply:
    """What goes back: `body` is JSON unless it is bytes."""

    body: Any = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    cut: bool = False
    """Hang up in the middle of it."""

    def content(self) -> bytes:
        return self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()


Handler = Callable[[Request], Reply]


@dataclass
class Server:
    """Where it is, and what it was asked."""

    url: str
    requests: list[Request] = field(default_factory=list)
    handler: Handler = lambda _: Reply([])

    @property
    def paths(self) -> list[str]:
        return [request.path for request in self.requests]


@contextmanager
def serving(handler: Handler) -> Iterator[Server]:
    """A server on a port of its own; `server.handler` may be changed meanwhile."""
    made = Server("", handler=handler)

    class Answering(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None: ...

        def do_GET(self) -> None:
            split = urlsplit(self.path)
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            request = Request(
                self.command, split.path, dict(parse_qsl(split.query, keep_blank_values=True)), headers, body
            )
            made.requests.append(request)
            reply = made.handler(request)
            content = reply.content()
            try:
                self.send_response(reply.status)
                for name, value in ({"Content-Type": "application/json"} | reply.headers).items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content[: len(content) // 2] if reply.cut else content)
                self.wfile.flush()
            except OSError:
                reply.cut = True
            if reply.cut:
                self.close_connection = True

        do_POST = do_PUT = do_GET  # noqa: N815

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True

    server = Quiet(("127.0.0.1", 0), Answering)
    made.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def rows(start: int, end: int) -> list[dict[str, Any]]:
    """Rows with these ids."""
    return [{"id": each, "word": f"w{each}"} for each in range(start, end)]


def paged(total: int, size: int) -> Handler:
    """An API whose pages are known by a cursor in the answer."""

    def answer(request: Request) -> Reply:
        start = int(request.params.get("after", 0))
        end = min(start + size, total)
        return Reply(
            {"data": {"items": rows(start, end)}, "paging": {"cursor": str(end) if end < total else None}}
        )

    return answer
