"""Half of a character, which JSON may have (an API that cuts a text in the middle of an emoji), and Postgres,
Arrow and UTF-8 have not: the row is kept out, and the others arrive.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.apis import Reply, serving
from pipeline.piping import Bench
from trunq.errors import InvalidPipeline

MOVED = {"format": "table", "table": "moved"}
ROWS = b'{"id": 1, "word": "a\\ud83d"}', b'{"id": 2, "word": "\\ud83d\\ude00"}'


def halves(_context: Any) -> Iterator[dict[str, Any]]:
    """A source whose text ends in the middle of a character."""
    yield {"id": 1, "word": "a\ud83d"}


def check(bench: Bench, name: str) -> None:
    """One row arrives, the other one is kept out, and comes again with a replacement."""
    done = bench.run(name)
    assert (done["rows_out"], done["rows_bad"]) == (1, 1)
    assert bench.sql("select id, word from moved") == [(2, "\U0001f600")]
    [kept] = bench.client.list_quarantine(name)
    assert kept.reasons == ["half of a character"]
    assert kept.content == {"id": 1, "word": "a\ufffd"}
    bench.execute(bench.client.resend_quarantine(name))
    assert bench.sql("select id, word from moved where id = 1") == [(1, "a\ufffd")]


@pytest.mark.slow
def test_of_an_api_the_row_is_kept_out_and_others_arrive(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with serving(lambda _: Reply(b"[" + b", ".join(ROWS) + b"]")) as api:
        check(bench, bench.make({"format": "http", "url": f"{api.url}/rows"}, MOVED))


@pytest.mark.slow
def test_of_a_file_the_row_is_kept_out_and_others_arrive(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "rows.json").write_bytes(b"\n".join(ROWS))
    source = {"format": "json", "path": str(tmp_path / "*.json"), "settled": "0 seconds"}
    check(bench, bench.make(source, MOVED))


@pytest.mark.slow
def test_of_a_function_the_error_names_it_and_a_way_out(bench: Bench) -> None:
    name = bench.make({"format": "python", "function": "pipeline.test_half:halves"}, MOVED)
    with pytest.raises(
        InvalidPipeline, match=r"pipeline\.test_half:halves gave a text .* 'a\\ud83d'"
    ) as told:
        bench.run(name)
    assert "surrogatepass" in str(told.value.hint)
