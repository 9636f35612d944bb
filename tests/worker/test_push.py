"""A worker that posts messages, against a real HTTP server on this machine."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from serving import PATIENCE, Queue, running
from trunq import AsyncClient
from trunq.errors import InvalidArgument
from trunq.push import LARGEST, Target, is_public, push_worker
from trunq.webhook import app
from trunq.webhook.secret import SECRET, Secret
from waiting import async_wait_until

KNOWN = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
RAW = "whsec_" + base64.b64encode(b"k" * 32).decode()
Answer = Callable[[asyncio.StreamWriter, int], Awaitable[None]]


@dataclass
class Other:
    """The other side: what it was sent, and what it says to each request."""

    answers: list[bytes | Answer]
    requests: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/work"

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                lines = head.decode().split("\r\n")[1:-2]
                headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
                self.requests.append((headers, await reader.readexactly(int(headers["content-length"]))))
                number = len(self.requests)
                answer = self.answers[min(number, len(self.answers)) - 1]
                if isinstance(answer, bytes):
                    writer.write(answer)
                    await writer.drain()
                else:
                    await answer(writer, number)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


def said(status: str, body: bytes = b"", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"content-length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


@asynccontextmanager
async def other_side(*answers: bytes | Answer) -> AsyncIterator[Other]:
    other = Other(list(answers))
    server = await asyncio.start_server(other.take, "127.0.0.1", 0)
    other.port = server.sockets[0].getsockname()[1]
    try:
        yield other
    finally:
        server.close()


@asynccontextmanager
async def pushing(queue: Queue, other: Other, **options: Any) -> AsyncIterator[Any]:
    target = Target(other.url, Secret.read(RAW), **{"allow_private": True, **options})
    worker = push_worker(queue.name, target=target, dsn=queue.dsn)
    async with running(worker):
        yield worker
    await target.close()


async def ended(queue: Queue, **states: int) -> None:
    async with asyncio.timeout(PATIENCE):
        await async_wait_until(lambda: queue.states() == states)


def test_a_request_is_signed_as_the_standard_says() -> None:
    """The example of the specification's own libraries."""
    signature = Secret.read(KNOWN).sign("msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert signature == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


async def test_a_message_is_posted_and_its_answer_is_the_result(queue: Queue) -> None:
    queue.policy(keep_results=True)
    (id,) = queue.publish(kind="größe: 1", payload={"order": 7})
    answer = said("200 OK", b'{"shipped": true}', "content-type: application/json")
    async with other_side(answer) as other, pushing(queue, other):
        await ended(queue, done=1)
    assert queue.message(id).result == {"shipped": True}
    ((headers, body),) = other.requests
    assert json.loads(body) == {"order": 7}
    assert headers["webhook-id"] == f"q.default.{id}"
    signed = Secret.read(RAW).sign(headers["webhook-id"], int(headers["webhook-timestamp"]), body)
    assert headers["webhook-signature"] == signed
    assert headers["content-type"] == "application/json"
    assert headers["host"] == f"127.0.0.1:{other.port}"
    assert (headers["trunq-kind"], headers["trunq-attempt"]) == ("gr%C3%B6%C3%9Fe: 1", "1")


async def test_a_text_is_a_result_and_bytes_are_posted_as_they_are(queue: Queue) -> None:
    queue.policy(keep_results=True)
    async with AsyncClient(queue.dsn) as client:
        id = await client.publish("q", body=b"\xff\x00", headers={"content-type": "image/png"})
    async with other_side(said("200 OK", b"well")) as other, pushing(queue, other):
        await ended(queue, done=1)
    assert other.requests[0][1] == b"\xff\x00"
    assert other.requests[0][0]["content-type"] == "image/png"
    assert queue.message(id).result == "well"


async def test_gone_is_dead(queue: Queue) -> None:
    queue.publish()
    async with other_side(said("410 Gone", b"no such shop")) as other, pushing(queue, other):
        await ended(queue, dead=1)
    (dead,) = queue.dead()
    assert dead.reason == "rejected"
    assert "410 Gone: no such shop" in dead.errors[-1]["error"]


@pytest.mark.parametrize("status", ["429 Too Many Requests", "503 Service Unavailable"])
async def test_later_is_later(queue: Queue, status: str) -> None:
    (id,) = queue.publish()
    async with other_side(said(status, b"", "retry-after: 3600")) as other, pushing(queue, other):
        await ended(queue, retrying=1)
    row = queue.connection.execute("select due_at - now() > '58 minutes' from trunq.delayed").fetchone()
    assert row == (True,)
    assert status in queue.message(id).error


async def cut_off(writer: asyncio.StreamWriter, _: int) -> None:
    writer.close()


async def too_long(writer: asyncio.StreamWriter, _: int) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    for _ in range(LARGEST // 65536 + 2):
        writer.write(b"10000\r\n" + b"x" * 65536 + b"\r\n")
        await writer.drain()


async def never(writer: asyncio.StreamWriter, _: int) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n")
    await writer.drain()
    await asyncio.get_running_loop().create_future()


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (said("302 Found", b"", "location: http://127.0.0.1/else"), "a redirect, which is not followed"),
        (said("404 Not Found", b"what?"), "404 Not Found: what?"),
        (said("500 Internal Server Error"), "500 Internal Server Error"),
        (said("200 OK", b"{", "content-type: application/json"), "cannot be read"),
        (cut_off, "RemoteProtocolError"),
        (too_long, "more than 1,048,576 bytes"),
        (never, "no answer within 0.5 s"),
    ],
    ids=["redirect", "not found", "error", "no JSON", "cut off", "too long", "never"],
)
async def test_whatever_else_is_said_is_a_failed_attempt(
    queue: Queue, answer: bytes | Answer, words: str
) -> None:
    queue.policy(max_attempts=1)
    queue.publish()
    async with other_side(answer) as other, pushing(queue, other, time_out=0.5 if answer is never else 30):
        await ended(queue, dead=1)
    assert words in queue.dead()[0].errors[-1]["error"]
    assert len(other.requests) == 1


