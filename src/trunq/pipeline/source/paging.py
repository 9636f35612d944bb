"""The ways from a page of an API to its next one, and what its answers hold."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import httpx

from trunq.errors import InvalidPipeline
from trunq.pipeline.definition.endpoint import Endpoint
from trunq.pipeline.errors import ApiFailed
from trunq.pipeline.request import Answer
from trunq.pipeline.source.moment import order

Request = dict[str, Any]
"""What one page is asked for with beyond what all are: an address, or parameters."""
MISSING: Any = object()


def dig(value: Any, path: str) -> Any:
    """What stands at a path in an answer, `data.items`, or `data.-1.id` of the last in a list; a key may have
    dots itself. MISSING: nothing.
    """
    if isinstance(value, list):
        head, _, rest = path.partition(".")
        if not re.fullmatch("-?[0-9]{1,9}", head) or not -len(value) <= int(head) < len(value):
            return MISSING
        return dig(value[int(head)], rest) if rest else value[int(head)]
    if not isinstance(value, dict):
        return MISSING
    if path in value:
        return value[path]
    names = path.split(".")
    for cut in range(len(names) - 1, 0, -1):
        head = ".".join(names[:cut])
        if head in value and (found := dig(value[head], ".".join(names[cut:]))) is not MISSING:
            return found
    return MISSING


def read_answer(pipeline: str, url: str, answer: Answer) -> tuple[Any, str]:
    """An answer as a value, and as text. Raises InvalidPipeline for what is no JSON."""
    try:
        text = _decoded(answer)
        return json.loads(text), text
    except (ValueError, RecursionError) as error:
        kind = answer.headers.get("content-type", "no type")
        raise InvalidPipeline(
            f"pipeline {pipeline}: {url} answers {answer.status} with what is no JSON ({kind}):"
            f" {answer.start}",
            "url is to name an API that answers JSON",
        ) from error


def _decoded(answer: Answer) -> str:
    # JSON is UTF-8 whatever the header says; some APIs send what the header says.
    try:
        return answer.body.decode(json.detect_encoding(answer.body))
    except UnicodeDecodeError:
        said = answer.headers.encoding if answer.headers.get("content-type") is None else _charset(answer)
        try:
            return answer.body.decode(said)
        except LookupError as error:
            raise ValueError(f"no charset {said}") from error


def _charset(answer: Answer) -> str:
    _, _, rest = answer.headers["content-type"].partition("charset=")
    return rest.split(";")[0].strip().strip("\"'") or "utf-8"


def find_rows(pipeline: str, model: Endpoint, url: str, answer: Any) -> list[Any]:
    """The list in an answer. Raises InvalidPipeline where there is none."""
    rows = answer if model.rows is None else _spread(answer, model.rows)
    if isinstance(rows, list):
        return rows
    where = "is" if model.rows is None else f'has at rows = "{model.rows}"'
    found = "nothing" if rows is MISSING else _kind(rows)
    lists = [key for key, value in answer.items() if isinstance(value, list)] if _is_object(answer) else []
    start = json.dumps(answer, ensure_ascii=False)[:200]
    raise InvalidPipeline(
        f"pipeline {pipeline}: the answer of {url} {where} {found}, not a list: {start}",
        f'rows = "{lists[0]}"' if lists else 'rows = "..." is the path to the list in the answer',
    )


def _spread(answer: Any, path: str) -> Any:
    """What stands at a path; behind a * what each of the list has, and of lists what is in them."""
    first, *others = re.split(r"(?:^|\.)\*(?:\.|$)", path)
    found = dig(answer, first) if first else answer
    for other in others:
        if not isinstance(found, list):
            return found
        each = [dig(item, other) if other else item for item in found]
        there = [item for item in each if item is not MISSING and item is not None]
        if found and all(item is MISSING for item in each):
            return MISSING
        found = [row for item in there for row in (item if isinstance(item, list) else [item])]
    return found


def require_success(pipeline: str, model: Endpoint, url: str, value: Any) -> None:
    """Raises ApiFailed for an answer of 200 that says what went wrong, as GraphQL does."""
    found = None if model.errors_at is None else dig(value, model.errors_at)
    if found in (MISSING, None, [], {}, "", False):
        return
    first = found[0] if isinstance(found, list) else found
    said = first.get("message", first) if isinstance(first, dict) else first
    shown = said if isinstance(said, str) else json.dumps(said, ensure_ascii=False)
    raise ApiFailed(f"pipeline {pipeline}: {url} answers 200 with {model.errors_at}: {shown[:300]}")


def is_throttled(model: Endpoint, value: Any) -> bool:
    """Whether an answer of 200 says that there were too many requests, as GraphQL does."""
    codes = dig(value, f"{model.errors_at}.0.extensions.code") if model.errors_at else MISSING
    return codes in ("THROTTLED", "RATE_LIMITED", "TOO_MANY_REQUESTS")


def has_more(pipeline: str, path: str | None, url: str, value: Any) -> bool | None:
    """Whether an answer says that there is a next page; None: nothing says so. Raises InvalidPipeline."""
    if path is None:
        return None
    found = dig(value, path)
    if found is MISSING:
        raise InvalidPipeline(
            f'pipeline {pipeline}: the answer of {url} has at more = "{path}" nothing, and would end here',
            "more is the path to what says whether there is a next page, as pageInfo.hasNextPage",
        )
    return found not in (False, None, 0, "", "false")


def next_request(
    pipeline: str, model: Endpoint, answer: Answer, value: Any, rows: int, place: Mapping[str, Any]
) -> Any:
    """What the next page is asked for with; None: this was the last one.

    `place` is that of this page: its request, and how many rows there were up to it. (Pages that begin behind
    a row are keyset.py's.)
    """
    if model.next is not None:
        link = (
            answer.links.get("next", {}).get("url") if model.next.link else dig(value, str(model.next.path))
        )
        return {"url": str(httpx.URL(answer.url).join(link))} if isinstance(link, str) and link else None
    if model.cursor is not None:
        url = answer.url.partition("?")[0]
        more = has_more(pipeline, model.cursor.more, url, value)
        cursor = None if more is False else dig(value, model.cursor.path)
        # What a list has of its last row, some APIs take as it is.
        is_one = isinstance(cursor, str | int | float) or (
            isinstance(cursor, list) and model.method == "POST"
        )
        if cursor not in (MISSING, None, "", False, []) and is_one:
            return {"params": {model.cursor.param: cursor}}
        if more:
            raise ApiFailed(
                f"pipeline {pipeline}: {url} says that there are more pages, and has no cursor at"
                f' "{model.cursor.path}"',
                "cursor.path is the path to what the next request is to have",
            )
        return None
    if model.page is not None:
        number = place["request"].get("params", {}).get(model.page.param, model.page.start)
        pages = _number(value, model.page.pages)
        last = pages is not None and number - model.page.start + 1 >= pages
        return None if last or _is_end(value, model.page.total, rows, place) else _given(model, number + 1)
    if model.offset is not None:
        return (
            None if _is_end(value, model.offset.total, rows, place) else _given(model, place["rows_so_far"])
        )
    return None


def first_request(model: Endpoint) -> Request:
    """The first page."""
    if model.page is not None:
        return _given(model, model.page.start)
    return _given(model, 0) if model.offset is not None else {}


def _given(model: Endpoint, number: int) -> Request:
    way = model.page or model.offset
    assert way is not None
    return {"params": {way.param: number}}


def _is_end(value: Any, total: str | None, rows: int, place: Mapping[str, Any]) -> bool:
    of_all = _number(value, total)
    return rows == 0 or (of_all is not None and place["rows_so_far"] >= of_all)


def _number(value: Any, path: str | None) -> int | None:
    found = None if path is None else dig(value, path)
    try:
        return None if found is MISSING or found is None or isinstance(found, bool) else int(found)
    except (TypeError, ValueError):
        return None


def newest(pipeline: str, path: str, rows: list[Any], before: Any) -> Any:
    """The largest value at a path of rows, or the one before. Raises InvalidPipeline when no row has one."""
    values = [value for row in rows if (value := dig(row, path)) not in (MISSING, None)]
    if rows and not values:
        raise InvalidPipeline(
            f'pipeline {pipeline}: no row of a page has "{path}", which since names',
            "path names a value of a row, as in updated_at or meta.updated_at",
        )
    try:
        return max([*([] if before is None else [before]), *values], key=order, default=None)
    except TypeError:
        raise InvalidPipeline(
            f'pipeline {pipeline}: values of "{path}" cannot be compared: {values[0]!r:.60} and others',
            "since.path names times, numbers or texts, not several of them",
        ) from None


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def _kind(value: Any) -> str:
    if isinstance(value, dict):
        return f"an object with {', '.join(list(value)[:10]) or 'no keys'}"
    return "null" if value is None else f"a {type(value).__name__}"
