"""Connections by JDBC, of the driver's Java process: for what a run asks beside its rows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from trunq.errors import InvalidPipeline, TrunqError
from trunq.pipeline.definition.jdbc import DRIVERS, InJdbc, JdbcSink, place_of
from trunq.pipeline.errors import DatabaseFailed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_NO_TABLE: Final = ("42P01", "42S02")
_READ_COMMITTED: Final = 2
_MYSQL: Final = ("mariadb", "mysql")
_UTC: Final = "time_zone='+00:00'"
_STRICT: Final = "sql_mode='STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION,NO_AUTO_VALUE_ON_ZERO'"
"""By which no value is cut, or made another, on its way into a stage or a table: nor a key 0 a new number."""
_VARIABLES: Final = "sessionVariables"

_BEFORE: Final = re.compile(r"\(conn=\d+\)\s*|^(ERROR|FATAL): +")

_SAID: Final = re.compile(
    r"(?:java\.sql|org\.postgresql|org\.mariadb|com\.mysql)[\w.$]*(?:Exception|Error): ([^\n]+)"
)

Row = tuple[str | None, ...]


def running_session() -> SparkSession:
    """The session of this process, which is started where there is none."""
    from pyspark.sql import SparkSession  # noqa: PLC0415  # slow to import

    from trunq import spark  # noqa: PLC0415

    running = SparkSession._instantiatedSession
    if running is not None and running.sparkContext._jsc is not None:
        return running
    return spark.session("trunq pipelines")


def url_of(place: InJdbc) -> str:
    """The URL as Spark is to have it: it knows MariaDB by the name of MySQL alone, and would quote names as
    texts. Times are read in UTC, whatever variables of a session it is told besides.
    """
    if place.kind not in _MYSQL:
        return place.url
    url = place.url.replace(f"jdbc:{place.kind}:", "jdbc:mysql:", 1)
    more = [] if place.kind == "mysql" else ["permitMysqlScheme=true"]
    if _IN_URL.search(url):
        url = _IN_URL.sub(lambda found: f"{found[1]}{_with_ours(place, found[2])}", url)
    elif _VARIABLES not in place.properties:
        more.append(f"{_VARIABLES}={_with_ours(place, '')}")
    if not more:
        return url
    return f"{url}{'&' if '?' in url else '?'}{'&'.join(more)}"


_IN_URL: Final = re.compile(rf"([?&]{_VARIABLES}=)([^&]*)")


def _with_ours(place: InJdbc, given: str) -> str:
    """Variables of a session, of which the last counts."""
    ours = [_UTC, _STRICT] if isinstance(place, JdbcSink) else [_UTC]
    return ",".join([*filter(None, [given.strip(", ;")]), *ours])


def properties_of(place: InJdbc) -> dict[str, str]:
    """What the driver is told: rows come and go many at a time."""
    batched = {"postgresql": "reWriteBatchedInserts"}.get(place.kind, "rewriteBatchedStatements")
    known = {batched: "true"} if place.kind in ("postgresql", *_MYSQL) else {}
    if place.kind == "postgresql":
        # A text goes into a column of any type, as a literal does.
        known["stringtype"] = "unspecified"
    given = {"user": place.user, "password": place.password}
    own = dict(place.properties)
    if place.kind in _MYSQL and _VARIABLES in own:
        own[_VARIABLES] = _with_ours(place, own[_VARIABLES])
    return {**known, **own, **{name: text for name, text in given.items() if text is not None}}


def class_of(place: InJdbc) -> str:
    """The class of the driver."""
    return place.driver or DRIVERS[place.kind]


@contextmanager
def telling(pipeline: str, place: str) -> Iterator[None]:
    """Raises what a database said, somewhere in an error of Spark, as DatabaseFailed."""
    try:
        yield
    except (Py4JJavaError, PySparkException) as error:
        if not (found := _SAID.findall(str(error))):
            raise
        said = _BEFORE.sub("", found[-1].strip())
        raise DatabaseFailed(f"pipeline {pipeline}: {place} says: {said}") from None


class Connection:
    """A connection; values come and go as texts."""

    def __init__(self, java: Any, place: str, pipeline: str) -> None:
        self._java, self._place, self._pipeline = java, place, pipeline

    def rows(self, query: str, *values: str | int) -> list[Row]:
        """The rows of a query."""
        with self._prepared(query, values) as statement, self._translating():
            found = statement.executeQuery()
            width = found.getMetaData().getColumnCount()
            rows = []
            while found.next():
                rows.append(tuple(found.getString(at + 1) for at in range(width)))
            return rows

    def one(self, query: str, *values: str | int) -> str | None:
        """The first value of a query."""
        found = self.rows(query, *values)
        return found[0][0] if found else None

    def execute(self, statement: str, *values: str | int) -> int:
        """Do it; how many rows it was about."""
        with self._prepared(statement, values) as prepared, self._translating():
            return int(prepared.executeUpdate())

    def kinds(self, query: str) -> list[tuple[str, int]]:
        """The columns of a query, with their types by the numbers of java.sql.Types."""
        nothing = f"select * from ({query}) trunq_q where 1 = 0"
        with self._prepared(nothing, ()) as statement, self._translating():
            told = statement.executeQuery().getMetaData()
            columns = range(1, told.getColumnCount() + 1)
            return [(told.getColumnLabel(at), int(told.getColumnType(at))) for at in columns]

    def primary_key(self, table: tuple[str | None, str]) -> list[str]:
        """The columns of a table's primary key, in their order."""
        rows = self._told("getPrimaryKeys", table, ("KEY_SEQ", "COLUMN_NAME"))
        return [str(name) for _, name in sorted(rows, key=lambda row: int(row[0] or 0))]

    def indexed(self, table: tuple[str | None, str], *, unique: bool = False) -> list[list[str]]:
        """The columns of each index of a table, in their order."""
        wanted = ("INDEX_NAME", "ORDINAL_POSITION", "COLUMN_NAME")
        indexes: dict[str, list[tuple[int, str]]] = {}
        for name, at, column in self._told("getIndexInfo", table, wanted, unique, True):
            if name is not None and column is not None:
                indexes.setdefault(name, []).append((int(at or 0), column.strip('"`')))
        return [[column for _, column in sorted(each)] for each in indexes.values()]

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """What its body does is done in one step, or not."""
        with self._translating():
            self._java.setTransactionIsolation(_READ_COMMITTED)
            self._java.setAutoCommit(False)
        try:
            yield
            with self._translating():
                self._java.commit()
        except BaseException:
            with suppress(Exception):
                self._java.rollback()
            raise
        finally:
            with suppress(Exception):
                self._java.setAutoCommit(True)

    def close(self) -> None:
        """Close it."""
        with suppress(Exception):
            self._java.close()

    def _told(
        self, what: str, table: tuple[str | None, str], columns: tuple[str, ...], *more: bool
    ) -> list[Row]:
        with self._translating():
            catalog, schema = self._java.getCatalog(), table[0]
            if "MySQL" in (name := self._java.getMetaData().getDatabaseProductName()) or "Maria" in name:
                # Schemas are catalogs there.
                catalog, schema = table[0] or catalog, None
            elif schema is None:
                schema = self._java.getSchema()
            found = getattr(self._java.getMetaData(), what)(catalog, schema, table[1], *more)
            rows = []
            while found.next():
                rows.append(tuple(found.getString(name) for name in columns))
            return rows

    @contextmanager
    def _prepared(self, text: str, values: tuple[str | int, ...]) -> Iterator[Any]:
        with self._translating():
            statement = self._java.prepareStatement(text)
            for at, value in enumerate(values, 1):
                if isinstance(value, int):
                    statement.setLong(at, value)
                else:
                    statement.setString(at, value)
        try:
            yield statement
        finally:
            with suppress(Exception):
                statement.close()

    @contextmanager
    def _translating(self) -> Iterator[None]:
        try:
            yield
        except Py4JJavaError as error:
            raise failed(self._pipeline, self._place, error.java_exception) from None


