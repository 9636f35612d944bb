"""HTTP APIs as sources and sinks of pipelines: their models."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    BeforeValidator,
    Field,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

from trunq.pipeline.definition.iso_duration import Span
from trunq.pipeline.definition.part import VARIABLE, Part, is_expanded

_SECRET: Final = re.compile(r"authori[sz]ation|cookie|token|secret|passw|api[-_]?key", re.IGNORECASE)
_USER: Final = re.compile(r"^[a-z]+://[^/?#@]*@", re.IGNORECASE)


def _without_secrets(given: dict[str, Any]) -> dict[str, Any]:
    for name, value in given.items():
        is_text = isinstance(value, str)
        if is_text and _SECRET.search(name) and not is_expanded.get() and not VARIABLE.search(value):
            raise ValueError(
                f"{name} looks like a secret, which does not belong into a pipeline, which lies in the"
                " database as it is written: put it into an environment variable and write ${NAME}"
            )
    return given


def _is_url(url: str) -> str:
    if not is_expanded.get() and VARIABLE.search(url):
        return url
    if not re.match(r"https?://[^/]", url):
        shown = "what ${NAME} stands for" if is_expanded.get() else repr(url[:60])
        raise ValueError(f"{shown} is no address: it begins with http:// or https://")
    if _USER.match(url):
        raise ValueError("a name and password do not belong into an address: give headers, with ${NAME}")
    return url


class Calling(Part):
    """What sources and sinks that call an API have in common."""

    format: Literal["http"] = "http"
    url: str
    headers: dict[str, str] = {}
    """Sent to the host of `url` alone."""
    per_second: float | None = Field(None, gt=0)
    """Requests, at most."""
    time_out: Span = Field("30 seconds", validate_default=True)
    """For a connection, and between two pieces of an answer."""

    _check_headers = field_validator("headers")(_without_secrets)
    _check_url = field_validator("url")(_is_url)

    @field_validator("time_out")
    @classmethod
    def _positive(cls, value: Any) -> Any:
        if value.total_seconds() <= 0:
            raise ValueError("a time-out is longer than nothing")
        return value


class Next(Part):
    """Where the address of the next page stands: in the header `Link`, or at a path in the answer."""

    link: bool = False
    path: str | None = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        if self.link == (self.path is not None):
            raise ValueError('write next = "link", or next = {path = "paging.next"}')
        return self

    @model_serializer(mode="wrap")
    def _short(self, handler: SerializerFunctionWrapHandler) -> Any:
        return "link" if self.link else handler(self)


def _next(value: Any) -> Any:
    if isinstance(value, str):
        if value != "link":
            raise ValueError(f'next is {value!r}: "link", or {{path = "paging.next"}}')
        return {"link": True}
    return value


class Cursor(Part):
    """The answer has, at `path`, what the next request has as `param`."""

    path: str
    param: str


class Page(Part):
    """Pages have numbers: the last one is empty, or known by a number of pages or rows in the answer."""

    param: str = "page"
    start: int = 1
    pages: str | None = None
    """Path to the number of pages."""
    total: str | None = None
    """Path to the number of rows."""


class Offset(Part):
    """Requests say how many rows were read: the last page is empty, or known by the number of rows."""

    param: str = "offset"
    total: str | None = None


class Since(Part):
    """Only what changed: the largest value at `path` of the rows of one run is `param` of the next one.

    `until` is the parameter for the end of a backfill.
    """

    param: str
    path: str
    until: str | None = None


class HttpSource(Calling):
    """An API that answers JSON: its pages are landed in a directory as they come, then read.

    `rows` is the path to the list in the answer ("data.items"); None: the answer is the list.
    """

    method: Literal["GET", "POST"] = "GET"
    params: dict[str, str | int | float | bool] = {}
    body: dict[str, Any] | None = None
    """Of a POST, as JSON; parameters of pages, and since, stand in it."""
    rows: str | None = None
    next: Annotated[Next | None, BeforeValidator(_next)] = None
    cursor: Cursor | None = None
    page: Page | None = None
    offset: Offset | None = None
    since: Since | None = None
    etag: bool | None = None
    """Ask whether the first page has changed. None: when it was the only one; true: it tells of all."""
    max_pages: int = Field(100_000, gt=0)
    types: dict[str, str] = {}
    """Types of columns by name, as in Arrow: {"id": "int64"}; others are found out."""
    landing: str = "landing"
    """A directory, best one that all runners share."""
    keep: bool = False
    """Keep the pages of runs that ended."""

    _check_params = field_validator("params", "body")(lambda given: given and _without_secrets(given))

    @model_validator(mode="after")
    def _possible(self) -> Self:
        given = [name for name in ("next", "cursor", "page", "offset") if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"{given[0]} and {given[1]} do not go together: an API has one way to its pages")
        if self.body is not None and self.method == "GET":
            raise ValueError('a body is for method = "POST"')
        return self


class HttpSink(Calling):
    """An API that takes rows by POST, `batch` at a time, at least once.

    `shape` is what a request has: {"rows": [...]}, an array, or (the default with batch = 1) the row alone.
    `otherwise`: what becomes of a row that the API refuses (400 or 422), with batch = 1.
    """

    method: Literal["POST", "PUT"] = "POST"
    batch: int = Field(500, gt=0, le=10_000)
    shape: Literal["rows", "array", "row"] | None = None
    otherwise: Literal["fail", "quarantine"] = "fail"

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.batch > 1 and self.shape == "row":
            raise ValueError('shape = "row" needs batch = 1')
        if self.batch > 1 and self.otherwise == "quarantine":
            raise ValueError(
                'otherwise = "quarantine" needs batch = 1: an API that refuses a batch names no row of it'
            )
        return self
