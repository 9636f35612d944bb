"""What Tab offers after `trunq --install-completion`: names of queues, subscriptions and so on."""

from __future__ import annotations

from typing import Any, Final

_PATIENCE: Final = 2
"""Seconds that a press of Tab may wait for the database."""


def queues(ctx: Any) -> list[str]:
    """Names of queues."""
    return _ask(ctx, "select name from trunq.queue order by name")


def subscriptions(ctx: Any) -> list[str]:
    """Names of the subscriptions of the queue that is given, or of all."""
    return _ask(
        ctx,
        "select distinct s.name from trunq.subscription s join trunq.queue q using (queue_id)"
        " where %(queue)s::text is null or q.name = %(queue)s order by s.name",
    )


def schedules(ctx: Any) -> list[str]:
    """Names of schedules."""
    return _ask(ctx, "select name from trunq.schedule order by name")


def captures(ctx: Any) -> list[str]:
    """Names of captured tables."""
    return _ask(ctx, "select table_name from trunq.list_captures()")


def pipelines(ctx: Any) -> list[str]:
    """Names of pipelines."""
    return _ask(ctx, "select name from trunq.pipeline order by name")


def _ask(ctx: Any, query: str) -> list[str]:
    # An embedded server is not started for this. Whatever goes wrong: there is nothing to offer.
    try:
        import psycopg  # noqa: PLC0415  # other words are completed without it

        from trunq import settings  # noqa: PLC0415

        given = ctx.params
        dsn = given.get("dsn") or settings.load().dsn or ""
        if given.get("embedded") or (not dsn and settings.load().embedded):
            return []
        with psycopg.connect(dsn, connect_timeout=_PATIENCE) as connection:
            return [name for (name,) in connection.execute(query.encode(), {"queue": given.get("queue")})]
    except Exception:
        return []
