"""The dashboard over a database of a test: asked as a browser asks, or served to a real one."""

from __future__ import annotations

import asyncio
import html
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from queue import Queue
from typing import Any

import psycopg
from starlette.testclient import TestClient

from calling import call
from engine import Engine
from trunq.web import app
from trunq.web.serving import configure
from trunq.web.serving import serve as listen

HERE = "http://127.0.0.1"
OURS = {"sec-fetch-site": "same-origin"}
TOKEN = "0123456789abcdef-operator"
VIEWER = "0123456789abcdef-viewer"


@contextmanager
def browse(database: str, **options: Any) -> Iterator[TestClient]:
    """Asks pages without a browser; it follows no redirect."""
    with TestClient(app(database, **options), base_url=HERE, follow_redirects=False) as client:
        yield client


@contextmanager
def serve(application: Any, prefix: str = "") -> Iterator[str]:
    """A real server in a thread of its own; its address."""
    places: Queue[tuple[str, int]] = Queue()
    server = configure(application, prefix)

    async def run() -> None:
        await listen(server, host="127.0.0.1", port=0, listening=places.put)

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    try:
        host, port = places.get(timeout=60)
        yield f"http://{host}:{port}"
    finally:
        server.should_exit = True
        thread.join()


def shop(sql: psycopg.Connection[Any], queue: str = "orders", worker: str = "w") -> Engine:
    """A queue of which messages are ready, leased, delayed, done and dead."""
    orders = Engine(sql, queue).create()
    call(sql, "subscribe", queue=queue, subscription="ledger", mode="exclusive")
    for kind in ("placed", "paid", "placed", "paid"):
        orders.run(
            "insert into {log} (kind, key, payload, headers) values (%s, 'ada', %s, %s)",
            kind,
            '{"order": 1, "total": 42}',
            '{"trace": "4bf9"}',
        )
    held = orders.lease(3, worker=worker)
    orders.ack(held, held.ids[:1])
    orders.answer("reject", held, held.ids[1:2], errors=["KeyError: 'iban'\nshop.py, line 7"])
    return orders


def words(body: str) -> str:
    """The text of a page, as a person reads it."""
    main = body.partition("<main")[2] or body
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", main)).split())


def do(page: TestClient, verb: str, **fields: Any) -> str:
    """What an act says."""
    answer = page.post(f"/do/{verb}", data=fields, headers=OURS)
    if answer.status_code != 303:
        return words(answer.text)
    return words(page.get(answer.headers["location"]).text)


def asked(page: TestClient, verb: str, **fields: Any) -> tuple[str, dict[str, str]]:
    """The question, and the fields of its form."""
    answer = page.get(f"/ask/{verb}", params=fields)
    assert answer.status_code == 200, answer.text
    form = answer.text.partition(f'action="/do/{verb}"')[2]
    found = dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', form))
    return words(answer.text), {name: html.unescape(value) for name, value in found.items()}
