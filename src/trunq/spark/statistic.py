"""Statistics over the history that pipelines take into a lake (trunq/pipeline/source/history.py).

What is younger than the lake comes from Postgres by the same reading, so that no report is behind. It is
read first, and the lake after it: what moves in between is in both, and counts once, by the number of its
lease, which is in the lake as a whole or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final, Literal, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from trunq.arrow import history
from trunq.client._sync.client import Client
from trunq.errors import InvalidArgument
from trunq.spark.launch.session import session as start_session

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

Per = Literal["minute", "hour", "day"]

FAILURES: Final = ("failed", "rejected", "lease_expired", "timed_out")
"""Outcomes of attempts that brought nothing. Released, cancelled, expired, outdated and replaced ones did not
fail.
"""

_SECONDS: Final = {"minute": 60, "hour": 3600, "day": 86_400}
_SHARES: Final = {"median": 0.5, "p90": 0.9, "p99": 0.99}
_ACCURACY: Final = 10_000
_DAY: Final = 86_400_000_000
_HOUR: Final = 3_600_000_000
_MONDAY: Final = 3
"""Days from a Monday to 1970-01-01."""


class Statistics(NamedTuple):
    """What attempts tell, by queue and kind; `took` and `waited` are seconds, as `trunq.statistics` has them.

    `rates`: per minute, hour or day (`at`), how many attempts, of how many messages, a second, how many
    succeeded, failed and were retries, and how long. `outcomes`: the same times by outcome. `errors`:
    failures by the first line of their error. `heat`: by weekday (1: Monday) and hour of the time zone.
    Percentiles are of attempts that were there, right to a ten-thousandth of their rank.
    """

    rates: DataFrame
    outcomes: DataFrame
    errors: DataFrame
    heat: DataFrame


def statistics(
    lake: str | DataFrame,
    takers: Sequence[str] = (),
    *,
    dsn: str | None = None,
    spark: SparkSession | None = None,
    queue: str | None = None,
    subscription: str | None = None,
    kind: str | None = None,
    since: datetime | None = None,
    per: Per = "hour",
    time_zone: str = "UTC",
) -> Statistics:
    """Statistics over a lake table of attempts: the path of a Delta table, or a DataFrame of such rows.

    `takers` names pipelines that fill it: what they have not taken yet comes from the database at `dsn`, and
    is held in memory. `since`: attempts that ended from then on. `time_zone` is that of days, weekdays and
    hours of the day. Raises `InvalidArgument`, and `LakeError` when there is no table and no taker.
    """
    if per not in _SECONDS:
        raise InvalidArgument(f"per is {per!r}, which there is not", f"one of {', '.join(_SECONDS)}")
    try:
        ZoneInfo(time_zone)
    except (ZoneInfoNotFoundError, ValueError) as error:
        raise InvalidArgument(f"there is no time zone {time_zone!r}", "as Europe/Zurich, or UTC") from error
    rows = attempts(lake, takers, dsn=dsn, spark=spark)
    for name, wanted in (("queue", queue), ("subscription", subscription), ("kind", kind)):
        if wanted is not None:
            rows = rows.filter(rows[name] == wanted)
    if since is not None:
        rows = rows.filter(rows["finished_at"] >= since)
    return Statistics(_rates(rows, per, time_zone), _outcomes(rows), _errors(rows), _heat(rows, time_zone))


def attempts(
    lake: str | DataFrame,
    takers: Sequence[str] = (),
    *,
    dsn: str | None = None,
    spark: SparkSession | None = None,
) -> DataFrame:
    """All attempts, each once: those of a lake table, and what its takers have not taken of their queues."""
    session = spark or (start_session() if isinstance(lake, str) else lake.sparkSession)
    young = _untaken(session, takers, dsn) if takers else None
    old = _read(session, lake, may_be_missing=young is not None)
    if old is None or young is None:
        return _one(old, young)
    key = ["subscription_id", "lease_id"]
    # The same attempt ended at the same time: of the lake, only what is as young has to be looked at.
    since = young.agg({"finished_at": "min"}).first()
    both = old if since is None or since[0] is None else old.filter(old["finished_at"] >= since[0])
    return old.unionByName(young.join(both.select(*key).distinct(), key, "left_anti").select(*old.columns))


def _one(old: DataFrame | None, young: DataFrame | None) -> DataFrame:
    found = old if old is not None else young
    assert found is not None
    return found


def _untaken(session: SparkSession, takers: Sequence[str], dsn: str | None) -> DataFrame:
    import pyarrow as pa  # noqa: PLC0415  # as pyspark: not everybody who imports trunq.spark has it

    batches: list[pa.RecordBatch] = []
    with Client(dsn, max_connections=1) as client:
        for row in client.list_takers():
            if row.taker in takers:
                slice = history.untaken(client.transaction, row.queue, row.taker)
                batches += history.read(client.transaction, row.queue, slice, whole=False)
    return session.createDataFrame(pa.Table.from_batches(batches, history.schema()))


def _read(session: SparkSession, lake: str | DataFrame, *, may_be_missing: bool) -> DataFrame | None:
    from trunq.arrow.delta import open_table  # noqa: PLC0415
    from trunq.spark.lake.delta import local_path, read_delta  # noqa: PLC0415

    if isinstance(lake, str):
        if may_be_missing and open_table(str(local_path(lake))) is None:
            return None
        lake = read_delta(session, lake)
        if may_be_missing and "lease_id" not in lake.columns:
            return None  # a run that brought no rows made it
    return lake.select(*history.schema().names)


def _rates(rows: DataFrame, per: Per, time_zone: str) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: PLC0415, N812

    seconds = _SECONDS[per]
    size = seconds * 1_000_000
    if per == "day":
        wall = _wall(time_zone)
        at = F.to_utc_timestamp(F.timestamp_micros(wall - F.pmod(wall, F.lit(size))), time_zone)
    else:
        micros = F.unix_micros("finished_at")
        at = F.timestamp_micros(micros - F.pmod(micros, F.lit(size)))
    found = rows.groupBy(at.alias("at"), "queue", "kind").agg(
        F.count("*").alias("attempts"),
        F.count_distinct("subscription_id", "id").alias("messages"),
        (F.count("*") / F.lit(seconds)).alias("per_second"),
        F.count_if(F.col("outcome") == "success").alias("succeeded"),
        F.count_if(F.col("outcome").isin(*FAILURES)).alias("failed"),
        F.count_if(F.col("attempt") > 1).alias("retries"),
        *_quantiles(),
    )
    return _spread(found).orderBy("at", "queue", "kind")


def _outcomes(rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: PLC0415, N812

    found = rows.groupBy("queue", "kind", "outcome").agg(F.count("*").alias("attempts"), *_quantiles())
    return _spread(found).orderBy("queue", "kind", F.desc("attempts"), "outcome")


def _errors(rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: PLC0415, N812

    return (
        rows.filter(F.col("outcome").isin(*FAILURES))
        .groupBy("queue", "kind", "outcome", "error")
        .agg(
            F.count("*").alias("attempts"),
            F.min("finished_at").alias("first_at"),
            F.max("finished_at").alias("last_at"),
        )
        .orderBy(F.desc("attempts"), "queue", "kind", "outcome", "error")
    )


def _heat(rows: DataFrame, time_zone: str) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: PLC0415, N812

    wall = _wall(time_zone)
    weekday = F.pmod(F.floor((wall - F.pmod(wall, F.lit(_DAY))) / F.lit(_DAY)) + _MONDAY, F.lit(7)) + 1
    hour = F.floor(F.pmod(wall, F.lit(_DAY)) / F.lit(_HOUR))
    found = rows.groupBy(
        "queue", "kind", weekday.cast("int").alias("weekday"), hour.cast("int").alias("hour")
    ).agg(
        F.count("*").alias("attempts"),
        F.count_if(F.col("outcome").isin(*FAILURES)).alias("failed"),
        *_quantiles(),
    )
    return _spread(found).orderBy("queue", "kind", "weekday", "hour")


def _wall(time_zone: str) -> Column:
    """Microseconds that a clock on the wall shows when an attempt ends, whatever the session's time zone."""
    from pyspark.sql import functions as F  # noqa: PLC0415, N812

    return F.unix_micros(F.from_utc_timestamp("finished_at", time_zone))


def _quantiles() -> list[Column]:
    from pyspark.sql import functions as F  # noqa: PLC0415, N812

    shares = F.array(*map(F.lit, _SHARES.values()))
    return [F.percentile_approx(name, shares, _ACCURACY).alias(name) for name in ("took", "waited")]


def _spread(found: DataFrame) -> DataFrame:
    """A column for each percentile."""
    columns = [found[name] for name in found.columns if name not in ("took", "waited")]
    columns += [
        found[name][at].alias(f"{name}_{share}")
        for name in ("took", "waited")
        for at, share in enumerate(_SHARES)
    ]
    return found.select(*columns)
