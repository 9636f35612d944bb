"""A pipeline as data: mistakes are said in a sentence that names the thing, before anything runs."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from trunq.errors import InvalidPipeline
from trunq.pipeline import Pipeline, load
from trunq.pipeline.definition.iso_duration import read_duration, write_duration

TABLE = {"format": "table", "table": "t"}
CHECK = {"name": "a", "holds": "b > 0"}
DELTA = {"format": "delta", "path": "x"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("parts", "words"),
    [
        (
            {"source": TABLE, "sink": {"format": "tabel", "table": "t"}},
            "sink.format is 'tabel'.* is it table",
        ),
        ({"source": {**TABLE, "tabel": 1}, "sink": TABLE}, "there is no source.tabel; is it table"),
        ({"source": TABLE, "sink": TABLE, "chekcs": []}, "there is no chekcs; is it checks"),
        ({"source": TABLE}, "sink is missing"),
        ({"source": "flights", "sink": TABLE}, r"source is 'flights', not a table of keys: source = \{"),
        ({"source": TABLE, "sink": {**TABLE, "table": f"a.{'t' * 64}"}}, "at most 63 bytes"),
        ({"source": {"table": "t"}, "sink": TABLE}, "source.format is missing"),
        ({"source": TABLE, "sink": {"format": "table"}}, "sink.table is missing"),
        ({"source": TABLE, "sink": {**TABLE, "mode": "upsert"}}, r"mode = 'upsert' needs key"),
        ({"source": TABLE, "sink": {**TABLE, "key": ["id"]}}, "for the modes upsert and history"),
        ({"source": {**TABLE, "cursor": "at"}, "sink": TABLE}, "cursor and lag go together"),
        ({"source": TABLE, "sink": TABLE, "checks": [{"name": "a"}]}, "checks.0: holds is missing"),
        ({"source": TABLE, "sink": TABLE, "checks": [{**CHECK, "hold": "b"}]}, "checks.0.hold; is it holds"),
        ({"source": TABLE, "sink": TABLE, "checks": [CHECK, CHECK]}, "two checks have the name 'a'"),
        ({"source": TABLE, "sink": TABLE, "checks": [{**CHECK, "otherwise": "cry"}]}, "checks.0.otherwise"),
        ({"source": TABLE, "sink": TABLE, "checks": [CHECK], "function": "a:b"}, "write it as transform"),
        ({"source": TABLE, "sink": TABLE, "lookups": {"b": DELTA}}, "lookups are for sql and transform"),
        ({"source": TABLE, "sink": TABLE, "lookups": {"input": DELTA}, "sql": ["a"]}, "name of a lookup"),
        (
            {"source": TABLE, "sink": TABLE, "lookups": {"b": {"format": "csv", "pat": "x"}}, "sql": ["a"]},
            "there is no lookups.b.csv.pat; is it path",
        ),
        (
            {"source": TABLE, "sink": TABLE, "sql": ["a"], "lookups": {"b": {**TABLE, "dsn": "password=x"}}},
            "password does not belong",
        ),
        (
            {"source": TABLE, "sink": {**TABLE, "dsn": "postgresql://a:secret@h/d"}},
            "password does not belong",
        ),
        ({"source": {"format": "csv", "path": "x", "settled": "soon"}, "sink": TABLE}, "no length of time"),
        ({"source": TABLE, "sink": TABLE, "function": lambda rows: rows}, "cannot be found by a runner"),
    ],
)
def test_mistakes_are_refused_by_name(parts: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidPipeline, match=f"pipeline p: .*{words}") as caught:
        Pipeline("p", **parts)
    assert ":secret@" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["A", "", "a b", 'a"b', "x" * 49, "1a"])
def test_names_are_short_and_plain(name: str) -> None:
    with pytest.raises(InvalidPipeline, match="cannot be the name"):
        Pipeline(name, source=TABLE, sink=TABLE)


@pytest.mark.slow
def test_variables_are_expanded_when_it_is_run_and_kept_as_they_are_written() -> None:
    made = Pipeline("p", source={**TABLE, "dsn": "${SHOP}"}, sink={**TABLE, "table": "$${NOT}_${T}"})
    assert made.definition == {
        "source": {"format": "table", "dsn": "${SHOP}", "table": "t"},
        "sink": {"format": "table", "table": "$${NOT}_${T}"},
    }
    expanded = made.expanded({"SHOP": "postgresql://a:secret@h/d", "T": "x"})
    assert (expanded.source.dsn, expanded.sink.table) == ("postgresql://a:secret@h/d", "${NOT}_x")  # type: ignore[union-attr]
    with pytest.raises(InvalidPipeline, match=r"names \$\{SHOP\}"):
        made.expanded({})


@pytest.mark.slow
def test_a_file_has_those_first_that_others_run_after_themselves(tmp_path: Path) -> None:
    part = "source = {format = 'table', table = 't'}\nsink = {format = 'table', table = 'u'}\n"
    file = tmp_path / "p.toml"
    file.write_text(f"[pipeline.a]\n{part}then = ['b']\n[pipeline.b]\n{part}")
    assert [each.name for each in load(file)] == ["b", "a"]
    file.write_text(f"[pipeline.a]\n{part}then = ['b']\n[pipeline.b]\n{part}then = ['a']\n")
    with pytest.raises(InvalidPipeline, match="a -> b -> a"):
        load(file)
    for text in ("", "x = 1", "[pipeline", "[pipeline.a]\nsource = 1"):
        file.write_text(text)
        with pytest.raises(InvalidPipeline):
            load(file)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("10 minutes", 600),
        ("1h 30m", 5400), ("1 day and 2 hours", 93600), ("PT10M", 600), ("P1DT2H", 93600),
        ("1.5s", 1.5), ("pt0.25s", 0.25), ("2 weeks, 1 day", 1296000), (90, 90), ("500ms", 0.5),
    ],
)  # fmt: skip
def test_spans_are_read_as_iso_and_as_words(text: Any, seconds: float) -> None:
    span = read_duration(text)
    assert span == timedelta(seconds=seconds)
    assert read_duration(write_duration(span)) == span


@pytest.mark.slow
@pytest.mark.parametrize(
    "text", ["", "P", "PT", "10 10", "ten minutes", "1 month", "P1M", "-5s", -1, True, None]
)
def test_what_is_no_span_is_refused(text: Any) -> None:
    with pytest.raises(ValueError):
        read_duration(text)
