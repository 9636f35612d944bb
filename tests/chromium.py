"""A real browser, whose console and answers are looked at after each test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, sync_playwright

PROGRAM = Path("/usr/bin/chromium")
MILLISECONDS = 120_000

needs_browser = pytest.mark.skipif(
    not PROGRAM.exists(), reason="needs a browser: apt-get install --no-install-recommends chromium"
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium, for the tests of a file."""
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=PROGRAM)
        yield opened
        opened.close()


@contextmanager
def watched(browser: Browser, **options: Any) -> Iterator[BrowserContext]:
    """A context in which no page may say anything on the console, or get an answer of 400 or more."""
    context = browser.new_context(**{"reduced_motion": "reduce", **options})
    context.set_default_timeout(MILLISECONDS)
    said = list[str]()
    context.on("console", lambda message: said.append(message.text))
    context.on("weberror", lambda error: said.append(str(error.error)))
    context.on("response", lambda got: said.append(f"{got.status} {got.url}") if got.status >= 400 else None)
    yield context
    context.close()
    assert said == [], said


def is_live(response: Any) -> bool:
    """Whether a page brought itself up to date."""
    return bool(response.request.headers.get("hx-request") == "true")
