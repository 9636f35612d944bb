"""Files that no run has read yet: CSV, JSON (an object a line) and Parquet.

A file is known by its path, size and time. One that changed lately may still be being written, and waits.
"""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, Final

import pyarrow as pa
from pyarrow import csv, parquet

from trunq.arrow.batch import unified
from trunq.errors import InvalidPipeline
from trunq.pipeline.control import Control
from trunq.pipeline.definition.pipeline import Pipeline
from trunq.pipeline.definition.source import FileSource as Model
from trunq.pipeline.source import Context, Foreseen, Plan, Size, Source, State
from trunq.pipeline.source.place import place
from trunq.pipeline.source.typed import read_types, sound

_ROWS: Final = 20_000
_BEGINNING: Final = 1 << 20
"""Bytes of a file in which lines are counted."""
_SHOWN: Final = 10_000
"""Characters of a line that cannot be read."""
_AHEAD: Final = 86_400 * 10**9
"""Nanoseconds: no clock of who writes is further ahead of ours."""
_UNMATCHED: Final = "unmatched"
"""In the state: the path that no file matches. list_warnings looks for it."""

File = list[Any]
"""Path, size, time in nanoseconds."""


class FileSource(Source):
    """Files of one format."""

    def __init__(self, pipeline: Pipeline, dsn: str, control: Control) -> None:  # noqa: ARG002  # as all sources
        assert isinstance(pipeline.source, Model)
        self._name = pipeline.name
        self._model = pipeline.source
        self._control = control
        self._types = read_types(pipeline.name, self._model.types)
        self._is_mixed = pipeline.evolve.sorts
        self._place = place(pipeline.name, self._model.path, self._model.storage)

    def plan(self, state: State) -> Plan:
        found, listed = self._listed(self._model.path)
        if not found:
            self._place.require_directory(self._model.path)
            return Plan(None, {**state, _UNMATCHED: self._model.path})
        new = self._control.new_files(self._name, listed, self._model.max_files)
        if new and self._model.changed == "refuse":
            self._require_unread(new)
        return Plan({"files": new} if new else None, {k: v for k, v in state.items() if k != _UNMATCHED})

    def foresee(self, state: State) -> Foreseen:
        slice = self.plan(state).slice
        return Foreseen(None, 0, is_exact=True) if slice is None else self.estimate(slice)

    def estimate(self, slice: dict[str, Any]) -> Foreseen:
        """Of Parquet as the files say; of others by the lines at the beginning of each."""
        if self._model.format == "parquet":
            rows = 0
            for path, *_ in slice["files"]:
                with self._readable(path):
                    rows += parquet.read_metadata(path).num_rows
            return Foreseen(slice, rows, is_exact=True)
        rows = 0
        for path, size, _ in slice["files"]:
            with open(path, "rb") as file:
                beginning = file.read(_BEGINNING)
            lines = beginning.count(b"\n") + (
                size <= _BEGINNING and not beginning.endswith(b"\n") and size > 0
            )
            lines = lines if size <= _BEGINNING else round(lines * size / _BEGINNING)
            rows += max(0, lines - (self._model.format == "csv"))
        return Foreseen(slice, rows)

    def plan_range(self, range: dict[str, Any]) -> dict[str, Any]:
        if set(range) != {"path"} or not isinstance(range["path"], str):
            raise InvalidPipeline(
                f"pipeline {self._name}: a range of files is a path",
                '{"path": "/data/incoming/2030-01-*.csv"}',
            )
        _, files = self._listed(range["path"])
        if not files:
            raise InvalidPipeline(f"pipeline {self._name}: there is no file {range['path']}")
        return {"files": files, "range": range}

    def read(self, slice: dict[str, Any], context: Context) -> Iterator[pa.RecordBatch]:
        for path, size, modified_at in slice["files"]:
            context.check()
            self._require(path, size, modified_at)
            with self._readable(path):
                yield from self._reader(path, context)
            self._require(path, size, modified_at)

    def shares(self, slice: dict[str, Any], at_most: int) -> list[dict[str, Any]]:
        """Files in lists of about as many bytes, in their order: of rows with one key, an upsert takes the
        last.
        """
        count = max(1, min(at_most, len(slice["files"])))
        lists: list[list[File]] = [[] for _ in range(count)]
        total, before = sum(file[1] + 1 for file in slice["files"]), 0
        for file in slice["files"]:
            # By where its middle lies; an empty one is a file, too.
            lists[(2 * before + file[1] + 1) * count // (2 * total)].append(file)
            before += file[1] + 1
        return [{"files": files} for files in lists if files] or [{"files": []}]

    def size(self, slice: dict[str, Any]) -> Size:
        """As they were listed."""
        return Size(bytes=sum(size for _, size, _ in slice["files"]))

    def schema(self, slice: dict[str, Any]) -> pa.Schema | None:
        """What the beginning of each file tells."""
        schemas = (self._peek(path) for path, *_ in slice.get("files", []))
        return unified(self._name, [schema for schema in schemas if schema is not None])

    def release(self, state: State) -> None:
        """Files are their owner's."""

    def _reader(self, path: str, context: Context) -> Iterator[pa.RecordBatch]:
        reading: dict[str, Callable[[str, Context], Iterator[pa.RecordBatch]]] = {
            "csv": self._read_csv,
            "json": self._read_json,
            "parquet": self._read_parquet,
        }
        return reading[self._model.format](path, context)

    @contextmanager
    def _readable(self, path: str) -> Iterator[None]:
        try:
            yield
        except (pa.ArrowInvalid, UnicodeDecodeError) as error:
            raise InvalidPipeline(
                f"pipeline {self._name}: {path} cannot be read as {self._model.format}: {error}",
                f"types = {{...}} says of which type a column is; without the file: trunq"
                f" pipeline cancel {self._name}",
            ) from error

    def _peek(self, path: str) -> pa.Schema | None:
        """The columns of a file; None: it has no rows."""
        with self._readable(path):
            if self._model.format == "parquet":
                with self._place.open(path) as file:
                    return parquet.read_schema(file)
            # What cannot be read is kept by whoever reads the rows.
            batches = self._reader(path, Context(self._name, 0))
            return next((batch.schema for batch in batches), None)

    def _require_unread(self, files: list[File]) -> None:
        if changed := self._control.changed_files(self._name, files):
            raise InvalidPipeline(
                f"pipeline {self._name}: {changed[0]} was read, has changed since, and would be read again"
                " whole",
                'write new rows into new files; changed = "read" reads such files again, for a sink with mode'
                " upsert",
            )

    def _listed(self, pattern: str) -> tuple[int, list[File]]:
        """How many files match, and those of them that are settled."""
        now = time.time_ns()
        latest = now - int(self._model.settled.total_seconds() * 1e9)
        found = list(self._place.find(pattern))
        settled = [
            [each.path, each.size, each.modified_at]
            for each in found
            # What was given a time to come would wait until then.
            if each.modified_at <= latest or each.modified_at > now + _AHEAD
        ]
        return len(found), sorted(settled, key=lambda file: (file[2], file[0]))

    def _require(self, path: str, size: int, modified_at: int) -> None:
        """Before and after it is read, so that a file that changed under the run is no half of two."""
        there = self._place.look(path)
        if there is None or (there.size, there.modified_at) != (size, modified_at):
            raise InvalidPipeline(
                f"pipeline {self._name}: {path} {'changed' if there else 'went'} after the run began",
                f"trunq pipeline cancel {self._name} gives the run up; the next one reads what is there then",
            )

    def _read_csv(self, path: str, context: Context) -> Iterator[pa.RecordBatch]:
        bad: list[dict[str, Any]] = []

        def keep(row: Any) -> str:
            bad.append({"file": path, "line": row.text[:_SHOWN]})
            return "skip"

        with (
            self._place.open(path) as file,
            csv.open_csv(
                file,
                parse_options=csv.ParseOptions(delimiter=self._model.delimiter, invalid_row_handler=keep),
                convert_options=csv.ConvertOptions(
                    column_types=self._types, null_values=self._model.nulls, strings_can_be_null=True
                ),
            ) as reader,
        ):
            yield from reader
        context.refuse(bad, [["another number of columns"]] * len(bad))

    def _read_json(self, path: str, context: Context) -> Iterator[pa.RecordBatch]:
        with io.TextIOWrapper(self._place.open(path), encoding="utf-8") as lines:
            while some := list(islice(lines, _ROWS)):
                rows, bad = [], []
                for line in some:
                    if not line.strip():
                        continue
                    try:
                        row = json.loads(line)
                    except ValueError:
                        row = None
                    if isinstance(row, dict):
                        rows.append(row)
                    else:
                        bad.append({"file": path, "line": line[:_SHOWN]})
                context.refuse(bad, [["no JSON object"]] * len(bad))
                if rows:
                    made = sound(rows, self._types, context.refuse, is_mixed=self._is_mixed)
                    yield from made.to_batches()

    def _read_parquet(self, path: str, context: Context) -> Iterator[pa.RecordBatch]:
        with self._place.open(path) as opened, parquet.ParquetFile(opened) as file:
            for batch in file.iter_batches(_ROWS):
                context.check()
                yield batch
