"""Columns of a source as Spark has them, and those of a frame as a sink takes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from trunq.arrow.batch import for_lake
from trunq.arrow.value import TYPE
from trunq.errors import InvalidPipeline

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_KEY = TYPE.decode()
_UNTAKEN = {"variant", "geometry", "geography"}


def for_frame(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Rows in types that Spark has. Of what has nothing but nulls, the type stays unknown."""
    made = for_lake(batch)
    for at, field in enumerate(batch.schema):
        if pa.types.is_null(field.type):
            made = made.set_column(at, field.name, batch.column(at))
    return made


def spark_schema(pipeline: str, schema: pa.Schema) -> tuple[StructType, pa.Schema]:
    """The columns of a source as Spark has them, and as Spark wants them from Arrow.

    A column that came from Postgres as text, or as an array, says so in its metadata, also after a statement
    that passes it on.
    """
    from pyspark.errors import PySparkTypeError  # noqa: PLC0415  # for the driver alone
    from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema  # noqa: PLC0415
    from pyspark.sql.types import ArrayType, StringType, StructField, StructType  # noqa: PLC0415

    fields = []
    for field, given in zip(for_frame(pa.RecordBatch.from_pylist([], schema)).schema, schema, strict=True):
        try:
            kind = from_arrow_type(field.type, prefer_timestamp_ntz=True)
        except PySparkTypeError as error:
            raise InvalidPipeline(
                f'pipeline {pipeline}: column "{field.name}" is {field.type}, which Spark does not know'
            ) from error
        metadata: dict[str, Any] = {}
        if isinstance(kind, StringType | ArrayType) and given.metadata and TYPE in given.metadata:
            metadata = {_KEY: given.metadata[TYPE].decode()}
        fields.append(StructField(field.name, kind, True, metadata))
    made = StructType(fields)
    plain = to_arrow_schema(made, timezone="UTC")
    return made, pa.schema([pa.field(field.name, field.type) for field in plain])


def sink_schema(pipeline: str, schema: StructType) -> pa.Schema:
    """The columns of a frame as a sink takes them. Raises InvalidPipeline for what no sink can take."""
    from pyspark.errors import PySparkTypeError  # noqa: PLC0415
    from pyspark.sql.pandas.types import to_arrow_type  # noqa: PLC0415
    from pyspark.sql.types import ArrayType, StringType  # noqa: PLC0415

    fields: dict[str, pa.Field] = {}
    for field in schema.fields:
        try:
            kind = to_arrow_type(field.dataType, timezone="UTC")
        except PySparkTypeError as error:
            raise _untaken(pipeline, field.name, field.dataType.simpleString()) from error
        if pa.types.is_duration(kind) or field.dataType.typeName() in _UNTAKEN:
            raise _untaken(pipeline, field.name, field.dataType.simpleString())
        if field.name.lower() in fields:
            raise InvalidPipeline(f'pipeline {pipeline}: two columns of the result are called "{field.name}"')
        of = field.metadata.get(_KEY) if isinstance(field.dataType, StringType | ArrayType) else None
        fields[field.name.lower()] = pa.field(field.name, kind, metadata={TYPE: of.encode()} if of else None)
    return pa.schema(list(fields.values()))


def _untaken(pipeline: str, column: str, kind: str) -> InvalidPipeline:
    return InvalidPipeline(
        f'pipeline {pipeline}: column "{column}" of the result is {kind}, which no sink takes',
        f"cast({column} as string) does",
    )
