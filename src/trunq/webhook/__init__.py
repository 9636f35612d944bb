"""A server of webhooks: POST /hook/<name> becomes a message, and 202 when it is committed.

It checks the signature and publishes, and does nothing else: so it is up when workers and Spark are not.
`app` is an ASGI application, for a server of its own (`trunq webhook serve`) or as a part of yours.
docs/log/webhooks.md tells the rest.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final

import psycopg
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from trunq.client._async import AsyncClient
from trunq.connection.backoff import first_line
from trunq.errors import InvalidArgument, MessageTooLarge, QueueClosed, QueueFull, QueueNotFound, TrunqError
from trunq.record import Webhook
from trunq.webhook.secret import SECRET, Secret
from trunq.webhook.signature import NoSecret, has_signed_name, is_signed, scheme_of
from trunq.wire.json import RawJson

log: Final = logging.getLogger("trunq.webhook")

_KNOWN_FOR: Final = 5.0
"""Seconds for which webhooks are as they were read."""
_AWAY_FOR: Final = 1.0
_BODY_WITHIN: Final = 30.0
_PUBLISH_WITHIN: Final = 10.0
_RESUMED_WITH: Final = 1_048_576
_SECRETS: Final = 9
"""Secrets of a webhook at the same time: NAME, NAME_2 and so on."""
_RECENT: Final = 100_000
"""Bodies that are remembered."""
_ONCE_WITHIN: Final = timedelta(days=3)
"""For which a delivery holds its name: senders try again for so long."""

_CHALLENGE: Final = re.compile(r"[A-Za-z0-9_.-]{1,200}")
_AWAY: Final = (psycopg.OperationalError, psycopg.InterfaceError, OSError)
"""Time-outs of Python and of the pool are among them."""


class Refused(Exception):
    """What a request is answered that becomes no message."""

    def __init__(self, status: int, why: str, retry_after: int | None = None) -> None:
        super().__init__(why)
        self.status = status
        self.headers = {"Connection": "close"} if status in (408, 413) else {}
        if retry_after is not None:
            self.headers["Retry-After"] = str(retry_after)


def app(client: AsyncClient, *, environment: Mapping[str, str] | None = None) -> Starlette:
    """The application: POST /hook/<name> (GET for Meta's check of the address), POST /resume/<queue> for
    callbacks of what was pushed, GET /health.

    The client is yours, and you close it; what it connects as may publish to the queues of the webhooks, and
    needs no other right. `environment` has the secrets (None: that of this process). Raises InvalidArgument
    for a secret of callbacks that cannot be one.
    """
    server = _Server(client, os.environ if environment is None else environment)
    return Starlette(
        routes=[
            Route("/hook/{name}", server.take, methods=["POST"]),
            Route("/hook/{name}", server.confirm, methods=["GET"]),
            Route("/resume/{queue}", server.resume, methods=["POST"]),
            Route("/health", server.health, methods=["GET"]),
        ]
    )


class _Server:
    def __init__(self, client: AsyncClient, environment: Mapping[str, str]) -> None:
        self._client, self._environment = client, environment
        secret = environment.get(SECRET)
        self._pushed = Secret.read(secret) if secret else None
        """What the tokens of callbacks are made of."""
        self._webhooks: dict[str, Webhook] = {}
        self._read_at = self._failed_at = float("-inf")
        self._reading = asyncio.Lock()
        self._recent: dict[tuple[str, bytes], tuple[str, float, tuple[str, bytes]]] = {}
        """Bodies that came a moment ago, by webhook and digest: as which delivery, until when that counts."""

    async def take(self, request: Request) -> Response:
        """A request."""
        name = str(request.path_params["name"])
        try:
            return await self._take(name, request)
        except Refused as refused:
            if refused.status >= 500:
                log.warning("webhook %s answers %s: %s", name, refused.status, refused)
            return JSONResponse({"error": str(refused)}, refused.status, refused.headers)
        except ClientDisconnect:
            return Response(status_code=400)
        except _AWAY as error:
            log.warning("webhook %s: the database is away: %s", name, error)
            return JSONResponse({"error": "the database is away: send it again"}, 503, {"Retry-After": "5"})

    async def confirm(self, request: Request) -> Response:
        """Meta asks, before it sends anything, whether the address is of who has the token."""
        name = str(request.path_params["name"])
        try:
            webhook = (await self._known()).get(name)
        except _AWAY as error:
            log.warning("webhook %s: the database is away: %s", name, error)
            return JSONResponse({"error": "the database is away: ask again"}, 503, {"Retry-After": "5"})
        if webhook is None or webhook.scheme != "meta":
            return Response(status_code=405, headers={"Allow": "POST"})
        token = self._environment.get(f"{webhook.secret}_VERIFY_TOKEN", "").strip()
        if not token:
            said = f"the server has no {webhook.secret}_VERIFY_TOKEN in its environment"
            log.warning("webhook %s answers 503: %s", name, said)
            return JSONResponse({"error": said}, 503, {"Retry-After": "60"})
        asked = request.query_params
        given, challenge = asked.get("hub.verify_token", ""), asked.get("hub.challenge", "")
        if not hmac.compare_digest(token.encode(), given.encode(errors="replace")):
            return JSONResponse({"error": "hub.verify_token is wrong"}, 403)
        if asked.get("hub.mode") != "subscribe" or not _CHALLENGE.fullmatch(challenge):
            return JSONResponse({"error": "hub.mode is subscribe, and hub.challenge is there"}, 400)
        return PlainTextResponse(challenge)

    async def resume(self, request: Request) -> Response:
        """A callback: what was posted by `trunq worker --push`, and answered 202, is done."""
        queue = str(request.path_params["queue"])
        try:
            return await self._resume(queue, request)
        except Refused as refused:
            return JSONResponse({"error": str(refused)}, refused.status, refused.headers)
        except ClientDisconnect:
            return Response(status_code=400)
        except _AWAY as error:
            log.warning("a callback to %s: the database is away: %s", queue, error)
            return JSONResponse({"error": "the database is away: send it again"}, 503, {"Retry-After": "5"})

    async def _resume(self, queue: str, request: Request) -> Response:
        if self._pushed is None:
            raise Refused(404, f"the server has no {SECRET} in its environment, and takes no callbacks")
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        # Who has no token of ours writes nothing.
        if scheme.lower() != "bearer" or not self._pushed.is_token(queue, token.strip()):
            raise Refused(401, "Authorization is to be Bearer, and the Trunq-Token of the request")
        body = await _body(request, _RESUMED_WITH)
        if body:
            _read(body)
        try:
            async with asyncio.timeout(_PUBLISH_WITHIN):
                value = RawJson(body) if body else None
                did = await self._client.resume(queue, token.strip(), value)
        except (psycopg.DataError, InvalidArgument) as error:
            raise Refused(400, f"Postgres does not take this: {first_line(error)}") from None
        except MessageTooLarge:
            raise Refused(413, "the body is too large") from None
        except (TrunqError, psycopg.errors.InsufficientPrivilege) as error:
            log.error("a callback cannot resume a message of queue %s: %s", queue, error)
            raise Refused(500, "this server cannot resume the message; its log says why") from None
        return JSONResponse({"resumption": did})

    async def health(self, request: Request) -> Response:  # noqa: ARG002  # as all routes
        """Whether messages can be taken."""
        try:
            self._read_at = float("-inf")
            await self._known()
        except _AWAY:
            return JSONResponse({"status": "the database is away"}, 503, {"Retry-After": "5"})
        return JSONResponse({"status": "ok"})

    async def _take(self, name: str, request: Request) -> Response:
        webhook = (await self._known()).get(name)
        if webhook is None:
            raise Refused(404, "there is no such webhook")
        secrets = self._secrets(webhook)
        body = await _body(request, webhook.max_bytes)
        try:
            # All of them, so that the time tells nothing.
            signed = [is_signed(webhook, secret.encode(), request.headers, body) for secret in secrets]
        except NoSecret as error:
            raise Refused(503, f"the secret {webhook.secret} of the server is none: {error}", 60) from None
        if not any(signed):
            raise Refused(401, "the signature is wrong, or too old")
        value = _read(body) if webhook.body == "json" else None
        if webhook.scheme == "slack" and _text(value, "type") == "url_verification":
            return JSONResponse({"challenge": _text(value, "challenge")})
        published, is_new = await self._publish(webhook, request, body, value)
        return JSONResponse({"id": published, "is_new": is_new}, 202)

    def _secrets(self, webhook: Webhook) -> list[str]:
        """Those that requests may be signed with: while one takes the place of another, there are both."""
        names = (webhook.secret, *(f"{webhook.secret}_{at}" for at in range(2, _SECRETS + 1)))
        # An empty secret is one that everybody knows.
        found = [text for name in names if (text := self._environment.get(name, "").strip())]
        if not found:
            raise Refused(503, f"the server has no secret {webhook.secret} in its environment", 60)
        return found

    async def _known(self) -> dict[str, Webhook]:
        """All webhooks, as they were some seconds ago at most."""
        async with self._reading:
            now = time.monotonic()
            if now < self._failed_at + _AWAY_FOR:
                # Who waited for the one that looked does not wait again.
                raise TimeoutError("it was away a moment ago")
            if now > self._read_at + _KNOWN_FOR:
                try:
                    async with asyncio.timeout(_PUBLISH_WITHIN):
                        found = await self._client.list_webhooks()
                except _AWAY:
                    self._failed_at = time.monotonic()
                    raise
                self._webhooks = {each.webhook: each for each in found}
                self._read_at = time.monotonic()
            return self._webhooks

    async def _publish(self, webhook: Webhook, request: Request, body: bytes, value: Any) -> tuple[int, bool]:
        content: dict[str, Any] = {"payload": RawJson(body)} if webhook.body == "json" else {"body": body}
        kept = {name.lower(): request.headers[name] for name in webhook.headers if name in request.headers}
        content |= {"kind": webhook.kind, "headers": {"webhook": webhook.webhook, **kept}}
        delivery = _delivery(webhook, request, value) if webhook.is_unique else None
        with self._once(webhook, delivery, body):
            return await self._publish_as(webhook, delivery, content)

    @contextmanager
    def _once(self, webhook: Webhook, delivery: str | None, body: bytes) -> Iterator[None]:
        """Where the signature is of the body alone, one who saw a request may send it again under other names
        of the delivery and the event: refused for as long as signatures with a time are good for.
        """
        if delivery is None or has_signed_name(webhook):
            yield
            return
        now = time.monotonic()
        while self._recent and (oldest := next(iter(self._recent.values())))[1] < now:
            del self._recent[oldest[2]]
        place = (webhook.webhook, hashlib.sha256(body).digest())
        known = self._recent.get(place)
        if known is not None and known[1] < now:
            # It stood behind one of another webhook, with a longer tolerance.
            del self._recent[place]
            known = None
        if known is not None and known[0] != delivery:
            raise Refused(409, f"this body came as delivery {known[0][:100]} a moment ago")
        if known is None and len(self._recent) < _RECENT:
            self._recent[place] = (delivery, now + webhook.tolerance.total_seconds(), place)
        try:
            yield
        except BaseException:
            if known is None:
                self._recent.pop(place, None)
            raise

    async def _publish_as(
        self, webhook: Webhook, delivery: str | None, content: dict[str, Any]
    ) -> tuple[int, bool]:
        try:
            async with asyncio.timeout(_PUBLISH_WITHIN):
                if delivery is None:
                    return await self._client.publish(webhook.queue, **content), True
                published = await self._client.publish_unique(
                    webhook.queue,
                    unique_key=f"{webhook.webhook} {delivery}",
                    unique_for=_ONCE_WITHIN,
                    on_conflict="refuse",
                    **content,
                )
                return published.id, published.is_new
        except (psycopg.DataError, InvalidArgument) as error:
            raise Refused(400, f"Postgres does not take this: {first_line(error)}") from None
        except MessageTooLarge:
            raise Refused(413, "the body is too large for a message") from None
        except (QueueClosed, QueueFull, QueueNotFound) as error:
            raise Refused(
                503, f"queue {webhook.queue} takes no message: {type(error).__name__}", 30
            ) from None
        except (TrunqError, psycopg.errors.InsufficientPrivilege) as error:
            log.error("webhook %s cannot publish into queue %s: %s", webhook.webhook, webhook.queue, error)
            raise Refused(500, "this server cannot publish the message; its log says why") from None


async def _body(request: Request, most: int) -> bytes:
    """The body, of which no more is read than may be."""
    said = request.headers.get("content-length", "")
    if said.isdecimal() and int(said[:20]) > most:
        raise Refused(413, f"a body has at most {most} bytes")
    pieces, size = [], 0
    try:
        async with asyncio.timeout(_BODY_WITHIN):
            async for piece in request.stream():
                size += len(piece)
                if size > most:
                    raise Refused(413, f"a body has at most {most} bytes")
                pieces.append(piece)
    except TimeoutError:
        raise Refused(408, f"the body did not come within {_BODY_WITHIN:.0f} s") from None
    return b"".join(pieces)


def _read(body: bytes) -> Any:
    try:
        return json.loads(body.decode(), parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise Refused(400, f"the body is no JSON: {error}") from None


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is no number")


def _text(value: Any, key: str) -> str | None:
    found = value.get(key) if isinstance(value, dict) else None
    return found if isinstance(found, str) else None


def _delivery(webhook: Webhook, request: Request, value: Any) -> str | None:
    """What the sender calls this delivery."""
    scheme = scheme_of(webhook)
    if scheme.id_header is not None:
        found = request.headers.get(scheme.id_header)
    else:
        found = None if scheme.id_key is None else _text(value, scheme.id_key)
    # JSON may have halves of characters, which nothing else has.
    found = found and found.encode(errors="replace").decode()
    # A key has at most some hundred bytes.
    return hashlib.sha256(found.encode()).hexdigest() if found and len(found) > 100 else found or None
