"""Reading a queue once, by both engines; no Spark is needed for that."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from psycopg.conninfo import make_conninfo
from pyspark.sql.datasource import EqualTo, In, IsNotNull, StringStartsWith
from pyspark.sql.types import DecimalType, StringType, StructType

from spark.conftest import Queue, columns
from trunq.errors import InvalidArgument, InvalidName, QueueNotFound, SchemaMissing, TickNotFound
from trunq.record import BatchMessage
from trunq.spark.connection import Connection, Database, away
from trunq.spark.errors import DatabaseAway
from trunq.spark.source import scan
from trunq.spark.source.column import BY_NAME, arrow_schema, choose
from trunq.spark.source.column import own as own_column
from trunq.spark.source.format import TrunqSource
from trunq.spark.source.log import QueueLog
from trunq.spark.source.option import Options
from trunq.spark.source.reader import BatchReader, FilteringReader
from waiting import wait_until

ENGINES = ("psycopg", "adbc")
ALL = tuple(BY_NAME.values())


def read(reader: BatchReader) -> pa.Table:
    batches = [batch for partition in reader.partitions() for batch in reader.read(partition)]
    return pa.Table.from_batches(batches, arrow_schema(reader._query.columns))


@pytest.mark.parametrize("engine", ENGINES)
def test_every_column_arrives_as_spark_wants_it(queue: Queue, engine: str) -> None:
    queue.connection.execute("""
        insert into trunq_log.q (kind, key, payload, body, headers) values
          ('a', 'k', '{"é": [1, null]}', '\\x00ff', '{"h": "x"}'), (null, null, null, null, null)""")
    table = read(BatchReader(queue.options(engine=engine), ALL))
    assert table.schema == arrow_schema(ALL)
    rows = table.sort_by("id").to_pylist()
    created_at = [row.pop("created_at") for row in rows]
    assert created_at == [
        row[0]
        for row in queue.connection.execute("select created_at from trunq_log.q order by id").fetchall()
    ]
    first, second = queue.ids()
    assert rows == [
        {
            "id": first, "kind": "a", "key": "k", "payload": '{"é": [1, null]}', "body": b"\x00\xff",
            "headers": '{"h": "x"}', "priority": 0, "attempt": 1,
        },
        {
            "id": second, "kind": None, "key": None, "payload": None, "body": None,
            "headers": None, "priority": 0, "attempt": 1,
        },
    ]  # fmt: skip


@pytest.mark.parametrize("engine", ENGINES)
def test_several_partitions_are_together_the_whole(queue: Queue, engine: str) -> None:
    for _ in range(30):
        queue.publish(40)
    reader = BatchReader(queue.options(engine=engine, minPartitions="3"), columns("id"))
    assert len(reader.partitions()) == 3
    assert sorted(read(reader)["id"].to_pylist()) == queue.ids()


def test_partitions_are_even_when_older_messages_are_gone(queue: Queue) -> None:
    queue.connection.execute("select setval('trunq_data.q_message_id', 1000000)")
    for _ in range(300):
        queue.publish(10)
    reader = BatchReader(queue.options(minPartitions="3"), columns("id"))
    sizes = [sum(batch.num_rows for batch in reader.read(each)) for each in reader.partitions()]
    assert sum(sizes) == 3000
    assert min(sizes) > 500


@pytest.mark.parametrize("engine", ENGINES)
def test_batches_are_bounded_in_bytes(queue: Queue, engine: str) -> None:
    queue.connection.execute(
        "insert into trunq_log.q (body)"
        " select decode(repeat('00', 3000000), 'hex') from generate_series(1, 12)"
    )
    reader = BatchReader(queue.options(engine=engine), columns("id", "body"))
    sizes = [batch.nbytes for each in reader.partitions() for batch in reader.read(each)]
    assert sum(sizes) > 36_000_000
    assert max(sizes) < 16_000_000


def test_the_connection_that_adbc_keeps_is_replaced_when_it_is_lost(queue: Queue) -> None:
    queue.publish(3)
    reader = BatchReader(queue.options(engine="adbc"), columns("id"))
    assert read(reader).num_rows == 3
    wait_until(lambda: queue.others() == 1, what="only the connection that adbc keeps is left")
    assert queue.disconnect_others() == 1
    assert read(reader).num_rows == 3


def test_retries_of_a_subscription_are_not_read(queue: Queue) -> None:
    queue.publish(2)
    queue.connection.execute(
        "insert into trunq_log.q (id, subscription_id, attempt) select id, 1, 2 from trunq_log.q limit 1"
    )
    assert read(BatchReader(queue.options(), columns("attempt")))["attempt"].to_pylist() == [1, 1]


def test_a_batch_reads_from_tick_to_tick(queue: Queue) -> None:
    ticks = []
    for _ in range(3):
        queue.publish(10)
        ticks.append(queue.tick())
    queue.publish(10)
    between = queue.options(startingTick=str(ticks[0]), endingTick=str(ticks[1]))
    assert sorted(read(BatchReader(between, columns("id")))["id"].to_pylist()) == queue.ids()[10:20]
    assert read(BatchReader(queue.options(startingTick=str(ticks[1])), columns("id"))).num_rows == 20
    assert read(BatchReader(queue.options(), columns("id"))).num_rows == 40
    with pytest.raises(TickNotFound, match=f"it keeps ticks 1 to {ticks[2] + 1}"):
        BatchReader(queue.options(startingTick="99"), columns("id")).partitions()


def test_a_batch_of_everything_cuts_a_tick_only_when_there_is_something_newer(queue: Queue) -> None:
    queue.publish(1)
    for _ in range(2):
        assert read(BatchReader(queue.options(), columns("id"))).num_rows == 1
        assert queue.value("select count(*) from trunq.tick") == 2


def test_kind_and_key_are_selected_in_the_database(queue: Queue) -> None:
    for kind in ("a", "b", "it's \\ odd"):
        queue.publish(3, kind)
    assert read(BatchReader(queue.options(kind="a, b"), columns("kind"))).num_rows == 6
    assert read(BatchReader(queue.options(kind="it's \\ odd", key="1,2"), columns("key")))[
        "key"
    ].to_pylist() == [
        "1",
        "2",
    ]


@pytest.mark.parametrize("engine", ENGINES)
def test_conditions_on_kind_and_key_are_pushed_down_and_others_left(queue: Queue, engine: str) -> None:
    for kind in ("a", "b", "it's \\ odd"):
        queue.publish(3, kind)
    reader = FilteringReader(queue.options(pushdown="true", engine=engine), columns("kind", "key"))
    left = StringStartsWith(("kind",), "i")
    given = [IsNotNull(("kind",)), EqualTo(("kind",), "it's \\ odd"), In(("key",), ("2", "3")), left]
    assert list(reader.pushFilters(given)) == [left]
    assert [row["key"] for row in read(reader).to_pylist()] == ["2", "3"]


def test_an_empty_queue_has_no_rows(queue: Queue) -> None:
    assert read(BatchReader(queue.options(), ALL)).num_rows == 0


def test_few_rows_are_read_by_psycopg_and_many_by_adbc() -> None:
    assert scan.choose("auto", 100) is scan.read_psycopg
    assert scan.choose("auto", 100_000) is scan.read_adbc
    assert scan.choose("adbc", 1) is scan.read_adbc


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({}, "needs the option queue"),
        ({"queue": "Q; drop"}, "cannot be the name of a queue"),
        ({"queue": "q", "maxMessagePerTrigger": "1"}, 'no option "maxMessagePerTrigger"'),
        ({"queue": "q", "maxMessagesPerTrigger": "0"}, "a whole number from 1"),
        ({"queue": "q", "engine": "jdbc"}, "auto or adbc or psycopg"),
        ({"queue": "q", "pushdown": "yes"}, "true or false"),
        ({"queue": "q", "startingTick": "3", "endingTick": "2"}, "lies before"),
        ({"queue": "q", "startingTick": "3", "startingOffsets": "latest"}, "not both"),
        ({"queue": "q", "dsn": "x", "service": "y"}, "not both"),
    ],
)
def test_wrong_options_are_refused(given: dict[str, str], problem: str) -> None:
    with pytest.raises((InvalidArgument, InvalidName), match=problem):
        Options.parse(given)


def test_the_address_is_that_of_the_settings_and_is_never_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TRUNQ_DSN", raising=False)
    options = Options.parse({"queue": "q"})
    # Nothing is said, so libpq looks where it always does: PGHOST and so on.
    assert options.address() == ""
    (tmp_path / "trunq.toml").write_text('dsn = "host=file"')
    assert options.address() == "host=file"
    monkeypatch.setenv("TRUNQ_DSN", "host=h password=secret")
    assert options.address() == "host=h password=secret"
    assert Options.parse({"queue": "q", "service": "it's"}).address() == "service='it\\'s'"
    assert "secret" not in repr(Options.parse({"queue": "q", "dsn": "host=h password=secret"}))


def test_an_address_that_cannot_be_read_is_not_repeated() -> None:
    with pytest.raises(InvalidArgument) as caught:
        Options.parse({"queue": "q", "dsn": "postgres//u:secret@h"}).address()
    assert "secret" not in str(caught.value)


@pytest.fixture
def open_to_others(queue: Queue) -> Callable[[bool], None]:
    """Lets others connect to the database, or not; who is connected stays so."""
    other = queue.connect(make_conninfo(queue.dsn, dbname="postgres"))

    def allow(allowed: bool) -> None:
        other.execute(f"alter database {queue.connection.info.dbname} allow_connections {allowed}".encode())

    return allow


def test_a_database_never_reached_is_given_up_sooner_than_one_that_answered_before(
    queue: Queue, open_to_others: Callable[[bool], None]
) -> None:
    tries: list[str] = []

    def nowhere() -> str:
        tries.append("host=/nowhere")
        return tries[-1]

    known = Database(lambda: queue.dsn)
    assert known.run(select_one) == 1
    open_to_others(False)
    assert queue.disconnect_others() == 1
    with closing(known), ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(known.run, select_one)
        wait_until(waiting.running)
        with pytest.raises(DatabaseAway, match="cannot be reached"):
            Database(nowhere).run(select_one)
        # The pauses before seven tries take 3 s at least, so two seconds of patience allow no more.
        # The address is asked for once more, for the error.
        assert len(tries) <= 7 + 1
        assert waiting.running()
        open_to_others(True)
        assert waiting.result(120) == 1


def select_one(connection: Connection) -> Any:
    return connection.execute("select 1").fetchone()[0]  # type: ignore[index]


@pytest.mark.parametrize(
    ("dsn", "said"),
    [
        ("host=h password=secret", "no answer from h with secret"),
        ("postgresql://u:secret@h/db", "no answer from postgresql://u:secret@h/db"),
        ("postgres//u:secret@h", 'missing "=" after "postgres//u:secret@h"'),
        ("postgres//u:secret@h", 'missing "=" in "secret@h"'),
    ],
)
def test_a_password_that_a_library_repeats_is_not_shown(dsn: str, said: str) -> None:
    error = away(OSError(said), dsn)
    assert "cannot be reached" in str(error)
    assert "secret" not in str(error)


def test_an_unknown_queue_and_a_database_without_trunq_are_said_so(queue: Queue, new_database: Any) -> None:
    with pytest.raises(QueueNotFound, match='no queue "nope"'):
        BatchReader(Options.parse({"queue": "nope", "dsn": queue.dsn}), columns("id")).partitions()
    with pytest.raises(SchemaMissing):
        BatchReader(
            Options.parse({"queue": "q", "dsn": new_database("template1")}), columns("id")
        ).partitions()


def test_a_schema_may_name_only_the_columns_there_are() -> None:
    found = choose(StructType().add("kind", StringType()).add("key", StringType()), list)
    assert found == columns("kind", "key")
    with pytest.raises(InvalidArgument, match='no column "kinds"'):
        choose(StructType().add("kinds", StringType()), list)
    with pytest.raises(InvalidArgument, match='"id" is bigint, not string'):
        choose(StructType().add("id", StringType()), list)
    own = choose(StructType().add("customer", StringType()), lambda: [own_column("customer", "citext")])
    assert own == (own_column("customer", "text"),)


def test_the_columns_are_those_of_a_message_in_a_batch() -> None:
    assert (*BY_NAME, "txid", "columns") == BatchMessage._fields


@pytest.mark.parametrize("engine", ENGINES)
def test_columns_of_the_user_s_come_in_their_types(queue: Queue, engine: str) -> None:
    types = {
        "a_text": ("text", "'x'"), "An int": ("integer", "7"), "large": ("bigint", "8000000000"),
        "small": ("smallint", "3"), "flag": ("boolean", "true"), "ratio": ("double precision", "0.1"),
        "short": ("real", "0.5"), "price": ("numeric(12,2)", "1.5"), "any": ("numeric", "1.25"),
        "day": ("date", "'2030-01-31'"), "at": ("timestamptz", "'2030-01-31T10:00:00Z'"),
        "local": ("timestamp", "'2030-01-31 10:00:00'"), "bytes": ("bytea", "'\\x00ff'"),
        "document": ("jsonb", """'{"a": [1]}'"""), "tags": ("text[]", "'{a,b}'"),
        "id_of": ("uuid", "'00000000-0000-0000-0000-000000000001'"),
    }  # fmt: skip
    session = queue.connection
    for name, (type, _) in types.items():
        session.execute("select trunq.add_column('q', %s, %s)", (name, type))
    listed = ", ".join(f'"{name}"' for name in types)
    values = ", ".join(value for _, value in types.values())
    session.execute(f"insert into trunq_log.q ({listed}) values ({values})".encode())
    session.execute("insert into trunq_log.q (kind) values ('nothing')")
    with closing(Database(lambda: queue.dsn)) as database:
        own = QueueLog(database, "q").own_columns()
    assert [column.kind for column in own] == [
        *("string", "int", "bigint", "smallint", "boolean", "double", "float", "decimal(12,2)", "string"),
        *("date", "timestamp", "timestamp_ntz", "binary", "string", "string", "string"),
    ]
    table = read(BatchReader(queue.options(engine=engine), own))
    assert table.schema == arrow_schema(own)
    first, second = table.sort_by([("a_text", "ascending")]).to_pylist()
    at = datetime(2030, 1, 31, 10)
    assert list(first.values()) == [
        *(
            "x",
            7,
            8_000_000_000,
            3,
            True,
            0.1,
            0.5,
            Decimal("1.50"),
            "1.25",
            at.date(),
            at.replace(tzinfo=UTC),
            at,
        ),
        *(b"\x00\xff", '{"a": [1]}', "{a,b}", "00000000-0000-0000-0000-000000000001"),
    ]
    assert set(second.values()) == {None}


@pytest.mark.parametrize("engine", ENGINES)
def test_times_of_fewer_digits_are_times(queue: Queue, engine: str) -> None:
    types = {"at": "timestamp(3) with time zone", "local": "timestamp(0)", "clock": "time(3)"}
    for name, type in types.items():
        queue.connection.execute("select trunq.add_column('q', %s, %s)", (name, type))
    day = "2030-01-31 10:00:00.123456"
    queue.connection.execute(
        "insert into trunq_log.q (at, local, clock) values (%s, %s, '10:00:00.1234')", (f"{day}Z", day)
    )
    with closing(Database(lambda: queue.dsn)) as database:
        own = QueueLog(database, "q").own_columns()
    assert [column.kind for column in own] == ["timestamp", "timestamp_ntz", "string"]
    at = datetime(2030, 1, 31, 10)
    assert read(BatchReader(queue.options(engine=engine), own)).to_pylist() == [
        {"at": at.replace(microsecond=123_000, tzinfo=UTC), "local": at, "clock": "10:00:00.123"}
    ]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_number_that_a_decimal_lacks_is_refused_by_its_column_and_the_others_are_read(
    queue: Queue, engine: str
) -> None:
    for name in ("price", "other"):
        queue.connection.execute("select trunq.add_column('q', %s, 'numeric(10,2)')", (name,))
    queue.connection.execute("insert into trunq_log.q (price, other) values ('NaN', 1.5)")
    with closing(Database(lambda: queue.dsn)) as database:
        own = QueueLog(database, "q").own_columns()
    with pytest.raises(
        InvalidArgument, match=r'"price" has a value that decimal128\(10, 2\).*[nN]a[nN]'
    ) as caught:
        read(BatchReader(queue.options(engine=engine), own))
    assert "names those that are read" in str(caught.value.hint)
    chosen = choose(StructType().add("other", DecimalType(10, 2)), lambda: own)
    assert read(BatchReader(queue.options(engine=engine), chosen)).to_pylist() == [{"other": Decimal("1.50")}]


def test_the_schema_that_spark_asks_for_has_them(queue: Queue) -> None:
    queue.connection.execute("select trunq.add_column('q', 'customer', 'text')")
    queue.connection.execute("select trunq.add_column('q', 'ship to', 'numeric(9,2)')")
    source = TrunqSource({"dsn": queue.dsn, "queue": "q"})
    assert source.schema().endswith("created_at timestamp, customer string, `ship to` decimal(9,2)")
    assert TrunqSource({"dsn": queue.dsn, "queue": "nope"}).schema().endswith("created_at timestamp")
