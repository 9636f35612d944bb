"""Every page shows what the functions say, in the words of people, and hides what is to be hidden."""

from __future__ import annotations

import asyncio
import html
import re
import shlex
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from psycopg.types.json import Jsonb
from starlette.testclient import TestClient

from browsing import HERE, browse, shop
from calling import ask, call, fetch, new_names
from conftest import Connect
from deploying import parse
from engine import Engine
from granting import granting, me
from trunq.web import app
from trunq.web.page import hinted
from trunq.web.pages import PAGES, message, overview
from trunq.web.pages.dead import _look
from waiting import wait_until

EVIL = "<script>alert(1)</script>'\"><img src=x onerror=alert(1)>"


@pytest.fixture
def orders(session: psycopg.Connection[Any]) -> Engine:
    return shop(session, next(new_names("shop")))


@pytest.fixture
def page(orders: Engine, shared_database: str) -> Iterator[TestClient]:
    with browse(shared_database) as client:
        yield client


def seen(client: TestClient, path: str, code: int = 200) -> str:
    """The text of a page, as a person reads it."""
    answer = client.get(path)
    assert answer.status_code == code, answer.text
    assert answer.headers["content-security-policy"].startswith("default-src 'none'; script-src 'self';")
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", answer.text)).split())


def test_the_overview_says_what_is_wrong_before_it_shows_figures(
    connection: psycopg.Connection[Any], database: str
) -> None:
    shop(connection)
    with browse(database) as client:
        # The sentences come with the next look where they take long.
        text = wait_until(lambda: "to look at" in (said := seen(client, "/")) and said)
    assert "to look at" in text
    assert text.index("leader") < text.index("Subscriptions")
    assert re.search(r"orders / default 1 no samples", text)


def test_what_presses_is_on_the_page_with_the_look_that_finds_it(
    connection: psycopg.Connection[Any], database: str
) -> None:
    shop(connection)
    ask(connection, "elect", name="me", lease_time="1 day")
    made = app(database)
    looks: list[bool] = []
    diagnose = made.state.database.client.diagnose

    async def watched(*arguments: Any, **named: Any) -> Any:
        found = await diagnose(*arguments, **named)
        if "areas" in named:
            looks.append(any(row.area == "leader" for row in found))
        return found

    made.state.database.client.diagnose = watched
    with TestClient(made, base_url=HERE) as client:
        wait_until(lambda: "Subscriptions" in seen(client, "/") and looks)
        assert "nobody performs the duties" not in seen(client, "/").lower()
        ask(connection, "resign", name="me", term=fetch(connection, "select term from trunq.leader"))
        wait_until(lambda: "nobody performs the duties" in seen(client, "/").lower())
        # Within a look of its own, and of those that found it the first.
        assert looks[-2:].count(True) == 1, looks


def test_every_page_is_there_and_teaches_what_fills_it_where_it_is_empty(
    connection: psycopg.Connection[Any], database: str
) -> None:
    empty = next(new_names("empty"))
    call(connection, "create_queue", queue=empty)
    names = {"queue": empty, "subscription": "default"}
    with browse(database) as page:
        shown = [path for path, _ in PAGES if {*re.findall(r"{([\w:]+)}", path)} <= names.keys()]
        suggested = set()
        for path in shown:
            text = seen(page, path.format_map(names))
            assert "Nothing to show" not in text, text
            suggested |= {*re.findall(r"<code>trunq ([^<]*)</code>", page.get(path.format_map(names)).text)}
        assert len(suggested) > 10
        for command in suggested:
            # Raises where the shell would refuse it.
            parse(shlex.split(html.unescape(command.removesuffix(" --help"))))
        assert f"trunq publish {empty}" in seen(page, f"/queues/{empty}/messages")
        assert "trunq schedule create" in seen(page, "/schedules")
        assert "trunq pipeline create" in seen(page, "/pipelines")
        assert "--mode exclusive" in seen(page, f"/queues/{empty}/stream")
        assert "trunq queue create mail --lanes key" in seen(page, f"/queues/{empty}/lanes")


