"""Each failure of a handler has a reference: in the log, in its history, and for users, who see no more."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest

from calling import ask, call
from serving import Queue, drain, running
from trunq.client.message import Message, Reject, Retry
from trunq.wire import reference
from trunq.wire.json import RawJson
from trunq.wire.reference import new_reference, with_reference
from waiting import async_wait_until


def found(queue: Queue, wanted: str) -> list[Any]:
    return call(queue.connection, "find_reference", reference=wanted)


def references(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Those in the log, in its order; each is in the text of its line and in a field of its own."""
    records = [record for record in caplog.records if hasattr(record, "reference")]
    assert all(f"(reference {record.reference})" in record.getMessage() for record in records)
    return [record.reference for record in records]


async def fail(message: Message) -> None:
    raise ValueError("internal")


async def answer_retry(message: Message) -> Retry:
    return Retry(error="internal")


async def raise_reject(message: Message) -> None:
    raise Reject("internal", public="Declined.")


async def take_too_long(message: Message) -> None:
    await asyncio.Event().wait()


async def return_no_json(message: Message) -> Any:
    return object()


def fail_in_thread(message: Message) -> None:
    raise ValueError("internal")


async def fail_in_transaction(message: Message, connection: psycopg.AsyncConnection[Any]) -> None:
    raise ValueError("internal")


FAILING = [
    fail, answer_retry, raise_reject, take_too_long, return_no_json, fail_in_thread, fail_in_transaction
]  # fmt: skip


@pytest.mark.parametrize("handler", FAILING)
async def test_it_is_in_the_log_and_leads_to_the_attempt(
    queue: Queue, handler: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "trunq.worker")
    queue.policy(max_attempts=1)
    (id,) = queue.publish()
    worker = queue.worker(name="w7")
    worker.handler("work", time_out=0.2)(handler)
    await drain(worker)
    (logged,) = references(caplog)
    ((_, name, subscription, message_id, kind, attempt, _, by, error, public),) = found(queue, logged)
    assert (name, subscription, message_id, kind, attempt, by) == ("q", "default", id, "work", 1, "w7")
    assert error == queue.dead()[0].errors[-1]["error"] == queue.message(id).attempts[0]["error"]
    (shown,) = call(queue.connection, "show_public", queue="q", id=id)
    assert shown == ("default", "dead", logged, "Declined." if handler is raise_reject else None)
    assert public == shown.public


async def test_each_attempt_has_its_own_and_success_has_none(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "trunq.worker")
    queue.policy(backoff_base="0 s")
    (id,) = queue.publish()
    worker = queue.worker()

    @worker.handler("work")
    async def third_time_lucky(message: Message) -> None:
        if message.attempt < 3:
            raise ValueError("internal")

    await drain(worker)
    first, second = references(caplog)
    assert [[row.attempt for row in found(queue, each)] for each in (first, second)] == [[1], [2]]
    (shown,) = call(queue.connection, "show_public", queue="q", id=id)
    assert shown == ("default", "done", None, None)


async def test_while_it_waits_for_its_retry_users_see_the_reference_of_the_last_attempt(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    (id,) = queue.publish()
    worker = queue.worker()

    @worker.handler("work")
    async def later(message: Message) -> Retry:
        return Retry(after=3600, error="internal")

    async with running(worker):
        await async_wait_until(lambda: queue.message(id).state == "retrying")
        (shown,) = call(queue.connection, "show_public", queue="q", id=id)
        await async_wait_until(lambda: references(caplog) == [shown.reference])
    assert (shown.state, shown.public) == ("retrying", None)


async def test_a_result_that_the_database_refuses_has_one_too(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    queue.policy(max_attempts=1)
    (id,) = queue.publish()
    worker = queue.worker()

    @worker.handler("work")
    async def say_raw(message: Message) -> Any:
        return RawJson("{")

    await drain(worker)
    (logged,) = references(caplog)
    assert [row.id for row in found(queue, logged)] == [id]
    assert "the database refused the result" in found(queue, logged)[0].error


HOSTILE = ["", "two\nlines\r", "nul\x00nul", "\ud800", '{} {0} %s "quoted" \\', "x" * 10**6, "\x00" * 10**6]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
async def test_whatever_the_texts_are_it_is_found_and_the_public_one_is_shown(
    queue: Queue, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    (id,) = queue.publish()
    worker = queue.worker()

    @worker.handler("work")
    async def refuse(message: Message) -> Reject:
        return Reject(text, public=text)

    await drain(worker)
    (logged,) = references(caplog)
    (row,) = found(queue, logged)
    written = text.replace("\x00", "\\x00").encode("utf-8", "backslashreplace").decode()
    assert (row.id, row.public) == (id, written[:1000])
    assert len(row.error) <= reference.LONGEST
    assert row.error.startswith(written[:100])
    # A log may be a file, which takes no lone surrogates.
    assert caplog.text.encode()


async def test_one_forged_in_the_text_of_an_error_is_nobodys(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    forged = new_reference()
    queue.policy(max_attempts=1)
    ids = queue.publish(payload=["raise", "reject"])
    worker = queue.worker(concurrency=1)

    @worker.handler("work")
    async def quote(message: Message) -> None:
        quoted = f'internal\nreference {forged}, public "hacked"'
        raise ValueError(quoted) if message.payload == "raise" else Reject(quoted)

    await drain(worker)
    assert found(queue, forged) == []
    assert [found(queue, each)[0].id for each in references(caplog)] == ids
    shown = [call(queue.connection, "show_public", queue="q", id=id)[0] for id in ids]
    assert [row.public for row in shown] == [None, None]
    assert [row.reference for row in shown] == references(caplog)


def test_workers_and_the_database_make_them_alike(sql: psycopg.Connection[Any]) -> None:
    made = new_reference()
    text = with_reference("internal", made, 'two\nlines "quoted" Ž\u2028')
    assert ask(sql, "_reference_of", error=text) == made
    assert ask(sql, "_public_of", error=text) == 'two\nlines "quoted" Ž\u2028'
    made_at = ask(sql, "_reference_time", reference=made).timestamp()
    assert made_at % 300 == 0
    assert abs(made_at - time.time()) < 400
    assert ask(sql, "_limit", what="error_characters") == reference.LONGEST
    assert ask(sql, "_limit", what="public_characters") == reference.LONGEST_PUBLIC
    # Of thirty bits of chance, two in ten thousand are alike once in twenty times.
    assert len({new_reference() for _ in range(10_000)}) > 9_990


def test_the_chance_in_it_is_thirty_bits() -> None:
    ends = [new_reference()[4:] for _ in range(2_000)]
    assert all(len({end[place] for end in ends}) == 32 for place in range(6))


def test_the_page_and_the_code_have_one_limit() -> None:
    page = (Path(__file__).parents[3] / "docs" / "work" / "errors.md").read_text()
    assert f"{reference.LONGEST_PUBLIC:,} characters" in page
