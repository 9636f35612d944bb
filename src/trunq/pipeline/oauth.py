"""Tokens of OAuth 2.0 (RFC 6749), which a process keeps in its memory: asked for by a client's credentials,
or by a refresh token, before they expire.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
import time
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote_plus
from weakref import WeakValueDictionary

import httpx

from trunq.errors import InvalidPipeline
from trunq.pipeline.definition.api import OAuth
from trunq.pipeline.errors import Again

_EARLY: Final = 60.0
"""Seconds before its end that a token is not used any more; of a short one, a tenth of it."""
_SHOWN: Final = 200
_TOLD: Final = 20


_MOST: Final = 2000
"""So many clients are remembered, of customers for instance; credentials that are changed are another's."""


@dataclass(slots=True, weakref_slot=True)
class _Kept:
    """What is known of a client."""

    is_told_once: bool = False
    """Whether it has refresh tokens: nobody tells the newest one again."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    access: str | None = None
    until: float = 0.0
    refresh: str | None = None
    """The newest one, where the server gives another each time."""
    told: deque[str] = field(default_factory=lambda: deque(maxlen=_TOLD))
    """Those that there were."""


_guard: Final = threading.Lock()
_kept: Final[OrderedDict[str, _Kept]] = OrderedDict()
"""Those that were asked for last, the last one at the end."""
_used: Final[WeakValueDictionary[str, _Kept]] = WeakValueDictionary()
"""Those besides that a run still has: two for one client would spend each other's refresh token."""


def _find(client: str, *, is_told_once: bool) -> _Kept:
    """What is known of a client. Of too many, whoever was not asked for longest is forgotten, first of those
    whose tokens can be asked for anew.
    """
    with _guard:
        found = _used.get(client) or _Kept(is_told_once)
        _used[client] = _kept[client] = found
        _kept.move_to_end(client)
        if len(_kept) > _MOST:
            old = next((name for name, each in _kept.items() if not each.is_told_once), client)
            del _kept[next(iter(_kept)) if old == client else old]
        return found


class Tokens:
    """Those of one client, for this process."""

    def __init__(self, pipeline: str, model: OAuth, client: httpx.Client) -> None:
        self._name, self._model, self._client = pipeline, model, client
        given = json.dumps(model.model_dump(mode="json"), sort_keys=True)
        client_id = hashlib.sha256(given.encode()).hexdigest()
        self._of = _find(client_id, is_told_once=model.refresh_token is not None)

    def token(self) -> str:
        """One that is good for a while. Raises Again, InvalidPipeline."""
        with self._of.lock:
            if self._of.access is None or time.monotonic() >= self._of.until:
                self._fetch()
            assert self._of.access is not None
            return self._of.access

    def forget(self, token: str) -> None:
        """The API does not take this one, whatever was said of its end."""
        with self._of.lock:
            if self._of.access == token:
                self._of.access = None

    @property
    def secrets(self) -> list[str]:
        """What must not be told."""
        return list(self._of.told)

    def _fetch(self) -> None:
        begun = time.monotonic()
        answer = self._answer(*self._request())
        said = _object(answer)
        if answer.status_code >= 500 or answer.status_code in (408, 429):
            raise Again(f"{self._url} answers {answer.status_code}")
        token, kind = said.get("access_token"), str(said.get("token_type", "bearer"))
        if answer.status_code != 200 or not isinstance(token, str) or not token:
            why = ": ".join(str(said[key]) for key in ("error", "error_description") if said.get(key))
            raise InvalidPipeline(
                f"pipeline {self._name}: {self._url} answers {answer.status_code}, and gives no token:"
                f" {self._hidden(why or answer.text)[:_SHOWN]}",
                "oauth has the client's id and secret, its scope, or a refresh token that is still good",
            )
        if kind.lower() != "bearer":
            raise InvalidPipeline(
                f"pipeline {self._name}: {self._url} gives a token of type {kind:.40}, not bearer"
            )
        length = _seconds(said.get("expires_in"))
        self._of.access = token
        self._of.until = float("inf") if length is None else begun + length - min(_EARLY, length / 10)
        self._of.told.append(token)
        if isinstance(said.get("refresh_token"), str):
            self._of.refresh = said["refresh_token"]
            self._of.told.append(said["refresh_token"])

    def _request(self) -> tuple[dict[str, str], dict[str, str]]:
        """What is posted as a form, and headers."""
        model = self._model
        if model.refresh_token is None:
            form = {"grant_type": "client_credentials"}
        else:
            form = {
                "grant_type": "refresh_token",
                "refresh_token": self._of.refresh or model.refresh_token.strip(),
            }
        if model.scope is not None:
            form["scope"] = model.scope
        form |= model.params
        if model.client_secret is None or model.auth == "body":
            form["client_id"] = model.client_id
            if model.client_secret is not None:
                form["client_secret"] = model.client_secret.strip()
            return form, {}
        pair = f"{quote_plus(model.client_id)}:{quote_plus(model.client_secret.strip())}"
        return form, {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}

    def _answer(self, form: dict[str, str], headers: dict[str, str]) -> httpx.Response:
        try:
            return self._client.post(
                self._model.token_url, data=form, headers={"Accept": "application/json", **headers}
            )
        except (httpx.TransportError, httpx.DecodingError) as error:
            raise Again(f"{self._url} does not answer: {type(error).__name__}: {error}") from error

    def _hidden(self, text: str) -> str:
        for secret in (self._model.client_secret, self._model.refresh_token, *self.secrets):
            if secret and secret.strip():
                text = text.replace(secret.strip(), "***")
        return text

    @property
    def _url(self) -> str:
        return self._model.token_url.partition("?")[0]


def _object(answer: httpx.Response) -> dict[str, Any]:
    try:
        said = answer.json()
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}


def _seconds(value: Any) -> float | None:
    try:
        return None if value is None else max(0.0, float(value))
    except (TypeError, ValueError):
        return None
