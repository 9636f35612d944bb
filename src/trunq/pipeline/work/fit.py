"""Values in the type that a column of the sink has, and where there is none for them.

A value fits where it is the same value there: a number with all its digits (but that a float is the nearest
one), a text as what it reads as, anything as its text. A truth is no number and a time no date, unless it is
midnight.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from trunq.arrow.batch import NO_DIGITS, for_lake
from trunq.arrow.value import TYPE
from trunq.errors import InvalidPipeline
from trunq.pipeline.work.column import cast
from trunq.pipeline.work.text import texts

Fit = tuple[pa.Array, list[int]]
"""A column, null where a value does not fit, and where that is."""

_DIGITS: Final = re.compile(r"numeric\((\d+),(-?\d+)\)")
_SECONDS: Final = re.compile(r"timestamp\((\d)\)")
_MOST: Final = 76
_NUMBER: Final = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
_LENGTH: Final = re.compile(r"(?:character varying|character|bpchar)\((\d+)\)")
_TEXTS: Final = ("", "text", "character varying", "character", "bpchar", "name", "citext")


def fit(column: pa.Array, given: pa.Field, there: pa.Field, *, is_lake: bool) -> Fit:
    """A column of rows in the type of that of the sink."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_null(column.type):
        return pa.nulls(len(column), there.type), []
    if is_lake and _is_of_lake(given, there):
        return _each(column, there.type, lambda some: _in_lake(some, given))
    known = known_type(there)
    from_, to = family(given), family(there)
    if not _may_become(from_, to):
        found = _nothing(column, there.type)
    elif known.startswith("numeric"):
        found = _numeric(texts(column), known)
    elif to == "text":
        found = _text(texts(column), known, is_lake=is_lake)
    elif given.type == there.type:
        found = _rounded(column, there.type, known)
    elif (from_, to) == ("number", "number"):
        found = _number(column, there.type)
    elif from_ == to == "time" and there.type == pa.date32():
        found = _date(column)
    else:
        made, wrong = cast(column, there.type)
        kept, others = _rounded(made, there.type, known)
        found = kept, sorted({*wrong, *others})
    return found


def known_type(field: pa.Field) -> str:
    """What Postgres calls it, where it is known."""
    return str((field.metadata or {}).get(TYPE, b"").decode())


def family(field: pa.Field) -> str:
    """Which kind of values a column has: those of one may become another type of it."""
    kind, known = field.type, known_type(field).partition("(")[0]
    if known == "numeric" or pa.types.is_decimal(kind) or pa.types.is_integer(kind):
        return "number"
    if pa.types.is_floating(kind):
        return "number"
    if known not in _TEXTS and pa.types.is_string(kind):
        return "other"
    for is_one, name in (
        (pa.types.is_string, "text"),
        (pa.types.is_large_string, "text"),
        (pa.types.is_boolean, "truth"),
        (pa.types.is_date, "time"),
        (pa.types.is_timestamp, "time"),
        (pa.types.is_binary, "bytes"),
        (pa.types.is_large_binary, "bytes"),
    ):
        if is_one(kind):
            return name
    return "other"


def _may_become(given: str, there: str) -> bool:
    if there == "text":
        return given != "bytes"
    return there != "other" and (given == there or (given == "text" and there != "bytes"))


def _nothing(column: pa.Array, kind: pa.DataType) -> Fit:
    return pa.nulls(len(column), kind), pc.indices_nonzero(column.is_valid()).to_pylist()


def _is_of_lake(given: pa.Field, there: pa.Field) -> bool:
    """Whether a lake has for it the type that is there."""
    empty = pa.RecordBatch.from_arrays([pa.array([], given.type)], schema=pa.schema([given]))
    return bool(for_lake(empty).schema.field(0).type == there.type)


def _in_lake(column: pa.Array, given: pa.Field) -> pa.Array:
    field = pa.field(given.name, column.type, metadata=given.metadata)
    try:
        return for_lake(pa.RecordBatch.from_arrays([column], schema=pa.schema([field]))).column(0)
    except InvalidPipeline as error:
        raise pa.ArrowInvalid(error.message) from None


def _each(column: pa.Array, kind: pa.DataType, make: Callable[[pa.Array], pa.Array]) -> Fit:
    """What a function makes of a column, and of which values it makes nothing."""
    try:
        return make(column), []
    except pa.ArrowInvalid:
        if len(column) <= 1:
            return pa.nulls(len(column), kind), [0]
    half = len(column) // 2
    first, wrong = _each(column.slice(0, half), kind, make)
    second, others = _each(column.slice(half), kind, make)
    return pa.concat_arrays([first, second]), [*wrong, *(half + at for at in others)]


