"""`${message.NAME}` and `${credentials.NAME}` in a definition: where they may stand, and how each place takes
a value.

Nothing is SQL, a path or an address by what a value says: in a table it is part of one identifier, in a path
of one component; in a URL it is percent-encoded, in a dsn quoted as libpq wants.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final
from urllib.parse import quote

from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from trunq.errors import InvalidPipeline
from trunq.pipeline.errors import MessageRefused

FILLED: Final = re.compile(r"\$(\$?)\{((?:message|credentials)\.[^{}]*)\}")
"""`${message.NAME}`; `$${message.NAME}` for the text itself."""

_NAME: Final = re.compile(r"(message|credentials)(\.[A-Za-z_][A-Za-z0-9_]*)+")
_BYTES: Final = 63

Values = Mapping[str, str]

WHERE: Final = frozenset({"table", "queue", "subscription", "path", "dsn", "url"})
"""Places that say where rows are: of these one state can be of one alone."""

_MESSAGE_ALONE: Final = frozenset({"table", "queue", "subscription", "path", "landing"})
_IN_PART: Final = {
    **dict.fromkeys(("table", "queue", "subscription", "path", "landing", "dsn", "url"), 1),
    **dict.fromkeys(("user", "password"), 1),
    **dict.fromkeys(("params", "headers", "body"), 2),
}


_OF_ITEMS: Final = (("url",), ("params",), ("body",))


def place_of(path: tuple[str, ...]) -> str | None:
    """The kind of place at a path in a definition; None: none that takes values."""
    if path[:2] == ("source", "each"):
        return place_of(("source", *path[2:])) if path[2:3] in _OF_ITEMS else None
    match path:
        case ("source" | "sink", key, *rest) if key in _IN_PART:
            return key if bool(rest) == (_IN_PART[key] > 1) else None
        case ("source" | "sink", "oauth", "token_url"):
            return "url"
        case ("source" | "sink", "oauth", "client_id" | "client_secret" | "refresh_token" | "scope" as key):
            return key
        case ("source" | "sink", "oauth", "params", _):
            return "params"
        case ("sink", "sign"):
            return "sign"
        case ("lookups", _, ("table" | "dsn" | "path") as key):
            return key
        case ("checks", _, "refers_to", ("table" | "dsn") as key):
            return key
    return None


def walk(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """The texts of a definition, with their paths; keys of tables as well."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            if FILLED.search(str(key)):
                yield (*path, "a key"), str(key)
            yield from walk(each, (*path, str(key)))
    elif isinstance(value, list):
        for at, each in enumerate(value):
            yield from walk(each, (*path, str(at)))
    elif isinstance(value, str):
        yield path, value


def check_places(
    definition: Mapping[str, Any], declared: set[str], per: str | None, *, has_credentials: bool
) -> None:
    """Refuse names that are not declared, or stand where no value may. Raises ValueError."""
    for path, text in walk({key: each for key, each in definition.items() if key != "credentials"}):
        for escaped, name in FILLED.findall(text):
            if not escaped:
                _check(path, name, declared, per, has_credentials=has_credentials)


def _check(
    path: tuple[str, ...], name: str, declared: set[str], per: str | None, *, has_credentials: bool
) -> None:
    root, _, field = name.partition(".")
    where, place = ".".join(path), place_of(path)
    if not _NAME.fullmatch(name):
        raise ValueError(f"{where} has ${{{name:.60}}}, which is no name: ${{message.customer}}")
    if place is None:
        raise ValueError(
            f"{where} has ${{{name}}}, and takes no values"
            + (": a statement sees the message as :message" if path[0] == "sql" else "")
            + (": a function finds it as context.message" if path[0] in ("function", "transform") else "")
        )
    if root == "credentials":
        if not has_credentials:
            raise ValueError(
                f"{where} has ${{{name}}}, and there are no credentials:"
                " credentials = { from = 'file', ... }"
            )
        if place in _MESSAGE_ALONE:
            raise ValueError(
                f"{where} has ${{{name}}}, and would show it: credentials are for dsn, url,"
                " headers, params and body"
            )
        return
    if field not in declared:
        raise ValueError(
            f"{where} has ${{{name}}}, which message does not declare: message = {{ {_key(field)} = 'text' }}"
        )
    if path[0] in ("source", "sink"):
        if per is None:
            raise ValueError(
                f"{where} has ${{{name}}}, and one state would be for all its values: write per = '{name}'"
            )
        if place in WHERE and name != per:
            raise ValueError(
                f"{where} has ${{{name}}}, and one state would be for several of its values: only the field"
                f" of per, ${{{per}}}, says where rows are"
            )


def _key(field: str) -> str:
    return f"'{field}'" if "." in field else field


