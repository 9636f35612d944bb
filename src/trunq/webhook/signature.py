"""Whether a request is from who knows the secret: HMAC-SHA256, as each scheme writes it.

The library standardwebhooks checks none of these schemes, only one of its own (base64, over id, time and
body), fixes the tolerance at five minutes, and refuses a body that is not UTF-8.
"""

from __future__ import annotations

import hmac
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from trunq.record import Webhook


@dataclass(frozen=True, slots=True)
class Scheme:
    """Where signature, time and the name of a delivery stand."""

    header: str
    prefix: str = ""
    timestamp_header: str | None = None
    signs: bytes = b"%s.%s"
    """Of time and body, where there is a time."""
    id_header: str | None = None
    id_key: str | None = None
    """Of the body, where no header names the delivery."""


_SCHEMES: Final = {
    "github": Scheme("x-hub-signature-256", "sha256=", id_header="x-github-delivery"),
    "stripe": Scheme("stripe-signature", id_key="id"),
    "slack": Scheme(
        "x-slack-signature", "v0=", "x-slack-request-timestamp", signs=b"v0:%s:%s", id_key="event_id"
    ),
}
_TIME: Final = re.compile(r"[0-9]{1,12}")


def scheme_of(webhook: Webhook) -> Scheme:
    """That of a webhook."""
    return _SCHEMES.get(webhook.scheme) or Scheme(
        webhook.header or "x-signature",
        webhook.prefix or "",
        webhook.timestamp_header,
        id_header=webhook.id_header,
    )


def has_signed_name(webhook: Webhook) -> bool:
    """Whether what a delivery is called, or its time, is signed with the body."""
    scheme = scheme_of(webhook)
    return scheme.id_header is None or scheme.timestamp_header is not None


def is_signed(webhook: Webhook, secret: bytes, headers: Mapping[str, str], body: bytes) -> bool:
    """Whether a body has a signature made with the secret, and not too long ago."""
    scheme = scheme_of(webhook)
    given = headers.get(scheme.header, "")
    if webhook.scheme == "stripe":
        parts = [part.strip().partition("=") for part in given.split(",")[:20]]
        stamp = next((value for name, _, value in parts if name == "t"), "")
        signatures = [value for name, _, value in parts if name == "v1"]
        return _is_fresh(webhook, stamp) and _is_any(
            signatures, secret, scheme.signs % (stamp.encode(), body)
        )
    if not given.startswith(scheme.prefix):
        return False
    signature = given.removeprefix(scheme.prefix)
    if scheme.timestamp_header is None:
        return _is_any([signature], secret, body)
    stamp = headers.get(scheme.timestamp_header.lower(), "")
    return _is_fresh(webhook, stamp) and _is_any([signature], secret, scheme.signs % (stamp.encode(), body))


def _is_fresh(webhook: Webhook, stamp: str) -> bool:
    if not _TIME.fullmatch(stamp):
        return False
    return abs(time.time() - int(stamp)) <= webhook.tolerance.total_seconds()


def _is_any(signatures: list[str], secret: bytes, signed: bytes) -> bool:
    right = hmac.new(secret, signed, "sha256").hexdigest().encode()
    # All of them, so that the time tells nothing.
    same = [hmac.compare_digest(right, given.strip().lower().encode()) for given in signatures]
    return any(same)
