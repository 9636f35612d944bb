"""Pipelines from the shell."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

import trunq as trunq_package
from cli.pipeline.pipelining import FILE
from shelling import Shell, start
from trunq import Client


def test_a_run_that_is_put_off_says_so_at_once_and_is_left_to_a_runner(
    trunq: Shell, client: Client, tmp_path: Path
) -> None:
    with client.transaction() as connection:
        connection.execute("create table source_acme (id int); insert into source_acme values (1)")
    path = tmp_path / "orders.toml"
    written = """[pipeline.orders]
message = {customer = "text"}
per = "message.customer"
source = {format = "table", table = "source_${message.customer}"}
sink = {format = "table", table = "moved"}
limits = {rows_a_day = 1}
"""
    path.write_text(written)
    trunq("pipeline", "create", str(path))
    ask = ("pipeline", "run", "orders", "--message", '{"customer": "acme"}')
    assert "1 row written" in trunq(*ask).said
    with client.transaction() as connection:
        connection.execute("insert into source_acme values (2)")
    put_off = trunq(*ask)
    assert put_off.status != 0
    assert (
        'Pipeline "orders/acme" has used its limits.rows_a_day (1): no run of it begins before'
        in " ".join(put_off.said.split())
    )
    # What it says: a runner does it, once the limits let it.
    path.write_text(written.replace("rows_a_day = 1", "rows_a_day = 9"))
    trunq("pipeline", "create", str(path))
    assert "1 row written" in trunq(*ask).said

    trunq("pipeline", "pause", "orders")
    assert trunq("pipeline", "run", "orders/acme").said.endswith("trunq pipeline resume orders")
    trunq("pipeline", "pause", "orders/acme")
    trunq("pipeline", "resume", "orders")
    assert "trunq pipeline resume orders/acme" in trunq("pipeline", "run", "orders/acme").said
    trunq("pipeline", "resume", "orders/acme")
    assert trunq("pipeline", "run", "orders/acme").status == 0


def test_a_pipeline_is_made_run_shown_and_dropped(trunq: Shell, client: Client, file: str) -> None:
    assert trunq("pipeline", "create", file, "--json").json == [
        {"pipeline": "flights", "created": True, "changed": False, "trigger": None}
    ]
    done = trunq("pipeline", "run", "flights", "--json").json
    assert (done["state"], done["run"]["rows_out"]) == ("done", 2)
    assert "Pipeline flights had nothing new." in trunq("pipeline", "run", "flights").said
    shown = trunq("pipeline", "show", "flights").said
    assert "source table source" in shown
    assert "sink table moved, upsert" in shown
    assert "flights table source table moved" in trunq("pipeline", "list").said
    assert trunq("pipeline", "show", "flights", "--json").json["runs"][0]["outcome"] == "done"
    assert "flights 1: done, 2 rows" in trunq("pipeline", "show", "flights", "--tree").said
    assert trunq("pipeline", "list", "--json").json[0]["runs"] == 1
    assert trunq("pipeline", "pause", "flights", "--for", "1h", "--json").json["paused"]
    assert "goes on" in trunq("pipeline", "resume", "flights").said
    asked = trunq("pipeline", "backfill", "flights", "--column", "id", "--from", "1", "--to", "2", "--json")
    assert asked.json["message_id"] > 0
    assert not trunq("pipeline", "cancel", "flights", "--json").json["cancelled"]
    assert "snapshot" in trunq("pipeline", "state", "flights", "--json").json["state"]
    assert trunq("pipeline", "state", "flights", "--reset", "--yes", "--json").json["state"] == {}
    assert trunq("pipeline", "quarantine", "flights", "--json").json["rows"] == []
    assert trunq("pipeline", "quarantine", "flights", "--purge", "--yes", "--json").json["purged"] == 0
    assert trunq("pipeline", "drop", "flights", "--yes", "--json").json["dropped"]
    assert client.list_pipelines() == []


def test_the_instances_of_a_pipeline_are_listed_and_each_has_the_name_of_a_pipeline(
    trunq: Shell, client: Client, tmp_path: Path
) -> None:
    with client.transaction() as connection:
        connection.execute("create table source_acme (id int); insert into source_acme values (1), (2)")
    path = tmp_path / "orders.toml"
    path.write_text("""[pipeline.orders]
