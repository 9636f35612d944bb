"""All that match is one act: it goes on when the page is closed or its process killed, and can be stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect
from starlette.testclient import TestClient

from browsing import OURS, asked, browse, do, serve, words
from calling import call, new_names
from chromium import needs_browser
from engine import Engine
from trunq.web import app
from waiting import wait_until

MILLISECONDS = 120_000
MANY = 12_000


@pytest.fixture
def work(session: psycopg.Connection[Any]) -> Engine:
    return Engine(session, next(new_names("swept"))).create()


@pytest.fixture
def page(shared_database: str) -> Iterator[TestClient]:
    with browse(shared_database) as client:
        yield client


def bury(work: Engine, count: int, error: str = "KeyError: ''customer-%%s''") -> None:
    """So many messages that died, each with a text of its own."""
    work.run(
        "insert into trunq.dead (queue_id, subscription_id, id, reason, created_at, died_at, attempt, errors)"
        " select {id}, s.subscription_id, nextval('trunq_data.{queue}_message_id'), 'rejected',"
        " trunq.clock(), trunq.clock(), 1,"
        f" jsonb_build_array(jsonb_build_object('error', format('{error}', n)))"
        " from trunq.subscription s, generate_series(1, %s) n where s.queue_id = {id}",
        count,
    )


def sweeps(work: Engine) -> list[Any]:
    return work.call("list_sweeps")


def test_a_page_shows_what_runs_behind_many_newer_sweeps(work: Engine, page: TestClient) -> None:
    bury(work, 1)
    sweep = work.ask("start_sweep", act="purge", kind="other")
    work.run(
        "insert into trunq.sweep (queue_id, queue, act, filter, before, until, started_at, who, role,"
        " carried_at, state, ended_at) select {id}, '{queue}', 'purge', '{{}}', 1, now(), now(), 'me', 'me',"
        " now(), 'finished', now() from generate_series(1, 300)"
    )
    for address in (f"/queues/{work.queue}/dead", "/dead"):
        assert f'name="sweep_id" value="{sweep}"' in page.get(address).text
    work.ask("stop_sweep", sweep_id=sweep)
    assert work.ask("carry_sweep", sweep_id=sweep) is False


@pytest.mark.slow
def test_more_than_a_part_are_one_act_that_ends_by_itself(work: Engine, page: TestClient) -> None:
    bury(work, MANY)
    question, fields = asked(page, "requeue", queue=work.queue, fingerprint="KeyError: '...'")
    assert f"Requeue 12,000 dead messages of {work.queue} with fingerprint KeyError: '...'?" in question
    assert "It goes on when this page is closed" in question
    bury(work, 3)
    assert f"of {work.queue} goes on by itself" in do(page, "requeue", **fields)
    wait_until(lambda: sweeps(work)[0].state == "finished")
    assert (sweeps(work)[0].done, work.ask("count_dead")) == (MANY, 3)
    said = words(page.get(f"/queues/{work.queue}/dead").text)
    assert "Requeue" in said
    assert "12,000 done of 12,000" in said
    assert len(set(work.drain())) == MANY


@pytest.mark.slow
def test_a_purge_of_many_wants_the_name_and_a_sweep_is_stopped(work: Engine, page: TestClient) -> None:
    bury(work, MANY)
    _, fields = asked(page, "purge", queue=work.queue)
    assert "nothing was purged" in do(page, "purge", **fields).lower()
    assert sweeps(work) == []
    sweep = work.ask("start_sweep", act="purge")
    assert "Stop" in words(page.get(f"/queues/{work.queue}/dead").text)
    assert f"Sweep {sweep} of {work.queue} stops" in do(page, "stop_sweep", queue=work.queue, sweep_id=sweep)
    assert work.ask("carry_sweep", sweep_id=sweep) is False
    said = words(page.get(f"/queues/{work.queue}/dead").text)
    assert "stopped" in said
    assert "0 done" in said
    assert work.ask("count_dead") == MANY


def test_a_sweep_that_runs_is_shown_whatever_was_started_since(work: Engine, page: TestClient) -> None:
    running = work.ask("start_sweep", act="purge")
    for _ in range(25):
        work.ask("carry_sweep", sweep_id=work.ask("start_sweep", act="requeue"))
    said = page.get(f"/queues/{work.queue}/dead").text
    assert f'name="sweep_id" value="{running}"' in said


def test_a_purge_by_a_form_that_is_not_ours_wants_the_name_too(work: Engine, page: TestClient) -> None:
    bury(work, 1_200)
    forms: list[tuple[str, dict[str, Any]]] = [
        ("start_sweep", {"act": "purge"}),
        ("start_sweep", {"act": "purge", "typed": "everywhere"}),
        ("start_sweep", {"act": "purge", "queues": work.queue, "fingerprint": "KeyError: '...'"}),
        ("requeue", {"act": "purge"}),
        ("purge", {"act": "purge"}),
        ("purge", {"count": 5}),
        ("purge", {}),
    ]
    for verb, fields in forms:
        said = do(page, verb, queue=work.queue, **fields)
        assert "nothing was purged" in said.lower(), (verb, fields, said)
    assert "takes no id" in do(page, "start_sweep", queue=work.queue, act="requeue", id=1)
    assert (sweeps(work), work.ask("count_dead")) == ([], 1_200)
    given = {"queue": work.queue, "act": "purge", "typed": work.queue}
    assert "goes on by itself" in do(page, "start_sweep", **given)
    wait_until(lambda: sweeps(work)[0].state == "finished")
    assert work.ask("count_dead") == 0


def test_a_sweep_by_what_is_hidden_here_is_refused(
    work: Engine, page: TestClient, shared_database: str
) -> None:
    """Without its filter it would be of all that is dead."""
    bury(work, 12_000, error="boom")
    bury(work, 3, error="iban")
    _, fields = asked(page, "purge", queue=work.queue, error="boom")
    assert fields["error"] == "boom"
    with browse(shared_database, hide=("error", "payload")) as other:
        assert "rror is hidden here" in do(other, "purge", **fields, typed=work.queue)
        by_payload = {"act": "cancel", "subscription": "default", "state": "ready", "payload": '{"card": 1}'}
        assert "ayload is hidden here" in do(other, "start_sweep", queue=work.queue, **by_payload)
    assert (sweeps(work), work.ask("count_dead")) == ([], 12_003)


def test_a_sweep_under_way_says_what_it_is_about(work: Engine, shared_database: str) -> None:
    evil = "<b>boom</b>" + "x" * 300
    work.ask("start_sweep", act="purge", kind="paid", key="ada", error=evil, older_than="1 day")
    work.ask("start_sweep", act="requeue")
    given = {"subscription": "default", "state": "ready", "payload": {"card": "secret"}}
    work.ask("start_sweep", act="cancel", **given)
    with browse(shared_database) as page:
        said = words(page.get(f"/queues/{work.queue}/dead").text)
        assert f'Purge {work.queue} ▶ running kind paid, key ada, error contains "{evil}"' in said
        assert "older than 1 day" in said
        assert f"Requeue {work.queue} ▶ running all 0 done" in said
        said = words(page.get(f"/queues/{work.queue}/messages").text)
        assert f"Cancel {work.queue}/default ▶ running ready, payload contains what was given" in said
        assert "secret" not in said
    with browse(shared_database, hide=("error",)) as page:
        said = words(page.get(f"/queues/{work.queue}/dead").text)
        assert 'error contains "(hidden here)"' in said
        assert "boom" not in said


def test_a_group_of_several_queues_is_requeued_in_each(
    connection: psycopg.Connection[Any], database: str
) -> None:
    queues = [Engine(connection, f"shop_{n}").create() for n in range(3)]
    for queue in queues:
        bury(queue, 4)
    bury(queues[0], 1, "ValueError %%s")
    with browse(database) as page:
        said = words(page.get("/dead").text)
        assert "KeyError: '...' 12 shop_" in said
        assert "13 in all" in said
        question, fields = asked(page, "start_sweep", act="requeue", fingerprint="KeyError: '...'")
        assert "Requeue 12 dead messages of 3 queues" in question
        assert "Sweeps of 3 queues requeue" in do(page, "start_sweep", **fields)
        wait_until(lambda: all(row.state == "finished" for row in call(connection, "list_sweeps")))
    assert [len(queue.drain()) for queue in queues] == [4, 4, 4]
    assert queues[0].ask("count_dead") == 1


def test_all_that_match_are_cancelled_and_none_that_came_later(work: Engine, page: TestClient) -> None:
    work.run(
        "insert into {log} (kind, payload) select 'spam', '{{\"to\": \"acme\"}}' from generate_series(1, 300)"
    )
    work.run(
        "insert into {log} (kind, payload) select 'spam', '{{\"to\": \"b\"}}' from generate_series(1, 20)"
    )
    given = {"queue": work.queue, "subscription": "default", "state": "ready", "payload": '{"to": "acme"}'}
    question, fields = asked(page, "cancel", **given)
    assert f"Cancel 300 ready messages of {work.queue}/default with payload?" in question
    work.run("insert into {log} (kind, payload) values ('spam', '{{\"to\": \"acme\"}}')")
    do(page, "cancel", **fields)
    wait_until(lambda: sweeps(work)[0].state == "finished")
    assert sweeps(work)[0].done == 300
    assert len(work.drain()) == 21


def test_a_walk_says_how_far_it_looked_and_goes_on(work: Engine, page: TestClient) -> None:
    work.run('insert into {log} (payload) values (\'{{"n": "rare"}}\')')
    work.run("insert into {log} (payload) select '{{\"n\": 1}}' from generate_series(1, 21000)")
    url = f"/queues/{work.queue}/messages?payload=%7B%22n%22%3A+%22rare%22%7D"
    first = page.get(url).text
    assert "Looked at 20,000 messages, back to id" in words(first)
    further = first.partition('rel="next" href="')[2].partition('"')[0].replace("&amp;", "&")
    assert "before=" in further
    assert "1 found" not in words(first)
    second = page.get(f"/queues/{work.queue}/messages{further}").text
    assert 'id="message-' in second
    assert "Go on" not in second
    refused = page.get(f"/queues/{work.queue}/messages?payload=rare")
    assert (refused.status_code, "is to contain JSON" in refused.text) == (400, True)


def test_what_is_hidden_is_neither_grouped_nor_looked_for(work: Engine, shared_database: str) -> None:
    bury(work, 5, "KeyError: secret %%s")
    with browse(shared_database, hide=("error", "payload")) as page:
        text = page.get(f"/queues/{work.queue}/dead").text
        assert "secret" not in text
        assert "KeyError" not in text
        assert 'name="fingerprint"' not in text
        assert "secret" not in page.get("/dead").text
        text = page.get(f"/queues/{work.queue}/messages?payload=%7B%22n%22%3A1%7D").text
        assert "payload contains" not in text
        assert "Looked at" not in text


def test_a_group_is_not_acted_on_where_errors_are_hidden(work: Engine, shared_database: str) -> None:
    bury(work, 5)
    wanted = {"act": "requeue", "fingerprint": "KeyError: '...'", "queues": work.queue}
    with browse(shared_database, hide=("error",)) as page:
        question = page.get("/ask/start_sweep", params=wanted)
        assert (question.status_code, "rrors are hidden" in question.text) == (400, True)
        assert "rrors are hidden" in do(page, "start_sweep", **wanted)
    # Without the fingerprint it would have been all that is dead.
    assert (sweeps(work), work.ask("count_dead")) == ([], 5)


WAITING = """select count(*) from pg_stat_activity
where datname = current_database() and application_name like 'trunq web%' and wait_event_type = 'Lock'"""


def test_a_group_of_many_queues_leaves_connections_to_the_pages(
    connection: psycopg.Connection[Any], database: str
) -> None:
    queues = [Engine(connection, f"shop_{n}").create() for n in range(6)]
    for queue in queues:
        bury(queue, 2)
    other = psycopg.connect(database)
    other.execute("select from trunq.dead for update")

    def waiting() -> int:
        row = connection.execute(WAITING).fetchone()
        assert row is not None
        return int(row[0])

    with browse(database) as page:
        _, fields = asked(page, "start_sweep", act="requeue", fingerprint="KeyError: '...'")
        do(page, "start_sweep", **fields)
        wait_until(waiting)
        assert max(waiting() for _ in range(500)) == 1
        other.close()
        wait_until(lambda: all(row.state == "finished" for row in call(connection, "list_sweeps")))
    assert [len(queue.drain()) for queue in queues] == [2] * 6


PROCESS = """
import sys, uvicorn
from trunq.web import app
server = uvicorn.Server(uvicorn.Config(app(sys.argv[1]), host="127.0.0.1", port=0, log_level="error"))
import asyncio
async def main():
    task = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    print(server.servers[0].sockets[0].getsockname()[1], flush=True)
    await task
