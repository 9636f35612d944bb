"""A Spark session, on this machine or on a cluster, configured for trunq."""

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

from trunq import settings
from trunq.spark.errors import SparkError
from trunq.spark.launch.cluster import PYTHON, cluster_settings, is_local, packed_python
from trunq.spark.launch.java import SHIM, find_java, make_executable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOGGING = Path(__file__).parent / "log4j2.properties"

CONNECTION = ("PGHOST", "PGPORT", "PGDATABASE", "PGUSER", "PGPASSFILE", "PGSERVICE", "PGSERVICEFILE")
"""Variables from which libpq takes what an address leaves out."""

FOR_EXECUTORS = ("TRUNQ_REAL_PYTHON", "TRUNQ_PYSPARK_ZIPS", "PATH")
"""Variables that differ between driver and executors: each has its own from the process that started it."""

_UTC = "-Duser.timezone=UTC"
"""Drivers of JDBC read times in the zone of their process, which may have hours twice."""

PANDAS = "PySpark does not yet fully support pandas"
"""The start of a warning that each process prints; trunq reads and writes nothing through pandas."""


def session(
    app_name: str = "trunq",
    master: str | None = None,
    memory: str | None = None,
    conf: Mapping[str, str] | None = None,
    archives: str | None = None,
) -> SparkSession:
    """Starts Spark, or returns the running session; it knows `format("trunq")` and `format("trunq_delta")`.

    It finds Java (see `trunq.spark.launch.java`), has Spark's workers use this interpreter, and logs errors
    only. `memory` is the heap of the driver, in which everything runs in local mode. `conf` overrides the
    settings made here. In `local[cores,failures]` the second number says how often Spark tries a task: with
    the default, Spark repeats a read that a restart of the database cut off, and the query goes on.

    What is not given comes from the settings (`spark.master` of trunq.toml, `TRUNQ_SPARK_MASTER`, and so on);
    `conf` goes before that of the settings, a line at a time.

    On a cluster (`master="spark://host:7077"`), executors have this interpreter at the same path, or
    `archives` names an environment packed by venv-pack, `venv.tar.gz#environment`, with trunq in it.

    Raises `JavaMissing` when there is no Java, `SparkError` when Spark does not start, and InvalidArgument
    for settings that are wrong.
    """
    try:
        from pyspark.errors import PySparkRuntimeError  # noqa: PLC0415 - to say what is missing
        from pyspark.sql import SparkSession  # noqa: PLC0415
    except ImportError as error:
        raise SparkError("Spark is not installed", "pip install 'trunq[spark]'") from error
    if (running := SparkSession.getActiveSession()) is not None:
        return register(running)
    known = settings.load().spark
    master, memory, archives = master or known.master, memory or known.memory, archives or known.archives
    if is_local(master):
        archives = None
    launch = _launch_environment(master, archives)
    given = {**_settings(master, memory, launch, archives), **_jars(known), **known.conf, **(conf or {})}
    builder = SparkSession.builder.appName(app_name).master(master)
    for name, value in given.items():
        builder = builder.config(name, value)
    with _environment(launch), warnings.catch_warnings():
        warnings.filterwarnings("ignore", PANDAS, FutureWarning)
        try:
            spark = builder.getOrCreate()
        except PySparkRuntimeError as error:
            raise SparkError(
                "Spark's Java process ended before it was ready; what it said is above",
                f"the heap asked for is {memory}: a smaller one may fit this machine",
            ) from error
    for name in FOR_EXECUTORS:
        # Pyspark would hand those of executors to the Python processes of the driver as well.
        spark.sparkContext.environment.pop(name, None)
    return register(spark)


