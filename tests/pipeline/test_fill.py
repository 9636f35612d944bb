"""What a message says, where it goes, and how each place takes it."""

from __future__ import annotations

from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict

from trunq.errors import InvalidPipeline
from trunq.pipeline import Pipeline
from trunq.pipeline.errors import MessageRefused

ANY = {"customer": {"pattern": "(?s).*"}}
TABLE = {"format": "table", "table": "t"}
C = "${message.customer}"


def made(source: dict[str, Any] = TABLE, sink: dict[str, Any] = TABLE, **more: Any) -> Pipeline:
    given: dict[str, Any] = {"message": ANY, "per": "message.customer", **more}
    return Pipeline("p", source=source, sink=sink, **given)


def filled(pipeline: Pipeline, customer: str, **credentials: str) -> Pipeline:
    return pipeline.expanded({}, message={"customer": customer}, credentials=credentials)


@pytest.mark.parametrize("value", ["a'b", "a; drop table t", "Ä b", "a-b", "$$x"])
def test_in_a_table_it_is_part_of_one_identifier(value: str) -> None:
    assert filled(made(sink={"format": "table", "table": f"s.t_{C}"}), value).sink.table == f"s.t_{value}"


@pytest.mark.parametrize("value", ["a.b", 'a"b', "x" * 62])
def test_what_is_not_part_of_one_identifier_is_refused(value: str) -> None:
    with pytest.raises(MessageRefused, match=r"pipeline p: sink.table: "):
        filled(made(sink={"format": "table", "table": f"t_{C}"}), value)


@pytest.mark.parametrize("value", ["../x", "a/b", "a\\b", "..", ".", "*", "a[b"])
def test_in_a_path_it_is_part_of_one_component(value: str) -> None:
    with pytest.raises(MessageRefused, match=r"source.path: "):
        filled(made({"format": "csv", "path": f"/in/{C}/*.csv"}), value)
    assert filled(made({"format": "csv", "path": f"/in/{C}/*.csv"}), "a b").source.path == "/in/a b/*.csv"


def test_in_an_address_it_is_percent_encoded() -> None:
    source = {"format": "http", "url": f"https://api.test/{C}/orders?of={C}"}
    assert filled(made(source), "a/b?c&d=é").source.url == (
        "https://api.test/a%2Fb%3Fc%26d%3D%C3%A9/orders?of=a%2Fb%3Fc%26d%3D%C3%A9"
    )
    for value in ("..", "."):
        with pytest.raises(MessageRefused, match=r"a component would be"):
            filled(made(source), value)


def test_in_a_host_it_cannot_end_the_name() -> None:
    source = {"format": "http", "url": f"https://{C}.api.test/orders"}
    assert filled(made(source), "evil.test/x").source.url == "https://evil.test%2Fx.api.test/orders"


def test_a_header_takes_printable_ascii_alone() -> None:
    source = {"format": "http", "url": "https://api.test", "headers": {"X-Customer": C}}
    assert filled(made(source), "a b").source.headers == {"X-Customer": "a b"}
    for value in ("a\r\nX-Admin: 1", "é"):
        with pytest.raises(MessageRefused, match=r"source.headers.X-Customer: .* no header has"):
            filled(made(source), value)


@pytest.mark.parametrize(
    "value", ["a' host=evil", "a b", "it's", "a\\b", "x?host=evil", "a&host=evil", "a@evil"]
)
@pytest.mark.parametrize(
    "dsn", [f"host=h dbname=db_{C}", f"postgresql://h/db_{C}", f"host=h dbname='db_{C}'"]
)
def test_in_a_dsn_it_is_quoted_as_libpq_wants(dsn: str, value: str) -> None:
    found = filled(made({**TABLE, "dsn": dsn}), value).source.dsn
    assert conninfo_to_dict(found) == {"host": "h", "dbname": f"db_{value}"}


