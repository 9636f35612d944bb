"""Patterns of tables: schema.table, with * for any letters."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BeforeValidator

_PART: Final = r'("(?:[^"]|"")+"|[^".]+)'
_PATTERN: Final = re.compile(rf"{_PART}\.{_PART}")


def _in_a_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _plain(patterns: list[str]) -> list[str]:
    for pattern in patterns:
        if not _PATTERN.fullmatch(pattern):
            raise ValueError(
                f"{pattern[:60]!r} is no pattern of tables: schema.table, where * stands for any letters, and"
                ' what has a dot is in quotes, as shop.* or shop."a.b"'
            )
    return patterns


Patterns = Annotated[list[str], BeforeValidator(_in_a_list), AfterValidator(_plain)]
"""A pattern, or a list of them."""


def matches(pattern: str, schema: str, table: str) -> bool:
    """Whether it names a table; what is in quotes has no * but as a letter."""
    found = _PATTERN.fullmatch(pattern)
    assert found is not None
    return all(
        re.fullmatch(_expression(part), name, re.DOTALL)
        for part, name in zip(found.groups(), (schema, table), strict=True)
    )


def _expression(part: str) -> str:
    if part.startswith('"'):
        return re.escape(part[1:-1].replace('""', '"'))
    return ".*".join(map(re.escape, part.split("*")))
