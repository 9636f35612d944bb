"""A real browser: pages bring themselves up to date, are reached by keys, and say nothing on the console."""

from __future__ import annotations

import os
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect
from starlette.applications import Starlette
from starlette.routing import Mount

from browsing import serve, shop
from calling import call, new_names
from chromium import MILLISECONDS, needs_browser
from copying import copied_server
from engine import Engine
from trunq.web import app

PICTURE = Path(__file__).parents[2] / "docs" / "pictures" / "web.png"
PREFIX = "/ops/trunq"

pytestmark = needs_browser


@pytest.fixture
def orders(session: psycopg.Connection[Any]) -> Engine:
    return shop(session, next(new_names("shop")))


@pytest.fixture
def address(orders: Engine, shared_database: str) -> Iterator[str]:
    """Below a prefix of another application, as many have it."""
    inner = app(shared_database)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await inner.state.close()

    with serve(Starlette(routes=[Mount(PREFIX, inner)], lifespan=lifespan)) as served:
        yield f"{served}{PREFIX}"


@pytest.fixture
def page(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Page]:
    options: dict[str, Any] = {"viewport": {"width": 1280, "height": 800}, **getattr(request, "param", {})}
    context = browser.new_context(reduced_motion="reduce", **options)
    context.set_default_timeout(MILLISECONDS)
    opened, said = context.new_page(), list[str]()
    opened.on("console", lambda message: said.append(message.text))
    opened.on("pageerror", lambda error: said.append(str(error)))
    opened.on("response", lambda got: said.append(f"{got.status} {got.url}") if got.status >= 400 else None)
    yield opened
    context.close()
    assert said == []


NARROW = """[...document.querySelectorAll(".card > table")]
  .every(table => table.offsetWidth <= table.parentElement.clientWidth)"""
"""Whether each table fits its card."""


def size_of(picture: Path) -> tuple[int, int]:
    width, height = struct.unpack(">II", picture.read_bytes()[16:24])
    return width, height


def is_live(response: Any) -> bool:
    return response.request.headers.get("hx-request") == "true"


@pytest.mark.slow
def test_a_page_lives_and_leaves_the_focus_where_it_is(orders: Engine, address: str, page: Page) -> None:
    page.goto(f"{address}/queues/{orders.queue}/messages?state=ready")
    rows = page.locator("#live tbody tr")
    expect(rows).to_have_count(1)
    link = rows.get_by_role("link").first
    name = link.inner_text()
    link.focus()
    page.locator("input[name=kind]").evaluate("field => { field.value = 'half a wo' }")
    orders.publish(2)
    expect(rows).to_have_count(3, timeout=MILLISECONDS)
    with page.expect_response(is_live):
        pass
    expect(page.get_by_role("link", name=name, exact=True)).to_be_focused()
    assert page.locator("input[name=kind]").input_value() == "half a wo"
    assert page.locator("#live").count() == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [{"color_scheme": "light"}, {"color_scheme": "dark", "viewport": {"width": 390, "height": 844}}],
    indirect=True,
    ids=["light", "dark-phone"],
)
def test_no_page_keeps_anybody_out_or_is_wider_than_its_screen(
    orders: Engine, address: str, page: Page
) -> None:
    (dead,) = orders.listed(state="dead")
    orders.publish(1, kinds=["a_kind_with_a_long_name"], keys=["customer 4711 of the shop in Bern"])
    long = (
        "TimeoutError: the warehouse at https://warehouse.internal/api/v2/stock did not answer: " + "x" * 200
    )
    held = orders.lease(10, worker="worker-7.eu-central-1.compute.internal")
    orders.answer("reject", held, errors=[long] * len(held.ids))
    orders.ask("start_sweep", act="requeue", kind="k" * 300)
    queue = f"/queues/{orders.queue}"
    paths = [
        "/",
        "/dead",
        "/audit",
        "/workers",
        "/streams",
        queue,
        f"{queue}/subscriptions/ledger",
        f"{queue}/messages",
    ]
    paths += [
        f"{queue}/messages/{dead}",
        f"{queue}/dead",
        f"{queue}/publish",
        f"/ask/purge?queue={orders.queue}",
    ]
    for path in paths:
        page.goto(f"{address}{path}")
        found = Axe().run(page)
        assert found.violations_count == 0, f"{path}: {found.generate_report()}"
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
        assert page.evaluate(NARROW), path
        assert page.evaluate("scrollY") == 0, path


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [{"viewport": {"width": 1280, "height": 720}}, {"viewport": {"width": 390, "height": 844}}],
    indirect=True,
    ids=["laptop", "phone"],
)
def test_pipelines_that_fail_wait_and_keep_rows_out_fit_beside_each_other(
    session: psycopg.Connection[Any], address: str, page: Page
) -> None:
    parts = {"source": {"format": "table", "table": "a"}, "trigger": {"every": "12 hours"}}
    for name in ("broken", "nightly", "prices"):
        sink = {"format": "parquet", "path": name}
        definition = psycopg.types.json.Jsonb({**parts, "sink": sink})
        call(session, "create_pipeline", pipeline=name, definition=definition)
    call(session, "pause_pipeline", pipeline="nightly")
    why = "there is no directory /srv/arrivals/of/this/month on the machine of this runner"
    session.execute(
        "update trunq.pipeline set failures = 3, failing_since = now(), error = %s where name = 'broken'",
        [f"InvalidPipeline: pipeline broken: {why}"],
    )
    session.execute(
        "with run as (insert into trunq.pipeline_run"
        " (pipeline_id, number, message_id, chain, slice, snapshot, begun_at, ended_at, outcome)"
        " select pipeline_id, 1, 7, gen_random_uuid(), '{}', pg_current_snapshot(),"
        " now() - interval '1 day', now() - interval '100 minutes', 'done' from trunq.pipeline"
        " on conflict do nothing returning pipeline_id, run_id)"
        " insert into trunq.quarantine (pipeline_id, run_id, attempt, reasons, content, created_at)"
        " select pipeline_id, run_id, run_id, '{late}', '{}', now() from run"
    )
    page.goto(f"{address}/pipelines")
    expect(page.get_by_text(why)).to_be_visible()
    assert page.evaluate("""[...document.querySelectorAll(".card > table")].every(table => {
      const card = table.parentElement, padding = parseFloat(getComputedStyle(card).paddingRight)
      return table.getBoundingClientRect().right <= card.getBoundingClientRect().right - padding + 1
    })"""), "no table covers the edge of its card"


