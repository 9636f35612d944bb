"""Rows from a database that Spark reads by JDBC, and into one: MariaDB, and Postgres by its own driver."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from pipeline.databases import KINDS, Other, opened
from pipeline.piping import Bench

pytestmark = pytest.mark.usefixtures("spark", "_jdbc")

_numbers = count(1)
MOVED = {"format": "table", "table": "moved"}


@pytest.fixture(scope="module", params=KINDS)
def other_server(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A server."""
    yield from opened(request.param)


@pytest.fixture
def other(other_server: Any) -> Other:
    """A database of its own."""
    return Other(other_server, f"shop_{next(_numbers)}")


def orders(other: Other, last: int = 3000) -> None:
    other.sql(
        f"create table orders (id bigint primary key, word varchar(40), changed_at {other.time} not null);"
        f"insert into orders select n, concat('w', n), timestamp '2030-01-01 00:00:00' from {other.series(1, last)};"
    )


def test_a_whole_table_arrives_in_shares(bench: Bench, other: Other) -> None:
    orders(other)
    name = bench.make({**other.place, "table": "orders"}, MOVED)
    done = bench.run(name)
    assert (done["rows_in"], done["rows_out"]) == (3000, 3000)
    assert bench.sql("select count(*), count(distinct id), sum(id), min(word) from moved") == [
        (3000, 3000, 4501500, "w1")
    ]
    assert bench.client.list_runs(name)[0].engine == "spark"


def test_rows_arrive_in_a_table_that_is_made(bench: Bench, other: Other) -> None:
    bench.sql("create table source as select g as id, 'w' || g as word, g / 3.0 as part from generate_series(1, 3000) g")
    name = bench.make({"format": "table", "table": "source"}, {**other.place, "table": "moved"})
    done = bench.run(name)
    assert (done["rows_in"], done["rows_out"]) == (3000, 3000)
    assert other.sql("select count(*), count(distinct id), sum(id), min(word) from moved") == [
        ("3000", "3000", "4501500", "w1")
    ]
    assert other.tables() == ["moved", "trunq_mark"]
