"""Whether a request is from who knows the secret: HMAC-SHA256, as each scheme writes it.

The scheme `standard` is checked by the library standardwebhooks, which knows no other.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from standardwebhooks import Webhook as Standard
from standardwebhooks import WebhookVerificationError

from trunq.record import Webhook


class NoSecret(ValueError):
    """What the environment has is no secret of the scheme."""


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
    is_base64: bool = False
    """How the signature is written; else in hexadecimal digits."""


_SCHEMES: Final = {
    "github": Scheme("x-hub-signature-256", "sha256=", id_header="x-github-delivery"),
    "stripe": Scheme("stripe-signature", id_key="id"),
    "slack": Scheme(
        "x-slack-signature", "v0=", "x-slack-request-timestamp", signs=b"v0:%s:%s", id_key="event_id"
    ),
    "standard": Scheme("webhook-signature", "", "webhook-timestamp", id_header="webhook-id"),
    "shopify": Scheme("x-shopify-hmac-sha256", id_header="x-shopify-webhook-id", is_base64=True),
    "meta": Scheme("x-hub-signature-256", "sha256="),
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
    """Whether a body has a signature made with the secret, and not too long ago. Raises NoSecret."""
    if webhook.scheme == "standard":
        return _is_standard(secret.decode(), headers, body)
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
        return _is_any([signature], secret, body, is_base64=scheme.is_base64)
    stamp = headers.get(scheme.timestamp_header.lower(), "")
    return _is_fresh(webhook, stamp) and _is_any([signature], secret, scheme.signs % (stamp.encode(), body))


def _is_fresh(webhook: Webhook, stamp: str) -> bool:
    if not _TIME.fullmatch(stamp):
        return False
    return abs(time.time() - int(stamp)) <= webhook.tolerance.total_seconds()


def _is_any(signatures: list[str], secret: bytes, signed: bytes, *, is_base64: bool = False) -> bool:
    raw = hmac.digest(secret, signed, "sha256")
    right = base64.b64encode(raw) if is_base64 else raw.hex().encode()
    # All of them, so that the time tells nothing.
    given = [each.strip() if is_base64 else each.strip().lower() for each in signatures]
    same = [hmac.compare_digest(right, each.encode()) for each in given]
    return any(same)


def _is_standard(secret: str, headers: Mapping[str, str], body: bytes) -> bool:
    try:
        base64.b64decode(secret.removeprefix("whsec_"), validate=True)
        library = Standard(secret)
    except (binascii.Error, ValueError):
        raise NoSecret("it is to be base64, after whsec_") from None
    try:
        library.verify(body, dict(headers), json_parse=False)
    except (WebhookVerificationError, ValueError):
        # ValueError: a header, or a body, that is no text as it should be.
        return False
    return True
