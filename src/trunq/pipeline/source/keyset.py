"""Pages that begin behind a row, by its key: what is asked for next, and which rows were there.

Rows that are inserted or deleted while pages are read move no page that is asked for so. With a look-back,
the next page begins before the newest row that came, so that rows that commit late, or share its time, come
too; those that were there are known by their key. What is kept of these is of the look-back alone.
"""

from __future__ import annotations

import datetime as dt
import json
from itertools import pairwise
from typing import Any

from trunq.errors import InvalidPipeline
from trunq.pipeline.definition.endpoint import After
from trunq.pipeline.errors import ApiFailed
from trunq.pipeline.source.moment import earlier, order
from trunq.pipeline.source.paging import MISSING, dig

State = dict[str, Any]
"""`newest`, the key behind which the next page begins; `seen`, keys and values within the look-back."""


class Keyset:
    """The way from one page to the next."""

    def __init__(self, pipeline: str, url: str, model: After) -> None:
        self._pipeline, self._url, self._model = pipeline, url, model

    def follow(self, rows: list[Any], before: State, more: bool | None) -> tuple[State, list[int], bool]:
        """The state after a page, which of its rows were there before, and whether it is the last one."""
        values = [(at, self._value(row)) for at, row in enumerate(rows) if isinstance(row, dict)]
        size = self._model.size
        is_short = not rows or (size is not None and len(rows) < size)
        is_last = is_short if more is None else not more
        if not values:
            self._require_last(is_last)
            return before, [], True
        if self._model.look_back is None:
            return {"newest": values[-1][1]}, [], is_last
        self._require_order([value for _, value in values])
        return self._look_back(rows, values, before, is_last)

    def request(self, state: State) -> dict[str, Any]:
        """What the page after a state is asked for with."""
        value = state["newest"]
        if self._model.look_back is not None:
            value = self._from(value)
        return {"params": {self._model.param: value}}

    def _look_back(
        self, rows: list[Any], values: list[tuple[int, Any]], before: State, is_last: bool
    ) -> tuple[State, list[int], bool]:
        there = {json.dumps(each) for each in before.get("seen", [])}
        came = [(at, [self._key(rows[at]), value]) for at, value in values]
        repeats = [at for at, each in came if json.dumps(each) in there]
        newest = values[-1][1]
        if before and not order(newest) > order(before["newest"]):
            newest = before["newest"]
            if not is_last:
                raise ApiFailed(
                    f"pipeline {self._pipeline}: a whole page of {self._url} is within look_back of the one"
                    f" before, and there are more rows of it: {self._model.path} = {newest!r:.60}",
                    "ask for larger pages, or look back less",
                )
        start = order(self._from(newest))
        kept = {json.dumps(each): each for each in [*before.get("seen", []), *(each for _, each in came)]}
        seen = [each for each in kept.values() if order(each[1]) >= start]
        return {"newest": newest, "seen": seen}, repeats, is_last

    def _require_last(self, is_last: bool) -> None:
        if not is_last:
            raise ApiFailed(
                f"pipeline {self._pipeline}: {self._url} says that there are more pages, and gives no row"
                " that the next one could begin behind"
            )

    def _from(self, value: Any) -> Any:
        look_back = self._model.look_back
        assert look_back is not None
        try:
            return earlier(value, look_back)
        except TypeError:
            kind = "a length of time" if isinstance(look_back, dt.timedelta) else "a number"
            raise InvalidPipeline(
                f"pipeline {self._pipeline}: after.look_back is {kind}, and a row has"
                f" {self._model.path} = {value!r:.60}",
                "times in texts go with a length of time, '10 seconds'; numbers with a number",
            ) from None

    def _value(self, row: Any) -> Any:
        found = dig(row, self._model.path)
        if not isinstance(found, str | int | float) or isinstance(found, bool):
            raise InvalidPipeline(
                f"pipeline {self._pipeline}: a row of {self._url} has no text or number at"
                f' "{self._model.path}", which after names',
                "path names a value that each row has, as id or created_at",
            )
        return found

    def _key(self, row: Any) -> Any:
        found = dig(row, str(self._model.key))
        if found is MISSING:
            raise InvalidPipeline(
                f'pipeline {self._pipeline}: a row of {self._url} has no "{self._model.key}", which after.key'
                " names"
            )
        return found

    def _require_order(self, values: list[Any]) -> None:
        try:
            placed = [order(value) for value in values]
            is_ordered = all(one <= other for one, other in pairwise(placed))
        except TypeError:
            is_ordered = False
        if not is_ordered:
            raise InvalidPipeline(
                f"pipeline {self._pipeline}: rows of {self._url} are not in the order of {self._model.path},"
                " oldest first, and look_back goes by it",
                "ask the API for that order, by params",
            )