def fill(pipeline: str, definition: Mapping[str, Any], values: Values) -> dict[str, Any]:
    """A definition with its values. Raises MessageRefused for one of the message that its
    place does not take, InvalidPipeline for one of the credentials."""

    def filled(value: Any, path: tuple[str, ...]) -> Any:
        if isinstance(value, Mapping):
            return {key: filled(each, (*path, str(key))) for key, each in value.items()}
        if isinstance(value, list):
            return [filled(each, (*path, str(at))) for at, each in enumerate(value)]
        if not isinstance(value, str) or not FILLED.search(value):
            return value
        place = place_of(path)
        try:
            return value if place is None else _TAKES[place](value, values)
        except _NotTaken as error:
            told = f"pipeline {pipeline}: {'.'.join(path)}: {error}"
            raise (InvalidPipeline(told) if error.is_secret else MessageRefused(told)) from None

    return {key: filled(each, (key,)) for key, each in definition.items()}


class _NotTaken(Exception):
    """A value that its place does not take; of a secret one its message is not to blame."""

    def __init__(self, text: str, name: str = "message") -> None:
        super().__init__(text)
        self.is_secret = name.startswith("credentials")


def _replaced(text: str, values: Values, take: Callable[[str, str], str]) -> str:
    def value_of(found: re.Match[str]) -> str:
        if found[1]:
            return found[0][1:]
        if found[2] not in values:
            raise _NotTaken(f"there is no ${{{found[2]}}}", found[2])
        return take(found[2], values[found[2]])

    return FILLED.sub(value_of, text)


def _shown(name: str, value: str) -> str:
    """Which value, without what is secret."""
    return f"${{{name}}}" if name.startswith("credentials.") else f"${{{name}}} = {value!r:.60}"


def _table(text: str, values: Values) -> str:
    def take(name: str, value: str) -> str:
        if "." in value or '"' in value:
            raise _NotTaken(f"{_shown(name, value)} is not part of one name")
        return value

    made = _replaced(text, values, take)
    if long := next((part for part in made.split(".") if len(part.encode()) > _BYTES), None):
        raise _NotTaken(
            f"{long[:40]}... has {len(long.encode())} bytes, and a name in Postgres has {_BYTES} at most"
        )
    return made


def _component(text: str, values: Values) -> str:
    def take(name: str, value: str) -> str:
        if re.search(r"[/\\*?\[\]]", value):
            raise _NotTaken(f"{_shown(name, value)} is not part of one component of a path")
        return value

    made = _replaced(text, values, take)
    _require_no_way_up(text, made)
    return made


def _require_no_way_up(text: str, made: str) -> None:
    for written, part in zip(
        re.split(r"[/?#]", FILLED.sub("", text)), re.split(r"[/?#]", made), strict=False
    ):
        if part in (".", "..") and written != part:
            raise _NotTaken(f"a component would be {part!r}")


def _url(text: str, values: Values) -> str:
    made = _replaced(text, values, lambda _, value: quote(value, safe=""))
    # A whole address from the credentials is what it is.
    if (whole := FILLED.match(text)) and whole[2].startswith("credentials.") and not whole[1]:
        made = values[whole[2]] + _replaced(
            text[whole.end() :], values, lambda _, value: quote(value, safe="")
        )
    _require_no_way_up(text, made)
    return made


def _header(text: str, values: Values) -> str:
    def take(name: str, value: str) -> str:
        if not re.fullmatch(r"[\x20-\x7e]*", value):
            raise _NotTaken(f"{_shown(name, value)} has characters that no header has", name)
        return value

    return _replaced(text, values, take)


def _text(text: str, values: Values) -> str:
    return _replaced(text, values, lambda _, value: value)


def _dsn(text: str, values: Values) -> str:
    whole = FILLED.fullmatch(text)
    if whole and not whole[1] and whole[2].startswith("credentials."):
        address = _text(text, values)
        try:
            conninfo_to_dict(address)
        except ProgrammingError:
            # What libpq says has a word of it, as of a password with a space that is not quoted.
            raise _NotTaken(f"${{{whole[2]}}} is not an address of Postgres", whole[2]) from None
        return address
    # Values go in where libpq has read what is around them.
    tokens: dict[str, str] = {}
    prefix = f"t{secrets.token_hex(8)}n"

    def token(_: str, value: str) -> str:
        name = f"{prefix}{len(tokens)}e"
        tokens[name] = value
        return name

    marked = _replaced(text, values, token)
    try:
        read = conninfo_to_dict(marked)
    except ProgrammingError:
        raise _NotTaken("it is not an address of Postgres") from None
    pattern = re.compile(f"{prefix}[0-9]+e")
    return make_conninfo(
        "", **{key: pattern.sub(lambda found: tokens[found[0]], str(value)) for key, value in read.items()}
    )


_TAKES: Final[dict[str, Callable[[str, Values], str]]] = {
    "table": _table,
    "queue": _table,
    "subscription": _table,
    "path": _component,
    "landing": _component,
    "url": _url,
    "headers": _header,
    **dict.fromkeys(
        (
            "params",
            "body",
            "client_id",
            "client_secret",
            "refresh_token",
            "scope",
            "sign",
            "user",
            "password",
        ),
        _text,
    ),
    "dsn": _dsn,
}
