"""How options of `format("trunq")` are read, by the source and by the sink."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from trunq.connection.address import address
from trunq.errors import InvalidArgument
from trunq.wire.name import check_name

ENGINES = ("auto", "adbc", "psycopg")


def refuse_unknown(
    given: Mapping[str, Any], known: Sequence[str], where: str = "", of: str = "trunq"
) -> None:
    """Refuse an unknown option; Spark gives their names in lower case."""
    names = {name.lower() for name in known}
    unknown = [name for name in given if name.lower() not in names and not name.startswith("__")]
    if unknown:
        raise InvalidArgument(
            f'format("{of}") {where}has no option "{unknown[0]}"', f"its options: {', '.join(known)}"
        )


def a_dsn(given: Mapping[str, Any]) -> str | None:
    """The address that the options name; None: that of the settings, where it is needed."""
    if "dsn" in given and "service" in given:
        raise InvalidArgument("give dsn or service, not both")
    dsn: str | None = given.get("dsn")
    return f"service={_quote(given['service'])}" if "service" in given else dsn


def find(given: str | None) -> str:
    """The address of the database: the one given, else that of the settings of this process."""
    dsn = address(given)
    try:
        conninfo_to_dict(dsn)
    except psycopg.ProgrammingError:
        # `from None`: libpq repeats what it cannot parse, which may be the password.
        raise InvalidArgument(
            "the database's address cannot be read",
            "it is postgresql://user@host:5432/database or host=... dbname=..., or the name of a service",
        ) from None
    return dsn


def a_name(given: Mapping[str, Any], option: str, *, required: bool = False) -> str | None:
    """The name of a queue or subscription."""
    value = given.get(option)
    if value is None:
        if required:
            raise InvalidArgument(f'format("trunq") needs the option {option}')
        return None
    check_name(option, value)
    return str(value)


def a_number(given: Mapping[str, Any], option: str, least: int) -> int | None:
    """A whole number."""
    value = given.get(option)
    if value is None:
        return None
    if not re.fullmatch(r"\d{1,18}", value) or int(value) < least:
        raise InvalidArgument(f"{option} is a whole number from {least}, not {value!r}")
    return int(value)


def one_of(given: Mapping[str, Any], option: str, choices: tuple[str, ...]) -> str | None:
    """One of some words."""
    value = given.get(option)
    if value is not None and value not in choices:
        raise InvalidArgument(f"{option} is {' or '.join(choices)}, not {value!r}")
    return value


def a_flag(given: Mapping[str, Any], option: str, default: bool) -> bool:
    """True or false."""
    value = str(given.get(option, default)).lower()
    if value not in ("true", "false"):
        raise InvalidArgument(f"{option} is true or false, not {value!r}")
    return value == "true"


def a_list(given: Mapping[str, Any], option: str) -> tuple[str, ...]:
    """Names with commas between."""
    return tuple(part.strip() for part in given.get(option, "").split(",") if part.strip())


def _quote(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
