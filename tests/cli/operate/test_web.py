"""trunq web: it does not let everybody in by mistake, and says where it listens."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import httpx2
import pytest

from shelling import Shell, start


def test_it_does_not_start_for_others_without_a_way_to_sign_in(trunq: Shell) -> None:
    done = trunq("web", "--host", "0.0.0.0")  # noqa: S104  # it refuses to
    assert done.status == 1
    assert "anybody could purge messages" in done.said
    assert "TRUNQ_WEB_TOKEN" in done.said


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--token", "short"), "at least 16 characters"),
        (("--trust-user-header", "X-User"), "can send the header X-User"),
        (("--hide", "payload,keys"), "eys cannot be hidden"),
    ],
    ids=["token", "header", "hide"],
)
def test_what_cannot_be_is_refused(trunq: Shell, options: tuple[str, ...], words: str) -> None:
    done = trunq("web", *options)
    assert (done.status, words in done.said) == (1, True), done.said


def test_a_port_that_is_taken_is_said_with_the_way_out(trunq: Shell) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        done = trunq("web", "--port", str(other.getsockname()[1]))
    assert done.status == 1
    assert "othing can listen" in done.said
    assert "--port 0" in done.said


def test_it_says_where_it_listens_and_ends_when_it_is_told(database: str, tmp_path: Path) -> None:
    process = start("web", "--port", "0", "--json", directory=tmp_path, TRUNQ_DSN=database)
    try:
        assert process.stdout is not None
        said = ""
        while "}" not in said and process.poll() is None:
            said += process.stdout.readline()
        told = json.loads(said)
        address = f"http://127.0.0.1:{told['port']}"
        assert httpx2.get(f"{address}/readyz", timeout=60).text == "ready"
        assert "trunq" in httpx2.get(f"{address}/", timeout=60).text
        assert httpx2.get(f"{address}/", headers={"host": "evil.test"}).status_code == 421
    finally:
        process.terminate()
        process.communicate(timeout=60)
    # uvicorn ends by the signal itself, once all is closed.
    assert process.returncode in (0, -15)
