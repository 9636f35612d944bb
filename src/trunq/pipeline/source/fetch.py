"""One query of a source as Arrow batches: rows are turned into Arrow in native code, none into Python.

The settings are those under which a text means the same on any server; sinks cast it under the same ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from trunq import fetch as shared
from trunq.pipeline.setting import READING


def fetch(
    dsn: str,
    query: str,
    schema: pa.Schema,
    *,
    settings: dict[str, str] | None = None,
    verify: Callable[[Any], None] = lambda _cursor: None,
    check: Callable[[], None] = lambda: None,
) -> Iterator[pa.RecordBatch]:
    """As trunq.fetch, under the settings of sources."""
    chosen = {**READING, **(settings or {})}
    return shared.fetch(dsn, "trunq pipeline", query, schema, chosen, verify=verify, check=check)
