"""What we touch of other libraries that they do not promise: each is named here, and does what we rely on."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psycopg
import pytest
from psycopg import sql
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from trunq.connection.fork import leave_to_parent

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SOURCE = Path(__file__).parent.parent / "src" / "trunq"

TOUCHED: Final = {
    "asyncio": {"_get_running_loop"},
    "psycopg": {"_check_connection_ok", "_exec_command", "_obj"},
    "psycopg_pool": {"_closed", "_pool"},
    "pyspark": {
        "_activeSession",
        "_active_spark_context",
        "_gateway",
        "_instantiatedSession",
        "_jc",
        "_jdf",
        "_jsc",
        "_jsparkSession",
        "_jvm",
        "_python_includes",
        "_temp_dir",
    },
}
"""Private names by library. Whoever adds one tests below what it is relied on for."""

PROMISED: Final = {"_asdict", "_exit", "_fields", "_make", "_replace"}
"""Names that begin so, and are documented: of named tuples, and os._exit."""


def test_the_source_touches_no_private_name_of_a_library_but_those_tested_here() -> None:
    own, touched = set[str](), set[str]()
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            own.update(defined(node))
            if isinstance(node, ast.Attribute) and is_private(node.attr) and not is_self(node.value):
                touched.add(node.attr)
    # Some of them something of ours has as well.
    assert touched - own - PROMISED <= set().union(*TOUCHED.values()) <= touched


def defined(node: ast.AST) -> Iterator[str]:
    """The names that a part of our source makes."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_self(node.value):
        yield node.attr


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


async def test_asyncio_tells_without_an_error_that_no_loop_runs() -> None:
    assert asyncio._get_running_loop() is asyncio.get_running_loop()
    assert await asyncio.to_thread(asyncio._get_running_loop) is None


def test_a_pool_of_psycopg_has_its_idle_connections_in_pool(database: str) -> None:
    with ConnectionPool[Any](database, min_size=1, open=True) as pool:
        pool.wait()
        (idle,) = pool._pool
        with pool.connection() as connection:
            assert connection is idle
            assert not pool._pool


async def test_an_async_pool_of_psycopg_has_its_idle_connections_in_pool(database: str) -> None:
    async with AsyncConnectionPool[Any](database, min_size=1, open=False) as pool:
        await pool.wait()
        (idle,) = pool._pool
        async with pool.connection() as connection:
            assert connection is idle
            assert not pool._pool


def test_a_pool_that_is_marked_as_closed_does_nothing_to_its_connections(database: str) -> None:
    with ConnectionPool[Any](database, min_size=1, open=True) as pool:
        pool.wait()
        (idle,) = pool._pool
        leave_to_parent(pool)
        assert pool.closed
        pool.close()
        assert not idle.closed
        pool._closed = False
    assert idle.closed


class Listening(psycopg.Connection[Any]):
    """Keeps the commands that psycopg gives by itself."""

    commands: list[Any]

    def _exec_command(self, command: Any, *rest: Any, **more: Any) -> Any:
        self.commands.append(command)
        return (yield from super()._exec_command(command, *rest, **more))


def test_psycopg_ends_a_transaction_by_exec_command(database: str) -> None:
    with Listening.connect(database, autocommit=True) as connection:
        connection.commands = []
        with connection.transaction():
            connection.execute("select 1")
        with connection.transaction(force_rollback=True):
            connection.execute("select 1")
    assert [each for each in connection.commands if each in (b"COMMIT", b"ROLLBACK")] == [
        b"COMMIT",
        b"ROLLBACK",
    ]


def test_psycopg_refuses_a_closed_connection_by_check_connection_ok(database: str) -> None:
    with psycopg.connect(database) as connection:
        connection._check_connection_ok()
    with pytest.raises(psycopg.OperationalError):
        connection._check_connection_ok()


def test_the_names_of_an_identifier_of_psycopg_are_its_obj() -> None:
    assert sql.Identifier("public", 'the "table"')._obj == ("public", 'the "table"')


def test_pyspark_has_its_java_side_where_we_look_for_it(spark: SparkSession) -> None:
    from pyspark import SparkContext  # noqa: PLC0415  # slow to import
    from pyspark.sql import SparkSession as Session  # noqa: PLC0415

    context: Any = spark.sparkContext
    assert SparkContext._active_spark_context is context
    assert SparkContext._gateway is context._gateway
    assert SparkContext._jvm is context._jvm
    assert "_activeSession" in vars(Session)
    assert Session._instantiatedSession is not None
    assert context._gateway.proc.poll() is None
    assert context._jvm.java.lang.Class.forName("java.lang.String").isInstance("text")
    assert context._jsc.sc().isStopped() is False
    assert len(context._jsc.sc().statusTracker().getExecutorInfos()) >= 1
    frame = spark.range(1)
    assert spark._jsparkSession.sessionState().sqlParser().parsePlan("select 1") is not None
    assert frame._jdf.count() == 1
    assert frame["id"]._jc.toString() == "id"


def test_pyspark_keeps_the_archives_of_a_context_by_name_and_a_directory_for_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    context: Any = spark.sparkContext
    assert Path(context._temp_dir).is_dir()
    (shipped := tmp_path / "shipped_for_a_test.zip").write_bytes(b"PK\x05\x06" + bytes(18))
    context.addPyFile(str(shipped))
    assert shipped.name in context._python_includes
