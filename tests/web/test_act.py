"""Acts call the function of their name, ask where nothing takes them back, and take what was counted."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from psycopg.types.json import Jsonb
from starlette.testclient import TestClient

from browsing import OURS, asked, browse, do, shop, words
from calling import call, fetch, new_names
from conftest import Connect
from engine import Engine
from trunq.client._async import AsyncClient
from trunq.web.act import ACTS, QUESTIONS
from trunq.web.guard import Person
from waiting import wait_until


@pytest.fixture
def orders(session: psycopg.Connection[Any]) -> Engine:
    name = next(new_names("shop"))
    return shop(session, name, worker=f"worker of {name}")


@pytest.fixture
def page(orders: Engine, shared_database: str) -> Iterator[TestClient]:
    with browse(shared_database) as client:
        yield client


def bury(orders: Engine, count: int, error: str = "boom") -> list[int]:
    """So many messages that died."""
    ids = orders.publish(count)
    while held := orders.lease(count + 10):
        orders.answer("reject", held, errors=[error] * len(held.ids))
    return ids


def test_each_act_has_the_name_of_a_method_of_the_client() -> None:
    assert [name for name in ACTS if not hasattr(AsyncClient, name)] == []
    assert QUESTIONS.keys() <= ACTS.keys()


def test_rows_of_a_quarantine_are_sent_again(connection: psycopg.Connection[Any], database: str) -> None:
    parts: dict[str, Any] = {
        "source": {"format": "table", "table": "flights"},
        "sink": {"format": "table", "table": "copied", "mode": "upsert", "key": ["id"], "newest": "at"},
    }
    call(connection, "create_pipeline", pipeline="flights", definition=Jsonb(parts))
    connection.execute(
        "with run as (insert into trunq.pipeline_run"
        " (pipeline_id, number, message_id, chain, slice, snapshot, begun_at)"
        " select pipeline_id, 1, 7, gen_random_uuid(), '{}', pg_current_snapshot(), now()"
        " from trunq.pipeline returning pipeline_id, run_id)"
        " insert into trunq.quarantine (pipeline_id, attempt, run_id, reasons, content, created_at)"
        """ select pipeline_id, 1, run_id, '{no delay}', '{"id": 7}', now() from run"""
    )
    with browse(database) as page:
        assert 'action="/do/resend_quarantine"' in page.get("/pipelines/flights").text
        assert "asks for a run of flights" in do(
            page, "resend_quarantine", pipeline="flights", reason="no delay"
        )
    assert fetch(connection, "select payload->>'reason' from trunq_log.pipelines") == "no delay"
    assert fetch(connection, "select did from trunq.list_audit()") == "resend_quarantine"


def test_what_is_paused_here_is_resumed_here(orders: Engine, page: TestClient) -> None:
    reader = {"queue": orders.queue, "subscription": "default"}
    assert f"{orders.queue}/default is paused" in do(page, "pause_subscription", **reader)
    assert orders.status().paused
    assert "goes on" in do(page, "resume_subscription", **reader)
    assert not orders.status().paused
    assert f"All of {orders.queue} is paused until 2999" in do(
        page, "pause_queue", queue=orders.queue, until="2999-01-01"
    )
    # What waits there is nobody's fault.
    assert "never" not in words(page.get(f"/queues/{orders.queue}").text)
    assert "goes on" in do(page, "resume_queue", queue=orders.queue)


def test_who_did_it_is_told(orders: Engine, shared_database: str) -> None:
    with browse(shared_database, who=lambda _request: Person("ada", "operator"), hide=("error",)) as page:
        do(page, "pause_queue", queue=orders.queue, until="2999-01-01")
        body = page.get(f"/audit?queue={orders.queue}&who=ada").text
        assert f"ada pause_queue {orders.queue} trunq web" in words(body)
        assert "2999" not in words(body)
    with browse(shared_database) as page:
        assert "2999" in words(page.get(f"/audit?queue={orders.queue}").text)


def test_the_audit_has_pages_and_goes_on_where_a_look_for_somebody_ended(
    orders: Engine, page: TestClient
) -> None:
    def older(address: str) -> str:
        found = re.search(r'rel="next" href="([^"]+)"', page.get(address).text)
        assert found is not None
        return f"/audit{html.unescape(found[1])}"

    insert = """insert into trunq.audit (at, who, login, application, did, queue, arguments)
        select now(), %s, 'app', '', 'purge', %s, '{}' from generate_series(1, %s)"""
    for who, number in (("ada", 1), ("others", 100_000)):
        orders.connection.execute(insert, (who, orders.queue, number))
    further = older(f"/audit?queue={orders.queue}&who=ada")
    assert "ada purge" in words(page.get(further).text)
    first = f"/audit?queue={orders.queue}"
    assert words(page.get(first).text).count("others purge") == 100
    assert words(page.get(older(first)).text).count("others purge") == 100


@pytest.mark.slow
def test_schedules_lanes_and_ticks(orders: Engine, page: TestClient) -> None:
    connection = orders.connection
    call(
        connection,
        "create_schedule",
        schedule=f"of_{orders.queue}",
        queue=orders.queue,
        every="1 hour",
        payload={"n": 1},
    )
    assert " is paused" in do(page, "pause_schedule", schedule=f"of_{orders.queue}")
    assert "paused" in page.get("/schedules").text
    assert "goes on" in do(page, "resume_schedule", schedule=f"of_{orders.queue}")
    lanes = Engine(connection, next(new_names("tenants"))).create(lanes="key")
    lanes.run("insert into {log} (key, payload) values ('acme', '1')")
    assert "Lane acme is paused" in do(
        page, "pause_lane", queue=lanes.queue, subscription="default", lane="acme"
    )
    assert "goes on" in do(page, "resume_lane", queue=lanes.queue, subscription="default", lane="acme")
    before = fetch(connection, "select max(tick_id) from trunq.list_ticks(%s)", orders.queue)
    assert f"Tick {before + 1} is cut" in do(page, "tick", queue=orders.queue)


def test_a_copy_is_published_with_what_the_form_says(orders: Engine, page: TestClient) -> None:
    said = do(
        page,
        "publish",
        queue=orders.queue,
        payload='{"order": 9}',
        kind="copied",
        key="k",
        headers='{"h": 1}',
    )
    (id,) = re.findall(r"Message (\d+) is published", said)
    row = orders.message(int(id))
    assert (row.kind, row.key, row.payload, row.headers) == ("copied", "k", {"order": 9}, {"h": 1})
    assert "The payload is no JSON" in do(page, "publish", queue=orders.queue, payload="{")
    assert "cannot be copied" in do(page, "publish", queue=orders.queue, payload='"(hidden here)"')


def test_a_message_is_cancelled_after_a_question(orders: Engine, page: TestClient) -> None:
    (ready,) = orders.listed(state="ready")
    question, fields = asked(page, "cancel", queue=orders.queue, id=ready)
    assert f"Cancel message {ready} of {orders.queue}?" in question
    assert orders.state(ready) == "ready"
    assert "it was ready" in do(page, "cancel", **fields)
    assert ready not in orders.drain()


def test_a_requeue_takes_what_was_counted_and_nothing_that_died_since(
    orders: Engine, page: TestClient
) -> None:
    bury(orders, 5)
    question, fields = asked(page, "requeue", queue=orders.queue, error="boom")
    assert f"Requeue 6 dead messages of {orders.queue} with error boom?" in question
    (late, *_) = bury(orders, 1)
    assert f"6 messages of {orders.queue} requeued" in do(page, "requeue", **fields)
    assert orders.state(late) == "dead"
    # The one that died of something else.
    assert len(orders.listed(state="dead")) == 2


@pytest.mark.parametrize("verb", ["requeue", "purge"])
def test_an_act_takes_no_more_than_was_counted(
    orders: Engine, page: TestClient, shared_database: str, verb: str
) -> None:
    bury(orders, 5)
    _, fields = asked(page, verb, queue=orders.queue, error="iban")
    before = orders.listed(state="dead")
    # Another process of the dashboard hides errors, so that none is a filter.
    with browse(shared_database, hide=("error",)) as other:
        assert "match, and 1 were counted" in do(other, verb, **fields)
    assert orders.listed(state="dead") == before


def test_one_dead_message_is_requeued_from_its_page(orders: Engine, page: TestClient) -> None:
    bury(orders, 3)
    (id, *_) = orders.listed(state="dead")
    question, fields = asked(page, "requeue", queue=orders.queue, id=id)
    assert f"Requeue 1 dead message of {orders.queue}?" in question
    assert f"1 message of {orders.queue} requeued" in do(page, "requeue", **fields)
    assert orders.state(id) == "ready"


@pytest.mark.slow
def test_a_purge_of_a_thousand_wants_the_name_of_the_queue(orders: Engine, page: TestClient) -> None:
    bury(orders, 1100)
    question, fields = asked(page, "purge", queue=orders.queue, error="boom")
    assert f"Type {orders.queue} to go on" in question
    assert "nothing was purged" in do(page, "purge", **fields).lower()
    assert len(orders.listed(state="dead", limit=2000)) == 1102
    assert f"1,101 messages of {orders.queue} purged" in do(page, "purge", **fields, typed=orders.queue)
    assert len(orders.listed(state="dead", limit=2000)) == 1


def test_a_purge_of_few_asks_and_needs_no_typing(orders: Engine, page: TestClient) -> None:
    question, fields = asked(page, "purge", queue=orders.queue)
    assert f"Purge 1 dead message of {orders.queue}? Nothing brings them back." in question
    assert "Type" not in question
    assert f"1 message of {orders.queue} purged" in do(page, "purge", **fields)


def test_a_seek_says_what_comes_again_before_it_moves(orders: Engine, page: TestClient) -> None:
    connection = orders.connection
    orders.publish(500)
    orders.ask("tick", force=True)
    call(connection, "seek", queue=orders.queue, subscription="ledger", start="latest")
    question, fields = asked(page, "seek", queue=orders.queue, subscription="ledger", start="earliest")
    assert f"Move {orders.queue}/ledger to the first tick that is kept?" in question
    assert re.search(r"About 5\d\d messages will be handed out again", question)
    assert f"{orders.queue}/ledger stands at tick" in do(page, "seek", **fields)
    (stream,) = call(connection, "list_streams", queue=orders.queue)
    assert stream.position_tick_id == stream.first_tick_id
    refused = page.get("/ask/seek", params={"queue": orders.queue, "subscription": "ledger"})
    assert (refused.status_code, "where to" in refused.text) == (400, True)


@pytest.mark.slow
def test_the_leases_of_a_worker_that_is_gone_end(orders: Engine, page: TestClient) -> None:
    question, fields = asked(page, "free_worker", worker=f"worker of {orders.queue}")
    assert "It holds 1 message, which others get at once" in question
    assert f"1 lease of worker of {orders.queue} ended" in do(page, "free_worker", **fields)
    assert orders.listed(state="leased") == []


@pytest.mark.slow
def test_a_session_in_the_way_is_ended_by_an_operator_alone(
    orders: Engine, page: TestClient, shared_database: str, open_session: Connect
) -> None:
    other = open_session(application_name="eve")
    pid = other.info.backend_pid
    # Outside of a transaction: it is named at once.
    other.execute("select pg_advisory_lock(trunq._lock_class('queue'), %s)", (orders.queue_id,))
    values = rf'name="pid" value="{pid}"><input type="hidden" name="began_at" value="([^"]+)">'
    # The sentences come with the next look where they take long.
    for address in ("/doctor", f"/queues/{orders.queue}"):
        form = wait_until(lambda address=address: re.search(values, page.get(address).text))
    assert form is not None
    with browse(shared_database, read_only=True) as looking:
        shown = wait_until(lambda: f"process {pid}" in (text := looking.get("/doctor").text.lower()) and text)
        assert "/ask/end_session" not in shown
        answer = looking.post("/do/end_session", data={"pid": pid, "began_at": form[1]}, headers=OURS)
        assert answer.status_code == 403
    question, fields = asked(page, "end_session", pid=pid, began_at=html.unescape(form[1]))
    assert f'application "eve" holds the lock of queue "{orders.queue}"' in question
    assert f"Process {pid} has ended" in do(page, "end_session", **fields)
    with pytest.raises(psycopg.OperationalError):
        other.execute("select 1")
    question, _ = asked(page, "end_session", pid=pid, began_at=html.unescape(form[1]))
    assert "There is nothing to do" in question
    assert "in nobody's way" in do(page, "end_session", **fields)


def test_a_refusal_of_postgres_has_its_way_out(
    orders: Engine, shared_database: str, open_session: Connect
) -> None:
    other = open_session()
    other.execute("select pg_advisory_lock(trunq._lock_class('queue'), %s)", (orders.queue_id,))
    began_at = fetch(other, "select backend_start from pg_stat_activity where pid = pg_backend_pid()")
    owner = fetch(other, "select nspowner::regrole::text from pg_namespace where nspname = 'trunq'")
    name = next(new_names("ender"))
    orders.run(f"create role {name} login in role {owner}, pg_read_all_stats")
    try:
        with browse(make_conninfo(shared_database, user=name)) as page:
            fields = {"pid": other.info.backend_pid, "began_at": began_at.isoformat()}
            said = do(page, "end_session", **fields)
        assert f"ole {name} may not end process" in said
        assert "which superusers alone end" in said
    finally:
        orders.run(f"drop role {name}")
    assert fetch(other, "select 1") == 1


def test_what_the_database_refuses_is_said_and_changes_nothing(orders: Engine, page: TestClient) -> None:
    answer = page.post("/do/pause_queue", data={"queue": "nothing"}, headers=OURS)
    assert (answer.status_code, "nothing" in answer.text) == (404, True)
    answer = page.post("/do/cancel", data={"queue": orders.queue, "id": "7; drop"}, headers=OURS)
    assert (answer.status_code, "whole number" in answer.text) == (400, True)
    assert page.post("/do/drop_queue", data={"queue": orders.queue}, headers=OURS).status_code == 404
    assert page.get("/do/purge", params={"queue": orders.queue}).status_code == 405
