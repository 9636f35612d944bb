"""Where Spark finds `format("trunq")`: it imports every package named pyspark_* once a session.

`spark.read.format("trunq")` therefore works in any session, without `register`. The import must be light
and must not fail: one broken package of this kind hides the data sources of all others.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamArrowWriter,
        DataSourceStreamReader,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType


class DefaultSource(DataSource):
    """`format("trunq")`: see trunq.spark.format."""

    @classmethod
    def name(cls) -> str:
        return "trunq"

    def schema(self) -> str:
        ddl: str = self._source().schema()
        return ddl

    def reader(self, schema: StructType) -> DataSourceReader:
        reader: DataSourceReader = self._source().reader(schema)
        return reader

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        reader: DataSourceStreamReader = self._source().streamReader(schema)
        return reader

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        writer: DataSourceWriter = self._source().writer(schema, overwrite)
        return writer

    # Spark takes either kind of writer; its declaration names one.
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        writer: DataSourceStreamArrowWriter = self._source().streamWriter(schema, overwrite)
        return writer

    def _source(self) -> Any:
        return import_module("trunq.spark.format").Trunq(self.options)
