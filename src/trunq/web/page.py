"""How a page becomes HTML: templates, what they may call, and what is hidden."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeVar, get_args
from urllib.parse import quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.datastructures import FormData, QueryParams
from starlette.requests import Request
from starlette.responses import HTMLResponse

from trunq import display
from trunq.errors import InvalidArgument
from trunq.web import figure
from trunq.web.database import Database, Panel
from trunq.web.guard import path_of, root_of
from trunq.word import State

HERE: Final = Path(__file__).parent
HIDEABLE: Final = ("payload", "headers", "error")
HIDDEN: Final = display.HIDDEN

MARKS: Final = {
    "success": ("✓", "good"),
    "done": ("✓", "good"),
    "ready": ("○", "calm"),
    "leased": ("▶", "busy"),
    "running": ("▶", "busy"),
    "scheduled": ("◷", "calm"),
    "retrying": ("↻", "warn"),
    "released": ("↺", "calm"),
    "parked": ("‖", "calm"),
    "paused": ("‖", "warn"),
    "failed": ("✕", "bad"),
    "timed_out": ("✕", "bad"),
    "rejected": ("✕", "bad"),
    "lease_expired": ("✕", "bad"),
    "overdue": ("▲", "warn"),
    "drained": ("✓", "calm"),
    "killed": ("✕", "bad"),
    "lost": ("✕", "bad"),
    "dead": ("✕", "bad"),
    "finished": ("✓", "good"),
    "stopped": ("‖", "warn"),
    "dropped": ("✕", "bad"),
    "refused": ("✕", "bad"),
    "error": ("✕", "bad"),
    "warning": ("▲", "warn"),
    "unseen": ("?", "calm"),
}
"""The symbol and the colour of a word: never the colour alone."""

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class Desk:
    """What every page has: the database, and what is not shown."""

    database: Database
    hidden: frozenset[str]
    pages: Environment

    def veiled(self, rows: Iterable[Row]) -> list[Row]:
        """Rows without what is hidden here."""
        return [self._veil(row) for row in rows]

    def _veil(self, row: Any) -> Any:
        fields = row._asdict()
        hidden: dict[str, Any] = {name: HIDDEN for name in self.hidden if fields.get(name) is not None}
        if "payload" in self.hidden:
            hidden |= {
                name: HIDDEN
                for name in ("result", "state", "example", "content")
                # The state of a message is a word, that of a pipeline a value.
                if fields.get(name) is not None and not (name == "state" and isinstance(fields[name], str))
            }
        if "error" in self.hidden:
            hidden |= {name: HIDDEN for name in ("fingerprint",) if name in fields}
            hidden |= {
                name: _told(fields[name]) for name in ("attempts", "errors") if _is_list(fields.get(name))
            }
        return row._replace(**hidden)

    def page(self, request: Request, template: str, *, code: int = 200, **values: Any) -> HTMLResponse:
        """A page, or, for one that brings itself up to date, its live part."""
        is_part = request.headers.get("hx-request") == "true"
        person = getattr(request.state, "person", None)
        body = self.pages.get_template(template).render(
            root=root_of(request),
            path=path_of(request),
            here=str(request.url.path) + (f"?{request.url.query}" if request.url.query else ""),
            said=request.query_params.get("said"),
            part=is_part,
            person=person,
            may_change=person is not None and person.role == "operator" and not self.database.is_read_only,
            read_only=self.database.is_read_only,
            hidden=self.hidden,
            now=self.database.now,
            **values,
        )
        return HTMLResponse(body, code, headers={"Vary": "HX-Request"})


def _told(attempts: list[Any]) -> list[Any]:
    return [{**each, "error": each.get("error") and HIDDEN} for each in attempts]


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def environment() -> Environment:
    """Where templates come from. Every text is escaped, and a name that is not there is an error."""
    made = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "ago": figure.ago,
        "length_of": figure.length,
        "seconds": figure.seconds,
        "number": figure.number,
        "short": figure.short,
        "rate": figure.rate,
        "about": figure.about,
        "size": figure.size,
        "json": _pretty,
        "pairs": _pairs,
        "setting": _setting,
        "exact": _exact,
        "hint": hinted,
        "typed": typed,
        "in_utc": lambda text: _OFFSET.sub(r"\1 UTC", text),
        "clock": lambda time: f"{time.astimezone(UTC):%H:%M:%S.%f}"[:12],
        "first_line": lambda text: str(text or "").partition("\n")[0],
        "in_path": lambda text: quote(str(text), safe=""),
        "text": display.text,
        "counted": display.counted,
        "troubles": display.troubles,
        "matching": display.matching,
    }
    made.globals |= {"line": figure.line, "area": figure.area, "marks": MARKS, "asking": asking}
    return made


def _pretty(value: Any) -> str:
    return (
        value if value == HIDDEN else json.dumps(value, indent=2, ensure_ascii=False, default=display.plain)
    )


_MOMENT: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?[+-]\d\d:\d\d")


def _pairs(value: Any) -> str:
    """A JSON object in a line, without its braces."""
    if not isinstance(value, dict):
        return _setting(value)
    return ", ".join(f"{name.replace('_', ' ')} {_setting(each)}" for name, each in value.items())


def _setting(value: Any) -> str:
    """A value in a line; times are in UTC, as everywhere on these pages."""
    match value:
        case datetime():
            return _exact(value)
        case list():
            return ", ".join(_setting(each) for each in value)
        case float():
            return f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"
        case "infinity":
            return "it is resumed"
        case str() if _MOMENT.fullmatch(value):
            try:
                return _exact(datetime.fromisoformat(value))
            except (ValueError, OverflowError):
                # Somebody's text that looks like one, or beyond the years of Python.
                return value
        case _:
            return display.text(value)


_COMMAND: Final = re.compile(
    r"""(?P<sql>(?:select|call)\s(?:trunq|pg)[\w.]*\((?:'[^']*'|[^()'])*\))"""
    r"""|(?P<grant>\b(?:grant\s(?:\w+|"[^"]+")\sto|set\srole)\s(?:\w+|"[^"]+"))"""
    r"""|(?:^|(?<=:\s))(?P<shell>trunq\s[^,;.]+)$"""
)
"""Statements in a hint, and a command of the shell that is all of it or its end."""


def hinted(text: str | None) -> Markup:
    """A hint as a sentence, with what is to be typed set apart."""
    text = text or ""
    return typed(text if text.startswith(("trunq ", "select ", "grant ")) else text[:1].upper() + text[1:])


def typed(said: str) -> Markup:
    """A text with what is to be typed set apart."""
    shown, at = Markup(""), 0
    for found in _COMMAND.finditer(said):
        shown += escape(said[at : found.start()]) + Markup("<code>{}</code>").format(found[0])
        at = found.end()
    return shown + escape(said[at:])


_OFFSET: Final = re.compile(r"(\d\d:\d\d:\d\d)\+00\b")
"""How Postgres writes a time of UTC into a sentence."""


def _exact(value: datetime) -> str:
    return f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def asking(**values: Any) -> str:
    """A query string of what is given."""
    return urlencode({name: value for name, value in values.items() if value not in (None, "")})


class Shown:
    """A row of a list with what its page shows besides."""

    def __init__(self, row: Any) -> None:
        self._row = row

    def __getattr__(self, name: str) -> Any:
        return getattr(self._row, name)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a list: the name of a field, and how it is shown."""

    name: str
    kind: str = "text"
    label: str | None = None
    link: Callable[[Any], str] | None = None

    @property
    def title(self) -> str:
        """The heading."""
        return self.label or display.label(self.name)

    @property
    def is_number(self) -> bool:
        """Whether it stands at the right."""
        return self.kind in ("number", "estimate", "size", "length", "rate", "id")

    def is_told(self, row: Any) -> bool:
        """Whether a row has anything to show here."""
        return getattr(row, self.name) not in (None, "", [], {})


@dataclass(frozen=True, slots=True)
class Act:
    """A button: the name of a function, and what it is called with."""

    verb: str
    label: str
    values: dict[str, Any]
    asks: bool = False


@dataclass(frozen=True, slots=True)
class Section:
    """A list on a page. `empty` teaches what fills it."""

    title: str
    panel: Panel[Any]
    columns: tuple[Column, ...]
    empty: str
    command: str = ""
    acts: Callable[[Any], list[Act]] | None = None
    note: str = ""

    @property
    def shown(self) -> list[Column]:
        """The first column, and those of which any row has something to show."""
        first, *others = self.columns
        return [first, *(each for each in others if any(map(each.is_told, self.panel.rows or ())))]


Given = QueryParams | FormData


def text(given: Given, name: str) -> str | None:
    """A field that somebody filled in; None: it is empty."""
    value = given.get(name)
    return value.strip() or None if isinstance(value, str) else None


def whole(given: Given, name: str) -> int | None:
    """A whole number."""
    value = text(given, name)
    if value is None:
        return None
    if not value.removeprefix("-").isdecimal() or not value.isascii() or len(value) > 19:
        raise InvalidArgument(f"{name} is a whole number, not {value[:40]}")
    return int(value)


def moment(given: Given, name: str) -> datetime | None:
    """A time; without a zone it is one of UTC."""
    value = text(given, name)
    if value is None:
        return None
    try:
        time = datetime.fromisoformat(value)
    except ValueError:
        raise InvalidArgument(f"{name} is a time like 2026-03-01T14:30, not {value[:40]}") from None
    return time if time.tzinfo else time.replace(tzinfo=UTC)


STATES: Final[tuple[State, ...]] = get_args(State)
