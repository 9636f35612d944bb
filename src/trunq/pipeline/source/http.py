"""An HTTP API that answers JSON. Its pages are landed first, as they come; rows are read from the landing.

A slice is where the API is asked from, and the name of a landing of its own. So all attempts at a run read
the same pages, and none asks again for what is there. A runner that does not share the directory lands its
own: its attempt has its own rows and its own state after them, and the sink takes one attempt whole.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, Final

import pyarrow as pa

from trunq.arrow.batch import unify
from trunq.errors import InvalidPipeline
from trunq.pipeline.control import Control
from trunq.pipeline.definition.api import HttpSource as Model
from trunq.pipeline.definition.change import is_read_whole
from trunq.pipeline.definition.pipeline import Pipeline
from trunq.pipeline.pace import Pace
from trunq.pipeline.request import Api
from trunq.pipeline.source import Context, Plan, Source, State
from trunq.pipeline.source.item import Items, columns_of, listed
from trunq.pipeline.source.landing import Landing, Landings
from trunq.pipeline.source.paging import find_rows
from trunq.pipeline.source.typed import read_types, sound
from trunq.pipeline.source.walk import Secrets, Walk

_ROWS: Final = 20_000


class HttpSource(Source):
    """An API."""

    def __init__(self, pipeline: Pipeline, dsn: str, control: Control) -> None:  # noqa: ARG002  # as all sources
        assert isinstance(pipeline.source, Model)
        self._pipeline, self._name, self._model = pipeline, pipeline.name, pipeline.source
        self._landings = Landings(self._model.landing, pipeline.name)
        self._control, self._secrets = control, Secrets(pipeline.variables)
        self._types = read_types(pipeline.name, self._model.types)
        self._is_mixed = pipeline.evolve.sorts
        self._read: Landing | None = None

    def plan(self, state: State) -> Plan:
        key = uuid.uuid4().hex[:12]
        slice: dict[str, Any] = {"landing": key, "state": state}
        if is_read_whole(self._model):
            slice["all"] = True
        if not state or (self._model.each is not None and not self._can_tell):
            return Plan(slice, None)
        # Where something was read before, there may be nothing new. The page that tells is landed.
        landing = self._landings.new(key)
        with self._api(lambda: None) as api:
            walk = self._walk(api, slice, lambda: None)
            if not walk.fetch_changed(landing):
                return Plan(None, None)
        place = landing.place(1)
        assert place is not None
        if self._model.listed.since is not None and place["rows"] == 0 and place["next"] is None:
            landing.remove()
            return Plan(None, walk.state_after(place, 1))
        return Plan(slice, None)

    def plan_range(self, range: dict[str, Any]) -> dict[str, Any]:
        since = self._model.listed.since
        known = {"from", "to"} if since is not None and since.until else {"from"}
        if since is None or not range.keys() <= known or "from" not in range:
            raise InvalidPipeline(
                f"pipeline {self._name}: a range of an API is what since has from, and until up to",
                'give since, with until = "updated_before" for an end, and {"from": ..., "to": ...}',
            )
        return {"landing": uuid.uuid4().hex[:12], "state": {"since": range["from"]}, "range": range}

    def read(self, slice: dict[str, Any], context: Context) -> Iterator[pa.RecordBatch]:
        is_backfill = "range" in slice
        if not self._model.keep and not is_backfill:
            self._landings.sweep(context.number)
        landing = self._landings.of(context.number, slice["landing"], is_backfill=is_backfill)
        with self._api(context.check) as api:
            walk = self._walk(api, slice, context.check)
            pages, last = walk.to_end(landing)
            if self._model.each is not None:
                Items(self._name, self._model, api, self._secrets, context.check).land(landing, pages)
        self._read = landing
        yield from self._batches(landing, pages, context)
        context.state = walk.state_after(last, pages)

    def release(self, state: State) -> None:  # noqa: ARG002  # as all sources
        """The run whose pages these are is over."""
        if self._read is not None and not self._model.keep:
            self._read.remove()

    @property
    def _can_tell(self) -> bool:
        """Whether a list tells that its items have nothing new either."""
        return self._model.listed.since is not None or self._model.listed.etag is True

    def _api(self, check: Callable[[], None]) -> Api:
        pace = Pace(self._pipeline, self._model, self._control.ask)
        return Api(self._pipeline, self._model, pace, check)

    def _walk(self, api: Api, slice: dict[str, Any], check: Callable[[], None]) -> Walk:
        return Walk(self._name, self._model.listed, api, self._secrets, slice, check)

    def _batches(self, landing: Landing, pages: int, context: Context) -> Iterator[pa.RecordBatch]:
        """The rows, in types that all of them fit: those of one page say too little."""
        found = self._found_types(landing, pages, context) if pages > 1 or self._model.each else None
        try:
            for rows in self._rows(landing, pages, context):
                made = sound(rows, found or self._types, context.refuse, found, is_mixed=self._is_mixed)
                yield from made.to_batches()
        except pa.ArrowInvalid as error:
            raise self._mixed(error) from error

    def _found_types(self, landing: Landing, pages: int, context: Context) -> dict[str, pa.DataType]:
        quiet = Context(context.pipeline, context.number, check=context.check)
        schema = pa.schema([])
        try:
            for rows in self._rows(landing, pages, quiet):
                made = sound(rows, self._types, quiet.refuse, is_mixed=self._is_mixed)
                schema = unify([schema, made.schema], is_mixed=self._is_mixed)
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise self._mixed(error) from error
        return {field.name: field.type for field in schema}

    def _mixed(self, error: Exception) -> InvalidPipeline:
        return InvalidPipeline(
            f"pipeline {self._name}: rows of {self._model.url.partition('?')[0]} do not fit: {error}",
            "types = {...} says of which type a column is",
        )

    def _rows(self, landing: Landing, pages: int, context: Context) -> Iterator[list[dict[str, Any]]]:
        """Rows of all pages, some thousands at a time; what is no object is refused."""
        waiting: list[dict[str, Any]] = []
        found = self._of_items(landing, pages, context) if self._model.each else self._of(landing, context)
        for rows in found:
            waiting += rows
            if len(waiting) >= _ROWS:
                yield waiting
                waiting = []
        if waiting:
            yield waiting

    def _of(self, landing: Landing, context: Context) -> Iterator[list[dict[str, Any]]]:
        """Those of each page of a landing."""
        for number in count(1):
            context.check()
            place = landing.place(number)
            if place is None:
                return
            repeats = set(place.get("repeats", ()))
            given = find_rows(self._name, self._model, str(landing.page(number)), landing.answer(number))
            rows = [row for at, row in enumerate(given) if at not in repeats]
            bad = [{"page": number, "row": row} for row in rows if not isinstance(row, dict)]
            context.refuse(bad, [["no JSON object"]] * len(bad))
            yield [row for row in rows if isinstance(row, dict)]
            if place["next"] is None:
                return

    def _of_items(self, landing: Landing, pages: int, context: Context) -> Iterator[list[dict[str, Any]]]:
        """Those of each item, with its columns; an item that the API refused is refused, or left out."""
        each = self._model.each
        assert each is not None
        for item, where in listed(self._name, each, landing, pages):
            if not isinstance(item, dict):
                context.refuse([{"item": item}], [["no JSON object"]])
                continue
            if (why := where.refused()) is not None:
                if each.otherwise == "quarantine":
                    context.refuse([{"item": item}], [[why]])
                continue
            more = columns_of(each, item)
            for rows in self._of(where, context):
                self._require_free(rows, more)
                yield [more | row for row in rows]

    def _require_free(self, rows: list[dict[str, Any]], more: dict[str, Any]) -> None:
        if twice := next((name for row in rows for name in more if name in row), None):
            raise InvalidPipeline(
                f"pipeline {self._name}: rows have a column {twice!r:.60} of their own, and each.columns"
                " gives them one",
                f'give it another name: columns = {{ item_{twice:.40} = "..." }}',
            )
