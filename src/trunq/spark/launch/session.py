"""A Spark session on this machine, configured for trunq."""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trunq.spark.errors import SparkError
from trunq.spark.launch.java import SHIM, find_java, make_executable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOGGING = Path(__file__).parent / "log4j2.properties"

CONNECTION = ("PGHOST", "PGPORT", "PGDATABASE", "PGUSER", "PGPASSFILE", "PGSERVICE", "PGSERVICEFILE")
"""Variables from which libpq takes what an address leaves out."""

PANDAS = "PySpark does not yet fully support pandas"
"""The start of a warning that each process prints; trunq reads and writes nothing through pandas."""


def session(
    app_name: str = "trunq",
    master: str = "local[*,4]",
    memory: str = "1g",
    conf: Mapping[str, str] | None = None,
) -> SparkSession:
    """Starts Spark, or returns the running session; it knows `format("trunq")` and `format("trunq_delta")`.

    It finds Java (see `trunq.spark.launch.java`), has Spark's workers use this interpreter, and logs errors
    only. `memory` is the heap of the driver, in which everything runs in local mode. `conf` overrides the
    settings made here. In `local[cores,failures]` the second number says how often Spark tries a task: with
    the default, Spark repeats a read that a restart of the database cut off, and the query goes on.

    Raises `JavaMissing` when there is no Java, `SparkError` when Spark does not start.
    """
    try:
        from pyspark.errors import PySparkRuntimeError  # noqa: PLC0415 - to say what is missing
        from pyspark.sql import SparkSession  # noqa: PLC0415
    except ImportError as error:
        raise SparkError("Spark is not installed", "pip install 'trunq[spark]'") from error
    if (running := SparkSession.getActiveSession()) is not None:
        return register(running)
    builder = SparkSession.builder.appName(app_name).master(master)
    for name, value in {**_settings(master, memory), **(conf or {})}.items():
        builder = builder.config(name, value)
    with _environment(_launch_environment(master)), warnings.catch_warnings():
        warnings.filterwarnings("ignore", PANDAS, FutureWarning)
        try:
            spark = builder.getOrCreate()
        except PySparkRuntimeError as error:
            raise SparkError(
                "Spark's Java process ended before it was ready; what it said is above",
                f"the heap asked for is {memory}: a smaller one may fit this machine",
            ) from error
    return register(spark)


def register(spark: SparkSession) -> SparkSession:
    """Registers the formats `trunq` and `trunq_delta` with a session that you created; returns the session.

    It hands Spark's workers the environment variables that name the database, with their present values.
    Run such a session with `spark.python.unix.domain.socket.enabled`: without it each micro-batch takes about
    40 ms longer.
    """
    from trunq.spark.lake.format import TrunqDelta  # noqa: PLC0415 - these need pyspark
    from trunq.spark.source.format import TrunqSource  # noqa: PLC0415

    _share_environment(spark)
    _pass_partition_columns_on()
    spark.dataSource.register(TrunqSource)
    spark.dataSource.register(TrunqDelta)
    return spark


def _pass_partition_columns_on() -> None:
    """Makes `partitionBy` of a stream set the option as well: Spark would drop the columns in silence."""
    from pyspark.sql.streaming.readwriter import DataStreamWriter  # noqa: PLC0415

    original = DataStreamWriter.partitionBy
    if hasattr(original, "__wrapped__"):
        return

    @wraps(original)
    def partition_by(self: DataStreamWriter, *columns: Any) -> DataStreamWriter:
        names = columns[0] if columns and isinstance(columns[0], list | tuple) else columns
        return original(self, *columns).option("partitionBy", ",".join(names))

    DataStreamWriter.partitionBy = partition_by  # type: ignore[method-assign]


def _share_environment(spark: SparkSession) -> None:
    """Adds to the environment of Spark's Python workers, which inherit that of the Java process."""
    for name, value in os.environ.items():
        if name == "TRUNQ_DSN" or name in CONNECTION:
            spark.sparkContext.environment[name] = value


def _interpreter(pyspark: Path, spark_home: Path) -> dict[str, str]:
    """Makes workers run this interpreter; by default Spark runs the first python3 on the PATH."""
    if os.name != "posix":
        return {"PYSPARK_PYTHON": sys.executable}
    shim = SHIM / "python"
    make_executable(shim)
    zips = pyspark / "python" / "lib" if spark_home == pyspark else ""
    return {
        "PYSPARK_PYTHON": str(shim),
        "TRUNQ_REAL_PYTHON": sys.executable,
        "TRUNQ_PYSPARK_ZIPS": str(zips),
    }


def _settings(master: str, memory: str) -> dict[str, str]:
    stated = re.match(r"local\[(\d+)", master)
    cores = stated.group(1) if stated else str(os.cpu_count() or 1)
    settings = {
        "spark.driver.memory": memory,
        # Over loopback TCP, each exchange with a Python worker takes 40 ms longer.
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": cores,
        "spark.sql.python.filterPushdown.enabled": "true",
        # Options may contain a password, which must not show in query plans.
        "spark.sql.redaction.options.regex": "(?i)url|dsn|password",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.extraJavaOptions": f"-Dlog4j.configurationFile={LOGGING.as_uri()}",
    }
    if master.startswith("local"):
        # A local session need not be reachable from the network.
        settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    return settings


def _launch_environment(master: str) -> dict[str, str]:
    import pyspark  # noqa: PLC0415

    installed = Path(pyspark.__file__).parent
    # By default Spark's scripts ask the first python3 on the PATH where Spark is installed.
    home = Path(os.environ.get("SPARK_HOME", installed))
    wanted = {**find_java().environment(), **_interpreter(installed, home), "SPARK_HOME": str(home)}
    ignored = f"ignore:{PANDAS}:FutureWarning"
    wanted["PYTHONWARNINGS"] = ",".join(filter(None, [os.environ.get("PYTHONWARNINGS"), ignored]))
    if master.startswith("local"):
        wanted["SPARK_LOCAL_IP"] = os.environ.get("SPARK_LOCAL_IP", "127.0.0.1")
    return wanted


@contextmanager
def _environment(wanted: Mapping[str, str]) -> Iterator[None]:
    """Sets variables while the JVM starts, which copies them; restores them afterwards."""
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
