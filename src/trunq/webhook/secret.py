"""The secret of what is pushed: requests are signed with it, and the tokens of their callbacks made of it."""

from __future__ import annotations

import base64
import hmac
from dataclasses import dataclass
from typing import Final

from trunq.wire.signing import signing_key

SECRET: Final = "TRUNQ_PUSH_SECRET"  # noqa: S105  # the name of a variable
"""What has the secret in the environment of the worker, and of the server that callbacks come to."""


@dataclass(frozen=True, slots=True)
class Secret:
    """What requests are signed with, and tokens are made of."""

    raw: bytes

    @classmethod
    def read(cls, text: str | None) -> Secret:
        """From `whsec_` and base64, as Standard Webhooks writes it."""
        return cls(signing_key(SECRET, text))

    def sign(self, id: str, timestamp: int, body: bytes) -> str:
        """The header webhook-signature."""
        return "v1," + base64.b64encode(self._hmac(b"%s.%d.%s" % (id.encode(), timestamp, body))).decode()

    def token(self, queue: str, subscription: str, id: int) -> str:
        """The token of a message: the same for each attempt, so that a callback to any of them counts."""
        said = f"{subscription}.{id}"
        return f"{said}.{self._hmac(f'resume {queue} {said}'.encode()).hex()}"

    def is_token(self, queue: str, token: str) -> bool:
        """Whether a token is one of ours: the server of callbacks notes no others."""
        subscription, _, rest = token.partition(".")
        id, _, _ = rest.partition(".")
        if not id.isascii() or not id.isdigit() or len(id) > 19:
            return False
        return hmac.compare_digest(self.token(queue, subscription, int(id)).encode(), token.encode())

    def _hmac(self, signed: bytes) -> bytes:
        return hmac.digest(self.raw, signed, "sha256")
