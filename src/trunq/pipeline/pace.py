"""How fast a host is called with the same credentials, by whoever calls: one row of the database is the pace
of all of them (sql/functions/pipeline/pace.sql).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import httpx

from trunq.pipeline.definition.api import Calling, HttpSource
from trunq.pipeline.definition.endpoint import is_secret
from trunq.pipeline.definition.pipeline import Pipeline
from trunq.pipeline.redact import redact, ways

Ask = Callable[[bytes, Mapping[str, Any]], Any]
"""The one value of a statement, in a transaction of its own."""

_ROUNDS = 20_000
"""The name of a pace lies in the database: nobody is to guess a key from it."""


class Pace:
    """That of one host and its credentials."""

    def __init__(self, pipeline: Pipeline, model: Calling, ask: Ask) -> None:
        self._pipeline, self._model, self._ask = pipeline, model, ask
        self._every = None if model.per_second is None else 1 / model.per_second

    @cached_property
    def _name(self) -> str:
        return _name(self._pipeline, self._model)

    def take(self) -> tuple[float, bool]:
        """After how many seconds a request may go, which is ours to send then; False: it is not, as the API
        wants none until then.
        """
        told = self._ask(
            b"select trunq._take_pace(%(name)s, %(every)s::double precision)",
            {"name": self._name, "every": self._every},
        )
        return float(told["seconds"]), bool(told["is_ours"])

    def is_held(self) -> bool:
        """Whether the API wants no request now."""
        return bool(self._ask(b"select trunq._is_pace_held(%(name)s)", {"name": self._name}))

    def hold_off(self, seconds: float) -> None:
        """The API wants no request for so long."""
        self._ask(
            b"select trunq._hold_pace(%(name)s, %(seconds)s::double precision)",
            {"name": self._name, "seconds": seconds},
        )


def _name(pipeline: Pipeline, model: Calling) -> str:
    """Which host, and which credentials; these as nobody can read them."""
    url = httpx.URL(model.url)
    host = f"{url.scheme}://{url.netloc.decode(errors='replace')}"
    key = hashlib.pbkdf2_hmac("sha256", repr(_key(pipeline, model)).encode(), host.encode(), _ROUNDS)
    return f"{redact(pipeline, host)} {key.hex()[:16]}"[:300]


def _key(pipeline: Pipeline, model: Calling) -> list[tuple[str, str]]:
    """What tells an API who calls."""
    secrets = [value.strip() for value in pipeline.variables.values() if value.strip()]
    params = {**model.params, **(model.body or {})} if isinstance(model, HttpSource) else {}
    found = [(name, str(value)) for name, value in params.items() if is_secret(name)]
    found += [
        (name.lower(), value.strip())
        for name, value in model.headers.items()
        if is_secret(name) or any(secret in value for secret in secrets)
    ]
    found += [("url", way) for secret in secrets for way in ways(secret) if way in model.url]
    if model.oauth is not None:
        found += [("oauth", f"{model.oauth.client_id} {model.oauth.refresh_token}")]
    return sorted(found)
