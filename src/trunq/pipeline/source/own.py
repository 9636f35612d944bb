"""Names of what a pipeline makes for itself: a subscription, a queue."""

from __future__ import annotations

import hashlib


def own_name(what: str, pipeline: str) -> str:
    """That of a pipeline, or of an instance, whose name no queue can have (in SQL: trunq._own_name)."""
    name, _, value = pipeline.partition("/")
    if not value:
        return f"{what}_{name}"[:48]
    return f"{what}_{name:.26}_{hashlib.sha256(pipeline.encode()).hexdigest()[:12]}"