def test_a_pipeline_says_what_it_reads_and_writes_and_which_runs_are_backfills(
    connection: psycopg.Connection[Any], database: str
) -> None:
    parts: dict[str, Any] = {
        "source": {"format": "table", "table": "flights"},
        "sink": {"format": "table", "table": "copied", "mode": "upsert", "key": ["id"], "newest": "at"},
    }
    call(connection, "create_pipeline", pipeline="flights", definition=Jsonb(parts))
    each = {"message": {"customer": "text"}, "per": "message.customer"}
    call(connection, "create_pipeline", pipeline="orders", definition=Jsonb(parts | each))
    connection.execute(
        "insert into trunq.pipeline_run"
        " (pipeline_id, number, backfill, message_id, chain, slice, snapshot, begun_at)"
        " select pipeline_id, 1, 7, 7, gen_random_uuid(), '{}', pg_current_snapshot(), now()"
        " from trunq.pipeline where name = 'flights'"
    )
    with browse(database) as page:
        shown = seen(page, "/pipelines/flights").replace("\N{NO-BREAK SPACE}", " ")
        assert "table flights → table copied" in shown
        assert "backfill" in shown
        assert "Instances" not in shown, "it has one state"
        assert "begins an instance" in seen(page, "/pipelines/orders")


def test_what_a_worker_said_last_is_told(connection: psycopg.Connection[Any], database: str) -> None:
    call(connection, "create_queue", queue="orders")
    said = {"queues": ["orders"], "subscription": "default", "host": "shop-3", "pid": 7, "seconds": 1.0}
    more = {"version": "0.1.0", "slots": 4, "handling": Jsonb([]), "last_word": "killed"}
    ask(connection, "_report", worker="ada", **said, **more)
    with browse(database) as page:
        assert "ada ✕ killed orders shop-3 7 0.1.0" in seen(page, "/workers")


def test_who_leads_and_when_each_duty_was_last_done_is_told(
    connection: psycopg.Connection[Any], database: str
) -> None:
    with browse(database) as page:
        assert "No process leads." in seen(page, "/workers")
    term = ask(connection, "elect", name="vm-7")
    connection.execute("call trunq.perform_each_duty()")
    with browse(database) as page:
        text = seen(page, "/workers")
        assert f"vm-7 leads, in term {term}." in text
        assert re.search(r"sample \S+ (now|\S+ ago)", text)


def test_a_worker_that_is_silent_is_said_first_and_what_it_handles_is_in_words(
    connection: psycopg.Connection[Any], database: str
) -> None:
    orders = Engine(connection, "orders").create()
    (id,) = orders.publish(1)
    orders.lease(1, worker="ada")
    said = {"queues": ["orders"], "subscription": "default", "host": "shop-3", "pid": 7, "seconds": 1.0}
    handling = Jsonb([{"queue": "orders", "id": id, "kind": "placed", "seconds": 180.0}])
    with orders.clock("-20 seconds"):
        ask(connection, "_report", worker="ada", **said, version="0.1.0", slots=4, handling=handling)
    with browse(database) as page:
        text = wait_until(lambda: "has said nothing" in (told := seen(page, "/workers")) and told)
    assert f"{id} (placed) for 3m" in text


def test_a_hint_is_a_sentence_in_which_commands_are_set_apart() -> None:
    shown = {
        "start a worker, or: trunq leader": "Start a worker, or: <code>trunq leader</code>",
        "trunq db upgrade --repair": "<code>trunq db upgrade --repair</code>",
        "select trunq.free_worker('a''s (1)') hands them on": (
            "<code>select trunq.free_worker(&#39;a&#39;&#39;s (1)&#39;)</code> hands them on"
        ),
        "end <b>: select pg_cancel(7)": "End &lt;b&gt;: <code>select pg_cancel(7)</code>",
        "see: trunq dead list a, or trunq web": "See: trunq dead list a, or trunq web",
    }
    assert {hint: str(hinted(hint)) for hint in shown} == shown


def test_a_list_leaves_out_what_no_row_has(connection: psycopg.Connection[Any], database: str) -> None:
    mail = Engine(connection, "mail").create(lanes="key")
    mail.run("insert into {log} (key, payload) values ('acme', '1')")
    with browse(database) as page:
        assert "rank" not in seen(page, "/queues/mail/lanes").split()
        call(connection, "set_lane", queue="mail", subscription="default", lane="acme", rank=7)
        page.app.state.database.forget()  # type: ignore[attr-defined]
        assert "rank" in seen(page, "/queues/mail/lanes").split()


def test_a_database_without_a_queue_says_how_to_make_one(database: str) -> None:
    with browse(database) as client:
        assert "trunq queue create orders" in seen(client, "/")


