"""The pages are a site, which has all of them, and loads nothing from elsewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_site_has_every_page_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    built = tmp_path / "site"
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", DOCS, built],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    pages = {page.relative_to(DOCS).with_suffix(".html") for page in DOCS.rglob("*.md")}
    assert {page for page in pages if not (built / page).is_file()} == set()
    menu = (built / "README.html").read_text()
    for caption in ("Tutorials", "How-to", "Reference", "Explanation"):
        assert f'<span class="caption-text">{caption}</span>' in menu
    for page in built.rglob("*.html"):
        text = page.read_text()
        assert re.findall(r"<(?:script|link|img)[^>]+(?:src|href)=\"(?:https?:)?//[^\"]+", text) == [], page
    assert (built / "searchindex.js").is_file()
