"""The columns of files of Parquet in directories of runs, as the newest run has them.

Older files keep the types that they have: readers take the wider one of both. Each run writes what the newest
one before it had in no narrower type, so the newest has the widest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa
from pyarrow import parquet

from trunq.arrow.batch import for_lake
from trunq.pipeline.definition.pipeline import Pipeline
from trunq.pipeline.sink import checked
from trunq.pipeline.sink.contract import agreed, in_agreed


class FilesOfRuns:
    """What rows become on their way into such files."""

    def __init__(self, pipeline: Pipeline, path: str, newest: Callable[[], str | None]) -> None:
        self._pipeline, self._path, self._newest = pipeline, path, newest

    def there(self) -> pa.Schema | None:
        """Their columns; None: there are none yet."""
        file = self._newest()
        return None if file is None else parquet.read_schema(file)

    def agreed(self, schema: pa.Schema) -> pa.Schema:
        """The columns that rows with these have there. Raises InvalidPipeline for what is refused."""
        lake = for_lake(pa.RecordBatch.from_pylist([], schema)).schema
        there = self.there()
        return lake if there is None else agreed(self._pipeline, self._path, there, lake)

    def rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Rows as these files have them."""
        made: pa.Schema | None = None
        for batch in checked(batches):
            if made is None:
                made = self.agreed(batch.schema)
            yield from in_agreed([for_lake(batch)], made)
