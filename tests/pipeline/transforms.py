"""Functions that pipelines of tests name."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from trunq.pipeline.source import Context

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def doubled(rows: pa.Table) -> pa.Table:
    """A new column."""
    return rows.append_column("twice", pc.multiply(rows["id"], 2))


def only_even(rows: pa.Table, context: Context) -> pa.Table:
    """Odd ones are quarantined; those below the message's `least` too."""
    odd = pc.equal(pc.bit_wise_and(rows["id"], 1), 1)
    context.quarantine(rows.filter(odd), "odd", "not even")
    return rows.filter(pc.invert(odd))


def all_refused(rows: pa.Table, context: Context) -> pa.Table:
    """None passes."""
    context.quarantine(rows, "refused")
    return rows.slice(0, 0)


def even_or_fixed(rows: pa.Table) -> pa.Table:
    """After the fix."""
    return rows


def numbers(context: Context) -> Iterator[dict[str, Any]]:
    """Five more each time."""
    start = context.state.get("at", 0)
    for number in range(start, start + 5):
        yield {"id": number, "of": context.message}
    context.state = {"at": start + 5}


def spans(_context: Context) -> Iterator[dict[str, Any]]:
    """A type that Postgres has none for."""
    yield {"took": timedelta(seconds=1)}


def sleeps(context: Context) -> Iterator[dict[str, Any]]:
    """Notes its process, in the file that the message names, and then does nothing for a long time."""
    Path(context.message).write_text(str(os.getpid()))
    threading.Event().wait(600)
    yield {"id": 1}


def crashes(_context: Context) -> Iterator[dict[str, Any]]:
    """Ends its process."""
    os.kill(os.getpid(), signal.SIGKILL)
    yield {"id": 1}


def breaks(_context: Context) -> Iterator[dict[str, Any]]:
    """It fails each time."""
    raise ValueError("it breaks in this line")
    yield {}


def trickles(context: Context) -> Iterator[dict[str, Any]]:
    """Goes on until the file that the message names is there."""
    while not Path(context.message).exists():
        threading.Event().wait(0.02)
        yield pa.table({"id": [1]})  # type: ignore[misc]


def joined(frame: DataFrame, context: Context) -> DataFrame:
    """With what a lookup knows, and the message says."""
    from pyspark.sql import functions  # noqa: PLC0415  # most tests have no Spark

    return frame.join(context.lookups["words"], "id").withColumn("day", functions.lit(context.message))


def killed_once(frame: DataFrame, context: Context) -> DataFrame:
    """The process that has row 700 is killed, unless the file of the message is there."""
    from pyspark.sql import functions  # noqa: PLC0415

    marker = context.message

    def same(id: int) -> int:
        if id == 700 and not os.path.exists(marker):
            open(marker, "x").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return id

    return frame.withColumn("id", functions.udf(same, "bigint", useArrow=False)("id"))


def raising(frame: DataFrame) -> DataFrame:
    """Each row is an error, which tells a password."""
    from pyspark.sql import functions  # noqa: PLC0415

    def fail(id: int) -> int:
        raise ValueError(f"no row {id}, hunter2")

    return frame.withColumn("id", functions.udf(fail, "bigint", useArrow=False)("id"))


def nothing(frame: DataFrame) -> None:
    """It gives no DataFrame."""


def dawdles(frame: DataFrame, context: Context) -> DataFrame:
    """Each task says where it runs, by a file in the directory of the message, and does nothing for a long
    time, unless `there` is in it.
    """
    from pyspark.sql import functions  # noqa: PLC0415

    directory = context.message

    def same(id: int) -> int:
        if not os.path.exists(f"{directory}/there"):
            Path(f"{directory}/{os.getpid()}").touch()
            threading.Event().wait(600)
        return id

    return frame.withColumn("id", functions.udf(same, "bigint", useArrow=False)("id"))