@pytest.mark.slow
def test_script_in_every_text_of_a_message_does_nothing(
    session: psycopg.Connection[Any], address: str, page: Page
) -> None:
    evil = "<script>alert(1)</script>'\"><img src=x onerror=alert(1)>"
    work = Engine(session, next(new_names("hostile"))).create()
    content = psycopg.types.json.Jsonb({evil: evil})
    work.run(
        "insert into {log} (kind, key, payload, headers) values (%s, %s, %s, %s)",
        evil,
        evil,
        content,
        content,
    )
    held = work.lease(1, worker=evil)
    work.answer("reject", held, errors=[evil])
    asked = list[str]()
    page.on("dialog", lambda dialog: (asked.append(dialog.message), dialog.dismiss()))
    for path in (f"messages/{held.ids[0]}", "messages", "dead", f"publish?copy={held.ids[0]}", ""):
        page.goto(f"{address}/queues/{work.queue}/{path}".rstrip("/"))
        expect(page.locator("main")).to_be_visible()
        if not path.startswith("publish"):
            with page.expect_response(is_live):
                pass
    assert asked == []


@pytest.mark.slow
def test_dead_messages_are_requeued_by_keys_alone(orders: Engine, address: str, page: Page) -> None:
    page.goto(f"{address}/queues/{orders.queue}/dead")
    (dead,) = orders.listed(state="dead")
    page.keyboard.press("/")
    expect(page.locator("input[name=subscription]")).to_be_focused()
    page.keyboard.type("default")
    page.keyboard.press("Enter")
    page.wait_for_url("**/dead?subscription=default**")
    # Its group comes first.
    page.keyboard.press("j")
    expect(page.locator("a:focus")).to_have_text("KeyError: '...'")
    page.keyboard.press("j")
    expect(page.locator("a:focus")).to_have_text(str(dead))
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/messages/{dead}")
    page.get_by_role("button", name="Requeue").press("Enter")
    page.wait_for_url("**/ask/requeue**")
    button = page.get_by_role("button", name="Requeue 1 message")
    for _ in range(30):
        if button.evaluate("it => it === document.activeElement"):
            break
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.get_by_role("status").first).to_contain_text("1 message of")
    assert orders.state(dead) == "ready"


@pytest.mark.slow
def test_a_form_of_another_site_changes_nothing(orders: Engine, address: str, browser: Browser) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.set_default_timeout(MILLISECONDS)
    form = (
        f'<form method="post" action="{address}/do/pause_queue">'
        f'<input name="queue" value="{orders.queue}"><button>Win</button></form>'
    )
    page.route("http://evil.test/", lambda route: route.fulfill(content_type="text/html", body=form))
    page.goto("http://evil.test/")
    with page.expect_navigation():
        page.get_by_role("button").click()
    expect(page.locator("body")).to_contain_text("another site")
    assert not orders.status().paused
    context.close()


