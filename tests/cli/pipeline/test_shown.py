"""What is shown of pipelines in the shell: their parts, runs, plans, compactions and columns."""

from __future__ import annotations

import re
from pathlib import Path

from cli.pipeline.pipelining import FILE
from shelling import Shell
from trunq import Client
from trunq.cli.pipeline.run import answer_words


def test_what_one_sees_is_shown(trunq: Shell, client: Client, file: str, tmp_path: Path) -> None:
    Path(file).write_text(FILE.replace('newest = "id"', 'newest = "at"'))
    with client.transaction() as connection:
        connection.execute(
            "alter table source add at timestamptz; update source set at = '2030-01-01 12:00Z'"
        )
    trunq("pipeline", "create", file)
    assert "freshness" not in trunq("pipeline", "show", "flights").said
    trunq("pipeline", "run", "flights")
    with client.transaction() as connection:
        connection.execute("alter table source add word text; insert into source values (3, now(), 'new')")
    trunq("pipeline", "run", "flights")
    said = trunq("pipeline", "show", "flights").said
    words = " ".join(said.split())
    assert re.search(r"freshness \d+(ms|s|m|h)[^:]* old: the newest at is 20", words)
    assert re.search(
        r"run begun ended outcome engine attempts rows in .* bytes in bytes out source work sink", words
    )
    assert re.search(r"2 20.* done process 1 1 1 0 \d+ B \d+ B \d+\w+ \d+\w+ \d+\w+", words)
    assert re.search(r"2 20\S+ \S+ word added as text", words)
    told = trunq("pipeline", "show", "flights", "--json").json
    assert told["fresh_by"] == "at"
    assert [each["bytes_out"] > 0 for each in told["runs"]] == [True, True]
    assert [each["column_name"] for each in told["schema_changes"]] == ["word"]
    assert told["reasons"] == []
    listed = trunq("pipeline", "list").said
    assert "age" in listed
    assert "fresh by" in listed
    assert isinstance(trunq("pipeline", "list", "--json").json[0]["age"], float)


def test_what_starts_a_new_pipeline_is_said_with_what_is_left_to_do(
    trunq: Shell, client: Client, tmp_path: Path
) -> None:
    file = tmp_path / "triggers.toml"
    source = 'source = { format = "table", table = "source" }'
    triggers = {"often": 'every = "10 minutes"', "follow": "continuous = true", "hooked": 'on = "webhook"'}
    written = "[pipeline.{0}]\n{1}\nsink = {{ format = 'table', table = '{0}' }}\ntrigger = {{ {2} }}\n"
    file.write_text("".join(written.format(name, source, starts) for name, starts in triggers.items()))
    said = " ".join(trunq("pipeline", "create", str(file)).said.split())
    assert "Pipeline often created. A runner starts it: every 10m." in said
    assert "Pipeline follow created. A runner runs it as soon as its source has something new." in said
    made = "trunq webhook create hooked pipelines --kind hooked --secret SECRET_OF_HOOKED"
    assert made.replace("SECRET_OF_HOOKED", "VARIABLE") in said
    assert trunq(*made.split()[1:]).status == 0, "what it says can be done"


def test_a_message_that_got_the_answer_of_another_run_says_which_that_was() -> None:
    # Which of two messages begins the run is chance.
    done = {"number": 7, "backfill": False, "outcome": "done", "rows_in": 3, "rows_out": 2, "rows_bad": 1}
    assert answer_words(done) == (
        "got the answer of run 7, which began for another message: 2 rows written, 1 quarantined."
    )
    assert answer_words({"outcome": "nothing new"}) == "had nothing new."
    assert answer_words({"outcome": "asked", "instances": 2}).startswith("asked for runs of 2 instances.")


def test_a_plan_does_not_say_that_nothing_is_wrong_where_the_newest_attempt_failed(
    trunq: Shell, client: Client, file: str
) -> None:
    checked = FILE + 'checks = [{ column = "id", between = [1, 1], otherwise = "fail" }]\n'
    Path(file).write_text(checked)
    trunq("pipeline", "create", file)
    planned = trunq("pipeline", "plan", "flights").said
    assert "the sink is made with id int" in planned
    assert "added" not in planned, "all columns of a sink that is made are new"
    assert "Nothing is known that would stop it." in planned
    assert trunq("pipeline", "run", "flights").status == 1
    planned = trunq("pipeline", "plan", "flights").said
    assert "its newest attempt failed" in planned
    assert "What made its newest attempt fail may stop it again." in planned
    assert "Nothing is known" not in planned