def register(spark: SparkSession) -> SparkSession:
    """Registers the formats `trunq` and `trunq_delta` with a session that you created; returns the session.

    It hands Spark's workers the environment variables that name the database, with their present values.
    Run such a session with `spark.python.unix.domain.socket.enabled`: without it each micro-batch takes about
    40 ms longer.
    """
    from trunq.spark.format import Trunq  # noqa: PLC0415 - these need pyspark
    from trunq.spark.lake.format import TrunqDelta  # noqa: PLC0415

    _share_environment(spark)
    _pass_partition_columns_on()
    spark.dataSource.register(Trunq)
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
    """Adds to the environment of Spark's Python workers, which inherit that of the Java process.

    It travels with the tasks, and shows neither in plans nor among Spark's settings. An executor on another
    machine has no trunq.toml, so the address that stands there travels too.
    """
    for name, value in os.environ.items():
        if name == "TRUNQ_DSN" or name in CONNECTION:
            spark.sparkContext.environment[name] = value
    if (dsn := settings.load().dsn) is not None:
        spark.sparkContext.environment["TRUNQ_DSN"] = dsn


def _interpreter(pyspark: Path, spark_home: Path, archives: str | None) -> dict[str, str]:
    """Makes workers run this interpreter; by default Spark runs the first python3 on the PATH.

    Spark starts the Python processes of driver and executors by one name. Where executors have trunq at
    another path, that is a name to look up: on the driver here, on executors in what they unpacked.
    """
    if os.name != "posix":
        return {"PYSPARK_PYTHON": sys.executable}
    shim = SHIM / PYTHON
    make_executable(shim)
    zips = pyspark / "python" / "lib" if spark_home == pyspark else ""
    found = {"TRUNQ_REAL_PYTHON": sys.executable, "TRUNQ_PYSPARK_ZIPS": str(zips)}
    if archives is None:
        return {"PYSPARK_PYTHON": str(shim), **found}
    return {"PYSPARK_PYTHON": PYTHON, "PATH": f"{SHIM}{os.pathsep}{os.environ.get('PATH', '')}", **found}


def _for_executors(launch: Mapping[str, str], archives: str | None) -> dict[str, str]:
    """What the shim needs on executors: as here, or of the packed environment, beside their own Spark."""
    if archives is not None:
        return {"TRUNQ_REAL_PYTHON": packed_python(archives), "TRUNQ_PYSPARK_ZIPS": ""}
    return {name: launch[name] for name in ("TRUNQ_REAL_PYTHON", "TRUNQ_PYSPARK_ZIPS") if name in launch}


def _jars(known: settings.Spark) -> dict[str, str]:
    """Those that the settings name. Raises SparkError for one that is not there."""
    if gone := next((jar for jar in known.jars if "://" not in jar and not Path(jar).is_file()), None):
        raise SparkError(
            f"the setting spark.jars names {gone}, which is not there",
            "put the jar there, or name the place where it is",
        )
    return {"spark.jars": ",".join(known.jars)} if known.jars else {}


def _settings(
    master: str, memory: str, launch: Mapping[str, str], archives: str | None = None
) -> dict[str, str]:
    made = {
        "spark.driver.memory": memory,
        # Over loopback TCP, each exchange with a Python worker takes 40 ms longer.
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.python.filterPushdown.enabled": "true",
        # Options may contain a password, which must not show in query plans.
        "spark.sql.redaction.options.regex": "(?i)url|dsn|password",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.extraJavaOptions": f"-Dlog4j.configurationFile={LOGGING.as_uri()} {_UTC}",
        "spark.executor.extraJavaOptions": _UTC,
    }
    if not is_local(master):
        return {**made, **cluster_settings(master, _for_executors(launch, archives), archives)}
    stated = re.match(r"local\[(\d+)", master)
    return {
        **made,
        "spark.sql.shuffle.partitions": stated.group(1) if stated else str(os.cpu_count() or 1),
        # A local session need not be reachable from the network.
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }


def _launch_environment(master: str, archives: str | None = None) -> dict[str, str]:
    import pyspark  # noqa: PLC0415

    installed = Path(pyspark.__file__).parent
    # By default Spark's scripts ask the first python3 on the PATH where Spark is installed.
    home = Path(os.environ.get("SPARK_HOME", installed))
    wanted = {**find_java().environment(), **_interpreter(installed, home, archives), "SPARK_HOME": str(home)}
    ignored = f"ignore:{PANDAS}:FutureWarning"
    wanted["PYTHONWARNINGS"] = ",".join(filter(None, [os.environ.get("PYTHONWARNINGS"), ignored]))
    if is_local(master):
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
