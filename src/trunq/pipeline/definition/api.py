"""HTTP APIs as sources and sinks of pipelines: their models."""

from __future__ import annotations

import re
from typing import Any, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from trunq.pipeline.definition.endpoint import Endpoint, without_secrets
from trunq.pipeline.definition.iso_duration import Span
from trunq.pipeline.definition.part import VARIABLE, Part, is_expanded

_USER: Final = re.compile(r"^[a-z]+://[^/?#@]*@", re.IGNORECASE)

ITEM: Final = re.compile(r"\$(\$?)\{item\.([^{}]*)\}")
"""`${item.NAME}`, what an item of `each` has; `$${item.NAME}` for the text itself."""


_OF_ITEMS: Final = ("url", "params", "body")


def _is_url(url: str) -> str:
    if not is_expanded.get() and VARIABLE.search(url):
        return url
    if not re.match(r"https?://[^/]", url):
        shown = "what ${NAME} stands for" if is_expanded.get() else repr(url[:60])
        raise ValueError(f"{shown} is no address: it begins with http:// or https://")
    if _USER.match(url):
        raise ValueError("a name and password do not belong into an address: give headers, with ${NAME}")
    return url


class OAuth(Part):
    """A token of OAuth 2.0 (RFC 6749) for the header Authorization: by the credentials of a client, or with
    `refresh_token` by that. `auth`: where the client's name and secret stand in the request for it.
    """

    token_url: str
    client_id: str
    client_secret: str | None = None
    refresh_token: str | None = None
    scope: str | None = None
    params: dict[str, str] = {}
    """Others that the server wants, as audience."""
    auth: Literal["basic", "body"] = "basic"

    _check_url = field_validator("token_url")(_is_url)
    _check_params = field_validator("params")(without_secrets)

    @field_validator("client_secret", "refresh_token")
    @classmethod
    def _variable(cls, value: str | None) -> str | None:
        if value is not None and not is_expanded.get() and not VARIABLE.search(value):
            raise ValueError(
                "a secret does not belong into a pipeline, which lies in the database as it is written: put"
                " it into an environment variable and write ${NAME}"
            )
        return value

    @model_validator(mode="after")
    def _some(self) -> Self:
        if self.client_secret is None and self.refresh_token is None:
            raise ValueError("oauth needs client_secret, or refresh_token, as ${NAME}")
        return self


class Calling(Part):
    """What sources and sinks that call an API have in common."""

    format: Literal["http"] = "http"
    url: str
    headers: dict[str, str] = {}
    """Sent to the host of `url` alone."""
    oauth: OAuth | None = None
    per_second: float | None = Field(None, gt=0)
    """Requests, at most, of all runs that call this host with these credentials."""
    time_out: Span = Field("30 seconds", validate_default=True)
    """For a connection, and between two pieces of an answer."""

    _check_headers = field_validator("headers")(without_secrets)
    _check_url = field_validator("url")(_is_url)

    @field_validator("time_out")
    @classmethod
    def _positive(cls, value: Any) -> Any:
        if value.total_seconds() <= 0:
            raise ValueError("a time-out is longer than nothing")
        return value

    @model_validator(mode="after")
    def _one_authorization(self) -> Self:
        if self.oauth is not None and "authorization" in (name.lower() for name in self.headers):
            raise ValueError("oauth gives the header Authorization: take it out of headers")
        return self


class Each(Endpoint):
    """The list whose items the url, params and body of a source name, `${item.id}`: each is asked for.

    `columns` are what rows get of their item: name and path. `otherwise`: what becomes of an item that the
    API refuses (400, 404, 410, 422), or that lacks what is named. `at_once`: items that are asked for at the
    same time.
    """

    columns: dict[str, str] = {}
    otherwise: Literal["fail", "quarantine", "drop"] = "fail"
    at_once: int = Field(1, gt=0, le=64)

    _check_url = field_validator("url")(_is_url)


class HttpSource(Calling, Endpoint):
    """An API that answers JSON: its pages are landed in a directory as they come, then read.

    With `each` it is asked for each item of a list.
    """

    each: Each | None = None
    types: dict[str, str] = {}
    """Types of columns by name, as in Arrow: {"id": "int64"}; others are found out."""
    landing: str = "landing"
    """A directory, best one that all runners share."""
    keep: bool = False
    """Keep the pages of runs that ended."""

    @model_validator(mode="after")
    def _of_items(self) -> Self:
        named = [name for name in _OF_ITEMS if _names_item(getattr(self, name))]
        elsewhere = self.model_dump(mode="json", exclude={*_OF_ITEMS, "each"})
        if wrong := next((name for name, value in elsewhere.items() if _names_item(value)), None):
            raise ValueError(f"{wrong} has ${{item...}}, which stands in url, params and body alone")
        if self.each is None:
            if named:
                raise ValueError(
                    f"{named[0]} has ${{item...}}, and there is no each: each = {{ url = ... }} is the list"
                )
            return self
        if not named:
            raise ValueError("each is given, and neither url, params nor body names ${item...} of it")
        if _names_item(self.each.model_dump(mode="json")):
            raise ValueError("each is the list itself, and no item of it: ${item...} is for the source")
        if self.since is not None or self.etag is not None:
            raise ValueError("what is new, the list tells: write since and etag into each")
        if not VARIABLE.search(self.url + self.each.url) and _host(self.url) != _host(self.each.url):
            raise ValueError(
                f"each is on another host than url, {_host(self.each.url)[1]}: headers and limits are of one"
                " host"
            )
        return self

    @property
    def listed(self) -> Endpoint:
        """What tells what is new: the list, or the one endpoint."""
        return self.each or self


def _names_item(value: Any) -> bool:
    if isinstance(value, dict):
        return any(_names_item(each) for each in value.values())
    if isinstance(value, list):
        return any(map(_names_item, value))
    return isinstance(value, str) and any(not found[1] for found in ITEM.finditer(value))


def _host(url: str) -> tuple[str, str]:
    split = urlsplit(url)
    return split.scheme, split.netloc.lower()


class HttpSink(Calling):
    """An API that takes rows by POST, `batch` at a time, at least once.

    `shape` is what a request has: {"rows": [...]}, an array, or (the default with batch = 1) the row alone.
    `otherwise`: what becomes of a row that the API refuses (400 or 422), with batch = 1. `sign`: the secret
    by which requests are signed, as Standard Webhooks says.
    """

    method: Literal["POST", "PUT"] = "POST"
    batch: int = Field(500, gt=0, le=10_000)
    shape: Literal["rows", "array", "row"] | None = None
    otherwise: Literal["fail", "quarantine"] = "fail"
    sign: str | None = None

    @field_validator("sign")
    @classmethod
    def _variable(cls, value: str | None) -> str | None:
        if value is not None and not is_expanded.get() and not VARIABLE.search(value):
            raise ValueError(
                "sign is a secret, which does not belong into a pipeline: put it into an environment variable"
                " and write ${NAME}"
            )
        return value

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.batch > 1 and self.shape == "row":
            raise ValueError('shape = "row" needs batch = 1')
        if self.batch > 1 and self.otherwise == "quarantine":
            raise ValueError(
                'otherwise = "quarantine" needs batch = 1: an API that refuses a batch names no row of it'
            )
        return self
