"""Pages that live: under the hand of somebody, seven at once, and while the database is away."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, expect

from browsing import serve, shop
from calling import call, new_names
from chromium import MILLISECONDS, is_live, needs_browser, watched
from conftest import Connect
from copying import copied_server
from engine import Engine
from freezing import Proxy
from trunq.web import app
from waiting import wait_until

pytestmark = needs_browser

SESSIONS = (
    "select count(*) from pg_stat_activity where application_name = 'trunq web'"
    " and datname = current_database()"
)


@pytest.fixture
def orders(session: psycopg.Connection[Any]) -> Engine:
    return shop(session, next(new_names("live")))


@pytest.fixture
def address(shared_database: str) -> Iterator[str]:
    with serve(app(shared_database)) as served:
        yield served


COUNT = """() => {
  window.left = 0;
  document.addEventListener("htmx:before:request", (event) => {
    window.left += Boolean(event.detail.ctx.isLeftOut);
  });
}"""


@pytest.mark.slow
def test_what_somebody_has_selected_is_left_alone_and_the_page_goes_on_afterwards(
    orders: Engine, address: str, browser: Browser
) -> None:
    with watched(browser) as context:
        page = context.new_page()
        page.goto(f"{address}/queues/{orders.queue}/messages?state=ready")
        page.evaluate(COUNT)
        rows = page.locator("#live tbody tr")
        expect(rows).to_have_count(1)
        page.evaluate("getSelection().selectAllChildren(document.querySelector('#live tbody tr'))")
        chosen = page.evaluate("getSelection().toString()")
        assert chosen
        orders.publish(2)
        wait_until(lambda: page.evaluate("window.left") >= 2, what="two looks were left out")
        assert page.evaluate("getSelection().toString()") == chosen
        assert rows.count() == 1
        page.evaluate("getSelection().removeAllRanges()")
        expect(rows).to_have_count(3, timeout=MILLISECONDS)


@pytest.mark.slow
def test_what_somebody_has_filled_in_is_left_alone(orders: Engine, address: str, browser: Browser) -> None:
    with watched(browser) as context:
        page = context.new_page()
        page.goto(f"{address}/queues/{orders.queue}/subscriptions/ledger")
        page.evaluate(COUNT)
        field = page.locator("#seek-tick")
        before = field.input_value()
        field.fill("77")
        # The focus is elsewhere, and what was typed is not sent yet.
        page.locator("h1").click()
        orders.ask("pause_subscription", subscription="ledger")
        wait_until(lambda: page.evaluate("window.left") >= 2, what="two looks were left out")
        assert field.input_value() == "77"
        field.fill(before)
        expect(page.locator("#live")).to_contain_text("paused", timeout=MILLISECONDS)


@pytest.mark.slow
def test_seven_tabs_live_at_once_on_four_connections(
    orders: Engine, address: str, browser: Browser, session: psycopg.Connection[Any]
) -> None:
    paths = ["", "/workers", "/dead", "/doctor", "/streams"]
    paths += [f"/queues/{orders.queue}{each}" for each in ("", "/messages", "/dead", "/stream")]
    paths += [f"/queues/{orders.queue}/subscriptions/default"]
    with watched(browser) as context:
        pages = [context.new_page() for _ in paths]
        for page, path in zip(pages, paths, strict=True):
            page.goto(f"{address}{path or '/'}")
        # All of them once more after the last one was opened, and twice.
        for _ in range(2):
            for page in pages:
                with page.expect_response(is_live):
                    pass
                row = session.execute(SESSIONS).fetchone()
                assert row is not None
                assert 1 <= row[0] <= 4
        orders.publish(40)
        expect(pages[-4].locator("#live tbody tr")).to_have_count(44, timeout=MILLISECONDS)
        orders.ask("pause_subscription", subscription="default")
        expect(pages[-1].locator("#live")).to_contain_text("paused", timeout=MILLISECONDS)


@pytest.mark.slow
def test_a_database_that_is_away_and_comes_back_leaves_the_figures_dimmed_meanwhile(browser: Browser) -> None:
    with copied_server() as server, psycopg.connect(server.dsn, autocommit=True) as sql:
        shop(sql)
        away = Proxy(server.dsn)
        with serve(app(away.dsn)) as address, watched(browser) as context:
            page = context.new_page()
            page.goto(f"{address}/queues/orders/dead")
            expect(page.locator("#live tr[id^=dead-]")).to_have_count(1)
            away.freeze()
            expect(page.locator("#live")).to_contain_text("Figures of", timeout=MILLISECONDS)
            expect(page.locator("#live tr[id^=dead-]")).to_have_count(1)
            assert (found := Axe().run(page)).violations_count == 0, found.generate_report()
            away.thaw()
            expect(page.locator("#live")).not_to_contain_text("Figures of", timeout=MILLISECONDS)


@pytest.mark.slow
def test_a_look_that_takes_longer_than_three_seconds_is_cut_and_the_rest_lives(
    orders: Engine, address: str, browser: Browser, open_session: Connect
) -> None:
    with watched(browser) as context:
        page, rest = context.new_page(), context.new_page()
        page.goto(f"{address}/")
        expect(page.locator(f"#of-{orders.queue}-default")).to_be_visible()
        other = open_session(autocommit=False)
        other.execute("lock table trunq.sample in access exclusive mode")
        expect(page.locator("#live")).to_contain_text("Figures of", timeout=MILLISECONDS)
        expect(page.locator(f"#of-{orders.queue}-default")).to_be_visible()
        rest.goto(f"{address}/queues/{orders.queue}/messages")
        expect(rest.locator("#live tbody tr")).to_have_count(4)
        other.rollback()
        expect(page.locator("#live")).not_to_contain_text("Figures of", timeout=MILLISECONDS)


@pytest.mark.slow
def test_ten_that_look_are_one_reading(orders: Engine, shared_database: str, browser: Browser) -> None:
    made = app(shared_database)
    asked = list[int]()
    overview = made.state.database.client.overview

    async def counted(*arguments: Any, **named: Any) -> Any:
        asked.append(1)
        return await overview(*arguments, **named)

    made.state.database.client.overview = counted
    with serve(made) as address, watched(browser) as context:
        pages = [context.new_page() for _ in range(10)]
        for page in pages:
            page.goto(f"{address}/")
        begun = len(asked)
        looks = list[str]()
        for page in pages:
            page.on("response", lambda got: looks.append(got.url) if is_live(got) else None)
        wait_until(lambda: pages[0].evaluate("1") and len(looks) >= 30, what="thirty looks")
        assert len(asked) - begun <= len(looks) / 4


@pytest.mark.slow
def test_with_many_subscriptions_the_worst_are_there_and_one_is_found_by_its_name(
    connection: psycopg.Connection[Any], database: str, browser: Browser
) -> None:
    work = Engine(connection, "many").create()
    for number in range(120):
        call(connection, "subscribe", queue="many", subscription=f"reader_{number}")
    work.publish(1)
    call(connection, "sample")
    with serve(app(database)) as address, watched(browser, viewport={"width": 390, "height": 844}) as context:
        page = context.new_page()
        page.goto(f"{address}/")
        expect(page.locator("#live tbody tr")).to_have_count(100)
        expect(page.locator("#live")).to_contain_text("the worst 100 of 121")
        page.locator("input[name=find]").fill("reader_119")
        page.keyboard.press("Enter")
        expect(page.locator("#live tbody tr")).to_have_count(1)
        assert (found := Axe().run(page)).violations_count == 0, found.generate_report()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
