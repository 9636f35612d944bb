"""An HTTP API that answers JSON. Its pages are landed first, as they come; rows are read from the landing.

A slice is where the API is asked from, and the name of a landing of its own. So all attempts at a run read
the same pages, and none asks again for what is there. A runner that does not share the directory lands its
own: its attempt has its own rows and its own state after them, and the sink takes one attempt whole.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any, Final

import httpx
import pyarrow as pa

from trunq.errors import InvalidPipeline
from trunq.pipeline.control import Control
from trunq.pipeline.definition.api import HttpSource as Model
from trunq.pipeline.definition.pipeline import Pipeline
from trunq.pipeline.errors import ApiFailed, Wait
from trunq.pipeline.redact import ways
from trunq.pipeline.request import Answer, Api
from trunq.pipeline.source import Context, Plan, Source, State
from trunq.pipeline.source.landing import Landing, Landings, Place
from trunq.pipeline.source.paging import (
    Request,
    find_rows,
    first_request,
    newest,
    next_request,
    read_answer,
)
from trunq.pipeline.source.typed import read_types, typed

_ROWS: Final = 20_000
_MARKED: Final = re.compile(r"\$\$|\$\{([\w.]+):(\d)\}")


class HttpSource(Source):
    """An API."""

    def __init__(self, pipeline: Pipeline, dsn: str, control: Control) -> None:  # noqa: ARG002  # as all sources
        assert isinstance(pipeline.source, Model)
        self._pipeline, self._name, self._model = pipeline, pipeline.name, pipeline.source
        self._landings = Landings(self._model.landing, pipeline.name)
        self._types = read_types(pipeline.name, self._model.types)
        self._read: Landing | None = None

    def plan(self, state: State) -> Plan:
        key = uuid.uuid4().hex[:12]
        slice = {"landing": key, "state": state}
        if not state:
            return Plan(slice, None)
        # Where something was read before, there may be nothing new. The page that tells is landed.
        landing = self._landings.new(key)
        with self._walk(slice, lambda: None) as walk:
            if not walk.fetch_changed(landing):
                return Plan(None, None)
        place = landing.place(1)
        assert place is not None
        if self._model.since is not None and place["rows"] == 0 and place["next"] is None:
            landing.remove()
            return Plan(None, walk.state_after(place, 1))
        return Plan(slice, None)

    def plan_range(self, range: dict[str, Any]) -> dict[str, Any]:
        since = self._model.since
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
        with self._walk(slice, context.check) as walk:
            pages, last = walk.to_end(landing)
        self._read = landing
        yield from self._batches(landing, pages, context)
        context.state = walk.state_after(last, pages)

    def release(self, state: State) -> None:  # noqa: ARG002  # as all sources
        """The run whose pages these are is over."""
        if self._read is not None and not self._model.keep:
            self._read.remove()

    def _walk(self, slice: dict[str, Any], check: Callable[[], None]) -> _Walk:
        return _Walk(self._pipeline, self._model, self._landings, slice, check)

    def _batches(self, landing: Landing, pages: int, context: Context) -> Iterator[pa.RecordBatch]:
        """The rows, in types that all of them fit: those of one page say too little."""
        found = self._found_types(landing, pages, context) if pages > 1 else None
        try:
            for rows in self._rows(landing, pages, context):
                yield from typed(rows, found or self._types, found).to_batches()
        except pa.ArrowInvalid as error:
            raise self._mixed(error) from error

    def _found_types(self, landing: Landing, pages: int, context: Context) -> dict[str, pa.DataType]:
        quiet = Context(context.pipeline, context.number, check=context.check)
        schema = pa.schema([])
        try:
            for rows in self._rows(landing, pages, quiet):
                schema = pa.unify_schemas(
                    [schema, typed(rows, self._types).schema], promote_options="permissive"
                )
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
        for number in range(1, pages + 1):
            context.check()
            rows = find_rows(self._name, self._model, str(landing.page(number)), landing.answer(number))
            bad = [{"page": number, "row": row} for row in rows if not isinstance(row, dict)]
            context.refuse(bad, [["no JSON object"]] * len(bad))
            waiting += [row for row in rows if isinstance(row, dict)]
            if len(waiting) >= _ROWS:
                yield waiting
                waiting = []
        if waiting:
            yield waiting


class _Walk:
    """The way through the pages of one run."""

    def __init__(
        self,
        pipeline: Pipeline,
        model: Model,
        landings: Landings,
        slice: dict[str, Any],
        check: Callable[[], None],
    ) -> None:
        self._name, self._model, self._landings = pipeline.name, model, landings
        self._slice, self._state, self._check = slice, slice["state"], check
        self._secrets = _Secrets(pipeline.variables)
        self._api = Api(pipeline, model, check)

    def __enter__(self) -> _Walk:
        return self

    def __exit__(self, *_: object) -> None:
        self._api.__exit__()

    def to_end(self, landing: Landing) -> tuple[int, Place]:
        """Land the pages that are missing: how many there are in all, and the place of the last."""
        place: Place = {"request": first_request(self._model)}
        seen: set[str] = set()
        number = 0
        while True:
            self._check()
            request = place["next"] if number else place["request"]
            if request is None:
                return number, place
            self._require_new(request, seen, number)
            if number >= self._model.max_pages:
                raise ApiFailed(
                    f"pipeline {self._name}: {self._url()} has more than {number} pages",
                    "max_pages allows more",
                )
            number += 1
            found = landing.place(number)
            if found is None:
                self.fetch(landing, number, {**place, "request": request})
                found = landing.place(number)
            assert found is not None
            place = found

    def fetch(self, landing: Landing, number: int, before: Place) -> None:
        """Land a page, as the place before it says."""
        landing.land(number, *self._place(self._asked_for(before["request"], {}), before))

    def fetch_changed(self, landing: Landing) -> bool:
        """Land the first page; False: it has not changed since the last run."""
        first = first_request(self._model)
        conditions = self._conditions()
        answer = self._asked_for(first, conditions)
        if answer.status == 304:
            return False
        landing.land(1, *self._place(answer, {"request": first}))
        return True

    def state_after(self, place: Place, pages: int) -> State:
        """Where the next slice begins, when this was the last page."""
        state = {key: place[key] for key in ("since", "etag", "modified") if place.get(key) is not None}
        if not ("etag" in state or "modified" in state) or not self._may_ask(pages):
            state = {key: value for key, value in state.items() if key == "since"}
        else:
            state["asked"] = self._asked()
        return state or {"since": None}

    def _asked_for(self, request: Request, conditions: dict[str, str]) -> Answer:
        left = self._landings.wait_until() - time.time()
        if left > 0:
            raise Wait(left, f"{self._url()} asked to wait; {left:.0f} s are left")
        try:
            answer = self._api.send(self._model.method, *self._address(request), conditions)
        except Wait as wait:
            self._landings.hold_off(wait.seconds)
            raise
        if answer.status >= 300 and not (answer.status == 304 and conditions):
            self._api.refuse(answer)
        return answer

    def _place(self, answer: Answer, before: Place) -> tuple[Place, str]:
        url = self._api.name(answer.url)
        value, text = read_answer(self._name, url, answer)
        rows = find_rows(self._name, self._model, url, value)
        digest = hashlib.sha256(answer.body).hexdigest()
        if rows and digest == before.get("digest") and (self._model.page or self._model.offset):
            raise ApiFailed(
                f"pipeline {self._name}: {url} gives the same page again: {json.dumps(before['request'])}",
                "page.param, or offset.param, is to name a parameter that the API knows",
            )
        place = {
            "request": before["request"],
            "rows": len(rows),
            "rows_so_far": before.get("rows_so_far", 0) + len(rows),
            "digest": digest,
            "since": self._since(rows, before),
            "etag": before.get("etag"),
            "modified": before.get("modified"),
        }
        if "digest" not in before:
            place["etag"] = answer.headers.get("etag")
            place["modified"] = answer.headers.get("last-modified")
        try:
            following = next_request(self._model, answer, value, len(rows), place)
        except httpx.InvalidURL as error:
            raise ApiFailed(f"pipeline {self._name}: {url} names a page that is no address") from error
        place["next"] = self._secrets.hidden(following)
        return place, text

    def _since(self, rows: list[Any], before: Place) -> Any:
        known = before.get("since", self._state.get("since"))
        if self._model.since is None or "range" in self._slice:
            return None
        return newest(self._name, self._model.since.path, rows, known)

    def _address(self, request: Request) -> tuple[httpx.URL, bytes | None]:
        """Address and body of a request."""
        shown = self._secrets.shown(request)
        params = {**self._model.params, **self._of_slice(), **shown.get("params", {})}
        if self._model.method == "POST":
            url = httpx.URL(shown.get("url", self._model.url))
            if not self._api.is_home(url):
                raise ApiFailed(
                    f"pipeline {self._name}: {self._url()} names a page on {url.host}, which is another host"
                )
            own = {**self._of_slice(), **shown.get("params", {})}
            body = json.dumps({**(self._model.body or {}), **own}).encode()
            return url.copy_merge_params(_texts(self._model.params)), body
        if "url" not in shown:
            return httpx.URL(self._model.url).copy_merge_params(_texts(params)), None
        url = httpx.URL(shown["url"])
        if self._api.is_home(url):
            # An API that wants its key in each address may leave it out of the link.
            own = {
                name: value
                for name, value in self._model.params.items()
                if self._secrets.has(value) and name not in url.params
            }
            url = url.copy_merge_params(_texts(own)) if own else url
        return url, None

    def _of_slice(self) -> dict[str, Any]:
        since = self._model.since
        if since is None or self._state.get("since") is None:
            return {}
        end = self._slice.get("range", {}).get("to")
        return {since.param: self._state["since"]} | ({since.until: end} if since.until and end else {})

    def _conditions(self) -> dict[str, str]:
        if self._state.get("asked") != self._asked() or "range" in self._slice:
            return {}
        named = {"If-None-Match": self._state.get("etag"), "If-Modified-Since": self._state.get("modified")}
        return {name: value for name, value in named.items() if value}

    def _may_ask(self, pages: int) -> bool:
        """Whether the first page tells that all are as they were."""
        return pages == 1 if self._model.etag is None else self._model.etag

    def _asked(self) -> str:
        """What was asked: the mark of another address means nothing."""
        url, body = self._address(first_request(self._model))
        asked = [self._secrets.hidden({"url": str(url)}), self._secrets.hide((body or b"").decode())]
        return hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:16]

    def _require_new(self, request: Request, seen: set[str], number: int) -> None:
        told = json.dumps(request, sort_keys=True)
        if told in seen:
            raise ApiFailed(
                f"pipeline {self._name}: page {number} of {self._url()} names as the next one a page that was"
                " there before: it would never end",
                "next or cursor is to name what leads on; pages that came are in the landing",
            )
        seen.add(told)

    def _url(self) -> str:
        return self._api.name(self._model.url)


class _Secrets:
    """What came from `${NAME}` stands in no place on a disk."""

    def __init__(self, variables: dict[str, str]) -> None:
        self._known = {
            way: f"${{{name}:{at}}}"
            for name, value in variables.items()
            for at, way in enumerate(ways(value))
        }
        self._values = {mark: way for way, mark in self._known.items()}
        longest = sorted(self._known, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, [*longest, "$"])))

    def hide(self, text: str) -> str:
        """A text with their names."""
        return self._pattern.sub(lambda found: self._known.get(found[0], "$$"), text)

    def hidden(self, value: Any) -> Any:
        """A request with their names."""
        if isinstance(value, dict):
            return {key: self.hidden(each) for key, each in value.items()}
        return self.hide(value) if isinstance(value, str) else value

    def shown(self, value: Any) -> Any:
        """What was hidden."""
        if isinstance(value, dict):
            return {key: self.shown(each) for key, each in value.items()}
        if not isinstance(value, str):
            return value
        return _MARKED.sub(lambda found: self._values.get(found[0], "$"), value)

    def has(self, value: Any) -> bool:
        """Whether there is one in a text."""
        return isinstance(value, str) and self.hide(value) != value.replace("$", "$$")


def _texts(params: dict[str, Any]) -> dict[str, str]:
    return {name: _text(value) for name, value in params.items()}


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
