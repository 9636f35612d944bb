"""Leases that ask for a part of a subscription: functions/work/ask.sql."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from calling import come_back, refused
from conftest import Connect
from engine import Engine

Connection = psycopg.Connection[Any]
MAIL, FAX, TEXT = {"kinds": ["mail"]}, {"kinds": ["fax"]}, {"kinds": ["text"]}


@pytest.fixture
def engine(session: Connection, queue: str) -> Engine:
    return Engine(session, queue)


def publish(engine: Engine, *kinds: str, **more: Any) -> list[int]:
    return engine.publish(len(kinds), kinds=list(kinds), **more)


def test_each_message_goes_to_one_lease_that_asks_for_it(engine: Engine) -> None:
    ids = publish(engine, "mail", "fax", "mail", "text", "fax", "mail")
    mail = engine.lease(10, asks=MAIL)
    assert mail.ids == [ids[0], ids[2], ids[5]]
    both = engine.lease(10, asks={"kinds": ["mail", "fax"]})
    assert both.ids == [ids[1], ids[4]]
    assert not engine.lease(10, asks=FAX).ids
    assert engine.status().ready == 1
    assert engine.lease(10).ids == [ids[3]]
    assert engine.status()[3:6] == (0, 6, 0)


def test_what_is_set_aside_waits_and_counts_no_attempt(engine: Engine) -> None:
    ids = publish(engine, "mail", "fax", "text")
    assert not engine.lease(asks={"kinds": ["none"]}).ids
    assert [engine.state(id) for id in ids] == ["ready"] * 3
    assert engine.listed(state="ready") == ids[::-1]
    assert engine.listed(state="retrying") == []
    assert engine.status()[3:6] == (3, 0, 0)
    assert engine.listed() == ids[::-1]
    held = engine.lease(asks=FAX)
    assert held.messages[0].attempt == 1
    assert engine.state(ids[1]) == "leased"
    engine.ack(held)
    message = engine.message(ids[1])
    assert message.state == "done"
    assert [each["outcome"] for each in message.attempts] == ["success"]
    assert engine.listed(state="done") == [ids[1]]
    assert engine.drain() == [ids[0], ids[2]]
