"""From how many rows on a run through Spark's tasks is faster than one in the process of the runner: the
settings `pipeline.spark_from_rows` and `spark_from_bytes`.

The same pipeline with both engines, in turn, in a session that is warm and has a core for each of the
machine's: a slice of more and more flights, with a check, into a table, a queue and a lake. The break-even
lies between the last size at which the process is faster and the next one.
"""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Callable, Iterator
from itertools import count, pairwise
from typing import Any, Final

import psycopg

from _bench import Options, Table, in_turn, main, seconds
from pipeline import Place, arguments, placed
from trunq.pipeline.definition.pipeline import Pipeline

ENGINES: Final = ("process", "spark")
_CHECK: Final = {"column": "id", "not_null": True}
_SINKS: Final[dict[str, dict[str, Any]]] = {
    "table, append": {"format": "table", "table": "moved"},
    "Delta, append": {"format": "delta"},
    "queue": {"format": "queue", "queue": "moved"},
}
_names = count(1)


def measure(options: Options) -> Iterator[Table]:
    """A table a sink."""
    sizes = [1_000, 4_000] if options.quick else [10_000, 40_000, 160_000, 640_000]
    with placed(options) as place:
        for rows in sizes:
            _fill(place, rows)
        for sink in options.extra.sinks.split("; "):
            yield _sink(place, sink, sizes)


def _fill(place: Place, rows: int) -> None:
    have = "select f.* from flights f, generate_series(0, {0}) g limit {1}"
    statement = f"create table source_{rows} as {have.format(rows // place.rows, rows)}"
    place.connection.execute(statement.encode())
    place.connection.execute(f"vacuum analyze source_{rows}".encode())


def _sink(place: Place, sink: str, sizes: list[int]) -> Table:
    table = Table(
        f"engines: into {sink}",
        f"Median of {place.rounds} rounds in turn; Spark {place.session.version}, warm.",
        ("rows", "MB", "in the process, s", "in Spark, s", "ratio"),
    )
    faster: list[bool] = []
    for rows in sizes:
        arms = {engine: _arm(place, engine, sink, rows) for engine in ENGINES}
        found = {name: statistics.median(each) for name, each in in_turn(arms, place.rounds, arms).items()}
        ratio = found["process"] / found["spark"]
        faster.append(ratio > 1)
        size = place.connection.execute("select pg_table_size(%s)", (f"source_{rows}",)).fetchone()
        assert size is not None
        table.add(
            f"{rows:,}", f"{size[0] / 1e6:.1f}", f"{found['process']:.2f}", f"{found['spark']:.2f}",
            f"{ratio:.2f}",
        )  # fmt: skip
    table.add("break-even", _between(sizes, faster), "", "", "")
    return table


def _between(sizes: list[int], faster: list[bool]) -> str:
    if not faster[-1]:
        return f"above {sizes[-1]:,} rows"
    for (below, is_below), (above, is_above) in pairwise(zip(sizes, faster, strict=True)):
        if is_above and not is_below:
            return f"{below:,} to {above:,} rows"
    return f"below {sizes[0]:,} rows"


def _arm(place: Place, engine: str, sink: str, rows: int) -> Callable[[], float]:
    def run() -> float:
        name, given = f"engine_{next(_names)}", dict(_SINKS[sink])
        if given["format"] == "delta":
            given["path"] = str(place.directory / name)
        if given["format"] == "queue":
            place.client.create_queue("moved")
        source = {"format": "table", "table": f"source_{rows}"}
        made = Pipeline(name, source=source, sink=given, engine=engine, checks=[_CHECK])
        place.client.create_pipeline(name, made.definition)
        took = seconds(lambda: place.execute(name))
        place.client.drop_pipeline(name)
        _clear(place, given)
        return took

    return run


def _clear(place: Place, sink: dict[str, Any]) -> None:
    if sink["format"] == "queue":
        place.client.drop_queue("moved", force=True)
    elif sink["format"] == "delta":
        shutil.rmtree(sink["path"])
    else:
        with psycopg.connect(place.dsn, autocommit=True) as connection:
            connection.execute("drop table moved")
            connection.execute("checkpoint")


if __name__ == "__main__":
    sinks = ("--sinks", {"default": "; ".join(_SINKS), "help": f"sinks: {'; '.join(_SINKS)}"})
    main(__doc__, measure, *(each for each in arguments() if each[0] != "--only"), sinks)
