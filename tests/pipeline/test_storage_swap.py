"""One of two writers of an object is refused, by whatever a storage tells its versions from each other."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from pipeline.storages import S3Server
from trunq.pipeline.definition.storage import Storage
from trunq.pipeline.storage import open_storage


class Google(BaseHTTPRequestHandler):
    """Objects as Google Cloud Storage has them: their versions are told by a generation alone."""

    objects: dict[str, tuple[bytes, int]]

    def do_GET(self) -> None:
        content, generation = self.objects.get(self.path, (b"", 0))
        self._answer(200 if generation else 404, generation, content)

    def do_PUT(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        _, generation = self.objects.get(self.path, (b"", 0))
        if self.headers["x-goog-if-generation-match"] not in (None, str(generation)):
            self._answer(412, generation)
            return
        self.objects[self.path] = content, generation + 1
        self._answer(200, generation + 1)

    def log_message(self, *given: Any) -> None:
        pass

    def _answer(self, status: int, generation: int, content: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("ETag", '"always the same"')
        self.send_header("Last-Modified", "Tue, 01 Jan 2030 00:00:00 GMT")
        self.send_header("x-goog-generation", str(generation))
        self.end_headers()
        self.wfile.write(content)


@pytest.fixture
def google(tmp_path: Path) -> Iterator[Any]:
    handler = type("Handler", (Google,), {"objects": {}})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        account = {"disable_oauth": True, "client_email": "", "private_key": "", "private_key_id": ""}
        (tmp_path / "account.json").write_text(json.dumps(account))
        endpoint = f"http://127.0.0.1:{server.server_port}"
        given = {"endpoint": endpoint, "key_file": str(tmp_path / "account.json")}
        yield open_storage("a test", "gs://bucket", Storage.model_construct(**given))
        server.shutdown()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["s3", "gs"])
def test_a_version_is_replaced_once(s3: S3Server, google: Any, kind: str) -> None:
    storage = google if kind == "gs" else s3.open(s3.bucket())
    assert storage.read_tagged("mark") is None
    assert storage.swap("mark", b"1", None)
    assert not storage.swap("mark", b"other", None)
    content, tag = storage.read_tagged("mark")
    assert content == b"1"
    assert storage.swap("mark", b"2", tag)
    assert not storage.swap("mark", b"other", tag)
    assert storage.read("mark") == b"2"