@pytest.mark.slow
@pytest.mark.parametrize("page", [{"java_script_enabled": False}], indirect=True, ids=["no-script"])
def test_it_works_without_javascript_but_for_being_live(orders: Engine, address: str, page: Page) -> None:
    page.goto(f"{address}/queues/{orders.queue}")
    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_role("status").first).to_contain_text("is paused")
    assert orders.status().paused
    page.get_by_role("button", name="Resume").click()
    expect(page.get_by_role("status").first).to_contain_text("goes on")


@pytest.mark.slow
def test_a_database_that_is_away_and_comes_back_is_said(
    orders: Engine, address: str, page: Page, open_session: Any
) -> None:
    other = open_session(autocommit=False)
    page.goto(f"{address}/queues/{orders.queue}/dead")
    expect(page.locator("#live")).to_contain_text("KeyError")
    other.execute("lock table trunq.dead in access exclusive mode")
    expect(page.locator("#live")).to_contain_text("Figures of", timeout=MILLISECONDS)
    expect(page.locator("#live")).to_contain_text("KeyError")
    assert page.locator("#live tr[id^=dead-]").count() == 1
    other.rollback()
    expect(page.locator("#live")).not_to_contain_text("Figures of", timeout=MILLISECONDS)


HOUR = """insert into trunq.statistic (queue_id, at, subscription, kind, outcome, count, is_sampled)
select q.queue_id, date_trunc('minute', trunq.clock()) - n * interval '1 minute', 'default', '', o.outcome,
  ceil(o.share * (1 + sin(n / 9.0 + q.queue_id) + sin(n * 7) / 5 + q.queue_id / 3.0)), false
from trunq.queue q, generate_series(1, 60) n, (values ('a', 60), ('r', 4)) o(outcome, share)
where q.name <> 'invoices' and (o.outcome = 'a' or q.name = 'mail' and n < 20)"""
"""An hour that looks like one."""
MINUTES = """insert into trunq.sample
select r.* from trunq.sample s
cross join generate_series(1, 30) n
cross join lateral (select s.at - n * interval '10 seconds' as at, 15 + 40 * s.queue_id % 7 as rate) t
cross join lateral (
  select t.rate + s.queue_id % 3 as acked, case s.queue_id when 2 then 2 else 0 end as failed) a
cross join lateral jsonb_populate_record(s, jsonb_build_object(
  'at', t.at, 'looked_at', t.at, 'segment', trunq._sample_segment(t.at),
  'published', s.published - n * t.rate,
  'ready', ceil(s.ready * (1 + 0.5 * sin(n / 4.0 + s.queue_id) + sin(n * 7) / 6 + n / 30.0)),
  'answered', s.answered - n * (a.acked + a.failed),
  'answers', s.answers || jsonb_build_object(trunq._outcome('a'), trunq._acked(s.answers) - n * a.acked))) r
where s.queue_id in (select q.queue_id from trunq.queue q where q.name <> 'invoices')"""
"""And the last five minutes of it, in samples."""


@pytest.mark.slow
def test_the_picture_of_the_docs_shows_a_queue_in_trouble(page: Page, tmp_path: Path) -> None:
    healthy = {"fsync": "on", "synchronous_commit": "on", "autovacuum": "on"}
    with copied_server(settings=healthy) as server, psycopg.connect(server.dsn, autocommit=True) as sql:
        for name, count in (("orders", 42), ("mail", 7), ("invoices", 0), ("thumbnails", 3)):
            work = Engine(sql, name).create()
            work.publish(count + 20)
            held = work.lease(20, worker=f"{name}-1")
            work.ack(held, held.ids[:12])
            if name == "mail":
                work.answer("reject", held, held.ids[12:15], errors=["KeyError: 'address'"] * 3)
        call(sql, "pause_queue", queue="invoices")
        sql.execute(HOUR.encode())
        call(sql, "sample")
        sql.execute(MINUTES.encode())
        with serve(app(server.dsn)) as served:
            page.set_viewport_size({"width": 1200, "height": 560})
            page.goto(f"{served}/")
            expect(page.locator("#of-mail-default")).to_contain_text("✕ 3")
            expect(page.locator("#of-mail-default svg")).to_be_visible()
            expect(page.locator("#live")).to_contain_text("leader")
            picture = tmp_path / PICTURE.name
            page.screenshot(path=picture)
            # It would ask a server that is gone.
            page.goto("about:blank")
    if os.environ.get("TRUNQ_PICTURES"):
        PICTURE.write_bytes(picture.read_bytes())
    # Fonts differ from machine to machine: of the same size, and drawn.
    assert size_of(PICTURE) == size_of(picture) == (1200, 560)
