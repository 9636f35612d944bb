"""Credentials of each customer: asked for at each run, kept nowhere, told nowhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.apis import Reply, serving
from pipeline.piping import Bench
from pipeline.test_instance import EACH, SINK
from trunq.errors import InvalidPipeline
from trunq.pipeline import Pipeline
from trunq.pipeline.credentials import credentials_of
from trunq.pipeline.definition.credentials import Credentials

TABLE = {"format": "table", "table": "source"}


def of(value: str, **given: Any) -> dict[str, str]:
    return credentials_of("p/x", Credentials(**given), value)


def test_the_environment_has_them_by_prefix_value_and_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRM_ACME__TOKEN", "one")
    monkeypatch.setenv("CRM_ACME__API_KEY", "two")
    monkeypatch.setenv("CRM_ACME_2__TOKEN", "three")
    assert of("acme", **{"from": "env", "prefix": "CRM_"}) == {"token": "one", "api_key": "two"}
    assert of("acme_2", **{"from": "env", "prefix": "CRM_"}) == {"token": "three"}


def test_no_two_customers_have_one_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRM_A__B__TOKEN", "of a__b")
    assert of("a__b", **{"from": "env", "prefix": "CRM_"}) == {"token": "of a__b"}
    for value in ("a", "a-b", "A"):
        with pytest.raises(InvalidPipeline):
            of(value, **{"from": "env", "prefix": "CRM_"})


def test_who_has_none_in_the_environment_hears_the_name_of_the_variable() -> None:
    with pytest.raises(InvalidPipeline, match=r"has no CRM_ACME__") as refused:
        of("acme", **{"from": "env", "prefix": "CRM_"})
    assert refused.value.hint == "start it with CRM_ACME__TOKEN=... for ${credentials.token}"


@pytest.mark.parametrize("ending", ["toml", "json"])
def test_a_file_is_read_at_each_run(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"credentials.{ending}"
    for token in ("one", "two"):
        path.write_text(
            f'[acme]\ntoken = "{token}"' if ending == "toml" else json.dumps({"acme": {"token": token}})
        )
        assert of("acme", **{"from": "file", "path": str(path)}) == {"token": token}
    with pytest.raises(InvalidPipeline, match=r"has no credentials of 'other'"):
        of("other", **{"from": "file", "path": str(path)})
    path.write_text("[acme\ntoken = 'hunter22'")
    with pytest.raises(InvalidPipeline, match=r"cannot be read: it is no") as refused:
        of("acme", **{"from": "file", "path": str(path)})
    assert "hunter22" not in str(refused.value)
    path.unlink()
    with pytest.raises(InvalidPipeline, match=r"No such file"):
        of("acme", **{"from": "file", "path": str(path)})


def test_a_function_gives_them_and_what_it_raises_is_not_told() -> None:
    with pytest.raises(
        InvalidPipeline, match=r"broken gives no credentials of 'acme': RuntimeError"
    ) as refused:
        of("acme", **{"from": "function", "function": "pipeline.customers:broken"})
    assert "hunter22" not in str(refused.value)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"from": "vault"}, "credentials.from"),
        ({"from": "env"}, "from = 'env' needs prefix"),
        ({"from": "env", "prefix": "crm"}, "capital letters"),
        ({"from": "env", "prefix": "X_", "path": "a.toml"}, "path does not go with from = 'env'"),
        ({"from": "file", "path": "a.yaml"}, "ends in .toml or .json"),
        ({"from": "function", "function": "name"}, "'module:name'"),
        (
            {"from": "file", "path": "a.toml", "pasword": "x"},
            "there is no credentials.pasword; keys here: from, prefix",
        ),
    ],
)
def test_credentials_that_cannot_be_are_refused(given: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidPipeline, match=why):
        Pipeline("p", source=TABLE, sink=SINK, **EACH, credentials=given)


def test_a_run_has_those_of_its_customer_and_nothing_keeps_or_tells_them(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRETS", str(tmp_path / "secrets.json"))
    secrets = {
        "acme": {"user": "acme_reader", "password": "hunter22'x"},
        "b": {"user": "nobody_here", "password": "swordfish9"},
    }
    (tmp_path / "secrets.json").write_text(json.dumps(secrets))
    bench.sql("create table source (id int); insert into source values (1)")
    bench.sql("create role acme_reader login password 'hunter22''x'; grant select on source to acme_reader")
    host, port, database = (
        bench.connection.info.host,
        bench.connection.info.port,
        bench.connection.info.dbname,
    )
    dsn = f"host={host} port={port} dbname={database}"
    dsn += " user=${credentials.user} password=${credentials.password}"
    name = bench.make(
        {**TABLE, "dsn": dsn},
        SINK,
        **EACH,
        credentials={"from": "function", "function": "pipeline.customers:secrets_of"},
    )
    assert bench.run(name, {"customer": "acme"})["rows_out"] == 1
    with pytest.raises(Exception, match=r"nobody_here|\*\*\*") as failed:
        bench.run(name, {"customer": "b"})
    assert "swordfish9" not in str(failed.value)
    for table in ("pipeline", "pipeline_run", "pipeline_attempt"):
        for (row,) in bench.sql(f"select t::text from trunq.{table} t"):
            assert "hunter22" not in row
            assert "swordfish9" not in row


def test_a_name_that_there_is_not_is_told_and_tried_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CRM_ACME__USER", "reader")
    name = bench.make(
        {**TABLE, "dsn": "user=${credentials.name}"},
        SINK,
        **EACH,
        credentials={"from": "env", "prefix": "CRM_"},
    )
    with pytest.raises(InvalidPipeline, match=r"source.dsn: there is no \$\{credentials.name\}"):
        bench.run(name, {"customer": "acme"})


def test_of_an_address_that_is_none_no_word_is_told(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRM_ACME__DSN", "host=h password=sword fish9")
    name = bench.make(
        {**TABLE, "dsn": "${credentials.dsn}"}, SINK, **EACH, credentials={"from": "env", "prefix": "CRM_"}
    )
    with pytest.raises(InvalidPipeline, match=r"\$\{credentials.dsn\} is not an address") as failed:
        bench.run(name, {"customer": "acme"})
    assert "fish" not in str(failed.value)


def test_a_link_that_repeats_a_credential_is_followed_and_kept_without_it(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CRM_ACME__TOKEN", "swordfish9")
    landing = tmp_path / "landing"
    source = {
        "format": "http",
        "params": {"key": "${credentials.token}"},
        "rows": "rows",
        "next": {"path": "next"},
        "landing": str(landing),
        "keep": True,
    }
    with serving(
        lambda request: Reply(
            {"rows": [{"id": 1}], "next": None if "page" in request.params else "?page=2&key=swordfish9"}
        )
    ) as api:
        name = bench.make(
            {**source, "url": f"{api.url}/rows"},
            SINK,
            **EACH,
            credentials={"from": "env", "prefix": "CRM_"},
        )
        assert bench.run(name, {"customer": "acme"})["rows_out"] == 2
    assert [request.params["key"] for request in api.requests] == ["swordfish9"] * 2
    for page in landing.rglob("page-*.json"):
        assert "swordfish9" not in page.read_text().partition("\n")[0]
