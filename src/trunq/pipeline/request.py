"""Requests to an HTTP API: tried again, no faster than allowed, with credentials for its own host alone."""

from __future__ import annotations

import email.utils
import random
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import httpx
from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_attempt

from trunq.errors import InvalidPipeline
from trunq.pipeline.definition.api import Calling
from trunq.pipeline.definition.pipeline import Pipeline
from trunq.pipeline.errors import Again, ApiFailed, ApiRefused, Wait
from trunq.pipeline.oauth import Tokens
from trunq.pipeline.pace import Pace
from trunq.pipeline.redact import redact

ATTEMPTS: Final = 8
FIRST_WAIT = 0.5
"""Seconds before the second attempt, about; then twice as long each time."""
_LONGEST_WAIT: Final = 60.0
_STAY: Final = 30.0
"""Seconds that are waited for in place; for longer, the message is put off."""
_DAY: Final = 86_400.0
_REDIRECTS: Final = 10
_LARGEST: Final = 200_000_000
"""Bytes of an answer."""
_SHOWN: Final = 200
"""Characters of an answer that errors show."""


@dataclass(slots=True)
class Answer:
    """What an API said."""

    status: int
    headers: httpx.Headers
    body: bytes
    url: str
    links: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def start(self) -> str:
        """Its first characters."""
        return " ".join(self.body[: 4 * _SHOWN].decode(errors="replace").split())[:_SHOWN]


