"""`unique` in Spark: rows that are the same come together in a shuffle, and are counted there.

By what they are the same, an Arrow function says: the one that is asked without Spark.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from trunq.arrow.batch import like
from trunq.pipeline.definition.pipeline import Pipeline
from trunq.pipeline.work.reference import References
from trunq.pipeline.work.ruling import Ruling

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_KEY: Final = "_broken_key_"


def with_twins(pipeline: Pipeline, plain: DataFrame, marked: DataFrame, schema: pa.Schema) -> DataFrame:
    """A frame whose last column, of broken rules, has the names of checks by which rows are not unique.

    `plain` is the frame without that column, which `marked` may still lack.
    """
    from pyspark.sql import Window, functions  # noqa: PLC0415  # needs a session
    from pyspark.sql.types import BinaryType, MapType, StructType, VariantType  # noqa: PLC0415

    from trunq.pipeline.work.hop import map_batches, quoted  # noqa: PLC0415
    from trunq.pipeline.work.rule import BROKEN  # noqa: PLC0415

    checks = [check for check in pipeline.checks if check.unique]
    asked = pipeline.model_copy(update={"checks": checks})

    def keyed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # It looks nothing up, so it connects to nothing.
        ruling = Ruling(asked, schema, References(asked, ""))
        for batch in batches:
            rows = batch.select(list(range(len(schema))))
            fitting = pa.RecordBatch.from_arrays(like(rows, schema).columns, schema=schema)
            made = [pa.array(ruling.keys(check, fitting), pa.binary()) for check in checks]
            names = [*batch.schema.names, *(f"{_KEY}{number}" for number in range(len(made)))]
            yield pa.RecordBatch.from_arrays([*batch.columns, *made], names=names)

    wider = StructType(list(marked.schema.fields))
    for number in range(len(checks)):
        wider = wider.add(f"{_KEY}{number}", BinaryType())
    frame = map_batches(marked, keyed, wider)
    # Rows without a key spread by what is in them: one task would have them all.
    spreading = [
        quoted(field.name)
        for field in plain.schema.fields
        if not isinstance(field.dataType, MapType | VariantType | StructType)
        and "map<" not in field.dataType.simpleString()
    ]
    broken = []
    for number, check in enumerate(checks):
        key = functions.col(f"{_KEY}{number}")
        spread = (
            functions.when(key.isNull(), functions.xxhash64(*spreading)) if spreading else functions.lit(0)
        )
        count = functions.count(key).over(Window.partitionBy(key, spread))
        broken.append(functions.when(count > 1, functions.lit(check.name)))
    names = functions.array_compact(functions.array(*broken))
    if BROKEN in marked.columns:
        names = functions.concat(functions.col(BROKEN), names)
    return frame.select(*[quoted(name) for name in plain.columns], names.alias(BROKEN))
