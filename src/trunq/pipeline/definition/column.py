"""What becomes of the columns of a source, as data: chosen, cast, renamed, added, masked, in this order."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from trunq.pipeline.definition.part import VARIABLE, Part, is_expanded, plain_value

TYPES: Final = (
    "bool",
    "int16",
    "int32",
    "int64",
    "float32",
    "float64",
    "string",
    "binary",
    "date32",
    "timestamp[us]",
    "timestamp[us, UTC]",
    "decimal(10,2)",
)
"""What a column may be cast to, as in Arrow; decimals have up to 38 digits."""

DECIMAL: Final = re.compile(r"decimal(?:128)?\((\d+), ?(\d+)\)")
_MOST_DIGITS: Final = 38
_SHORTEST_SALT: Final = 8
_DEEPEST: Final = 20

Kind = str | list[Any] | dict[str, Any]
"""A type: its name; of a list `[TYPE]`; of a struct `{ name = TYPE }`."""

Constant = Annotated[str | bool | int | float, BeforeValidator(plain_value)]


class Columns(Part):
    """`include` are the columns that are taken, or `exclude` those that are not; `cast` gives them types,
    `rename` new names, `constant` adds some, and `mask` puts a hash, or null, in the place of each value.

    A type of `cast` is a name, a list of one type for what JSON has as a list, or a table of names and types
    for what it has as an object.

    `cast` and `rename` name columns as the source does, `mask` as they are called then. The hash is
    HMAC-SHA256 in hexadecimal digits, with `salt`, which is `${NAME}`.
    """

    include: list[str] | None = Field(None, min_length=1)
    exclude: list[str] = []
    cast: dict[str, Kind] = {}
    rename: dict[str, str] = {}
    constant: dict[str, Constant] = {}
    mask: dict[str, Literal["hash", "null"]] = {}
    salt: str | None = Field(None, repr=False)

    @field_validator("cast")
    @classmethod
    def _castable(cls, value: dict[str, Kind]) -> dict[str, Kind]:
        for name, kind in value.items():
            _require_type(name, kind)
        return value

    @field_validator("constant")
    @classmethod
    def _storable(cls, value: dict[str, Constant]) -> dict[str, Constant]:
        for name, each in value.items():
            if isinstance(each, float) and not math.isfinite(each):
                raise ValueError(f"{name!r:.60} is {each}, which is no constant: write null by mask")
            if isinstance(each, int) and not -(2**63) <= each < 2**63:
                raise ValueError(f"{name!r:.60} is {each}, which 64 bits do not hold: write it as text")
        return value

    @field_validator("salt")
    @classmethod
    def _not_written(cls, value: str | None) -> str | None:
        if value is None:
            return value
        if is_expanded.get():
            if len(value) < _SHORTEST_SALT:
                raise ValueError(
                    "what ${NAME} stands for is too short to hide anything: give it"
                    f" {_SHORTEST_SALT} characters at least"
                )
        elif (found := VARIABLE.fullmatch(value)) is None or found[1]:
            raise ValueError(
                "a salt does not belong into a pipeline, which lies in the database as it is written: put it"
                " into an environment variable and write salt = '${NAME}'"
            )
        return value

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.include is not None and self.exclude:
            raise ValueError("include and exclude do not go together: include says all that is taken")
        for step in ("cast", "rename"):
            for name in getattr(self, step):
                if name in self.exclude or (self.include is not None and name not in self.include):
                    raise ValueError(
                        f"{step} names {name!r:.60}, which is not taken: take it out of"
                        f" {'exclude' if name in self.exclude else step}"
                    )
        self._require_names()
        hashes = [name for name, how in self.mask.items() if how == "hash"]
        if hashes and self.salt is None:
            raise ValueError(
                f"mask hashes {hashes[0]!r:.60} and there is no salt, without which whoever guesses a value"
                " finds its hash: salt = '${NAME}'"
            )
        if self.salt is not None and not hashes:
            raise ValueError("salt is for mask = {... = 'hash'}, and nothing is hashed")
        return self

    def _require_names(self) -> None:
        """Refuse names that two columns would have, and masks of what is called otherwise then."""
        made = [*self.rename.values(), *self.constant]
        made += [name for name in self.include or () if name not in self.rename]
        require_one_each(made)
        for name in self.mask:
            if name in self.constant:
                raise ValueError(f"mask names {name!r:.60}, which is a constant: leave out one of the two")
            if name in self.rename and name not in self.rename.values():
                raise ValueError(
                    f"mask names {name!r:.60}, which rename calls {self.rename[name]!r:.60}: mask that"
                )
            if (self.include is not None and name not in made) or self._is_out(name):
                raise ValueError(f"mask names {name!r:.60}, which is not taken: leave it out of mask")

    def _is_out(self, name: str) -> bool:
        return name in self.exclude and name not in self.rename.values()

    def takes(self, name: str) -> bool:
        """Whether a column of the source is taken."""
        return name not in self.exclude if self.include is None else name in self.include

    def renamed(self, name: str) -> str:
        """What a column of the source is called after `rename`."""
        return self.rename.get(name, name)

    def unknown(self, names: Iterable[str]) -> tuple[str, str] | None:
        """The first column that is named and not among these of a source, and by what."""
        known = set(names)
        for step in ("include", "exclude", "cast", "rename"):
            for name in getattr(self, step) or ():
                if name not in known:
                    return step, name
        return None


def _require_type(name: str, kind: Any, depth: int = 0) -> None:
    """Refuse what is no type. Raises ValueError."""
    if depth > _DEEPEST:
        raise ValueError(f"{name!r:.60} has more than {_DEEPEST} types within each other")
    if isinstance(kind, list) and len(kind) == 1:
        _require_type(name, kind[0], depth + 1)
        return
    if isinstance(kind, dict) and kind:
        for each, of in kind.items():
            _require_type(f"{name}.{each}", of, depth + 1)
        return
    if not isinstance(kind, str):
        raise ValueError(
            f"{name!r:.60} is to be {kind!r:.60}, which is no type: a list is written ['int64'], a struct"
            " { id = 'int64' }"
        )
    digits = DECIMAL.fullmatch(kind)
    if digits and 0 < int(digits[1]) <= _MOST_DIGITS and int(digits[2]) <= int(digits[1]):
        return
    if kind not in TYPES:
        near = difflib.get_close_matches(kind, TYPES, 1)
        raise ValueError(
            f"{name!r:.60} is to be {kind!r:.60}, which is no type: "
            + (f"is it {near[0]}?" if near else f"one of {', '.join(TYPES)}")
        )


def require_one_each(names: Iterable[str]) -> None:
    """Refuse two columns of one name, as Spark compares names. Raises ValueError."""
    seen: set[str] = set()
    for name in names:
        if name.lower() in seen:
            raise ValueError(f"two columns would be called {name!r:.60}: exclude one, or rename it")
        seen.add(name.lower())
