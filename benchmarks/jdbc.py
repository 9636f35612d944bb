"""What is read and written by JDBC, beside plain Spark with the same driver, options and shares.

Plain Spark appends what it read, and is done: a run that is repeated has its rows twice. A run of a pipeline
stages rows, and takes them and its mark in one commit. The database is Postgres by its own driver, over TCP;
the rows are the 336,776 flights.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, Final, cast

from _bench import Options, Table, main
from pipeline import CORES, Place, _compare, _discard, _method, _sql, arguments, placed
from trunq.pipeline import Pipeline
from trunq.pipeline import source as sources
from trunq.pipeline.source.jdbc import JdbcSource

_BATCH: Final = "10000"


def measure(options: Options) -> Iterator[Table]:
    """The source, and whole runs."""
    if not options.extra.jar.exists():
        sys.exit(f"{options.extra.jar} is not there: apt-get install libpostgresql-jdbc-java, or --jar")
    with placed(options) as place:
        yield _source(place)
        yield _runs(place)


def _given(place: Place) -> dict[str, Any]:
    """As a pipeline has it."""
    jdbc = place.jdbc
    return {"format": "jdbc", "url": jdbc["url"].partition("?")[0], "user": jdbc["user"]}


def _plain(place: Place) -> Any:
    shares = {"partitionColumn": "id", "lowerBound": "1", "upperBound": str(place.rows)}
    given = {"dbtable": "flights", "fetchsize": _BATCH, "numPartitions": str(CORES), **shares}
    return place.session.read.format("jdbc").options(**place.jdbc, **given).load()


def _source(place: Place) -> Table:
    made = Pipeline(
        "read", source={**_given(place), "table": "flights"}, sink={"format": "table", "table": "x"}
    )
    source = cast("JdbcSource", sources.make(made, place.dsn, place.executor.control))

    def ours() -> None:
        slice = source.plan({}).slice
        assert slice is not None
        _discard(source.frame(place.session, slice, CORES))

    table = Table(
        f"JDBC source, {place.rows:,} rows", _method(place), ("what", "s", "plain Spark", "ratio", "target")
    )
    _compare(table, place, "planned, in shares", ours, lambda: _discard(_plain(place)), 1.0)
    return table


def _runs(place: Place) -> Table:
    source = {**_given(place), "table": "flights"}
    append = place.make(source, {**_given(place), "table": "appended"})
    key = {"mode": "upsert", "key": ["id"], "newest": "changed_at"}
    upsert = place.make(source, {**_given(place), "table": "upserted", **key})
    local = place.make(source, {"format": "table", "table": "local"})
    _plain(place).limit(0).write.format("jdbc").options(**place.jdbc, dbtable="plain").mode(
        "overwrite"
    ).save()

    def emptied(pipeline: str, table: str) -> None:
        _sql(place, f"drop table if exists {table}")
        place.execute(pipeline)

    def plain() -> None:
        _sql(place, "truncate plain")
        writer = _plain(place).write.format("jdbc").options(**place.jdbc, dbtable="plain", batchsize=_BATCH)
        writer.mode("append").save()

    table = Table(
        f"whole runs by JDBC, {place.rows:,} rows",
        f"{_method(place)} Against plain Spark's read and append, at least once.",
        ("what", "s", "plain Spark", "ratio", "target"),
    )
    _compare(table, place, "JDBC to JDBC, append", lambda: emptied(append, "appended"), plain, 1.0)
    _compare(table, place, "JDBC to JDBC, upsert, all there", lambda: _run(place, upsert), plain, None)
    _compare(table, place, "JDBC to table, append", lambda: emptied(local, "local"), plain, None)
    return table


def _run(place: Place, pipeline: str) -> None:
    place.execute(pipeline)


if __name__ == "__main__":
    main(__doc__, measure, *(each for each in arguments() if each[0] != "--only"))
