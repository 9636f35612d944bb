"""Which versions rows make of those that are there, as a table of Postgres makes them (statement.history)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from trunq.arrow.value import to_json
from trunq.pipeline.definition.stamp import STAMPS

VALID_FROM: Final = "valid_from"
VALID_TO: Final = "valid_to"
CLOSES: Final = "trunq closes"
"""Whether a row ends the open version of its key, or is a version."""

TIME: Final = pa.timestamp("us", "UTC")

_NEW: Final = "trunq new"
_ROW: Final = "trunq row"


def versions(
    rows: pa.Table,
    current: pa.Table,
    key: list[str],
    newest: str | None,
    now: datetime,
    ended: pa.Table | None = None,
) -> pa.Table:
    """The versions that begin, with `valid_from` and `valid_to`, and for each open one that ends a row with
    its key and its `valid_to`.

    `current` has the open version of each of these keys, with `valid_from`. Versions begin at `newest`, or
    now; of several at one time the last counts. What `newest` says to be no later than the open version is
    left out, and so is what changes nothing; now is later, whatever clock wrote that version. `ended` has the
    `valid_to` of keys of which no version is open: what is there again begins now, if it does not say later.
    Raises ValueError for a row without a time.
    """
    given = rows.append_column(VALID_FROM, _times(rows, newest, now))
    if ended is not None and ended.num_rows:
        given = _reopened(given, ended, key, now)
    if newest is None:
        given = _behind(given, current, key)
    given = given.filter(_is_later(given, current, key))
    every = pa.concat_tables([_numbered(current, is_new=False), _numbered(given, is_new=True)])
    every = every.take(
        pc.sort_indices(every, [(name, "ascending") for name in (*key, VALID_FROM, _NEW, _ROW)])
    )
    # The last of each time.
    every = every.filter(pc.invert(_next(_repeats(every, [*key, VALID_FROM]))))
    values = [name for name in rows.schema.names if name not in (*key, newest, *STAMPS)]
    begun = every.filter(pc.and_(every[_NEW], pc.invert(_repeats(every, [*key, *values]))))
    follows = _repeats(begun, key)
    begun = begun.append_column(VALID_TO, _ends(begun[VALID_FROM], follows)).drop_columns([_NEW, _ROW])
    begun = begun.append_column(CLOSES, pa.repeat(pa.scalar(False), begun.num_rows))
    firsts = begun.filter(pc.invert(follows)).select([*key, VALID_FROM])
    closed = firsts.join(current.select(key), key, join_type="left semi")
    return pa.concat_tables([begun, _closing(closed, begun.schema)])


def closing(gone: pa.Table, schema: pa.Schema, now: datetime) -> pa.Table:
    """For each open version of these, with its key and `valid_from`, a row that ends it, with columns of
    versions.
    """
    ends = _no_earlier(gone[VALID_FROM], now)
    return _closing(gone.set_column(gone.schema.get_field_index(VALID_FROM), VALID_FROM, ends), schema)


def _reopened(given: pa.Table, ended: pa.Table, key: list[str], now: datetime) -> pa.Table:
    """Rows that are there again: of several that are no later than the end, the newest, from now on."""
    numbered = given.select([*key, VALID_FROM]).append_column(
        _ROW, pa.array(range(given.num_rows), pa.int64())
    )
    newest = numbered.group_by(key).aggregate([(VALID_FROM, "max")])
    met = numbered.join(ended.select([*key, VALID_TO]), key).join(newest, key).sort_by(_ROW)
    is_back = pc.fill_null(pc.less_equal(met[VALID_FROM], met[VALID_TO]), False)
    # A version that ended as it began, in a time to come, has that as its own.
    after = pc.add(met[VALID_TO], pa.scalar(timedelta(microseconds=1), pa.duration("us")))
    again = _no_earlier(after, now)
    times = pc.if_else(is_back, again, met[VALID_FROM])
    is_newest = pc.equal(met[VALID_FROM], met[f"{VALID_FROM}_max"])
    made = given.set_column(given.schema.get_field_index(VALID_FROM), VALID_FROM, times)
    return made.filter(pc.or_(pc.invert(is_back), is_newest))


def _no_earlier(times: pa.ChunkedArray, now: datetime) -> pa.ChunkedArray:
    """Times, and now for those before."""
    return pc.if_else(pc.less(times, pa.scalar(now, TIME)), pa.scalar(now, TIME), times)


def _times(rows: pa.Table, newest: str | None, now: datetime) -> pa.ChunkedArray | pa.Array:
    if newest is None:
        return pa.repeat(pa.scalar(now, TIME), rows.num_rows)
    if rows[newest].null_count:
        raise ValueError(f'"{newest}" is null in a row, and says when its version began')
    # Without a zone, and as a day, it is taken as UTC.
    zone = getattr(rows[newest].type, "tz", None)
    return rows[newest].cast(pa.timestamp("us", zone)).cast(TIME)


def _is_later(given: pa.Table, current: pa.Table, key: list[str]) -> pa.ChunkedArray:
    """Which rows begin after the open version of their key, if there is one."""
    numbered = given.select(key).append_column(_ROW, pa.array(range(given.num_rows), pa.int64()))
    met = numbered.join(current.select([*key, VALID_FROM]), key).sort_by(_ROW)
    return pc.or_kleene(pc.is_null(met[VALID_FROM]), pc.greater(given[VALID_FROM], met[VALID_FROM]))


def _behind(given: pa.Table, current: pa.Table, key: list[str]) -> pa.Table:
    """Rows that begin behind the open version of their key, where they would not."""
    numbered = given.select(key).append_column(_ROW, pa.array(range(given.num_rows), pa.int64()))
    met = numbered.join(current.select([*key, VALID_FROM]), key).sort_by(_ROW)
    after = pc.add(met[VALID_FROM], pa.scalar(timedelta(microseconds=1), pa.duration("us")))
    is_behind = pc.fill_null(pc.less(given[VALID_FROM], after), False)
    times = pc.if_else(is_behind, after, given[VALID_FROM])
    return given.set_column(given.schema.get_field_index(VALID_FROM), VALID_FROM, times)


def _numbered(rows: pa.Table, *, is_new: bool) -> pa.Table:
    made = rows.append_column(_NEW, pa.repeat(pa.scalar(is_new), rows.num_rows))
    return made.append_column(_ROW, pa.array(range(rows.num_rows), pa.int64()))


def _ends(begins: pa.ChunkedArray, follows: pa.Array) -> pa.Array:
    """Each version ends where the next one of its key begins, or not yet."""
    times = begins.combine_chunks()
    shifted = pa.concat_arrays([times.slice(1), pa.nulls(min(1, len(times)), TIME)])
    return pc.if_else(_next(follows), shifted, pa.scalar(None, TIME))


def _closing(closed: pa.Table, schema: pa.Schema) -> pa.Table:
    given = {**dict(zip(closed.schema.names, closed.columns, strict=True)), VALID_TO: closed[VALID_FROM]}
    given[CLOSES] = pa.repeat(pa.scalar(True), closed.num_rows)
    columns = [given.get(field.name, pa.nulls(closed.num_rows, field.type)) for field in schema]
    return pa.table(columns, schema=schema)


def _next(marks: pa.Array) -> pa.Array:
    """What each next row has; the last, false."""
    return pa.concat_arrays([marks.slice(1), pa.array([False] * min(1, len(marks)), pa.bool_())])


def _repeats(rows: pa.Table, names: Sequence[str]) -> pa.Array:
    """Whether a row has the values of the one before; null is null, and NaN is NaN."""
    count = rows.num_rows
    same = pa.array([False, *[True] * (count - 1)][:count], pa.bool_())
    for name in names:
        same = pc.and_(same, _repeated(_comparable(rows[name])))
    return same


def _comparable(column: pa.ChunkedArray) -> pa.Array:
    if pa.types.is_nested(column.type):
        values = column.to_pylist(maps_as_pydicts="lossy")
        return pa.array([None if each is None else to_json(each) for each in values], pa.string())
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def _repeated(column: pa.Array) -> pa.Array:
    if not len(column):
        return pa.array([], pa.bool_())
    one, other = column.slice(1), column.slice(0, len(column) - 1)
    same = pc.or_(pc.fill_null(pc.equal(one, other), False), pc.and_(pc.is_null(one), pc.is_null(other)))
    if pa.types.is_floating(column.type):
        same = pc.or_(same, pc.fill_null(pc.and_(pc.is_nan(one), pc.is_nan(other)), False))
    return pa.concat_arrays([pa.array([False]), same])
