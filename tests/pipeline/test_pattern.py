"""Definitions of many tables: patterns, names of instances, and what cannot be."""

from __future__ import annotations

import re
from typing import Any

import pytest

from pipeline.piping import Bench
from pipeline.test_tables import SINK, SOURCE
from trunq.errors import InvalidPipeline
from trunq.pipeline import Pipeline
from trunq.pipeline.definition.many import value_of_table
from trunq.pipeline.definition.pattern import matches
from trunq.pipeline.look import find


def test_values_of_tables_differ_and_are_names_of_instances() -> None:
    pairs = [
        ("a", "b"),
        ("a.b", "c"),
        ("a", "b.c"),
        ("A", "b"),
        ("_a", "b"),
        ("a", "b" * 63),
        ("a" * 63, "b"),
    ]
    pairs += [("a", "b" * 62 + "c"), ("t", "a_b"), ("a", "é"), ("a", "ê"), ("a b", "c"), ("a", " ")]
    values = [value_of_table(*pair) for pair in pairs]
    assert len(set(values)) == len(pairs)
    assert all(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}", value) for value in values)
    assert values[0] == "a.b"


@pytest.mark.parametrize(
    ("source", "sink", "more", "said"),
    [
        ({"table": "a", "tables": "a.*"}, SINK, {}, "give table, or tables, not both"),
        ({}, SINK, {}, "table is missing, or tables"),
        ({"table": "a", "except": "a.b"}, {"format": "queue", "queue": "q"}, {}, "except goes with tables"),
        ({"tables": "shop"}, SINK, {}, "'shop' is no pattern of tables: schema.table"),
        ({"tables": "a.b.c"}, SINK, {}, "is no pattern of tables"),
        ({"tables": "a.*"}, {**SINK, "table": "copy"}, {}, "put ${table} into the sink's name"),
        ({"tables": "a.*"}, {**SINK, "dsn": "dbname=${table}"}, {}, "sink.dsn has the name of a table"),
        ({"tables": "a.*"}, SINK, {"trigger": {"continuous": True}}, "give a trigger with every"),
        (
            {"tables": "a.*"},
            SINK,
            {"per": "message.customer", "message": {"customer": "text"}},
            "per and message of its own",
        ),
        (
            {"table": "a"},
            {**SINK, "table": "b", "key": ["*"]},
            {},
            "goes with source.tables: name the columns",
        ),
        ({"tabels": "a"}, SINK, {}, "there is no source.tabels; is it table"),
        ({"tables": "a.*", "exept": "a.b"}, SINK, {}, "there is no source.exept; is it except?"),
    ],
)
def test_a_definition_of_many_tables_that_cannot_be_is_refused(
    source: dict[str, Any], sink: dict[str, Any], more: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidPipeline) as refused:
        Pipeline(**{"name": "shop", "source": {"format": "table", **source}, "sink": sink, **more})
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("pattern", "named", "others"),
    [
        ("shop.*", ["shop.orders", "shop.a.b"], ["Shop.orders", "shops.orders"]),
        ("*.*", ["a.b"], []),
        ("shop.order_*", ["shop.order_x", "shop.order_"], ["shop.orders", "shop.orderxx"]),
        ('shop."a.b"', ["shop.a.b"], ["shop.a", "shop.axb"]),
        ('shop."*"', ["shop.*"], ["shop.x"]),
        ("sh*p.[a]", ["shoop.[a]"], ["shop.a"]),
    ],
)
def test_a_pattern_names_tables(pattern: str, named: list[str], others: list[str]) -> None:
    for name in named:
        assert matches(pattern, *name.split(".", 1)), name
    for name in others:
        assert not matches(pattern, *name.split(".", 1)), name


def test_a_name_that_would_be_too_long_in_the_sink_is_refused(bench: Bench) -> None:
    bench.sql("create schema shop")
    bench.sql(f'create table shop."{"x" * 60}" (id int primary key)')
    many = Pipeline("shop", source=SOURCE, sink={**SINK, "table": "copy.copy_of_${table}"})
    refused = [each.refused for each in find(many, bench.dsn) if each.refused]
    assert len(refused) == 1
    assert "at most 63 bytes" in str(refused[0])
