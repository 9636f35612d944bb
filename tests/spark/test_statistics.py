"""Statistics over a lake and what is younger, against the same numbers counted in Python from the archive."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import psycopg
import pytest

from pipeline.piping import Bench
from trunq import spark as trunq_spark
from trunq.cli import main
from trunq.errors import InvalidArgument
from trunq.spark.statistic import FAILURES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ZONE = "Asia/Kolkata"
"""Half an hour aside: days, hours and weekdays are others than in UTC."""

KINDS = ("placed", "paid", None)


@pytest.fixture
def bench(database: str, connection: psycopg.Connection[Any]) -> Iterator[Bench]:
    made = Bench(database, connection)
    yield made
    made.close()


def work(bench: Bench, hours: float, count: int = 6) -> None:
    """Some messages, so many hours ago, and what a worker made of them."""
    client = bench.client
    with client.transaction() as connection:
        connection.execute(f"set local trunq.clock_offset = '-{hours} hours'".encode())
        client.promote("orders", connection=connection)
        client.publish_many(
            "orders", list(range(count)), kinds=[KINDS[n % 3] for n in range(count)], connection=connection
        )
        # By a clock of its own: each waited for other minutes.
        connection.execute(b"set local trunq.rewrite = on")
        connection.execute(
            b"update trunq_log.orders set created_at = trunq.clock() - mod(id, 7) * interval '1 minute'"
            b" where txid = pg_current_xact_id() and subscription_id is null"
        )
    with client.transaction() as connection:
        connection.execute(f"set local trunq.clock_offset = '-{hours} hours'".encode())
        held = client.lease("orders", "default", "w", 100, connection=connection)
        connection.execute(f"set local trunq.clock_offset = '-{hours - 0.01} hours'".encode())
        for at, message in enumerate(held):
            took = [0.01 * (at + 1) * (hours + 1)]
            if at % 5 == 3:
                client.retry(
                    [message], error=f"busy {at % 2}\nagain", after=0, took=took, connection=connection
                )
            elif at % 5 == 4:
                client.reject([message], "wrong", took=took, connection=connection)
            else:
                client.ack([message], took=took, connection=connection)


def archived(bench: Bench) -> list[dict[str, Any]]:
    """What happened, as the archive tells it."""
    while bench.client.archive("orders"):
        pass
    cursor = bench.connection.execute(
        "select kind, attempt, outcome, split_part(error, E'\\n', 1), took, published_at, leased_at,"
        " finished_at, id from trunq_archive.orders"
    )
    names = ("kind", "attempt", "outcome", "error", "took", "published", "leased", "finished", "id")
    return [dict(zip(names, row, strict=True)) for row in cursor]


def grouped(
    rows: list[dict[str, Any]], key: Callable[[dict[str, Any]], tuple[Any, ...]]
) -> dict[tuple[Any, ...], list[dict[str, Any]]]:
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[key(row)].append(row)
    return groups


def percentile(values: list[float], share: float) -> float | None:
    ordered = sorted(values)
    return ordered[math.ceil(share * len(ordered)) - 1] if ordered else None


def times(rows: list[dict[str, Any]]) -> list[Any]:
    took = [row["took"] for row in rows]
    waited = [(row["leased"] - row["published"]).total_seconds() for row in rows if row["attempt"] == 1]
    return [
        None if found is None else pytest.approx(found, rel=1e-5)
        for values in (took, waited)
        for found in (percentile(values, share) for share in (0.5, 0.9, 0.99))
    ]


def failed(rows: list[dict[str, Any]]) -> int:
    return sum(row["outcome"] in FAILURES for row in rows)


def shown(frame: Any, *left_out: str) -> dict[tuple[Any, ...], list[Any]]:
    """Rows of a frame by their key, the first columns up to `attempts`."""
    keys = frame.columns.index("attempts")
    keep = [name for name in frame.columns[keys:] if name not in left_out]
    found = {}
    for row in frame.collect():
        key = tuple(each.astimezone(UTC) if isinstance(each, datetime) else each for each in row[:keys])
        assert key not in found
        found[key] = [row[name] for name in keep]
    return found


def expected_rates(rows: list[dict[str, Any]], size: timedelta, zone: str) -> dict[Any, list[Any]]:
    def at(row: dict[str, Any]) -> datetime:
        local = row["finished"].astimezone(ZoneInfo(zone))
        if size == timedelta(days=1):
            return local.replace(hour=0, minute=0, second=0, microsecond=0).astimezone(UTC)
        return local.astimezone(UTC).replace(minute=0, second=0, microsecond=0)

    return {
        key: [
            len(group), len({row["id"] for row in group}), pytest.approx(len(group) / size.total_seconds()),
            sum(row["outcome"] == "success" for row in group), failed(group),
            sum(row["attempt"] > 1 for row in group), *times(group),
        ]
        for key, group in grouped(rows, lambda row: (at(row), "orders", row["kind"])).items()
    }  # fmt: skip


def heat_place(row: dict[str, Any]) -> tuple[Any, ...]:
    local = row["finished"].astimezone(ZoneInfo(ZONE))
    return "orders", row["kind"], local.isoweekday(), local.hour


def test_statistics_are_those_of_every_attempt_once(
    bench: Bench,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    lake = str(tmp_path / "lake")
    bench.client.create_queue("orders")
    bench.client.create_archive("orders")
    pipeline = bench.make(
        {"format": "history", "queue": "orders"}, {"format": "delta", "path": lake, "partition_by": ["day"]}
    )
    young = trunq_spark.statistics(lake, [pipeline], dsn=bench.dsn, spark=spark)
    assert young.rates.count() == 0, "neither is there yet"
    for hours in (75, 50, 49.6, 20):
        work(bench, hours)
    bench.run(pipeline)
    bench.connection.execute("update trunq.taker_mark set lease_id = 0")  # taken, and not said yet
    for hours in (19.5, 2):
        work(bench, hours)
    rows = archived(bench)
    found = trunq_spark.statistics(lake, [pipeline], dsn=bench.dsn, spark=spark, time_zone=ZONE)
    assert shown(found.rates) == expected_rates(rows, timedelta(hours=1), ZONE)
    assert shown(found.outcomes) == {
        key: [len(group), *times(group)]
        for key, group in grouped(rows, lambda row: ("orders", row["kind"], row["outcome"])).items()
    }
    assert shown(found.heat) == {
        key: [len(group), failed(group), *times(group)] for key, group in grouped(rows, heat_place).items()
    }
    errors = grouped(
        [row for row in rows if row["outcome"] in FAILURES],
        lambda row: ("orders", row["kind"], row["outcome"], row["error"]),
    )
    assert shown(found.errors, "first_at", "last_at") == {key: [len(group)] for key, group in errors.items()}

    monkeypatch.setenv("TRUNQ_DSN", bench.dsn)
    arguments = ["orders", "--lake", lake, "--per", "1d", "--zone", ZONE, "--kind", "paid", "--json"]
    with pytest.raises(SystemExit):
        main(["statistics", *arguments])
    printed = json.loads(capsys.readouterr().out)
    expected = expected_rates([row for row in rows if row["kind"] == "paid"], timedelta(days=1), ZONE)
    assert [
        (datetime.fromisoformat(row["at"]), row["queue"], row["kind"], row["attempts"])
        for row in printed["rates"]
    ] == sorted((*key, values[0]) for key, values in expected.items())
    alone = trunq_spark.statistics(lake, spark=spark).outcomes
    assert 0 < sum(row.attempts for row in alone.collect()) < len(rows), "without Postgres, what it has"


def test_what_cannot_be_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="no time zone 'Mars'"):
        trunq_spark.statistics(str(tmp_path), spark=spark, time_zone="Mars")
    with pytest.raises(InvalidArgument, match="week"):
        trunq_spark.statistics(str(tmp_path), spark=spark, per="week")  # type: ignore[arg-type]
    with pytest.raises(trunq_spark.LakeError):
        trunq_spark.statistics(str(tmp_path), spark=spark)