class Api:
    """An API, as a source or sink describes it."""

    def __init__(
        self, pipeline: Pipeline, model: Calling, pace: Pace, check: Callable[[], None] = lambda: None
    ) -> None:
        self._given, self._pipeline, self._model, self._check = pipeline, pipeline.name, model, check
        try:
            self._home = httpx.URL(model.url)
        except httpx.InvalidURL:
            raise InvalidPipeline(f"pipeline {self._pipeline}: its url is no address") from None
        # A secret from a file often ends with a newline, which a header may not have.
        self._headers = {name: value.strip() for name, value in model.headers.items()}
        self._pace = pace
        self._client = httpx.Client(timeout=model.time_out.total_seconds(), follow_redirects=False)
        self._tokens = None if model.oauth is None else Tokens(self._pipeline, model.oauth, self._client)

    def __enter__(self) -> Api:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def send(
        self,
        method: str,
        url: httpx.URL,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        sign: Callable[[], Mapping[str, str]] = dict,
    ) -> Answer:
        """The answer to a request, whatever its status is. `sign` gives headers of its own to each time that
        it is made.

        Raises Wait when the API asks for more than a short pause, ApiFailed when it does not answer.
        """
        trying = Retrying(
            stop=stop_after_attempt(ATTEMPTS),
            wait=_pause,
            retry=retry_if_exception_type(Again),
            sleep=self._sleep,
            reraise=True,
        )
        try:
            return trying(self._send, method, url, body, lambda: {**(headers or {}), **sign()})
        except Again as error:
            raise ApiFailed(self.hide(f"pipeline {self._pipeline}: {error}")) from None

    def refuse(self, answer: Answer) -> None:
        """Raises what an answer means that is neither wanted nor to be tried again."""
        said = f"pipeline {self._pipeline}: {self.name(answer.url)} answers {answer.status}"
        if answer.status in (401, 403):
            raise InvalidPipeline(
                f"{said}: it takes no credentials, or not these: {self.hide(answer.start)}",
                "give headers = {Authorization = 'Bearer ${NAME}'}, and the runner NAME in its environment",
            )
        raise ApiRefused(f"{said}: {self.hide(answer.start)}", answer.status)

    def hide(self, text: str) -> str:
        """A text without secrets."""
        for secret in self._tokens.secrets if self._tokens else ():
            text = text.replace(secret, "***")
        return redact(self._given, text)

    def hold_off(self, seconds: float) -> None:
        """The API wants no request for so long, from whoever has the same credentials."""
        self._pace.hold_off(seconds)

    def name(self, url: str | httpx.URL) -> str:
        """An address without what may be secret in it."""
        known = httpx.URL(url)
        return f"{known.scheme}://{known.netloc.decode(errors='replace')}{known.path}"

    def is_home(self, url: httpx.URL) -> bool:
        """Whether an address is on the host that is to be given credentials."""
        home, there = _origin(self._home), _origin(url)
        if home[0] == "http" and there[0] == "https":
            return home[1] == there[1] and (home[2], there[2]) == (80, 443)
        return home == there

    def _send(
        self, method: str, url: httpx.URL, body: bytes | None, headers: Callable[[], dict[str, str]]
    ) -> Answer:
        for _ in range(_REDIRECTS):
            self._check()
            is_home = self.is_home(url)
            if is_home:
                self._keep_pace()
            answer = (
                self._authorized(method, url, body, headers)
                if is_home
                else self._once(method, url, body, headers())
            )
            if answer.status not in (301, 302, 303, 307, 308) or "location" not in answer.headers:
                return self._final(answer, is_home=is_home)
            there = self._join(url, answer.headers["location"])
            if method != "GET":
                raise InvalidPipeline(
                    f"pipeline {self._pipeline}: {self.name(url)} answers a {method} with a redirect to"
                    f" {self.name(there)}",
                    "give that address as url",
                )
            url = there
        raise ApiFailed(f"pipeline {self._pipeline}: {self.name(url)} redirects in a circle")

    def _authorized(
        self, method: str, url: httpx.URL, body: bytes | None, headers: Callable[[], dict[str, str]]
    ) -> Answer:
        """The answer to one with a token, where there are tokens; another one, if it is not taken."""
        if self._tokens is None:
            return self._once(method, url, body, headers())
        token = self._tokens.token()
        answer = self._once(method, url, body, {**headers(), "Authorization": f"Bearer {token}"})
        if answer.status != httpx.codes.UNAUTHORIZED:
            return answer
        self._tokens.forget(token)
        self._keep_pace()
        token = self._tokens.token()
        return self._once(method, url, body, {**headers(), "Authorization": f"Bearer {token}"})

    def _final(self, answer: Answer, *, is_home: bool) -> Answer:
        if answer.status not in (408, 425, 429) and answer.status < 500:
            return answer
        said = f"{self.name(answer.url)} answers {answer.status}: {answer.start}"
        after = retry_after(answer.headers)
        if after is not None and after > 0 and is_home:
            self._pace.hold_off(min(after, _DAY))
        if after is not None and after > _STAY:
            raise Wait(min(after, _DAY), self.hide(f"{said}; it asks to wait for {after:.0f} s"))
        raise Again(said, after)

    def _once(self, method: str, url: httpx.URL, body: bytes | None, headers: dict[str, str]) -> Answer:
        given = {"Accept": "application/json", "User-Agent": "trunq"}
        if body is not None:
            given["Content-Type"] = "application/json"
        own = self._headers if self.is_home(url) else {}
        names = {name.lower() for name in own}
        sent = {name: value for name, value in given.items() if name.lower() not in names} | own | headers
        try:
            with self._client.stream(method, url, content=body, headers=sent) as response:
                links = {str(name): link for name, link in response.links.items()}
                return Answer(response.status_code, response.headers, self._read(response), str(url), links)
        except (httpx.UnsupportedProtocol, httpx.LocalProtocolError, httpx.InvalidURL, UnicodeError):
            # Their texts repeat headers.
            raise InvalidPipeline(
                f"pipeline {self._pipeline}: a request to {self.name(url)} cannot be sent: there are"
                " characters in its headers, or in its address, that HTTP does not allow"
            ) from None
        except (httpx.TransportError, httpx.DecodingError) as error:
            raise Again(f"{self.name(url)} does not answer: {type(error).__name__}: {error}") from error

    def _read(self, response: httpx.Response) -> bytes:
        pieces, size = [], 0
        for piece in response.iter_bytes():
            self._check()
            size += len(piece)
            if size > _LARGEST:
                raise ApiFailed(
                    f"pipeline {self._pipeline}: {self.name(response.url)} answers with more than"
                    f" {_LARGEST // 1_000_000} MB: ask for smaller pages"
                )
            pieces.append(piece)
        return b"".join(pieces)

    def _join(self, url: httpx.URL, location: str) -> httpx.URL:
        try:
            return url.join(location)
        except httpx.InvalidURL:
            raise ApiFailed(
                f"pipeline {self._pipeline}: {self.name(url)} redirects to what is no address"
            ) from None

    def _keep_pace(self) -> None:
        """Wait for our turn among all that call this host with these credentials."""
        while True:
            seconds, is_ours = self._pace.take()
            if not is_ours and seconds > _STAY:
                raise Wait(seconds, f"{self.name(self._home)} asked to wait; {seconds:.0f} s are left")
            if seconds <= 0:
                return
            self._sleep(seconds)
            # Another may have been told to wait meanwhile.
            if is_ours and not self._pace.is_held():
                return

    def _sleep(self, seconds: float) -> None:
        """Looks each second whether the run goes on."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(left, 1.0))
            self._check()


def retry_after(headers: Mapping[str, Any]) -> float | None:
    """Seconds that an answer asks to wait, by a number or a date; None: it does not say."""
    said = str(headers.get("retry-after", "")).strip()
    if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", said):
        return float(said)
    try:
        until = email.utils.parsedate_to_datetime(said).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None
    try:
        # By the server's own clock.
        now = email.utils.parsedate_to_datetime(str(headers.get("date", ""))).timestamp()
    except (ValueError, TypeError, OverflowError):
        now = time.time()
    return max(0.0, until - now)


def _pause(state: RetryCallState) -> float:
    error = state.outcome and state.outcome.exception()
    if isinstance(error, Again) and error.after is not None:
        return error.after + random.random() * FIRST_WAIT
    longest: float = min(_LONGEST_WAIT, FIRST_WAIT * 2.0 ** (state.attempt_number - 1))
    return longest * (0.5 + random.random() / 2)


def _origin(url: httpx.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port or {"http": 80, "https": 443}.get(url.scheme)
