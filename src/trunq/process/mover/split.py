"""Which queue a message goes to."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import md5
from typing import Any, Final, Literal, Protocol

from trunq.errors import InvalidArgument, InvalidName
from trunq.wire.name import check_name

By = Literal["kind", "key", "pattern"]
Label = Literal["kind", "key"]

_FIELD: Final = re.compile(r"\{(\w*)\}")
_NO_NAME: Final = re.compile(r"[^a-z0-9_]")
_NOTHING: Final = "none"
"""What stands for a kind or a key that a message has not."""


class Split(Protocol):
    """Which queue each message goes to."""

    @property
    def known(self) -> tuple[str, ...]:
        """The queues that are known before any message is."""

    @property
    def definition(self) -> dict[str, Any]:
        """What it does, for people."""

    def target(self, id: int, kind: str | None, key: str | None) -> str:
        """The queue of one message."""


def split_by(
    to: str,
    by: By | None = None,
    into: int | None = None,
    patterns: Mapping[str, str] | None = None,
    on: Label | None = None,
) -> Split:
    """A split: `to` is a queue, or a pattern of queues' names; raises InvalidArgument or InvalidName.

    None: all messages go to `to`. "kind": to a queue for each kind, `to` has `{kind}`. "key": those of one
    key to one of `into` queues, `to` has `{slot}`. "pattern": to the queue of the first of `patterns`, which
    are regular expressions, that is found in the kind, or the key (`on`), and the rest to `to`; the name of
    such a queue may have groups of its expression: `{region}`, `{1}`.
    """
    fields = set(_FIELD.findall(to))
    wanted = {"kind": {"kind"}, "key": {"slot"}}.get(by or "", set())
    if fields != wanted:
        needs = f"needs {{{wanted.pop()}}} in the name of its target" if wanted else "has no name in braces"
        raise InvalidArgument(
            f'{f"a split by {by}" if by else "a target without a split"} {needs}, and that is "{to}"',
            'as in "orders_{kind}" by kind, "orders_{slot}" by key, "orders" otherwise',
        )
    if (into is None) == (by == "key") or (into is not None and not 1 <= into <= 1000):
        given = "none is given" if into is None else f"{into} are given"
        raise InvalidArgument(
            f"a split by key, and no other, says into how many queues (into), 1 to 1,000: {given}"
        )
    if bool(patterns) != (by == "pattern") or (on is not None and by != "pattern"):
        raise InvalidArgument("a split by pattern, and no other, has patterns (map): at least one")
    if by == "kind":
        check_name("queue", _filled(to, {"kind": _NOTHING}))
        return _ByKind(to)
    if by == "key":
        return _ByKey(to, into or 1)
    check_name("queue", to)
    return _ByPattern(to, patterns or {}, on or "kind") if by == "pattern" else _All(to)


@dataclass(frozen=True)
class _All:
    to: str

    @property
    def known(self) -> tuple[str, ...]:
        return (self.to,)

    @property
    def definition(self) -> dict[str, Any]:
        return {"to": self.to}

    def target(self, id: int, kind: str | None, key: str | None) -> str:  # noqa: ARG002
        return self.to


@dataclass(frozen=True)
class _ByKind:
    to: str

    @property
    def known(self) -> tuple[str, ...]:
        return ()

    @property
    def definition(self) -> dict[str, Any]:
        return {"to": self.to, "split": "kind"}

    def target(self, id: int, kind: str | None, key: str | None) -> str:  # noqa: ARG002
        return _of_kind(self.to, kind)


@lru_cache(maxsize=4096)
def _of_kind(to: str, kind: str | None) -> str:
    return _checked(_filled(to, {"kind": kind}), "kind", kind)


class _ByKey:
    def __init__(self, to: str, into: int) -> None:
        self._to = to
        self.known = tuple(_filled(to, {"slot": str(slot)}) for slot in range(into))
        for name in self.known:
            check_name("queue", name)

    @property
    def definition(self) -> dict[str, Any]:
        return {"to": self._to, "split": "key", "into": len(self.known)}

    def target(self, id: int, kind: str | None, key: str | None) -> str:  # noqa: ARG002
        # Without a key there is no order to keep.
        number = id if key is None else int.from_bytes(md5(key.encode(), usedforsecurity=False).digest()[:2])
        return self.known[number % len(self.known)]


class _ByPattern:
    def __init__(self, rest: str, patterns: Mapping[str, str], on: Label) -> None:
        self._rest = rest
        self._patterns = dict(patterns)
        self._on = on
        self._compiled: list[tuple[re.Pattern[str], str]] = []
        for pattern, to in patterns.items():
            try:
                compiled = re.compile(pattern)
            except re.error as error:
                raise InvalidArgument(f'"{pattern}" is not a regular expression: {error}') from error
            groups = {*compiled.groupindex, *map(str, range(1, compiled.groups + 1))}
            if unknown := set(_FIELD.findall(to)) - groups:
                raise InvalidArgument(
                    f'the pattern "{pattern}" has no group {sorted(unknown)[0]}, which "{to}" asks for',
                    f"(?P<name>...) makes one; it has {', '.join(sorted(groups)) or 'none'}",
                )
            if not _FIELD.search(to):
                check_name("queue", to)
            self._compiled.append((compiled, to))

    @property
    def known(self) -> tuple[str, ...]:
        plain = (to for _, to in self._compiled if not _FIELD.search(to))
        return tuple(dict.fromkeys((self._rest, *plain)))

    @property
    def definition(self) -> dict[str, Any]:
        return {"to": self._rest, "split": "pattern", "on": self._on, "patterns": self._patterns}

    def target(self, id: int, kind: str | None, key: str | None) -> str:  # noqa: ARG002
        label = kind if self._on == "kind" else key
        for pattern, to in self._compiled:
            if label is not None and (found := pattern.search(label)) is not None:
                numbered = {str(n): group for n, group in enumerate(found.groups(), 1)}
                return _checked(_filled(to, {**numbered, **found.groupdict()}), self._on, label)
        return self._rest


def _filled(to: str, values: Mapping[str, str | None]) -> str:
    """A name of a queue: in each place what may be in one, `_` for the rest."""
    return _FIELD.sub(lambda field: _NO_NAME.sub("_", (values[field[1]] or _NOTHING).lower()), to)


def _checked(name: str, what: str, label: str | None) -> str:
    try:
        check_name("queue", name)
    except InvalidName as error:
        raise InvalidName(
            f'the {what} "{label}" makes no name of a queue: {error.message}', error.hint
        ) from None
    return name