def test_many_tables_are_looked_for_listed_shown_and_planned(
    trunq: Shell, client: Client, tmp_path: Path
) -> None:
    with client.transaction() as connection:
        connection.execute(
            b"create schema shop; create schema copy; create table shop.orders (id int primary key);"
            b" create table shop.keyless (id int); insert into shop.orders values (1), (2)"
        )
    file = tmp_path / "shop.toml"
    file.write_text(
        '[pipeline.shop]\nsource = { format = "table", tables = "shop.*" }\n'
        'sink = { format = "table", table = "copy.${table}", mode = "upsert" }\n'
    )
    trunq("pipeline", "create", str(file))
    assert (
        "tables of shop.*; a run looks for them (trunq pipeline run shop)"
        in trunq("pipeline", "show", "shop").said
    )
    planned = trunq("pipeline", "plan", "shop").said
    assert "reads 2 tables, 2 of them new" in planned
    assert "The next run of pipeline shop/shop.orders reads all rows of shop.orders rows 2" in planned
    assert "refused it cannot be read: it has no primary key" in planned
    said = trunq("pipeline", "run", "shop").said
    assert "looked for tables, and asked for a run of each. See: trunq pipeline instances shop" in said
    listed = trunq("pipeline", "instances", "shop").said
    assert "shop/shop.orders" in listed
    shown = trunq("pipeline", "show", "shop").said
    assert "tables 1 of shop.*, 1 more cannot be read, or are gone (trunq pipeline instances shop)" in shown
    assert 'warning pipeline "shop/shop.keyless" stands still: it has no primary key' in shown
    alone = trunq("pipeline", "run", "shop/shop.orders").said
    assert "had nothing new" in alone


def test_a_table_is_compacted_at_once_and_what_became_of_it_is_shown(
    trunq: Shell, client: Client, tmp_path: Path
) -> None:
    with client.transaction() as connection:
        connection.execute("create table source (id int)")
    written = f"""[pipeline.lake]
source = {{format = "table", table = "source"}}
sink = {{format = "delta", path = "{tmp_path}/lake"}}

[pipeline.copy]
source = {{format = "table", table = "source"}}
sink = {{format = "table", table = "moved"}}
"""
    (tmp_path / "lake.toml").write_text(written)
    trunq("pipeline", "create", str(tmp_path / "lake.toml"))
    assert "compaction" not in trunq("pipeline", "show", "lake").said
    for id in range(2):
        with client.transaction() as connection:
            connection.execute("insert into source values (%s)", (id,))
        trunq("pipeline", "run", "lake")
    said = trunq("pipeline", "compact", "lake").said
    assert "Compaction of pipeline lake: 2 files became 1, no old ones to delete." in said
    assert "2 files became 1, no old ones to delete, at " in trunq("pipeline", "show", "lake").said
    said = trunq("pipeline", "compact", "lake").said
    assert "Compaction of pipeline lake: no small files to merge, no old ones to delete." in said
    done = {"files_merged": 0, "files_made": 0, "files_deleted": 0}
    assert trunq("pipeline", "compact", "lake", "--json").json == done
    assert trunq("pipeline", "show", "lake", "--json").json["compaction"]["error"] is None
    with client.transaction() as connection:
        connection.execute("select trunq._begin_compaction('lake')")
    assert "Another process compacts the table of pipeline lake." in trunq("pipeline", "compact", "lake").said
    refused = trunq("pipeline", "compact", "copy")
    assert refused.status
    assert "there is nothing to compact" in refused.said


def test_each_version_of_a_schema_is_shown_with_the_run_that_brought_it(
    trunq: Shell, client: Client, tmp_path: Path
) -> None:
    with client.transaction() as connection:
        connection.execute("create table source (id int); insert into source values (1)")
    written = """[pipeline.copy]
source = {format = "table", table = "source", changes = "all"}
sink = {format = "table", table = "moved"}
evolve = {types = "widen", rename = {id = "number"}}
"""
    (tmp_path / "copy.toml").write_text(written)
    trunq("pipeline", "create", str(tmp_path / "copy.toml"))
    assert "No run has brought rows" in trunq("pipeline", "schema", "copy").said
    trunq("pipeline", "run", "copy")
    with client.transaction() as connection:
        connection.execute("alter table source rename id to number")
        connection.execute("alter table source alter number type bigint")
    trunq("pipeline", "run", "copy")
    said = trunq("pipeline", "schema", "copy").said
    for line in ("2 number bigint new 2 ", "2 id renamed 2 ", "1 id integer new 1 "):
        assert line in said
    newest = trunq("pipeline", "schema", "copy", "--json").json[0]
    with client.transaction() as connection:
        connection.execute("alter table source alter number type numeric")
    trunq("pipeline", "run", "copy")
    assert "3 number numeric was bigint 3 " in trunq("pipeline", "schema", "copy", "--limit", "1").said
    assert (newest["columns"], newest["changed"]) == ({"number": "bigint"}, {"id": None, "number": "bigint"})
    assert "renamed" in trunq("pipeline", "show", "copy").said