message = {customer = "text"}
per = "message.customer"
source = {format = "table", table = "source_${message.customer}"}
sink = {format = "table", table = "moved"}
limits = {rows_a_day = 1}
max_bad = 1
checks = [{name = "too large", column = "id", between = [1, 2]}]
""")
    with client.transaction() as connection:
        connection.execute("insert into source_acme values (7)")
    made = trunq("pipeline", "create", str(path)).said
    assert """Run it with: trunq pipeline run orders --message '{"customer": "..."}'""" in " ".join(
        made.split()
    )
    assert "begins one" in trunq("pipeline", "instances", "orders").said
    done = trunq(
        "pipeline", "run", "orders", "--message", '{"customer": "acme"}', "--priority", "1", "--json"
    )
    assert done.json["run"]["pipeline"] == "orders/acme"
    assert "orders/acme" in trunq("pipeline", "instances", "orders").said
    assert trunq("pipeline", "instances", "orders", "--json").json[0]["rows_today"] == 2
    shown_all = trunq("pipeline", "show", "orders").said
    assert "trunq pipeline instances orders" in shown_all
    assert "orders/acme" in shown_all
    assert "snapshot" in trunq("pipeline", "state", "orders/acme", "--json").json["state"]
    for more in ([], ["--json"], ["--reset", "--yes"]):
        refused = trunq("pipeline", "state", "orders", *more)
        assert refused.status == 1
        assert "Pipeline orders has no state of its own" in refused.said
        assert "trunq pipeline instances orders" in refused.said
    assert "state" not in trunq("pipeline", "show", "orders").said.split("begun")[0]
    kept = trunq("pipeline", "quarantine", "orders").said
    assert "pipeline quarantine id run reasons content" in kept
    assert "source table source_acme" in trunq("pipeline", "show", "orders/acme").said
    assert "orders/acme 1 1 too large" in kept
    assert "orders/acme" not in trunq("pipeline", "quarantine", "orders/acme").said
    assert trunq("pipeline", "quarantine", "orders", "--json").json["rows"][0]["pipeline"] == "orders/acme"
    with client.transaction() as connection:
        connection.execute(
            "update trunq.pipeline set put_off_until = now() + interval '1 hour', put_off_for = 'rows_a_day'"
        )
    shown = trunq("pipeline", "show", "orders/acme", "--json").json
    assert "has used its limits.rows_a_day of today" in shown["warnings"][0]["warning"]
    assert trunq("pipeline", "drop", "orders/acme", "--yes", "--json").json["dropped"]
    assert trunq("pipeline", "instances", "orders", "--json").json == []
    failed = trunq("pipeline", "run", "orders", "--message", '{"customer": "globex"}')
    again = """so does: trunq pipeline run orders --message '{"customer": "globex"}'"""
    assert again in " ".join(failed.said.split())


def test_a_run_that_cannot_succeed_is_cancelled_or_skipped(
    trunq: Shell, client: Client, file: str, tmp_path: Path
) -> None:
    trunq("pipeline", "create", file)
    with client.transaction() as connection:
        connection.execute("create table moved (id smallint primary key)")
    for _ in range(3):
        assert "smallint" in trunq("pipeline", "run", "flights").said
    said = trunq("status").said
    assert "trunq pipeline skip flights" in " ".join(said.split())
    assert trunq("pipeline", "cancel", "flights", "--json").json == {
        "pipeline": "flights", "cancelled": True, "ended": True, "paused": False,
    }  # fmt: skip
    assert "smallint" in trunq("pipeline", "run", "flights").said
    done = trunq("pipeline", "skip", "flights")
    assert done.status == 1
    assert "say --yes" in done.said
    said = " ".join(trunq("pipeline", "skip", "flights", "--yes").said.split())
    assert "Run 2 of pipeline flights is given up" in said
    assert "rows of source that were committed before the snapshot" in said
    assert "has no open run" in trunq("pipeline", "skip", "flights").said
    with client.transaction() as connection:
        connection.execute("alter table moved alter id type int; insert into source values (3)")
    # A message that waited may have had the run that this one asks for.
    assert trunq("pipeline", "run", "flights").status == 0
    with client.transaction() as connection:
        assert connection.execute("select id from moved").fetchall() == [(3,)]
    assert "nothing to accept" in trunq("pipeline", "accept", "flights", "--yes").said
    with client.transaction() as connection:
        connection.execute("insert into source values (4); update trunq_sink.mark set number = 9")
    assert "trunq pipeline accept flights" in " ".join(trunq("pipeline", "run", "flights").said.split())
    assert trunq("pipeline", "accept", "flights", "--yes", "--json").json["sink_holds"] == 9
    assert trunq("pipeline", "run", "flights").status == 0
    assert client.list_runs("flights")[0].number == 10


def test_a_backfill_in_shares_is_worked_on_shown_and_run_again(
    trunq: Shell, client: Client, file: str
) -> None:
    trunq("pipeline", "create", file)
    trunq("pipeline", "run", "flights")
    with client.transaction() as connection:
        connection.execute("delete from moved; alter table moved add check (id > 1)")
    ids = ("--column", "id", "--from", "1", "--to", "3")
    done = trunq("pipeline", "backfill", "flights", *ids, "--every", "1", "--work")
    assert done.status == 1
    said = re.search(
        r"1 of 2 shares done, 1 failed.*See why: (trunq pipeline shares flights (\d+))", done.said
    )
    assert said is not None, done.said
    shares = trunq(*said[1].split()[1:]).said
    assert "moved_id_check" in shares
    assert "1 failed" in trunq("pipeline", "show", "flights").said
    warned = trunq("pipeline", "show", "flights", "--json").json["warnings"][0]
    again = re.search(r"again: trunq (pipeline shares flights \d+ --rerun)", warned["hint"])
    assert again is not None
    with client.transaction() as connection:
        connection.execute("alter table moved drop constraint moved_id_check")
    assert "1 share of backfill" in trunq(*again[1].split()).said
    assert trunq("pipeline", "shares", "flights", "--rerun", "--share", "2", "--json").json["again"] == 1
    trunq("pipeline", "run", "flights")
    found = trunq("pipeline", "shares", "flights", "--json").json
    assert (found["outcome"], [each["state"] for each in found["shares"]]) == ("done", ["done", "done"])
    asked = trunq("pipeline", "backfill", "flights", *ids, "--every", "1", "--at-once", "2", "--json").json
    assert asked["running"] == 2
    assert trunq("pipeline", "cancel", "flights", "--backfill", str(asked["message_id"]), "--json").json[
        "ended"
    ]
    assert "0 of 2 shares done, cancelled" in trunq("pipeline", "show", "flights").said
    assert "give --every as well" in trunq("pipeline", "backfill", "flights", *ids, "--at-once", "2").said
    assert "--share goes with --rerun" in trunq("pipeline", "shares", "flights", "--share", "2").said
    assert "has no backfill 7" in trunq("pipeline", "shares", "flights", "7").said


def test_a_plan_says_what_a_run_would_do_and_the_run_does_that(
    trunq: Shell, client: Client, file: str
) -> None:
    trunq("pipeline", "create", file)
    said = trunq("pipeline", "plan", "flights").said
    assert (
        "reads all rows of source rows 2 engine process: about 8,192 bytes"
        " (pipeline.spark_from_bytes is 200,000,000)"
        " columns the sink is made with id integer" in said
    )
    assert said.endswith("Nothing is known that would stop it.")
    planned = trunq("pipeline", "plan", "flights", "--json").json
    assert (planned["rows"], planned["added"], planned["refused"]) == (2, {"id": "integer"}, [])
    assert trunq("pipeline", "run", "flights", "--json").json["run"]["rows_out"] == planned["rows"]
    assert "reads nothing is new" in trunq("pipeline", "plan", "flights").said
    with client.transaction() as connection:
        connection.execute("drop table moved; create table moved (id int)")
    said = trunq("pipeline", "plan", "flights").said
    assert "refused pipeline flights: moved has no unique index over id" in said
    assert "create unique index on moved (id)" in said
    with client.transaction() as connection:
        connection.execute("create unique index on moved (id)")
    assert "Nothing is known" in trunq("pipeline", "plan", "flights").said
    assert 'no pipeline "nothing"' in trunq("pipeline", "plan", "nothing").said


def test_what_this_machine_lacks_for_a_pipeline_is_said_when_it_is_made(
    trunq: Shell, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lake.toml"
    path.write_text(
        f"""[pipeline.lake]