def test_messages_are_filtered_by_what_the_address_says(orders: Engine, page: TestClient) -> None:
    assert seen(page, f"/queues/{orders.queue}/messages").count("ada") == 4
    assert seen(page, f"/queues/{orders.queue}/messages?state=dead").count("ada") == 1
    assert seen(page, f"/queues/{orders.queue}/messages?kind=paid&state=ready").count("ada") == 1
    assert "KeyError" in seen(page, f"/queues/{orders.queue}/messages?error=iban")
    assert "No message is parked" in seen(page, f"/queues/{orders.queue}/messages?state=parked")
    assert (
        page.get(f"/queues/{orders.queue}/messages?id=7").headers["location"]
        == f"/queues/{orders.queue}/messages/7"
    )


def test_pages_of_messages_lead_to_older_ones(orders: Engine, page: TestClient) -> None:
    orders.publish(120)
    seen_ids: list[str] = []
    to = "?state=ready"
    while to:
        body = page.get(f"/queues/{orders.queue}/messages{to}").text
        seen_ids += re.findall(r'/messages/(\d+)"', body)
        older = re.search(r'rel="next" href="([^"]*)"', body)
        to = html.unescape(older[1]) if older else ""
    assert len(seen_ids) == len(set(seen_ids)) == 121


def test_the_life_of_a_message_is_told_attempt_by_attempt(orders: Engine, page: TestClient) -> None:
    (dead,) = orders.listed(state="dead")
    text = seen(page, f"/queues/{orders.queue}/messages/{dead}")
    assert re.search(r"waited \S+ for a worker", text)
    assert re.search(r"attempt 1: rejected by w, \S+ · KeyError: 'iban'", text)
    assert '"total": 42' in text
    assert '"trace": "4bf9"' in text
    (ready,) = orders.listed(state="ready")
    assert "waits to be handed out" in seen(page, f"/queues/{orders.queue}/messages/{ready}")
    (leased,) = orders.listed(state="leased")
    assert "attempt 1: running by w" in seen(page, f"/queues/{orders.queue}/messages/{leased}")


def test_a_message_says_what_it_waits_for_and_what_helps(orders: Engine, page: TestClient) -> None:
    (ready,) = orders.listed(state="ready")
    orders.ask("pause_subscription", subscription="default")
    text = seen(page, f"/queues/{orders.queue}/messages/{ready}")
    assert re.search(
        r'waits to be handed out, for \S+: subscription "default" is paused until somebody', text
    )
    assert f"select trunq.resume_subscription('{orders.queue}', 'default')" in text


def test_what_is_not_there_is_said_with_the_way_back(orders: Engine, page: TestClient) -> None:
    assert "no queue" in seen(page, "/queues/nothing", 404).lower()
    assert "nobody" in seen(page, f"/queues/{orders.queue}/subscriptions/nobody", 404)
    assert "999999" in seen(page, f"/queues/{orders.queue}/messages/999999", 404)
    assert "no such page" in seen(page, "/nothing", 404)
    assert "Before is a whole number" in seen(page, f"/queues/{orders.queue}/messages?before=x", 400)


@pytest.mark.slow
def test_every_text_of_a_message_is_shown_as_text(
    session: psycopg.Connection[Any], shared_database: str
) -> None:
    work = Engine(session, next(new_names("hostile"))).create()
    work.run(
        "insert into {log} (kind, key, payload, headers) values (%s, %s, %s, %s)",
        EVIL,
        EVIL,
        psycopg.types.json.Jsonb({EVIL: EVIL}),
        psycopg.types.json.Jsonb({EVIL: EVIL}),
    )
    held = work.lease(1, worker=EVIL)
    work.answer("reject", held, errors=[EVIL])
    paths = [
        f"/queues/{work.queue}/messages/{held.ids[0]}",
        f"/queues/{work.queue}/publish?copy={held.ids[0]}",
        f"/queues/{work.queue}/messages",
        f"/queues/{work.queue}/dead",
        f"/queues/{work.queue}",
        "/workers",
        f"/?said={EVIL}",
        f"/?find={EVIL}",
    ]
    with browse(shared_database) as client:
        for path in paths:
            body = client.get(path).text
            assert "<script>alert" not in body, path
            assert "<img src=x" not in body, path
        assert html.escape("<script>alert(1)") in client.get(paths[0]).text


