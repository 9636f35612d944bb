"""From Spark's rows to Python's and back, as Arrow batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.udf import UserDefinedFunction
from pyspark.util import PythonEvalType

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

Function = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def quoted(name: str) -> str:
    """The name of a column as Spark reads it, whatever is in it."""
    return "`" + name.replace("`", "``") + "`"


def map_batches(frame: DataFrame, function: Function, schema: StructType) -> DataFrame:
    """`DataFrame.mapInArrow`, which wants pandas installed and makes no use of it."""
    hop = UserDefinedFunction(function, schema, evalType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
    column = hop(*[frame[quoted(name)] for name in frame.columns])
    return DataFrame(frame._jdf.mapInArrow(column._jc, False, None), frame.sparkSession)
