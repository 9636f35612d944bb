"""A subscription with max_age beside the other features of a queue (model/test_matrix.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from model.walk import Walk


def publish_of_old(walk: Walk) -> None:
    """Two messages that were published long ago, of which the audit passes over one as too old."""
    if "aged" not in walk.names:
        return
    walk.work.ask("subscribe", subscription="audit", max_age="1000 days")
    for days, doom in ((999, set()), (1001, {"outdated"})):
        columns = "insert into {log} (payload, created_at)"
        values = "values ('1', now() - make_interval(days => %s)) returning id"
        id = walk.work.fetch(f"{columns} {values}", days)
        walk.note(id, None, None, None)
        walk.readers["audit"].fates[id].doom |= doom