async def test_a_private_address_is_refused_unless_it_is_allowed(queue: Queue) -> None:
    queue.policy(max_attempts=1)
    queue.publish()
    async with other_side(said("200 OK")) as other, pushing(queue, other, allow_private=False):
        await ended(queue, dead=1)
    assert "no public address" in queue.dead()[0].errors[-1]["error"]
    assert other.requests == []


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("93.184.215.14", True),
        ("2606:2800:21f:cb07:6820:80da:af6b:8b2c", True),
        *(
            (each, False)
            for each in (
                "127.0.0.1",
                "10.1.2.3",
                "192.168.0.1",
                "169.254.169.254",
                "100.64.0.1",
                "0.0.0.1",
                "224.0.0.1",
            )
        ),
        *(
            (each, False)
            for each in (
                "::1",
                "::127.0.0.1",
                "fe80::1",
                "fec0::1",
                "fd00::1",
                "::ffff:10.0.0.1",
                "64:ff9b::7f00:1",
            )
        ),
    ],
)
def test_which_addresses_are_public(address: str, public: bool) -> None:
    assert is_public(address) is public


async def test_accepted_waits_for_its_callback_whose_body_is_the_result(queue: Queue) -> None:
    queue.policy(keep_results=True)
    (id,) = queue.publish()
    async with (
        AsyncClient(queue.dsn) as client,
        other_side(said("202 Accepted")) as other,
        pushing(queue, other, callback="https://shop.example/"),
        httpx.AsyncClient(
            transport=httpx.ASGITransport(app(client, environment={SECRET: RAW})), base_url="http://here"
        ) as http,
    ):
        await ended(queue, parked=1)
        ((headers, _),) = other.requests
        assert headers["trunq-callback"] == "https://shop.example/resume/q"
        bearer = {"Authorization": f"Bearer {headers['trunq-token']}"}
        for wrong in ({}, {"Authorization": "Bearer x"}, {"Authorization": f"{bearer['Authorization']}0"}):
            assert (await http.post("/resume/q", headers=wrong)).status_code == 401
        assert (await http.post("/resume/other", headers=bearer)).status_code == 401
        assert (await http.post("/resume/q", headers=bearer, content=b"{")).status_code == 400
        assert (await http.post("/resume/q", headers=bearer, content=b"1" * 2_000_000)).status_code == 413
        answer = await http.post("/resume/q", headers=bearer, content=b'{"at": "noon"}')
        assert (answer.status_code, answer.json()) == (200, {"resumption": "resumed"})
        assert (await http.post("/resume/q", headers=bearer)).json() == {"resumption": "repeated"}
        await ended(queue, done=1)
    assert len(other.requests) == 1, "it was not posted again"
    assert queue.message(id).result == {"at": "noon"}
    rows = queue.connection.execute("select count(*) from trunq.parked").fetchone()
    assert rows == (1,), "who has no token writes nothing"


async def test_a_server_without_the_secret_takes_no_callbacks(queue: Queue) -> None:
    async with AsyncClient(queue.dsn) as client:
        transport = httpx.ASGITransport(app(client, environment={}))
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as http:
            assert (await http.post("/resume/q", headers={"Authorization": "Bearer x"})).status_code == 404


@pytest.mark.parametrize("secret", [None, "", "whsec_", "whsec_!!!", "whsec_c2hvcnQ=", "plain text"])
def test_what_is_no_secret_is_refused(secret: str | None) -> None:
    with pytest.raises(InvalidArgument, match="24 to 64 bytes"):
        Secret.read(secret)


@pytest.mark.parametrize("url", ["ftp://x/", "shop.example", "http://", "https://me:pw@x/", "http://x:y/"])
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(InvalidArgument):
        Target(url, Secret.read(RAW))


async def test_a_server_with_a_secret_that_is_none_does_not_begin(queue: Queue) -> None:
    async with AsyncClient(queue.dsn) as client:
        with pytest.raises(InvalidArgument, match=f"{SECRET} is to be a secret of 24 to 64 bytes"):
            app(client, environment={SECRET: "whsec_!"})