def failed(pipeline: str, place: str, java: Any) -> TrunqError:
    """An error of a driver as one of ours."""
    state, said = "", str(java.getMessage())
    with suppress(Exception):
        state = java.getSQLState() or ""
    line = _BEFORE.sub("", said.strip().partition("\n")[0])
    if state[:2] == "28" or "Access denied" in line:
        return DatabaseFailed(
            f"pipeline {pipeline}: {place} refuses the credentials: {line}",
            "give user, and password = '${NAME}'",
        )
    if state in _NO_TABLE:
        return InvalidPipeline(
            f"pipeline {pipeline}: there is no table, or no right to see one, at {place}: {line}",
            "write table = 'schema.table' as that database has it",
        )
    if state[:2] == "08":
        return DatabaseFailed(
            f"pipeline {pipeline}: {place} cannot be reached: {line}",
            "see that the server runs, and that the url is right where the pipeline runs",
        )
    return DatabaseFailed(f"pipeline {pipeline}: {place} says: {line}")


@contextmanager
def connected(pipeline: str, place: InJdbc) -> Iterator[Connection]:
    """A connection. Raises InvalidPipeline where the driver is not there, DatabaseFailed where it fails."""
    java = running_session().sparkContext._jvm
    registry: Any = java.org.apache.spark.sql.execution.datasources.jdbc.DriverRegistry  # type: ignore[union-attr]
    name = class_of(place)
    try:
        registry.register(name)
        driver = registry.get(name)
    except Py4JJavaError as error:
        raise no_driver(pipeline, place, error) from None
    given: Any = java.java.util.Properties()  # type: ignore[union-attr]
    for key, value in properties_of(place).items():
        given.setProperty(key, value)
    try:
        made = driver.connect(url_of(place), given)
    except Py4JJavaError as error:
        raise failed(pipeline, place_of(place), error.java_exception) from None
    if made is None:
        raise InvalidPipeline(f"pipeline {pipeline}: {name} is no driver for {place_of(place)}")
    connection = Connection(made, place_of(place), pipeline)
    try:
        yield connection
    finally:
        connection.close()


def no_driver(pipeline: str, place: InJdbc, error: Py4JJavaError) -> InvalidPipeline:
    """That a class is not among the jars."""
    kind = error.java_exception.getClass().getSimpleName()
    why = "is in no jar of spark.jars" if kind == "ClassNotFoundException" else f"cannot be loaded: {kind}"
    jar = _JARS.get(place.kind, "driver.jar")
    return InvalidPipeline(
        f"pipeline {pipeline}: the driver of {place_of(place)}, {class_of(place)}, {why}",
        f"name its jar in trunq.toml where the pipeline runs: [spark] jars = ['{jar}']",
    )


_JARS: Final = {
    "mariadb": "/usr/share/java/mariadb-java-client.jar",
    "postgresql": "/usr/share/java/postgresql.jar",
}
"""Where Debian's packages libmariadb-java and libpostgresql-jdbc-java put them."""
