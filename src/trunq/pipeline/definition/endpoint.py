"""An endpoint of an API that answers JSON, as data: what it is asked, its rows, the way to its pages, what is
new.
"""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    BeforeValidator,
    Field,
    PlainSerializer,
    PlainValidator,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

from trunq.pipeline.definition.iso_duration import Span, read_duration, write_duration
from trunq.pipeline.definition.part import VARIABLE, Part, is_expanded

_SECRET: Final = re.compile(r"authori[sz]ation|cookie|token|secret|passw|api[-_]?key", re.IGNORECASE)
_OF_ITEM: Final = re.compile(r"\$(\$?)\{item\.[^{}]*\}")
_GRAPHQL: Final = re.compile(r"\s*(#|\{|query\b|fragment\b)")


def without_secrets(given: dict[str, Any]) -> dict[str, Any]:
    """What was given. Raises ValueError for what looks like a secret that is written out."""
    for name, value in given.items():
        is_text = isinstance(value, str)
        if is_text and is_secret(name) and not is_expanded.get() and not VARIABLE.search(value):
            if _OF_ITEM.fullmatch(value):
                # The API itself says it.
                continue
            raise ValueError(
                f"{name} looks like a secret, which does not belong into a pipeline, which lies in the"
                " database as it is written: put it into an environment variable and write ${NAME}"
            )
    return given


def is_secret(name: str) -> bool:
    """Whether what has this name looks like a secret."""
    return _SECRET.search(name) is not None


def put(target: dict[str, Any], path: str, value: Any) -> None:
    """Set what stands at a path in a body, `variables.after`; a key may have dots itself. Raises ValueError
    where the way is barred by what is no object.
    """
    names = path.split(".")
    for cut in range(len(names) - 1, 0, -1):
        head = ".".join(names[:cut])
        if path not in target and head in target:
            if not isinstance(target[head], dict):
                raise ValueError(f"{path} stands in {head}, which the body has as {target[head]!r:.40}")
            target[head] = dict(target[head])
            return put(target[head], ".".join(names[cut:]), value)
    if path in target or len(names) == 1:
        target[path] = value
    else:
        target[names[0]] = {}
        put(target[names[0]], ".".join(names[1:]), value)
    return None


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
    """The answer has, at `path`, what the next request has as `param`. `more`: the path to whether there is a
    next page.
    """

    path: str
    param: str
    more: str | None = None


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


def _back(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return read_duration(value)
    if value < 0:
        raise ValueError(f"what is looked back is not negative: {value!r}")
    return value


Back = Annotated[
    timedelta | int | float,
    PlainValidator(_back),
    PlainSerializer(lambda back: write_duration(back) if isinstance(back, timedelta) else back),
]
"""How far back: a length of time, or a number."""


class After(Part):
    """The next page begins behind a row: what the last one has at `path` is `param`. An empty page ends, or
    one with fewer rows than `size`, or `more`, the path to whether there is a next one.

    With `look_back` (a length of time, or a number where rows have numbers) the next page is asked for from
    that much before the newest row, and rows that were there, by `key` and by what is at `path`, are left
    out: for rows that come late, or have the same time.
    """

    param: str
    path: str
    size: int | None = Field(None, gt=0)
    more: str | None = None
    look_back: Back | None = None
    key: str | None = None

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if (self.look_back is None) != (self.key is None):
            raise ValueError(
                "look_back and key go together: what was there is known by its key, as in look_back ="
                " '10 seconds', key = 'id'"
            )
        if self.look_back is not None and self.size is None and self.more is None:
            raise ValueError(
                "with look_back no page is empty: size, the rows of a full page, or more, the path to whether"
                " there is a next one, tells the last"
            )
        return self


class Since(Part):
    """Only what changed: the largest value at `path` of the rows of one run is `param` of the next one.

    `until` is the parameter for the end of a backfill. `start`: what the first run asks for. `lag`: so much
    earlier each run asks, for rows that come late. `format`: how the API has times as parameters; as its rows
    have them, unless it says so. `write`: a text in which {} is the time.
    """

    param: str
    path: str
    until: str | None = None
    start: str | int | float | None = None
    lag: Span | None = None
    format: Literal["iso", "epoch", "epoch_ms", "date"] | None = None
    write: str | None = None

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.write is not None and self.write.count("{}") != 1:
            raise ValueError(f"write is {self.write!r:.60}: a text with {{}} once, where the time stands")
        if self.write is not None and self.format is None:
            raise ValueError("write needs format, so that nothing but a time stands in the text")
        return self


class Endpoint(Part):
    """What is asked, page by page.

    `rows` is the path to the list in the answer ("data.items"; "data.edges.*.node" of each that a list has);
    None: the answer is the list.
    """

    url: str
    method: Literal["GET", "POST"] = "GET"
    params: dict[str, str | int | float | bool] = {}
    body: dict[str, Any] | None = None
    """Of a POST, as JSON; parameters of pages, and since, stand in it, `variables.after` inside of others."""
    rows: str | None = None
    next: Annotated[Next | None, BeforeValidator(_next)] = None
    cursor: Cursor | None = None
    page: Page | None = None
    offset: Offset | None = None
    after: After | None = None
    since: Since | None = None
    etag: bool | None = None
    """Ask whether the first page has changed. None: when it was the only one; true: it tells of all."""
    errors: str | None = None
    """The path to a list that has something when an answer of 200 failed. None: `errors`, of GraphQL."""
    max_pages: int = Field(100_000, gt=0)

    _check_params = field_validator("params", "body")(lambda given: given and without_secrets(given))

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        ways = ("next", "cursor", "page", "offset", "after")
        given = [name for name in ways if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"{given[0]} and {given[1]} do not go together: an API has one way to its pages")
        if self.body is not None and self.method == "GET":
            raise ValueError('a body is for method = "POST"')
        if self.method == "POST":
            for name in self.added:
                put(dict(self.body or {}), name, None)
        return self

    @property
    def added(self) -> list[str]:
        """The parameters that pages and since add."""
        ways = (self.cursor, self.page, self.offset, self.after, self.since)
        names = [way.param for way in ways if way is not None]
        return [*names, *([self.since.until] if self.since and self.since.until else [])]

    @property
    def errors_at(self) -> str | None:
        """The path to what an answer says went wrong."""
        if self.errors is not None or not isinstance(self.body, dict):
            return self.errors
        query = self.body.get("query")
        return "errors" if isinstance(query, str) and _GRAPHQL.match(query) else None
