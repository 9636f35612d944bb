"""Forwarding costs the same however many messages were forwarded before, and costs nothing elsewhere."""

from __future__ import annotations

from typing import Any

import psycopg

from calling import ask
from counting import cost_of
from engine import Engine

CALL = "select trunq.forward('stage', 'default', {held.lease_id}, {held.token}, array[{id}], 'work')"


def forward(connection: psycopg.Connection[Any], stage: Engine, count: int) -> list[int]:
    held = stage.lease(count)
    return ask(connection, "forward", **held.named, ids=held.ids, into="work")  # type: ignore[no-any-return]


def test_a_message_costs_the_same_behind_a_hundred_times_as_many(connection: psycopg.Connection[Any]) -> None:
    stage, work = (Engine(connection, name).create() for name in ("stage", "work"))

    def pages() -> tuple[int, int, int]:
        (id,) = stage.publish(options={"awaited": True})
        held = stage.lease()
        one = cost_of(connection, CALL.format(held=held, id=id)).pages
        shown = cost_of(connection, f"select * from trunq.show_message('stage', {id})").pages
        held = work.lease()
        acked = cost_of(
            connection,
            f"select trunq.ack('work', 'default', {held.lease_id}, {held.token}, array[{held.ids[0]}])",
        ).pages
        return one, shown, acked

    for _ in range(3):
        pages()
    before = pages()
    for _ in range(10):
        stage.publish(500)
        forward(connection, stage, 500)
        work.ack(work.lease(500))
    connection.execute("vacuum trunq.delayed")
    after = pages()
    assert all(late <= 2 * early + 40 for early, late in zip(before, after, strict=True)), (before, after)


def test_an_awaited_ack_reads_next_to_nothing_for_what_was_never_forwarded(
    connection: psycopg.Connection[Any],
) -> None:
    Engine(connection, "plain").create()
    connection.execute("select trunq._copy_replies(1, array[1::bigint])")
    assert cost_of(connection, "select trunq._copy_replies(1, array[1::bigint])").pages <= 20