def test_what_is_hidden_is_on_no_page_and_answers_no_filter(orders: Engine, shared_database: str) -> None:
    (dead,) = orders.listed(state="dead")
    with browse(shared_database, hide=("payload", "headers", "error")) as client:
        for path in (
            f"/queues/{orders.queue}/messages/{dead}",
            f"/queues/{orders.queue}/publish?copy={dead}",
            f"/queues/{orders.queue}/messages",
            f"/queues/{orders.queue}/dead",
        ):
            text = seen(client, path)
            assert not any(word in text for word in ("iban", "total", "4bf9")), path
        answered = orders.publish(1)
        orders.answer("ack", orders.lease(10), results=['"iban of ada"'])
        assert "iban" not in seen(client, f"/queues/{orders.queue}/messages/{answered[0]}")
        # A filter that is not applied finds as much as none.
        assert seen(client, f"/queues/{orders.queue}/messages?error=nothing").count("ada") == 4
        assert "1 dead" in seen(client, f"/queues/{orders.queue}/dead?error=nothing")


@pytest.mark.slow
def test_a_look_that_is_cut_leaves_the_old_figures_and_says_why(
    orders: Engine, page: TestClient, open_session: Connect
) -> None:
    assert "Figures of" not in seen(page, f"/queues/{orders.queue}/dead")
    page.app.state.database.forget()  # type: ignore[attr-defined]
    other = open_session(autocommit=False)
    other.execute("lock table trunq.dead in access exclusive mode")
    text = seen(page, f"/queues/{orders.queue}/dead")
    assert "somebody holds a lock that this look waits for" in text
    assert "Figures of" in text
    assert "KeyError" in text
    # The rest lives.
    assert "Settings" in seen(page, "/workers") or "Duties of the leader" in seen(page, "/workers")
    other.rollback()
    assert "Figures of" not in seen(page, f"/queues/{orders.queue}/dead")


def test_pages_change_nothing_and_take_four_connections_at_most(
    page: TestClient, session: psycopg.Connection[Any]
) -> None:
    database = page.app.state.database  # type: ignore[attr-defined]

    async def change() -> None:
        async with database.reading() as reading:
            await reading.execute("delete from trunq.dead")

    assert page.portal is not None
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        page.portal.call(change)
    many = session.execute(
        "select count(*), max(application_name) from pg_stat_activity where application_name = 'trunq web'"
        " and datname = current_database()"
    ).fetchone()
    assert many is not None
    assert 1 <= many[0] <= 4


def test_who_asks_while_another_waits_gets_the_same_answer(orders: Engine, page: TestClient) -> None:
    database, asked = page.app.state.database, []  # type: ignore[attr-defined]

    async def question(connection: psycopg.AsyncConnection[Any]) -> int:
        asked.append(1)
        await connection.execute("select pg_sleep(0.1)")
        return 7

    async def all_at_once() -> list[Any]:
        return await asyncio.gather(*(database.panel("question", question) for _ in range(10)))

    assert page.portal is not None
    assert {panel.rows for panel in page.portal.call(all_at_once)} == {7}
    assert len(asked) == 1


def test_a_look_of_a_role_at_several_queues_goes_on_where_the_first_of_them_ended(
    connection: psycopg.Connection[Any], connect: Connect
) -> None:
    many, one = (Engine(connection, f"of_{n}").create() for n in range(2))
    for queue, count in ((many, 3), (one, 1)):
        queue.publish(count)
        held = queue.lease(count)
        queue.answer("reject", held, errors=["boom"] * count)
    with granting(connection, connect, many.queue) as grant:
        reader = grant("reader")
        ask(connection, "grant_role", queue=one.queue, role="reader", grantee=me(reader))
        look = _look(call(reader, "list_dead_groups", look=2))
        assert (look.looked, look.groups[0].messages) == (3, 3)
        assert look.to == many.call("list_dead", limit=2)[-1].dead_id
        look = _look(call(reader, "list_dead_groups", look=2, before=look.to))
        assert (look.looked, look.to) == (1, None)


def test_a_text_that_looks_like_a_time_and_a_time_beyond_all_years_are_shown_as_they_are(
    orders: Engine, page: TestClient
) -> None:
    no_time, beyond = "2026-13-01T00:00:00+00:00", "9999-12-31T23:30:00-01:00"
    for kind in (no_time, beyond):
        orders.ask("start_sweep", act="requeue", kind=kind)
    shown = seen(page, "/audit")
    assert f"kind {no_time}" in shown
    assert f"kind {beyond}" in shown


