"""Where Spark finds `format("trunq_delta")`, as it finds `format("trunq")` in pyspark_trunq.

A package of its own: Spark takes one data source from each package named pyspark_*.
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
    """`format("trunq_delta")`: see trunq.spark.lake.format."""

    @classmethod
    def name(cls) -> str:
        return "trunq_delta"

    def schema(self) -> StructType:
        schema: StructType = self._source().schema()
        return schema

    def reader(self, schema: StructType) -> DataSourceReader:
        reader: DataSourceReader = self._source().reader(schema)
        return reader

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        reader: DataSourceStreamReader = self._source().streamReader(schema)
        return reader

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        writer: DataSourceWriter = self._source().writer(schema, overwrite)
        return writer

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        writer: DataSourceStreamArrowWriter = self._source().streamWriter(schema, overwrite)
        return writer

    def _source(self) -> Any:
        return import_module("trunq.spark.lake.format").TrunqDelta(self.options)
