"""How Postgres is to plan: a few profiles, each some settings of its planner.

The tables of a queue have no statistics, as autovacuum comes to them late or never. Left alone, the planner
takes them for small and reads all of them. So a function says in its header which profile it needs
(`set trunq.plan = index`), and what install runs has the settings of that profile there. Functions of a
queue have what the specimen's have. No function names a setting of the planner by itself.

A setting costs some 50 ns a call, and holds in the functions that are called, until one has its own. A
function in SQL that is put in the place of its call has none, and no profile: it is planned as its caller.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

_INDEX: Final = {"enable_seqscan": "off", "enable_bitmapscan": "off", "jit": "off"}
"""By an index, as far as the reader goes. Without statistics a plan may look dear enough to be compiled."""

_KEPT: Final = {"plan_cache_mode": "force_generic_plan"}
"""One plan for all calls of a session."""

_ALONE: Final = {"max_parallel_workers_per_gather": "0"}

PROFILES: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType(
    {
        # Most functions: few rows of a table, or many in the order of an index, which parallel workers
        # would not keep. trunq._rows_of changes what an index costs; its callers have it back by this.
        "index": _INDEX | _ALONE | {"cpu_index_tuple_cost": "0.005"},
        # The same for each lease and batch, where to plan costs more than to read.
        "kept": _INDEX | _KEPT,
        # Tables by index, and arrays of ids, as leases and receipts have them, by hash: to compare ten
        # thousand with ten thousand others one by one takes seconds.
        "hash": _INDEX | _KEPT | {"enable_nestloop": "off", "enable_mergejoin": "off"},
        #
        # Each of the others is for one or two functions.
        #
        # As hash, for an ack: all it reads it finds by a unique key, so it pays for one setting less.
        "answer": _KEPT
        | {"enable_seqscan": "off", "enable_nestloop": "off", "enable_mergejoin": "off", "jit": "off"},
        # As kept, where the rows of one table look up those of another: a hash would read all of it.
        "nested": _INDEX | _KEPT | {"enable_hashjoin": "off", "enable_mergejoin": "off"},
        # As kept, where rows of the statement itself match each other, by hash: the lanes of a lease.
        "matched": _INDEX | _KEPT | {"enable_mergejoin": "off"},
        # As index, for one row, and called for each message.
        "probe": {"enable_seqscan": "off", "enable_bitmapscan": "off"},
        # Reads no table; arrays of every length.
        "generic": _KEPT,
        # Receipts of a time by BRIN, what belongs to them by index, joined by hash.
        "brin": _ALONE
        | {"enable_seqscan": "off", "enable_bitmapscan": "on", "enable_nestloop": "off"}
        | {"enable_mergejoin": "off", "jit": "off"},
        # Each page once, in its order, joined by hash.
        "bitmap": _ALONE
        | {"enable_seqscan": "off", "enable_indexscan": "off", "enable_indexonlyscan": "off"}
        | {"enable_bitmapscan": "on", "enable_nestloop": "off", "enable_mergejoin": "off", "jit": "off"},
        # Pages by their address.
        "tid": _INDEX | _ALONE | {"enable_indexscan": "off", "enable_indexonlyscan": "off"},
        # A whole segment.
        "scan": _ALONE | {"jit": "off"},
        # By the one index that has the order asked for.
        "unsorted": _INDEX | _ALONE | {"enable_sort": "off"},
        # Two tables of a trigger, of one row or a million, side by side.
        "merge": {"enable_nestloop": "off", "enable_hashjoin": "off", "jit": "off"},
    }
)
"""By name: the settings."""

_NAMED: Final = re.compile(r"\bset trunq\.plan = (\w+)")


def write_settings(sql: str) -> str:
    """In the place of a profile's name its settings."""
    return _NAMED.sub(
        lambda found: " ".join(f"set {name} = {value}" for name, value in PROFILES[found[1]].items()), sql
    )