def test_a_search_goes_on_where_it_ended_whatever_the_role_has_sent(
    session: psycopg.Connection[Any], shared_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Engine(session, next(new_names("searched"))).create()
    work.run("insert into {log} (kind) select 'other' from generate_series(1, 1500)")
    monkeypatch.setattr(message, "LOOKED", 1000)
    silent = make_conninfo(shared_database, options="-c client_min_messages=error")
    with browse(silent) as client:
        body = client.get(f"/queues/{work.queue}/messages?kind=lost").text
    assert re.search(r"\?[^\"]*before=\d+", body)


def test_pages_of_a_database_that_was_restored_name_what_helps(
    database: str, connection: psycopg.Connection[Any]
) -> None:
    queue = shop(connection).queue
    connection.execute("update trunq.cluster set system_identifier = system_identifier + 1")
    with browse(database) as client:
        for address, status in (
            ("/streams", 409),
            (f"/queues/{queue}/stream", 409),
            (f"/queues/{queue}", 200),
            ("/doctor", 200),
        ):
            body = wait_until(
                lambda address=address: (
                    "another Postgres cluster" in (got := client.get(address)).text and got
                )
            )
            assert body.status_code == status
            assert "<code>call trunq.rebase_each_queue()</code>" in body.text
            assert "Not done" not in body.text


@pytest.mark.parametrize("address", ["/audit", "/queues/mail/messages"])
def test_a_list_whose_database_is_away_is_a_page_that_says_so(address: str) -> None:
    with browse("postgresql://127.0.0.1:1/nothing") as client:
        answer = client.get(address)
    assert (answer.status_code, "Nothing to show" in answer.text) == (200, True)


@pytest.mark.parametrize("right", ["nothing", "usage on schema trunq", "reader"])
def test_each_page_names_the_grant_that_its_role_lacks_and_no_table_of_ours(
    database: str, connection: psycopg.Connection[Any], right: str
) -> None:
    for queue in ("orders", "bills"):
        shop(connection, queue)
    name = next(new_names("onlooker"))
    connection.execute(f"create role {name} login".encode())
    if right == "reader":
        call(connection, "grant_role", role="reader", queue="bills", grantee=name)
    elif right != "nothing":
        connection.execute(f"grant {right} to {name}".encode())
    grant = f"grant {connection.info.user} to {name}"
    as_reader = f"select trunq.grant_role('orders', 'reader', '{name}')"
    paths = [path.replace("{queue}", "orders").replace("{id:int}", "1") for path, _ in PAGES]
    paths = [path.replace("{subscription}", "default") for path in paths if ":path}" not in path]
    told = {"/queues/orders/publish"} | (
        {"/dead", "/streams", "/queues/orders/lanes"} if right == "reader" else set()
    )
    try:
        with browse(make_conninfo(database, user=name)) as client:
            # The sentences of the overview come with the next look where they take long.
            wait_until(lambda: grant in client.get("/").text)
            for path in paths:
                body = client.get(path).text
                assert "permission denied for" not in body.lower(), path
                if path not in told:
                    assert f"<code>{grant}</code>" in body, path
                    has_queue = path.startswith("/queues/")
                    assert (as_reader in html.unescape(body)) == has_queue, path
    finally:
        connection.execute(f"drop owned by {name}; drop role {name}".encode())


def test_the_overview_of_many_subscriptions_shows_the_worst_first_and_says_what_it_looked_at(
    connection: psycopg.Connection[Any], database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overview, "LOOKED_AT", 1)
    Engine(connection, "calm").create()
    busy = Engine(connection, "busy").create()
    for n in range(20):
        busy.ask("subscribe", subscription=f"s{n:02}")
    busy.publish()
    for n in range(19):
        busy.drain(f"s{n:02}")
    busy.drain()
    with browse(database) as client:
        told = "1 of 2 queues were looked at one by one, those in trouble first"
        text = wait_until(lambda: told in (said := seen(client, "/")) and said)
    rows = re.findall(r"(?:busy|calm) / (s\d\d|default)", text)
    assert len(rows) == 22
    assert rows[:3] == ["s19", "default", "s00"]
