"""Items of a list, each of which has an endpoint of its own: `${item.id}` in its url, params and body.

The pages of each are landed in a directory of its own below that of the run, so who comes after a process
that was killed asks for no item again that was there. An item that the API refuses has its refusal there.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final
from urllib.parse import quote, urlsplit

from trunq.errors import InvalidPipeline
from trunq.pipeline.definition.api import ITEM, Each, HttpSource
from trunq.pipeline.definition.endpoint import Endpoint
from trunq.pipeline.errors import ApiRefused, RunOver
from trunq.pipeline.request import Api
from trunq.pipeline.source.landing import Landing
from trunq.pipeline.source.paging import MISSING, dig, find_rows
from trunq.pipeline.source.walk import Secrets, Walk, param_text

_OF_ITEM: Final = (400, 404, 410, 422)
"""What an API answers that does not take this one."""


_UP: Final = (".", "..")


class ItemRefused(Exception):
    """Why there are no rows of an item."""


def listed(name: str, each: Each, landing: Landing, pages: int) -> Iterator[tuple[Any, Landing]]:
    """The items of a list that was landed, each with the landing of its own pages."""
    for number in range(1, pages + 1):
        repeats = set((landing.place(number) or {}).get("repeats", ()))
        items = find_rows(name, each, str(landing.page(number)), landing.answer(number))
        _require_columns(name, each, items)
        for at, item in enumerate(items):
            if at not in repeats:
                yield item, Landing(landing.directory / "items" / f"{number:06d}-{at:06d}")


class Items:
    """What is asked of each item."""

    def __init__(
        self, pipeline: str, model: HttpSource, api: Api, secrets: Secrets, check: Callable[[], None]
    ) -> None:
        assert model.each is not None
        self._name, self._model, self._each = pipeline, model, model.each
        self._api, self._secrets, self._look = api, secrets, check
        self._stopped = threading.Event()

    def land(self, landing: Landing, pages: int) -> None:
        """Land the pages of all items that are missing."""
        found = listed(self._name, self._each, landing, pages)
        objects = ((item, where) for item, where in found if isinstance(item, dict))
        if self._each.at_once == 1:
            for item, where in objects:
                self._land(item, where)
            return
        waiting: deque[Future[None]] = deque()
        with ThreadPoolExecutor(self._each.at_once, "trunq-items") as pool:
            try:
                for item, where in objects:
                    waiting.append(pool.submit(self._land, item, where))
                    if len(waiting) >= 2 * self._each.at_once:
                        waiting.popleft().result()
                while waiting:
                    waiting.popleft().result()
            except BaseException:
                self._stopped.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _check(self) -> None:
        if self._stopped.is_set():
            raise RunOver(f"another item of pipeline {self._name} failed")
        self._look()

    def _land(self, item: dict[str, Any], landing: Landing) -> None:
        if landing.refused() is not None:
            return
        try:
            asked = filled(self._model, item)
            Walk(self._name, asked, self._api, self._secrets, {"state": {}}, self._check).to_end(landing)
        except (ItemRefused, ApiRefused) as error:
            if isinstance(error, ApiRefused) and error.status not in _OF_ITEM:
                raise
            if self._each.otherwise == "fail":
                if isinstance(error, ApiRefused):
                    raise
                raise InvalidPipeline(
                    f"pipeline {self._name}: an item of {self._api.name(self._each.url)} {error}",
                    "each.otherwise = 'quarantine' keeps such items out",
                ) from None
            said = str(error).removeprefix(f"pipeline {self._name}: ")
            # Also of one of whose pages some came: rows of a part of an item are none.
            landing.refuse(self._secrets.hide(said))


def filled(model: HttpSource, item: dict[str, Any]) -> Endpoint:
    """What one item is asked for with. Raises ItemRefused for an item that lacks what is named."""
    filling = _Filling(item)
    params = {
        key: filling.text(value) if isinstance(value, str) else value for key, value in model.params.items()
    }
    return model.model_copy(
        update={"url": filling.url(model.url), "params": params, "body": filling.typed(model.body)}
    )


class _Filling:
    """Texts with what one item has."""

    def __init__(self, item: dict[str, Any]) -> None:
        self._item = item

    def text(self, given: str, change: Callable[[str], str] = str) -> str:
        """A text with its values."""
        return ITEM.sub(
            lambda found: found[0][1:] if found[1] else change(param_text(self._scalar(found[2]))), given
        )

    def url(self, given: str) -> str:
        """An address: each value is a part of one component."""
        made = self.text(given, _component)
        before, after = (urlsplit(each).path.split("/") for each in (ITEM.sub("x", given), made))
        if [each for each in after if each in _UP] != [each for each in before if each in _UP]:
            raise ItemRefused("would have '.' or '..' as a component of url")
        return made

    def typed(self, given: Any) -> Any:
        """A body; what is a value alone has the type that the item has."""
        if isinstance(given, dict):
            return {key: self.typed(value) for key, value in given.items()}
        if isinstance(given, list):
            return [self.typed(value) for value in given]
        if not isinstance(given, str):
            return given
        whole = ITEM.fullmatch(given)
        return self.text(given) if whole is None or whole[1] else self._value(whole[2])

    def _value(self, path: str) -> Any:
        value = dig(self._item, path)
        if value is MISSING:
            raise ItemRefused(f"has no {path}, which ${{item.{path}}} names")
        return value

    def _scalar(self, path: str) -> Any:
        value = self._value(path)
        if not isinstance(value, str | int | float):
            raise ItemRefused(f"has at {path} neither text nor a number, which ${{item.{path}}} names")
        return value


def _component(value: str) -> str:
    if not value:
        raise ItemRefused("has nothing where a component of url names it")
    return quote(value, safe="")


def columns_of(each: Each, item: dict[str, Any]) -> dict[str, Any]:
    """What the rows of an item get of it."""
    found = {name: dig(item, path) for name, path in each.columns.items()}
    return {name: None if value is MISSING else value for name, value in found.items()}


def _require_columns(name: str, each: Each, items: list[Any]) -> None:
    objects = [item for item in items if isinstance(item, dict)]
    for column, path in each.columns.items():
        if objects and all(dig(item, path) is MISSING for item in objects):
            raise InvalidPipeline(
                f'pipeline {name}: no item of a page has "{path}", which each.columns has as {column}',
                'as in columns = { order_id = "id" }',
            )