asyncio.run(main())
"""


def test_a_process_that_is_killed_in_the_middle_leaves_it_to_the_leader(
    work: Engine, shared_database: str, open_session: Any
) -> None:
    bury(work, MANY)
    # Its first part waits for this row, until it is killed there.
    other = open_session(autocommit=False)
    other.execute("select from trunq.dead d join trunq.queue q using (queue_id) where q.name = %s"
                  " order by d.dead_id desc limit 1 for update of d", [work.queue])  # fmt: skip
    command = [sys.executable, "-c", PROCESS, shared_database]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = f"http://127.0.0.1:{int(process.stdout.readline())}"
            wanted = {"queue": work.queue, "act": "purge", "count": MANY, "typed": work.queue}
            answer = httpx.post(f"{address}/do/purge", data=wanted, headers=OURS)
            assert answer.status_code == 303
            # The first part of 10,000 commits, the second waits for the lock.
            wait_until(lambda: sweeps(work)[0].done == 10_000)
        finally:
            process.send_signal(signal.SIGKILL)
    other.rollback()
    assert sweeps(work)[0].state == "running"

    def led() -> bool:
        call(work.connection, "perform_duty", duty="sweep")
        return bool(sweeps(work)[0].state == "finished")

    wait_until(led)
    assert [row.done for row in sweeps(work)] == [MANY]
    assert work.ask("count_dead") == 0


@needs_browser
@pytest.mark.parametrize("look", [("light", 1280), ("dark", 390)], ids=["light", "dark-phone"])
def test_groups_sweeps_and_schedules_in_a_browser(
    connection: psycopg.Connection[Any],
    database: str,
    browser: Browser,
    look: tuple[Any, int],
    tmp_path: Path,
) -> None:
    evil = "<script>alert(1)</script><img src=x onerror=alert(1)>"
    queues = [Engine(connection, name).create() for name in ("orders", "mail")]
    for queue in queues:
        bury(queue, 40)
    bury(queues[0], 3, evil + "%%s")
    queues[0].publish(3)
    running = queues[0].ask("start_sweep", act="purge", key="nobody", counted=7)
    call(connection, "create_schedule", schedule="nightly", queue="mail", every="1 hour", payload={"n": 1})
    scheme, width = look
    context = browser.new_context(
        color_scheme=scheme, viewport={"width": width, "height": 844}, reduced_motion="reduce"
    )
    context.set_default_timeout(MILLISECONDS)
    page, said = context.new_page(), list[str]()
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("dialog", lambda dialog: (said.append(dialog.message), dialog.dismiss()))
    with serve(app(database)) as address:
        paths = {
            "dead": "/dead",
            "queue": "/queues/orders/dead",
            "subscription": "/queues/orders/subscriptions/default",
            "messages": "/queues/orders/messages?state=ready&kind=none",
            "ask": "/ask/start_sweep?act=purge&fingerprint=KeyError%3A+%27%E2%80%A6%27",
            "schedules": "/schedules",
            "schedule": "/schedules/nightly",
        }
        for name, path in paths.items():
            page.goto(f"{address}{path}")
            if pictures := os.environ.get("TRUNQ_LOOK"):
                page.screenshot(path=f"{pictures}/{name}-{scheme}.png", full_page=True)
            found = Axe().run(page)
            assert found.violations_count == 0, f"{path}: {found.generate_report()}"
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
        stop_sweeps(page, address, queues[0], running)
        run_schedule(page, address, queues[1])
        # A page that is open asks on.
        context.close()
    assert said == []


def stop_sweeps(page: Page, address: str, work: Engine, running: int) -> None:
    """By keys alone."""
    page.goto(f"{address}/queues/{work.queue}/dead")
    expect(page.locator("progress")).to_have_count(1)
    page.get_by_role("button", name="Stop").press("Enter")
    expect(page.get_by_role("status").first).to_contain_text(f"Sweep {running} of {work.queue} stops")
    assert work.ask("carry_sweep", sweep_id=running) is False


def run_schedule(page: Page, address: str, work: Engine) -> None:
    page.goto(f"{address}/schedules/nightly")
    expect(page.locator("#section-2 + table tbody tr, #section-2 ~ table tbody tr")).to_have_count(5)
    page.get_by_role("button", name="Run now…").press("Enter")
    page.wait_for_url("**/ask/run_schedule**")
    page.get_by_role("button", name="Run it now").press("Enter")
    expect(page.get_by_role("status").first).to_contain_text("Schedule nightly published message")
    expect(page.locator("#section-3 ~ table tbody tr")).to_have_count(1)
    assert len(work.drain()) == 1