source = {{format = "csv", path = "{tmp_path}/nowhere/*.csv"}}
sql = ["select * from input"]
sink = {{format = "delta", path = "lake"}}
"""
    )
    for module in ("pyspark", "deltalake"):
        monkeypatch.setitem(sys.modules, module, None)
    said = " ".join(trunq("pipeline", "create", str(path)).said.split())
    for words in ("needs pyspark", "needs deltalake", f"reads from {tmp_path}/nowhere, which is not here"):
        assert f"Pipeline lake: it {words}" in said
    assert [row.pipeline for row in client.list_pipelines()] == ["lake"]


def test_mistakes_are_said_in_a_sentence(trunq: Shell, client: Client, file: str) -> None:
    Path(file).write_text(FILE.replace("table =", "tabel ="))
    done = trunq("pipeline", "create", file)
    assert done.status == 1
    assert "there is no source.tabel; is it table?" in done.said
    for verb in (["show"], ["run"], ["state"], ["drop", "--yes"], ["cancel"], ["quarantine"]):
        done = trunq("pipeline", verb[0], "nothing", *verb[1:])
        assert done.status == 1
        assert 'here is no pipeline "nothing"' in done.said
        assert "trunq pipeline list" in done.said


def test_a_file_that_is_none_is_named_as_it_is_written(
    trunq: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert (
        "he file flights.toml cannot be read: No such file"
        in trunq("pipeline", "create", "flights.toml").said
    )
    Path("flights.toml").write_text("pipeline = 3")
    assert "he file flights.toml has no pipeline" in trunq("pipeline", "create", "flights.toml").said


def test_a_run_that_fails_ends_the_command_with_a_sentence(
    trunq: Shell, client: Client, file: str, caplog: pytest.LogCaptureFixture
) -> None:
    Path(file).write_text(FILE.replace('"source"', '"nowhere"'))
    trunq("pipeline", "create", file)
    done = trunq("pipeline", "run", "flights")
    assert done.status == 1
    assert "there is no table nowhere in its source" in done.said
    assert "trunq pipeline run flights" in done.said
    assert "Traceback" not in done.said + caplog.text
    with client.transaction() as connection:
        connection.execute("create table nowhere (id int); insert into nowhere values (1)")
    assert trunq("pipeline", "run", "flights", "--json").json["run"]["rows_out"] == 1


def test_triggers_are_said_and_shown(trunq: Shell, client: Client, file: str) -> None:
    Path(file).write_text(f'{FILE}trigger = {{cron = "30 3 * * *", time_zone = "Europe/Prague"}}\n')
    assert "A runner starts it: cron 30 3 * * * (Europe/Prague)." in trunq("pipeline", "create", file).said
    assert "next due" in trunq("pipeline", "show", "flights").said
    assert trunq("pipeline", "list", "--json").json[0]["trigger"]["cron"] == "30 3 * * *"
    Path(file).write_text(f"{FILE}trigger = {{continuous = true}}\n")
    assert "runs it as soon as its source has something new." in trunq("pipeline", "create", file).said
    assert "It is paused" in trunq("pipeline", "cancel", "flights").said


def test_an_open_run_says_how_far_it_is(trunq: Shell, client: Client, file: str) -> None:
    trunq("pipeline", "create", file)
    trunq("pipeline", "run", "flights", "--ask")
    progress = '{"rows_in": 1200, "rows_out": 1000, "bytes": 2500000, "tasks": 8, "done": 3}'
    with client.transaction() as connection:
        connection.execute(
            "insert into trunq.pipeline_run (pipeline_id, number, message_id, chain, slice, snapshot,"
            " begun_at, progress) select pipeline_id, 1, 1, gen_random_uuid(), '{}', '1:1:', now(), %s"
            " from trunq.pipeline",
            [progress],
        )
    said = trunq("pipeline", "show", "flights").said
    assert "1,200 rows in, 1,000 out, 2.5 MB, 3 of 8 tasks done" in said


def test_a_run_does_not_wait_for_another_pipeline_that_is_retried(
    trunq: Shell, client: Client, file: str
) -> None:
    client.create_pipeline(
        "broken",
        {"source": {"format": "table", "table": "gone"}, "sink": {"format": "table", "table": "x"}},
    )
    client.create_pipeline(
        "after",
        {"source": {"format": "table", "table": "moved"}, "sink": {"format": "table", "table": "y"}},
    )
    Path(file).write_text(FILE + 'then = ["after"]\n')
    trunq("pipeline", "create", file)
    assert trunq("pipeline", "run", "broken").status == 1
    done = trunq("pipeline", "run", "flights", "--json").json
    assert done["run"]["rows_out"] == 2
    assert client.list_runs("after")[0].outcome == "done", "what runs after it is over, too"
    # Its back-off may be over by now.
    assert [row.ready + row.delayed for row in client.status("pipelines")] == [1]


def test_without_the_extra_it_is_said_before_anything_is_asked_for(
    trunq: Shell, client: Client, file: str, tmp_path: Path
) -> None:
    trunq("pipeline", "create", file)
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "pyarrow.py").write_text("raise ModuleNotFoundError('no pyarrow', name='pyarrow')\n")
    paths = f"{hidden}:{Path(trunq_package.__file__).parents[1]}"
    process = start("pipeline", "run", "flights", directory=tmp_path, PYTHONPATH=paths)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (1, "")
    assert "Pipelines need pyarrow: pip install 'trunq[pipeline]'" in " ".join(err.split())
    assert client.list_messages("pipelines") == []


def test_webhooks_are_not_served_from_no_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRUNQ_DSN", raising=False)
    process = start("webhook", "serve", "--port", "0", directory=tmp_path, PGHOST=str(tmp_path))
    _, err = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "No database is given" in err
