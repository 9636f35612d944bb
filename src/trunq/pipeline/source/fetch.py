"""One query as Arrow batches, by ADBC: rows are turned into Arrow in native code, none into Python.

Values in it are literals: with parameters ADBC would not use COPY. The settings are those under which a text
means the same on any server; sinks cast it under the same ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import pyarrow as pa

from trunq.connection.address import complete
from trunq.pipeline.setting import READING, set_local

_BATCH_BYTES: Final = 8 << 20


def fetch(
    dsn: str,
    query: str,
    schema: pa.Schema,
    *,
    settings: dict[str, str] | None = None,
    verify: Callable[[Any], None] = lambda _cursor: None,
    check: Callable[[], None] = lambda: None,
) -> Iterator[pa.RecordBatch]:
    """The rows of a query, in the types of `schema`.

    `verify` is called when all are read, in the same transaction; `check` before each batch.
    """
    import adbc_driver_postgresql.dbapi as adbc  # noqa: PLC0415  # slow to import

    with adbc.connect(complete(dsn, "trunq pipeline")) as connection, connection.cursor() as cursor:
        # An older snapshot finds a table empty that was rewritten meanwhile.
        cursor.execute("set transaction isolation level read committed")
        cursor.execute(set_local({**READING, **(settings or {})}))
        cursor.fetchall()
        cursor.adbc_statement.set_options(**{"adbc.postgresql.batch_size_hint_bytes": str(_BATCH_BYTES)})
        cursor.execute(query)
        for batch in cursor.fetch_record_batch():
            check()
            if batch.num_rows:
                columns = zip(batch.columns, schema, strict=True)
                yield pa.RecordBatch.from_arrays(
                    [column.cast(field.type) for column, field in columns], schema=schema
                )
        verify(cursor)
