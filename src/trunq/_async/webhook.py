"""Webhooks: which requests become messages of which queue."""

from __future__ import annotations

from collections.abc import Sequence

from trunq._async.access import AsyncAccess
from trunq.connection.given import AsyncGiven
from trunq.record import Webhook
from trunq.wire.scalar import Interval, Label, interval
from trunq.word import WebhookBody, WebhookScheme


class AsyncWebhooks(AsyncAccess):
    """Webhooks. `trunq.webhook.app` serves them."""

    async def create_webhook(
        self,
        webhook: str,
        queue: str,
        secret: str,
        *,
        scheme: WebhookScheme = "plain",
        kind: Label | None = None,
        header: str | None = None,
        prefix: str | None = None,
        timestamp_header: str | None = None,
        tolerance: Interval | None = None,
        id_header: str | None = None,
        headers: Sequence[str] = (),
        body: WebhookBody = "json",
        max_bytes: int | None = None,
        connection: AsyncGiven | None = None,
    ) -> bool:
        """Make a webhook, or change the one of that name: signed requests to /hook/<name> become messages.

        `secret` is the name of a variable in the environment of the server, not the secret. For a pipeline:
        the queue pipelines, and its name as `kind`. Returns True when it was made.
        """
        made: bool = await self._value(
            connection,
            "create_webhook",
            webhook=webhook,
            queue=queue,
            secret=secret,
            scheme=scheme,
            kind=kind,
            header=header,
            prefix=prefix,
            timestamp_header=timestamp_header,
            tolerance=interval("tolerance", tolerance),
            id_header=id_header,
            headers=list(headers) or None,
            body=body,
            max_bytes=max_bytes,
        )
        return made

    async def drop_webhook(self, webhook: str, *, connection: AsyncGiven | None = None) -> bool:
        """Drop a webhook; False when there was none of that name."""
        dropped: bool = await self._value(connection, "drop_webhook", webhook=webhook)
        return dropped

    async def list_webhooks(self, *, connection: AsyncGiven | None = None) -> list[Webhook]:
        """Webhooks by name."""
        return await self._records(connection, Webhook, "list_webhooks")
