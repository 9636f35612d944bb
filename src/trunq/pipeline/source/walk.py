"""The way through the pages of one endpoint: each is asked for as the one before it says, and landed."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from typing import Any, Final

import httpx

from trunq.errors import InvalidPipeline
from trunq.pipeline.definition.endpoint import Endpoint, put
from trunq.pipeline.errors import ApiFailed, Wait
from trunq.pipeline.redact import ways
from trunq.pipeline.request import Answer, Api
from trunq.pipeline.source.keyset import Keyset
from trunq.pipeline.source.landing import Landing, Place
from trunq.pipeline.source.moment import earlier, written
from trunq.pipeline.source.paging import (
    Request,
    find_rows,
    first_request,
    has_more,
    is_throttled,
    newest,
    next_request,
    read_answer,
    require_success,
)

_MARKED: Final = re.compile(r"\$\$|\$\{([\w.]+):(\d)\}")
_THROTTLED_FOR: Final = 10.0
"""Seconds, where an answer says that there were too many requests, and not for how long."""

State = dict[str, Any]


class Walk:
    """The way through the pages of one run."""

    def __init__(
        self,
        pipeline: str,
        model: Endpoint,
        api: Api,
        secrets: Secrets,
        slice: dict[str, Any],
        check: Callable[[], None],
    ) -> None:
        self._name, self._model, self._api, self._secrets = pipeline, model, api, secrets
        self._slice, self._state, self._check = slice, slice["state"], check

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
        answer = self._asked_for(before["request"], {})
        landing.land(number, *self._place(answer, before))

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
        answer = self._api.send(self._model.method, *self._address(request), conditions)
        if answer.status >= 300 and not (answer.status == 304 and conditions):
            self._api.refuse(answer)
        return answer

    def _place(self, answer: Answer, before: Place) -> tuple[Place, str]:
        url = self._api.name(answer.url)
        value, text = read_answer(self._name, url, answer)
        if is_throttled(self._model, value):
            self._api.hold_off(_THROTTLED_FOR)
            raise Wait(_THROTTLED_FOR, f"{url} says that there were too many requests")
        require_success(self._name, self._model, url, value)
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
            following = self._following(answer, url, value, rows, before, place)
        except httpx.InvalidURL as error:
            raise ApiFailed(f"pipeline {self._name}: {url} names a page that is no address") from error
        place["next"] = self._secrets.hidden(following)
        return place, text

    def _following(
        self, answer: Answer, url: str, value: Any, rows: list[Any], before: Place, place: Place
    ) -> Request | None:
        after = self._model.after
        if after is None:
            return next_request(self._name, self._model, answer, value, len(rows), place)  # type: ignore[no-any-return]
        keyset = Keyset(self._name, url, after)
        more = has_more(self._name, after.more, url, value)
        state, repeats, is_last = keyset.follow(rows, before.get("after") or {}, more)
        place["after"], place["repeats"] = state, repeats
        return None if is_last else keyset.request(state)

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
            body = dict(self._model.body or {})
            for name, value in {**self._of_slice(), **shown.get("params", {})}.items():
                put(body, name, value)
            return url.copy_merge_params(_texts(self._model.params)), json.dumps(body).encode()
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
        if since is None:
            return {}
        known = self._state.get("since")
        if known is None:
            return {} if since.start is None else {since.param: self._told(since.start)}
        is_range = "range" in self._slice
        start = known if since.lag is None or is_range else self._earlier(known)
        end = self._slice["range"].get("to") if is_range else None
        until = {since.until: self._told(end)} if since.until and end else {}
        return {since.param: self._told(start)} | until

    def _earlier(self, value: Any) -> Any:
        since = self._model.since
        assert since is not None
        assert since.lag is not None
        try:
            return earlier(value, since.lag, since.format)
        except TypeError:
            raise InvalidPipeline(
                f"pipeline {self._name}: since.lag is a length of time, and {since.path} is {value!r:.60}",
                "numbers are times with format = 'epoch' or 'epoch_ms'",
            ) from None

    def _told(self, value: Any) -> Any:
        since = self._model.since
        assert since is not None
        made = written(self._name, value, since.format)
        return made if since.write is None else since.write.replace("{}", str(made))

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
                "next, cursor or after is to name what leads on; pages that came are in the landing",
            )
        seen.add(told)

    def _url(self) -> str:
        return self._api.name(self._model.url)


class Secrets:
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
        return _mapped(value, self.hide)

    def shown(self, value: Any) -> Any:
        """What was hidden."""
        return _mapped(value, lambda text: _MARKED.sub(lambda found: self._values.get(found[0], "$"), text))

    def has(self, value: Any) -> bool:
        """Whether there is one in a text."""
        return isinstance(value, str) and self.hide(value) != value.replace("$", "$$")


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    """A value with each of its texts changed."""
    if isinstance(value, dict):
        return {key: _mapped(each, change) for key, each in value.items()}
    if isinstance(value, list):
        return [_mapped(each, change) for each in value]
    return change(value) if isinstance(value, str) else value


def _texts(params: dict[str, Any]) -> dict[str, str]:
    return {name: param_text(value) for name, value in params.items()}


def param_text(value: Any) -> str:
    """A value as a parameter of an address has it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
