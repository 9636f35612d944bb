"""The register of aircraft, as an HTTP API: it allows so many calls a second, and fails at one in ten."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

PAGE = 100
"""Planes in an answer."""
PER_SECOND = 12
"""Calls that it allows; to others it says 429, and to come again in a second."""
FAILS = 10
"""Of so many calls that it allows, one is answered by 503."""
TOKEN = "demo-register"  # noqa: S105  # for a server of this machine that lives as long as the demo


class Register:
    """The planes, and what was asked."""

    def __init__(self, planes: list[dict[str, Any]]) -> None:
        self.planes = planes
        self.calls = self.refused = self.failed = 0
        self.url = ""
        self._lock = threading.Lock()
        self._second, self._in_second = 0, 0

    def answer(self, after: int) -> tuple[HTTPStatus, dict[str, Any]]:
        """A page of planes, if the call is allowed and does not fail."""
        with self._lock:
            self.calls += 1
            now = int(time.monotonic())
            if now != self._second:
                self._second, self._in_second = now, 0
            self._in_second += 1
            if self._in_second > PER_SECOND:
                self.refused += 1
                return HTTPStatus.TOO_MANY_REQUESTS, {"error": f"at most {PER_SECOND} calls a second"}
            if (self.calls - self.refused) % FAILS == 0:
                self.failed += 1
                return HTTPStatus.SERVICE_UNAVAILABLE, {"error": "out of order"}
        following = after + PAGE
        return HTTPStatus.OK, {
            "planes": self.planes[after:following],
            "next": following if following < len(self.planes) else None,
        }


@contextmanager
def serving(planes: list[dict[str, Any]]) -> Iterator[Register]:
    """The register at an address of this machine."""
    register = Register(planes)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = parse_qs(urlsplit(self.path).query)
            if self.headers["Authorization"] != f"Bearer {TOKEN}":
                status, body = HTTPStatus.UNAUTHORIZED, {"error": "who are you?"}
            else:
                status, body = register.answer(int(asked.get("after", ["0"])[0]))
            content = json.dumps(body).encode()
            self.send_response(status)
            if status is HTTPStatus.TOO_MANY_REQUESTS:
                self.send_header("Retry-After", "1")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *arguments: Any) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    register.url = f"http://127.0.0.1:{server.server_port}/planes"
    thread = threading.Thread(target=server.serve_forever, name="register", daemon=True)
    thread.start()
    try:
        yield register
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
