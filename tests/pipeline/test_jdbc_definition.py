"""What of `format = "jdbc"` is refused before anything runs, and how jars and drivers are told of."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jars import JARS, POSTGRES
from pipeline.databases import ENVIRONMENT
from pipeline.piping import Bench
from trunq import settings
from trunq.errors import InvalidPipeline
from trunq.pipeline import Pipeline
from trunq.pipeline.definition.jdbc import place_of
from trunq.pipeline.definition.part import is_expanded
from trunq.pipeline.jdbc.driver import properties_of, url_of
from trunq.pipeline.redact import redact
from trunq.spark.errors import SparkError
from trunq.spark.launch.session import _jars

PLACE = {"format": "jdbc", "url": "jdbc:mariadb://host/shop", "user": "u", "password": "${SHOP}"}
SOURCE = {**PLACE, "table": "orders"}
TABLE = {"format": "table", "table": "moved"}

REFUSED: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any], str]] = [
    ({**SOURCE, "query": "select 1"}, TABLE, {}, "give table, or query: one of them"),
    (PLACE, TABLE, {}, "give table, or query: one of them"),
    ({**SOURCE, "password": "secret"}, TABLE, {}, "write password = '${NAME}'"),
    ({**SOURCE, "url": "jdbc:mariadb://u:secret@host/shop"}, TABLE, {}, "write password = '${NAME}'"),
    ({**SOURCE, "url": "jdbc:mariadb://host/shop?password=secret"}, TABLE, {}, "write password = '${NAME}'"),
    (
        {**SOURCE, "url": "jdbc:oracle:thin:scott/secret@//host:1521/x"},
        TABLE,
        {},
        "write password = '${NAME}'",
    ),
    ({**SOURCE, "url": "jdbc:db2://host:50000/x:password=secret;"}, TABLE, {}, "write password = '${NAME}'"),
    ({**SOURCE, "url": "jdbc:postgresql://h/x?sslpassword=secret"}, TABLE, {}, "write password = '${NAME}'"),
    ({**SOURCE, "properties": {"trustStorePassword": "x"}}, TABLE, {}, "looks like a secret"),
    ({**SOURCE, "properties": {"user": "x"}}, TABLE, {}, "properties has user"),
    ({**SOURCE, "url": "mariadb://host"}, TABLE, {}, "is no URL of JDBC"),
    ({**SOURCE, "url": "jdbc:sqlite:/x"}, TABLE, {}, "no driver is known for jdbc:sqlite: write driver = "),
    ({**SOURCE, "lag": "1 hour"}, TABLE, {}, "lag goes with cursor"),
    ({**SOURCE, "cursor": "at", "lag": "0 s"}, TABLE, {}, "lag is more than nothing"),
    (
        {**SOURCE, "cursor": "at", "lag": "1 h"},
        TABLE,
        {},
        "lag reads rows again, and mode = 'append' would have",
    ),
    ({**SOURCE, "cursor": "at"}, {**TABLE, "mode": "replace"}, {}, "mode = 'replace' would drop the rest"),
    (SOURCE, TABLE, {"engine": "process"}, "which format = 'jdbc' needs: leave it out"),
    (SOURCE, TABLE, {"function": "m:f"}, "write it as transform, which is given a DataFrame"),
    (SOURCE, TABLE, {"trigger": {"continuous": True}}, "only a run tells whether there is something new"),
    (TABLE, {**SOURCE, "mode": "upsert"}, {}, "mode = 'upsert' needs key = ['...']"),
    (TABLE, {**SOURCE, "key": ["id"]}, {}, "key and newest are for mode = 'upsert'"),
    (TABLE, {**SOURCE, "url": "jdbc:oracle:thin:@h"}, {}, "jdbc:oracle can be read alone"),
    (TABLE, SOURCE, {"evolve": "widen"}, "alter table ... modify column n bigint not null"),
]


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_what_cannot_be_is_refused_where_it_is_made(number: int) -> None:
    source, sink, more, why = REFUSED[number]
    with pytest.raises(InvalidPipeline) as caught:
        Pipeline("shop", source=source, sink=sink, **more)
    assert why in caught.value.message
    assert "secret" not in caught.value.message.replace("a secret", "")


def test_spark_is_given_a_name_of_mariadb_that_it_knows() -> None:
    source: Any = Pipeline("shop", source=SOURCE, sink=TABLE).source
    assert url_of(source) == (
        "jdbc:mysql://host/shop?permitMysqlScheme=true&sessionVariables=time_zone='+00:00'"
    )
    named = source.model_copy(update={"url": "jdbc:postgresql://u:p@host/shop?ssl=true"})
    assert url_of(named) == named.url
    assert place_of(named) == "jdbc:postgresql://host/shop"
    oracle = source.model_copy(update={"url": "jdbc:oracle:thin:scott/tiger@//host:1521/x"})
    assert place_of(oracle) == "jdbc:oracle:thin:@//host:1521/x".replace(":@", ":")
    db2 = source.model_copy(update={"url": "jdbc:db2://host:50000/x:user=u;password=p;"})
    assert place_of(db2) == "jdbc:db2://host:50000/x"


@pytest.mark.parametrize("by", ["url", "properties", "neither"])
def test_sessions_are_in_utc_and_strict_whatever_they_are_told_besides(by: str) -> None:
    own = "wait_timeout=99,time_zone='+05:00'"
    more = {"properties": {"sessionVariables": own}} if by == "properties" else {}
    url = f"jdbc:mariadb://host/shop?sessionVariables={own}&useSsl=true" if by == "url" else SOURCE["url"]
    given: Any = {**SOURCE, "url": url, **more}
    made = Pipeline("shop", source=given, sink=given)
    utc, strict = (
        "time_zone='+00:00'",
        "sql_mode='STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION,NO_AUTO_VALUE_ON_ZERO'",
    )
    for part, ours in ((made.source, utc), (made.sink, f"{utc},{strict}")):
        told = (
            properties_of(part)["sessionVariables"]
            if by == "properties"
            else url_of(part).partition("sessionVariables=")[2].partition("&")[0]
        )
        assert told == (ours if by == "neither" else f"{own},{ours}")
        assert by == "url" or url_of(part).count("sessionVariables") == (by == "neither")


def test_no_error_tells_a_password() -> None:
    token = is_expanded.set(True)
    try:
        given = {**SOURCE, "password": "pass-word", "url": "jdbc:mariadb://u:in-url@host/shop"}
        pipeline = Pipeline("shop", source=given, sink=TABLE)
    finally:
        is_expanded.reset(token)
    assert redact(pipeline, "it said pass-word and in-url") == "it said *** and ***"


def test_a_jar_that_is_not_there_is_said_before_spark_starts(tmp_path: Path) -> None:
    gone = tmp_path / "gone.jar"
    with pytest.raises(SparkError) as caught:
        _jars(settings.Spark(jars=[str(gone)]))
    assert str(caught.value.message) == f"the setting spark.jars names {gone}, which is not there"
    gone.touch()
    assert _jars(settings.Spark(jars=[str(gone)])) == {"spark.jars": str(gone)}


@pytest.mark.skipif(str(POSTGRES) not in JARS, reason="apt install libpostgresql-jdbc-java")
def test_a_driver_in_no_jar_is_said_and_the_way_out_leads_out(bench: Bench, tmp_path: Path) -> None:
    # Nothing listens there: with its driver, that is what is said.
    place = {**PLACE, "url": "jdbc:postgresql://127.0.0.1:1/shop", "password": "${JDBC_PASSWORD}"}
    name = bench.make({**place, "table": "orders"}, TABLE)
    environment = {**os.environ, **ENVIRONMENT, "TRUNQ_DSN": bench.dsn}
    del environment["TRUNQ_SPARK_JARS"]

    def plan() -> str:
        command = [sys.executable, "-m", "trunq", "pipeline", "plan", name]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        return " ".join(done.stdout.split())

    told = plan()
    assert "the driver of jdbc:postgresql://127.0.0.1:1/shop, org.postgresql.Driver, is in no jar" in told
    hint = f"[spark] jars = ['{POSTGRES}']"
    assert hint in told
    (tmp_path / "trunq.toml").write_text(hint.replace("] j", "]\nj"))
    told = plan()
    assert "is in no jar" not in told
    assert "jdbc:postgresql://127.0.0.1:1/shop cannot be reached" in told
