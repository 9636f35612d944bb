"""What PgQ's tables take, and these views do not: docs/operate/pgq.md says it."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from calling import fetch


def test_events_are_inserted_and_copied_into_the_parts_alone(pgq: psycopg.Connection[Any], name: str) -> None:
    number = fetch(pgq, "select queue_id from pgq.queue where queue_name = %s", name)
    pgq.execute(f"insert into pgq.event_{number}_0 (ev_type) values ('inserted')".encode())
    with pgq.cursor().copy(f"copy pgq.event_{number}_1 (ev_type) from stdin".encode()) as copy:
        copy.write_row(("copied",))
    with pgq.cursor().copy(f"copy (select ev_type from pgq.event_{number}) to stdout".encode()) as copied:
        assert sorted(row[0] for row in copied.rows()) == ["copied", "inserted"]
    for statement in (
        f"insert into pgq.event_{number} (ev_type) values ('x')",
        f"truncate pgq.event_{number}",
        f"truncate pgq.event_{number}_0",
        f"create table refers (ev_id bigint references pgq.event_{number})",
        "insert into pgq.queue (queue_name) values ('x')",
        "truncate pgq.queue",
        "insert into pgq.tick (tick_queue) values (1)",
        "insert into pgq.subscription (sub_queue) values (1)",
        f"copy pgq.event_{number} to stdout",
    ):
        with pytest.raises(psycopg.Error):
            pgq.execute(statement.encode())
