"""The dashboard below a prefix of another application, and behind a proxy, in a real browser."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from fastapi import FastAPI
from playwright.sync_api import Browser, expect
from starlette.applications import Starlette
from starlette.routing import Mount

from bridging import django_on
from browsing import TOKEN, serve, shop
from calling import new_names
from chromium import MILLISECONDS, is_live, needs_browser, watched
from engine import Engine
from proxying import proxied
from trunq.web import app

pytestmark = needs_browser
PREFIX = "/ops/trunq"


@pytest.fixture
def orders(session: psycopg.Connection[Any]) -> Engine:
    return shop(session, next(new_names("mounted")))


def closing(inner: Starlette) -> Any:
    @asynccontextmanager
    async def lifespan(_: Any) -> Any:
        yield
        await inner.state.close()

    return lifespan


@contextmanager
def in_starlette(dsn: str, _: Path) -> Iterator[str]:
    inner = app(dsn, token=TOKEN)
    with serve(Starlette(routes=[Mount(PREFIX, inner)], lifespan=closing(inner))) as address:
        yield f"{address}{PREFIX}"


@contextmanager
def in_fastapi(dsn: str, _: Path) -> Iterator[str]:
    inner = app(dsn, token=TOKEN)
    site = FastAPI(lifespan=closing(inner))
    site.mount(PREFIX, inner)
    with serve(site) as address:
        yield f"{address}{PREFIX}"


@contextmanager
def in_django(dsn: str, _: Path) -> Iterator[str]:
    inner = app(dsn, token=TOKEN)
    with pytest.MonkeyPatch.context() as patch, django_on(dsn):
        # Playwright's loop runs in this thread, in which the connections are closed.
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
        from django.core.asgi import get_asgi_application  # noqa: PLC0415  # asks for settings

        django = get_asgi_application()

        async def application(scope: Any, receive: Any, send: Any) -> None:
            is_ours = scope["type"] == "lifespan" or scope.get("path", "").startswith(f"{PREFIX}/")
            if scope["type"] == "http" and is_ours:
                scope = {**scope, "root_path": scope.get("root_path", "") + PREFIX}
            await (inner if is_ours else django)(scope, receive, send)

        with serve(application) as address:
            yield f"{address}{PREFIX}"


@contextmanager
def behind_a_proxy(dsn: str, directory: Path) -> Iterator[str]:
    with serve(app(dsn, token=TOKEN), PREFIX) as address, proxied(address, PREFIX, directory) as outer:
        yield outer


@pytest.mark.slow
@pytest.mark.parametrize(
    "place", [in_starlette, in_fastapi, in_django, behind_a_proxy], ids=lambda each: each.__name__
)
def test_it_lives_signs_in_asks_and_changes_wherever_it_is(
    place: Any, orders: Engine, shared_database: str, browser: Browser, tmp_path: Path
) -> None:
    if place is behind_a_proxy and shutil.which("openssl") is None:
        pytest.skip("needs openssl, for a certificate")
    with (
        place(shared_database, tmp_path) as address,
        watched(browser, ignore_https_errors=True) as context,
    ):
        page = context.new_page()
        page.goto(f"{address}/")
        page.wait_for_url(f"{address}/sign-in")
        page.locator("input[name=token]").fill(TOKEN)
        page.keyboard.press("Enter")
        page.wait_for_url(f"{address}/")
        (cookie,) = context.cookies()
        assert (cookie["path"], cookie["secure"]) == (f"{PREFIX}/", address.startswith("https"))
        page.goto(f"{address}/queues/{orders.queue}/dead")
        rows = page.locator("#live tr[id^=dead-]")
        expect(rows).to_have_count(1)
        orders.publish(1)
        held = orders.lease(10)
        orders.answer("reject", held, errors=["boom"] * len(held.ids))
        with page.expect_response(is_live):
            pass
        expect(page.locator("#live")).to_contain_text("boom", timeout=MILLISECONDS)
        # A form with a question, and the redirect after it.
        dead = orders.listed(state="dead")[0]
        page.goto(f"{address}/queues/{orders.queue}/messages/{dead}")
        page.get_by_role("button", name="Requeue").click()
        page.wait_for_url(f"{address}/ask/requeue**")
        page.get_by_role("button", name="Requeue 1 message").click()
        asked_on = f"{address}/queues/{orders.queue}/messages/{dead}"
        page.wait_for_url(re.compile(rf"{re.escape(asked_on)}\?said=.*"))
        assert orders.state(dead) == "ready"
        # A slash too many is a redirect that keeps scheme, name and prefix.
        page.goto(f"{address}/workers/")
        assert page.url == f"{address}/workers"
        expect(page.locator("#live")).to_contain_text("Workers")
        # Every address on the page lies below it.
        for link in page.locator("[href], [src], [action]").all():
            for name in ("href", "src", "action"):
                to = link.get_attribute(name)
                assert to is None or to.startswith((f"{PREFIX}/", "#", "?")), to
        page.get_by_role("button", name="Sign out").click()
        page.wait_for_url(f"{address}/sign-in")
