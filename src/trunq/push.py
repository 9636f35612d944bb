"""A worker that posts each message to a URL, and answers for it by the status: for functions as a service,
and for programs without a driver of Postgres. docs/work/push.md tells the rest.

Requests are signed as Standard Webhooks says (HMAC-SHA256 over id, time and body). Its library signs text
only, and a body may be bytes.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import re
import socket
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final
from urllib.parse import quote

import httpx

from trunq.client.message import Message, Reject, Retry
from trunq.client.park import Park
from trunq.errors import InvalidArgument
from trunq.webhook.secret import Secret
from trunq.wire.scalar import Interval
from trunq.worker import Worker

LARGEST: Final = 1_048_576
"""Bytes of an answer: as of what a message is resumed with."""
_SHOWN: Final = 300
_LONGEST: Final = 86_400.0
"""Seconds after which it tries again at the latest, whatever the other side says."""
_TRACE: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


class PushFailed(Exception):
    """The other side did not take a message: it is tried again by the policy."""

    has_place = False
    """Whether its traceback tells anything."""


class Target:
    """Where messages are posted, and what may become of that."""

    def __init__(
        self,
        url: str,
        secret: Secret,
        *,
        callback: str | None = None,
        callback_within: Interval = "1 day",
        time_out: float = 30.0,
        allow_private: bool = False,
    ) -> None:
        """Raises InvalidArgument for a URL that cannot be posted to."""
        try:
            self._url = httpx.URL(url)
        except httpx.InvalidURL as error:
            raise InvalidArgument(f"{url} is no URL: {error}") from None
        if self._url.scheme not in ("http", "https") or not self._url.host:
            raise InvalidArgument(f"messages are posted to http:// or https://, not {url}")
        if self._url.userinfo:
            raise InvalidArgument("a URL with a password ends in logs", "requests are signed: check that")
        self._secret = secret
        self._callback = callback and callback.rstrip("/")
        self._callback_within = callback_within
        self._time_out = time_out
        self._allow_private = allow_private
        # No proxy of the environment: it would resolve the name, unseen. No redirects, which lead anywhere.
        self._http = httpx.AsyncClient(trust_env=False, follow_redirects=False, timeout=time_out)

    async def close(self) -> None:
        """Close its connections."""
        await self._http.aclose()

    async def post(self, message: Message) -> Any:
        """Post a message, and say what is to become of it."""
        if message.is_resumed:
            return message.resumed
        token = self._secret.token(message.queue, message.subscription, message.id)
        try:
            # Of all of it: each of many small pieces would be in time.
            async with asyncio.timeout(self._time_out):
                request = await self._request(message, token)
                answer = await self._http.send(request, stream=True)
                try:
                    body = await _read(answer)
                finally:
                    await answer.aclose()
        except TimeoutError:
            raise PushFailed(f"no answer within {self._time_out:g} s") from None
        except (httpx.HTTPError, OSError) as error:
            raise PushFailed(f"{type(error).__name__}: {error}") from None
        return self._answer(answer, body, token)

    def _answer(self, answer: httpx.Response, body: bytes, token: str) -> Any:
        status, said = answer.status_code, _shown(answer, body)
        if status == httpx.codes.ACCEPTED:
            return Park(token, self._callback_within)
        if answer.is_success:
            return _result(answer, body)
        if status == httpx.codes.GONE:
            return Reject(said)
        if status in (httpx.codes.TOO_MANY_REQUESTS, httpx.codes.SERVICE_UNAVAILABLE):
            return Retry(_retry_after(answer), said)
        raise PushFailed(said)

    async def _request(self, message: Message, token: str) -> httpx.Request:
        headers, body = _content(message)
        id = f"{message.queue}.{message.subscription}.{message.id}"
        timestamp = int(time.time())
        headers |= {
            "Accept-Encoding": "identity",  # what is packed may be far longer than what came
            "User-Agent": "trunq",
            "Webhook-Id": id,
            "Webhook-Timestamp": str(timestamp),
            "Webhook-Signature": self._secret.sign(id, timestamp, body),
            "Trunq-Queue": message.queue,
            "Trunq-Attempt": str(message.attempt),
            "Trunq-Token": token,
        }
        for name, value in (("Trunq-Kind", message.kind), ("Trunq-Key", message.key)):
            if value is not None:
                headers[name] = quote(value, safe=" !#$&'()*+,/:;=?@[]^_`{|}~")
        if self._callback:
            headers["Trunq-Callback"] = f"{self._callback}/resume/{message.queue}"
        url = self._url
        extensions: dict[str, Any] = {"timeout": httpx.Timeout(self._time_out).as_dict()}
        headers["Host"] = url.netloc.decode("ascii")
        if not self._allow_private:
            # To the address that was looked at: by its name the host could be another a moment later.
            extensions["sni_hostname"] = url.raw_host.decode("ascii")
            url = url.copy_with(host=await _public_address(url))
        return self._http.build_request("POST", url, headers=headers, content=body, extensions=extensions)


def push_worker(*queues: str, target: Target, **options: Any) -> Worker:
    """A worker whose one handler posts each message, of whatever kind, to `target`."""
    worker = Worker(*queues, **options)
    worker.handler(target.post)
    return worker


async def _public_address(url: httpx.URL) -> str:
    """An address of the host, all of which are public. Raises PushFailed."""
    port = url.port or (443 if url.scheme == "https" else 80)
    # As in the header Host: Python would write a name outside of ASCII by rules of its own.
    host = url.raw_host.decode("ascii")
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = [str(address[0]).partition("%")[0] for *_, address in found]
    for each in addresses:
        if not is_public(each):
            raise PushFailed(
                f"{url.host} is at {each}, which is no public address (--push-private allows it)"
            )
    return addresses[0]


def is_public(address: str) -> bool:
    """Whether an address is one that anybody may reach."""
    ip = ipaddress.ip_address(address)
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else None)
        if inner is None and ip in _NAT64:
            inner = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(str(inner))
        # All that is routed lies there: Python takes fec0::/10, which some networks still use, for global.
        if ip not in _ROUTED:
            return False
    return ip.is_global and not ip.is_multicast


_ROUTED: Final = ipaddress.IPv6Network("2000::/3")
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")


def _content(message: Message) -> tuple[dict[str, str], bytes]:
    given = message.headers if isinstance(message.headers, Mapping) else {}
    headers = {}
    trace = given.get("traceparent")
    if isinstance(trace, str) and _TRACE.fullmatch(trace):
        headers["traceparent"] = trace
    if message.body is None:
        return {"Content-Type": "application/json", **headers}, message.json
    kind = given.get("content-type")
    is_fit = isinstance(kind, str) and kind.isascii() and kind.isprintable() and len(kind) <= _SHOWN
    return {"Content-Type": kind if is_fit else "application/octet-stream", **headers}, message.body  # type: ignore[dict-item]


async def _read(answer: httpx.Response) -> bytes:
    pieces, size = [], 0
    async for piece in answer.aiter_raw():
        size += len(piece)
        if size > LARGEST:
            raise PushFailed(f"{answer.status_code}, with an answer of more than {LARGEST:,} bytes")
        pieces.append(piece)
    return b"".join(pieces)


def _result(answer: httpx.Response, body: bytes) -> Any:
    """JSON, or text; None of what is neither."""
    if not body:
        return None
    try:
        text = body.decode()
        is_json = "json" in answer.headers.get("content-type", "").partition(";")[0]
        return json.loads(text) if is_json else text
    except (ValueError, RecursionError):
        raise PushFailed(f"{answer.status_code}, with an answer that cannot be read") from None


def _shown(answer: httpx.Response, body: bytes) -> str:
    said = " ".join(body[:_SHOWN].decode(errors="replace").split())
    what = f"{answer.status_code} {answer.reason_phrase}".strip()
    if answer.has_redirect_location:
        what += ", a redirect, which is not followed"
    return f"{what}: {said}" if said else what


def _retry_after(answer: httpx.Response) -> float | None:
    """Seconds, or a date; None: by the policy."""
    said = answer.headers.get("retry-after", "").strip()
    if re.fullmatch(r"[0-9]{1,9}", said):
        return min(float(said), _LONGEST)
    try:
        at = parsedate_to_datetime(said)
    except ValueError:
        return None
    seconds = (at.replace(tzinfo=at.tzinfo or UTC) - datetime.now(UTC)).total_seconds()
    return min(max(0.0, seconds), _LONGEST)
