"""One message is found by its id without a scan, a list costs its page: ATTACKS, C7."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from copying import copied_server
from counting import cost_of
from engine import Engine
from scope import some

MESSAGES = some(40_000, 200_000)
SHOW = "select * from trunq.show_message(%s, %s)"
LIST = "select * from trunq.list_messages(%s, 'default', %s, 50, %s)"


@pytest.fixture(scope="module")
def work() -> Iterator[Engine]:
    """So many messages done, one in a hundred retried: its old id lies among much newer ones."""
    with (
        copied_server(settings={"fsync": "off"}) as server,
        psycopg.connect(server.dsn, autocommit=True) as connection,
    ):
        work = Engine(connection, "work").create()
        insert = (
            "insert into trunq_log.work (payload) select to_jsonb(repeat(md5(m::text), 12))"
            f" from generate_series(1, {MESSAGES // 2}) m"
        )
        work.run(insert)
        work.run(
            f"""do $$ declare l record; begin
              for n in 1 .. {MESSAGES // 100} loop
                select max(lease_id) lease_id, max(token) token, array_agg(id) ids into l
                from trunq.lease('work', 'default', 'w', 100);
                perform trunq.retry('work', 'default', l.lease_id, l.token, l.ids[1:1], null, array['0 s'::interval]);
                perform trunq.ack('work', 'default', l.lease_id, l.token, l.ids[2:]);
                commit;
                if n = {MESSAGES // 400} then {insert}; end if;
              end loop; end $$"""  # noqa: E501
        )
        work.drain()
        work.ask("summarize")
        yield work


def test_a_message_is_shown_without_a_scan(work: Engine) -> None:
    assert work.pages("log") > MESSAGES // 20
    once, retried = 2, 1
    for id in (once, retried, MESSAGES // 2 + 50, MESSAGES):
        assert work.state(id) == "done"
        cost = cost_of(work.connection, SHOW, work.queue, id)
        assert cost.rows == 1
        assert cost.seq_scans == 0
        assert cost.pages < 500
    assert [attempt["outcome"] for attempt in work.message(once).attempts] == ["success"]
    outcomes = [attempt["outcome"] for attempt in work.message(retried).attempts]
    assert outcomes == ["failed"] * (len(outcomes) - 1) + ["success"]


@pytest.mark.parametrize("state", [None, "done"])
def test_a_page_of_a_list_costs_its_page(work: Engine, state: str | None) -> None:
    for before in (None, MESSAGES // 2, 60):
        assert len(work.listed(state=state, limit=50, before=before)) == 50
        cost = cost_of(work.connection, LIST, work.queue, state, before)
        assert (cost.rows, cost.seq_scans) == (50, 0)
        assert cost.pages < 50 * 200
