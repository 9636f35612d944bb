"""Where a list goes on that looked at all it may before it had all that was asked for."""

from __future__ import annotations

from typing import Final

LOOKED_AT_MOST: Final = 100_000
"""Messages, or records of the audit, in one call."""
LOOKED_TO: Final = "select nullif(current_setting('trunq.looked_to', true), '')::bigint"
"""Asked in the transaction of the list: what `before` of the next call is, null when it saw all."""
