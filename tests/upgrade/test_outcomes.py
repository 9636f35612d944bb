"""Queues that older functions jammed, which had no word for a replaced message, go on after an upgrade."""

from __future__ import annotations

from typing import Any

import psycopg

from calling import ask, call
from conftest import Connect
from engine import Engine
from trunq import install

OLD = "3000 days"
"""Three spans on."""

OF_BEFORE = """
create or replace function trunq._outcome(p_outcome "char") returns text language sql immutable as
  $$ select case p_outcome when 'a' then 'success' end $$;
comment on schema trunq_data is 'functions of an older release';
"""
"""As before there was a table of outcomes: p has no word."""


def test_an_archive_that_a_replaced_message_jammed_goes_on(database: str, connect: Connect) -> None:
    session = connect()
    queues = [
        Engine(session, name).create(unique="replace", retention="2000 days") for name in ("kept", "gone")
    ]
    session.execute(OF_BEFORE)
    for work in queues:
        work.ask("create_archive")
        ids = [work.call("publish_unique", unique_key="k")[0].id for _ in range(2)]
        work.ack(work.lease(10))
        (jammed,) = call(session, "perform_duty", duty="archive", queue=work.queue)
        assert 'null value in column "outcome"' in jammed.error
        assert work.rotate(OLD) == 0, "nothing is emptied that is not archived"
    assert install.install(database).functions
    kept, gone = queues
    (healed,) = call(session, "perform_duty", duty="archive", queue="kept")
    assert healed.error is None
    assert kept.rotate(OLD) > 0
    gone.ask("drop_queue", force=True)
    for work in queues:
        assert archived(session, work.queue) == [(ids[0], "replaced"), (ids[1], "success")]
    assert ask(session, "_outcome", outcome="p") == "replaced"


def archived(session: psycopg.Connection[Any], queue: str) -> list[Any]:
    return session.execute(f"select id, outcome from trunq_archive.{queue} order by id".encode()).fetchall()
