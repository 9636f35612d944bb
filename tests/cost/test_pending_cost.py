"""To say what of pipelines waits costs about the same for one run that is open as for hundreds."""

from __future__ import annotations

from typing import Any

import psycopg

from calling import ask, fetch
from counting import cost_of

DEFINITION = {"source": {"format": "table", "table": "a"}, "sink": {"format": "table", "table": "b"}}


def test_messages_of_runs_that_are_open_are_looked_for_all_at_once(
    connection: psycopg.Connection[Any],
) -> None:
    pages = {}
    for first, last in ((1, 10), (11, 200)):
        for at in range(first, last + 1):
            ask(connection, "create_pipeline", pipeline=f"p{at}", definition=DEFINITION)
        connection.execute(
            "insert into trunq.pipeline_run"
            " (pipeline_id, number, message_id, chain, slice, snapshot, begun_at)"
            " select p.pipeline_id, 1, trunq.run_pipeline(p.name), gen_random_uuid(),"
            " '{}', pg_current_snapshot(), trunq.clock() from trunq.pipeline p on conflict do nothing"
        )
        connection.execute("analyze trunq.pipeline, trunq.pipeline_run")
        for _ in range(2):
            cost = cost_of(connection, "select * from trunq._warn_pending(null)")
        pages[last] = cost.pages
    assert fetch(connection, "select count(*) from trunq._warn_pending(null)") == 0
    # One by one they were 150 pages each.
    assert pages[200] - pages[10] < 190 * 20
