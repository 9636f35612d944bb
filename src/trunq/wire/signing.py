"""The key that requests are signed with, as Standard Webhooks writes it."""

from __future__ import annotations

import base64
import binascii

from trunq.errors import InvalidArgument


def signing_key(what: str, text: str | None) -> bytes:
    """From `whsec_` and base64. Raises InvalidArgument, which says `what` is to be one."""
    try:
        key = base64.b64decode((text or "").strip().removeprefix("whsec_"), validate=True)
    except binascii.Error:
        key = b""
    if not 24 <= len(key) <= 64:
        raise InvalidArgument(
            f"{what} is to be a secret of 24 to 64 bytes in base64, after whsec_",
            'echo "whsec_$(openssl rand -base64 32)" makes one',
        )
    return key
