"""The pages whose programs start a Spark: followed like the others, in one Java process."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from docs.page import Reader
from docs.program import WITH_SPARK, Programs, starting

DOCS = Path(__file__).parents[2] / "docs"

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    with starting(tmp_path_factory.mktemp("pages")) as started:
        yield started


@pytest.fixture
def folder(programs: Programs, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of all these pages, empty again for each."""
    for each in programs.folder.iterdir():
        if each.is_dir():
            shutil.rmtree(each)
        else:
            each.unlink()
    monkeypatch.chdir(programs.folder)
    return programs.folder


@pytest.mark.slow
@pytest.mark.parametrize("page", [next(DOCS.rglob(name)) for name in WITH_SPARK], ids=lambda page: page.stem)
def test_a_page_can_be_followed_from_top_to_bottom(
    page: Path,
    folder: Path,
    programs: Programs,
    connection: psycopg.Connection[Any],
    environment: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.syspath_prepend(folder)
    assert Reader(page, folder, connection, environment, programs).follow() > 0
