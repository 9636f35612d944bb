"""What the shell tells of a pipeline once: that nothing changed, why a run failed, and where it stands."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from cli.pipeline.pipelining import FILE
from shelling import Shell
from trunq import Client


def test_a_pipeline_that_is_given_again_as_it_is_is_unchanged(
    trunq: Shell, client: Client, file: str
) -> None:
    def row() -> object:
        with client.transaction() as connection:
            return connection.execute("select p.xmin, p.ctid from trunq.pipeline p").fetchone()

    trunq("pipeline", "create", file)
    before = row()
    assert "Pipeline flights unchanged. Run it with" in trunq("pipeline", "create", file).said
    assert row() == before
    assert trunq("pipeline", "create", file, "--json").json == [
        {"pipeline": "flights", "created": False, "changed": False, "trigger": None}
    ]
    Path(file).write_text(f"{FILE}max_bad = 0.5\n")
    assert "Pipeline flights changed." in trunq("pipeline", "create", file).said


def test_what_a_trigger_needs_comes_back_with_a_pipeline_that_is_unchanged(
    trunq: Shell, client: Client, file: str
) -> None:
    client.create_queue("asks")
    Path(file).write_text(f'{FILE}trigger = {{on = "message", queue = "asks"}}\n')
    trunq("pipeline", "create", file)
    client.unsubscribe("asks", "trigger_flights")
    assert "Pipeline flights unchanged." in trunq("pipeline", "create", file).said
    assert [row.subscription for row in client.list_subscriptions("asks")] == ["default", "trigger_flights"]


def test_why_a_run_failed_is_said_once_with_what_to_do(
    trunq: Shell, client: Client, file: str, caplog: pytest.LogCaptureFixture
) -> None:
    with client.transaction() as connection:
        connection.execute("insert into source values (null)")
    trunq("pipeline", "create", file)
    for _ in range(2):
        done = trunq("pipeline", "run", "flights")
        assert done.status == 1
        assert (done.said + caplog.text).count("is null in a row") == 1
        assert "Keep such rows out by a check" in done.said
        assert "After a mistake in its file: trunq pipeline create FILE." in done.said
        assert "so does: trunq pipeline run flights" in done.said
        caplog.clear()
    shown = trunq("pipeline", "show", "flights").out
    # In full, and shortened in the table of runs.
    assert shown.count("is null in a row") == 2


def test_of_a_function_that_fails_it_is_said_once_where(
    trunq: Shell, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "failing_once.py").write_text("def work(rows):\n    raise ValueError('no good')\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    Path(file).write_text(f'{FILE}function = "failing_once:work"\n')
    trunq("pipeline", "create", file)
    done = trunq("pipeline", "run", "flights")
    assert done.status == 1
    assert (done.said + caplog.text).count("ValueError: no good") == 1
    assert re.search(r"The run of pipeline flights failed. Traceback .*failing_once.py", done.said)


def test_where_a_pipeline_stands_is_shown_in_words(trunq: Shell, client: Client, tmp_path: Path) -> None:
    with client.transaction() as connection:
        connection.execute(
            "create table source_acme (id int, day date); insert into source_acme values (1, '2030-01-01')"
        )
    client.create_queue("told")
    client.publish("told", {"id": 1})
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.csv").write_text("id\n1\n")
    path = tmp_path / "several.toml"
    path.write_text(f"""[pipeline.orders]
message = {{customer = "text"}}
per = "message.customer"
source = {{format = "table", table = "source_${{message.customer}}"}}
sink = {{format = "table", table = "moved"}}
[pipeline.days]
source = {{format = "table", table = "source_acme", cursor = "day", lag = "1 day"}}
sink = {{format = "table", table = "days", mode = "upsert", key = ["id"]}}
[pipeline.whole]
source = {{format = "table", table = "source_acme", changes = "all"}}
sink = {{format = "table", table = "whole", mode = "replace"}}
[pipeline.told]
source = {{format = "queue", queue = "told"}}
sink = {{format = "table", table = "told"}}
[pipeline.files]
source = {{format = "csv", path = "{tmp_path}/data/*.csv"}}
sink = {{format = "table", table = "files"}}
""")
    made = trunq("pipeline", "create", str(path))
    assert made.status == 0, made.said
    assert "state at the beginning" in trunq("pipeline", "show", "days").said
    since = r", since run 1 of 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d"
    for name, words in {
        "days": r"rows that were committed before transaction [\d,]+ are read, up to day 2030-01-01" + since,
        "told": r"behind tick [\d,]+ of queue told" + since,
        "files": r"the files that were found so far are read" + since,
        "whole": r"each run reads all of source_acme",
    }.items():
        assert trunq("pipeline", "run", name).status == 0
        assert re.search(f"state {words}", trunq("pipeline", "show", name).said)
    trunq("pipeline", "run", "orders", "--message", '{"customer": "acme"}')
    shown = trunq("pipeline", "show", "orders/acme").said
    assert "per message.customer = acme" in shown
    assert re.search(rf"state rows that were committed before transaction [\d,]+ are read{since}", shown)
    raw = trunq("pipeline", "show", "orders/acme", "--json").json["state"]
    assert "snapshot" in raw
    # Set by somebody, it is of no run.
    trunq("pipeline", "state", "told", "--set", '{"tick": 1}', "--yes")
    shown = trunq("pipeline", "show", "told").said
    assert re.search(r"state behind tick 1 of queue told (error|run|$)", shown)


def test_a_backfill_whose_share_is_put_off_ends_the_command_with_the_reason(
    trunq: Shell, client: Client, file: str
) -> None:
    Path(file).write_text(f"{FILE}limits = {{rows_a_day = 3}}\n")
    trunq("pipeline", "create", file)
    trunq("pipeline", "run", "flights")
    ends = ("--column", "id", "--from", "1", "--to", "3", "--every", "1", "--work")
    done = trunq("pipeline", "backfill", "flights", *ends)
    assert done.status == 1
    assert 'pipeline "flights" has used its limits.rows_a_day of today (3): runs of it wait' in done.said
    assert re.search(r"A runner goes on with backfill \d+ then\.", done.said)
    assert client.list_backfills("flights")[0].done == 1