def test_a_value_that_looks_like_another_is_text() -> None:
    credentials = {"from": "env", "prefix": "X_"}
    source = {**TABLE, "dsn": f"host=h dbname={C} password=${{credentials.pw}}"}
    for value in ("${credentials.pw}", "${HOME}", "$${x}"):
        found = filled(made(source, credentials=credentials), value, pw="s'e cret").source.dsn
        assert conninfo_to_dict(found) == {"host": "h", "dbname": value, "password": "s'e cret"}


def test_two_dollars_are_the_text_itself() -> None:
    source = {"format": "http", "url": "https://api.test", "params": {"q": "$${message.customer}", "c": C}}
    assert filled(made(source), "a").source.params == {"q": "${message.customer}", "c": "a"}


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"sql": [f"select '{C}'"]}, "sql.0 has .* a statement sees the message as :message"),
        ({"transform": f"m:{C}"}, "transform has .* context.message"),
        (
            {"source": {**TABLE, "table": "t_${message.other}"}},
            "which message does not declare: message = { other",
        ),
        ({"source": {**TABLE, "table": "t_${message.}"}}, "which is no name"),
        (
            {"per": None, "sink": {**TABLE, "table": f"t_{C}"}},
            "one state would be for all its values: write per =",
        ),
        (
            {"message": {**ANY, "day": "text"}, "sink": {**TABLE, "table": "t_${message.day}"}},
            "only the field of per",
        ),
        ({"per": "customer"}, "it names a field that message declares"),
        ({"per": "message.other"}, "it names a field that message declares"),
        ({"message": {"customer": "word"}}, "message.customer.type"),
        ({"message": {"customer": {"pattern": "("}}}, "is no pattern"),
        (
            {"message": {"a": "text", "a.b": "text"}, "per": "message.a"},
            "a is a value, and has a field in a.b",
        ),
        ({"message": {"a b": "text"}}, "is no field"),
        ({"source": {**TABLE, "table": "${credentials.x}"}}, "there are no credentials"),
        (
            {
                "source": {**TABLE, "table": "${credentials.x}"},
                "credentials": {"from": "env", "prefix": "X_"},
            },
            "would show it",
        ),
        ({"per": None, "credentials": {"from": "env", "prefix": "X_"}}, "there is no per"),
        ({"source": {"format": "queue", "queue": "q"}}, "one for all, and each would read all of it"),
        ({"source": {"format": "history", "queue": "q"}}, "is of all: per does not go with it"),
        (
            {"source": {**TABLE, "changes": "all"}, "sink": {**TABLE, "mode": "replace"}},
            "would drop the rows of the others",
        ),
        ({"trigger": {"every": "1 hour"}}, "asks without a message"),
        ({"trigger": {"continuous": True}}, "asks without a message"),
        ({"trigger": {"every": "1 hour", "for": []}}, "for is empty"),
        ({"trigger": {"every": "1 hour", "for": ["a/b"]}}, "cannot be one of per"),
        ({"trigger": {"on": "webhook", "for": ["a"]}}, "for and priority go with every or cron"),
        (
            {"message": {**ANY, "day": "text"}, "trigger": {"every": "1 hour", "for": ["a"]}},
            "gives customer alone, and message declares day as well",
        ),
    ],
)
def test_a_definition_that_cannot_be_is_refused(given: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidPipeline, match=why):
        made(**given)


@pytest.mark.parametrize("value", ["a/b", "-a", "x" * 64, "é"])
def test_no_instance_has_such_a_name_whatever_the_pattern(value: str) -> None:
    with pytest.raises(MessageRefused, match=r"which no instance can have as its name"):
        made().of_message({"customer": value})


def test_a_definition_is_kept_as_it_was_written() -> None:
    given = {
        "message": {"customer": "text", "n": "integer"},
        "per": "message.customer",
        "credentials": {"from": "env", "prefix": "X_"},
        "limits": {"rate": "1/hour"},
    }
    definition = made(**given).definition
    assert {key: definition[key] for key in given} == given
    assert Pipeline("p", **definition).definition == definition
    each = made(
        message={"customer": "text"}, trigger={"every": "1 hour", "for": ["a"], "priority": 2}
    ).definition
    assert each["trigger"] == {"every": "PT3600S", "for": ["a"], "priority": 2}