def _without(column: pa.Array, fits: pa.Array) -> Fit:
    """A column without the values that do not fit."""
    wrong = pc.and_(column.is_valid(), pc.invert(pc.fill_null(fits, False)))
    if not pc.any(wrong, min_count=0).as_py():
        return column, []
    return pc.if_else(wrong, None, column), pc.indices_nonzero(wrong).to_pylist()


def _numeric(found: pa.Array, known: str) -> Fit:
    """Texts of numbers for numeric(p,s), which has NaN, or for numeric, which has infinity besides."""
    digits = _DIGITS.fullmatch(known)
    words = NO_DIGITS if digits is None else NO_DIGITS[:1]
    spelt = pc.replace_substring_regex(found, "^(-?)inf$", r"\1Infinity")
    spelt = pc.if_else(pc.equal(spelt, "nan"), "NaN", spelt)
    is_word = pc.is_in(spelt, pa.array(words))
    if digits is None:
        return _without(spelt, pc.or_(is_word, pc.match_substring_regex(spelt, _NUMBER)))
    if int(digits[2]) < 0 or int(digits[1]) > _MOST:
        fits = [text is None or text in words or _holds(text, digits) for text in spelt.to_pylist()]
        return _without(spelt, pa.array(fits, pa.bool_()))
    kind = pa.decimal256(int(digits[1]), int(digits[2]))
    numbers, wrong = _each(pc.if_else(is_word, None, spelt), kind, lambda some: some.cast(kind))
    return pc.if_else(pc.or_(is_word, numbers.is_valid()), spelt, None), wrong


def _holds(text: str, digits: re.Match[str]) -> bool:
    """Whether numeric(p,s) has all digits of a number; for what Arrow has no type for."""
    if re.match(_NUMBER, text) is None:
        return False
    _, figures, exponent = Decimal(text).as_tuple()
    significant = "".join(map(str, figures)).lstrip("0").rstrip("0")
    least = int(exponent) + len(figures) - len("".join(map(str, figures)).rstrip("0"))
    return not significant or (
        least >= -int(digits[2]) and len(significant) + least <= int(digits[1]) - int(digits[2])
    )


def _rounded(column: pa.Array, kind: pa.DataType, known: str) -> Fit:
    """Values of the column's type; of times those that it would not round in silence to its digits of a
    second.
    """
    digits = _SECONDS.match(known)
    if digits is None or not pa.types.is_timestamp(kind):
        return column, []
    whole = 10 ** (6 - int(digits[1]))
    moments = column.cast(pa.int64())
    return _without(column, pc.equal(pc.multiply(pc.divide(moments, whole), whole), moments))


def _text(found: pa.Array, known: str, *, is_lake: bool) -> Fit:
    """Texts as long as the column has room for; Postgres has none with a zero byte."""
    fits = pa.repeat(pa.scalar(True), len(found))
    if not is_lake:
        fits = pc.invert(pc.match_substring(found, "\0"))
    if (length := _LENGTH.fullmatch(known)) is not None:
        fits = pc.and_(fits, pc.less_equal(pc.utf8_length(found), int(length[1])))
    return _without(found, fits)


def _number(column: pa.Array, kind: pa.DataType) -> Fit:
    """Numbers with all their digits; a float is the nearest one."""
    if pa.types.is_string(column.type) and pa.types.is_integer(kind):
        return cast(pc.replace_substring_regex(column, r"\.0*$", ""), kind)
    if pa.types.is_decimal(column.type) and pa.types.is_integer(kind):
        return cast(pc.replace_substring_regex(texts(column), r"\.0*$", ""), kind)
    if pa.types.is_decimal(kind):
        return _each(texts(column), kind, lambda some: some.cast(kind))
    if pa.types.is_decimal(column.type):
        column = texts(column)
    return cast(column, kind)


def _date(column: pa.Array) -> Fit:
    """Midnights as dates."""
    days, wrong = cast(column, pa.date32())
    back = days.cast(pa.timestamp(column.type.unit)).cast(pa.int64())
    is_day = pc.equal(back, column.cast(pa.int64()))
    kept, others = _without(days, is_day)
    return kept, sorted({*wrong, *others})
