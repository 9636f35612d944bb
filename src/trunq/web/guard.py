"""Who may come in, as what, and that a change was made on our own page: before any page runs."""

from __future__ import annotations

import hmac
import inspect
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Final, Literal
from urllib.parse import urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trunq.errors import InvalidArgument

ROLE = Literal["viewer", "operator"]
COOKIE: Final = "trunq"
LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
METRICS: Final = "/metrics"
_OPEN: Final = ("/healthz", "/readyz", "/sign-in")
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self';"
    " connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


@dataclass(frozen=True, slots=True)
class Person:
    """Who looks: a viewer changes nothing."""

    name: str
    role: ROLE = "viewer"


Who = Callable[[Request], "Person | Awaitable[Person | None] | None"]


@dataclass(frozen=True, slots=True)
class Entry:
    """The ways in. With none of them everybody who reaches the address is an operator."""

    token: str | None = None
    viewer_token: str | None = None
    who: Who | None = None
    user_header: str | None = None
    proxies: Collection[str] = ()
    operators: Collection[str] | None = None
    """Names from the header that are operators; None: all."""
    hosts: Collection[str] | None = None
    """Names by which it may be called; None: any. A page of another site that has its name point to 127.0.0.1
    is refused by this."""
    networks: tuple[IPv4Network | IPv6Network, ...] = field(init=False, default=())

    def __post_init__(self) -> None:
        for name in ("proxies", "operators", "hosts"):
            if isinstance(getattr(self, name), str):
                raise InvalidArgument(f"{name} is a list of texts, not one", "put it into a list")
        if self.user_header is not None and not self.user_header.strip():
            raise InvalidArgument("the header that says who it is has no name")
        for given in (self.token, self.viewer_token):
            if given is not None and len(given) < 16:
                raise InvalidArgument("a token has at least 16 characters", "make one: openssl rand -hex 24")
        if self.user_header is not None and not self.proxies:
            raise InvalidArgument(
                f"anybody can send the header {self.user_header}",
                "name the proxy that sets it: --trusted-proxy 10.0.0.7",
            )
        try:
            networks = tuple(ip_network(each, strict=False) for each in self.proxies)
        except ValueError as error:
            raise InvalidArgument(f"a trusted proxy is an address or a network: {error}") from None
        object.__setattr__(self, "networks", networks)

    @property
    def is_open(self) -> bool:
        """Whether nobody has to say who they are."""
        return not (self.token or self.viewer_token or self.who or self.user_header)

    async def find(self, request: Request) -> Person | None:
        """Who sends a request; None: nobody that may look."""
        if self.is_open:
            return Person("anyone here", "operator")
        if self.who is not None:
            found = self.who(request)
            person = await found if inspect.isawaitable(found) else found
            if person is not None:
                return person
        if self.user_header is not None and self._is_proxy(request):
            name = request.headers.get(self.user_header, "").strip()
            if name:
                is_operator = self.operators is None or name in self.operators
                return Person(name, "operator" if is_operator else "viewer")
        return self._by_token(request)

    def knows(self, token: str) -> bool:
        """Whether somebody may sign in with it."""
        known = (self.token, self.viewer_token)
        return any(given is not None and _same(given, token) for given in known)

    def _by_token(self, request: Request) -> Person | None:
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        bearer = bearer.strip() if scheme.lower() == "bearer" else ""
        cookie = request.cookies.get(COOKIE, "")
        roles: tuple[tuple[str | None, ROLE], ...] = (
            (self.token, "operator"),
            (self.viewer_token, "viewer"),
        )
        for token, role in roles:
            if token is not None and (_same(token, bearer) or _same(ticket(token), cookie)):
                return Person(f"{role} by token", role)
        return None

    def _is_proxy(self, request: Request) -> bool:
        try:
            address = ip_address(request.client.host if request.client else "")
        except ValueError:
            return False
        return any(address in network for network in self.networks)


def ticket(token: str) -> str:
    """What the cookie has in the place of the token."""
    return hmac.digest(token.encode(), b"cookie of trunq web", "sha256").hex()


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode(errors="replace"))


class Guard:
    """Around the pages. Every answer leaves with headers that let a page load nothing from elsewhere."""

    def __init__(self, inner: ASGIApp, entry: Entry, *, is_read_only: bool) -> None:
        self._inner, self._entry, self._is_read_only = inner, entry, is_read_only

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http":
            await self._inner(scope, receive, send)
            return

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
                if "location" in headers:
                    # Where a proxy ends TLS or changes the name, we know neither; all ours are on this host.
                    headers["Location"] = (
                        urlsplit(headers["location"])._replace(scheme="", netloc="").geturl()
                    )
            await send(message)

        request = Request(scope)
        refused = await self._refuse(request)
        await (refused or self._inner)(scope, receive, sending)

    async def _refuse(self, request: Request) -> Response | None:
        path = path_of(request)
        if path in _OPEN[:2]:
            # An orchestrator asks by the address that it has; there is nothing to see.
            return None
        if not self._is_called(request):
            return PlainTextResponse(
                "This dashboard is not called by that name; trunq web --allow-host NAME adds one.",
                421,
            )
        if path.startswith("/static/"):
            return None
        changes = request.method not in ("GET", "HEAD")
        if changes and not is_own(request):
            return PlainTextResponse("This change came from another site, so nothing was done.", 403)
        if path in _OPEN:
            return None
        person = await self._entry.find(request)
        if person is None:
            return self._ask_in(request)
        if changes and self._is_read_only and path != "/sign-out":
            return PlainTextResponse("This dashboard is read-only, so nothing was done.", 403)
        if changes and person.role != "operator" and path != "/sign-out":
            return PlainTextResponse(f"{person.name} is a viewer, so nothing was done.", 403)
        request.state.person = person
        return None

    def _is_called(self, request: Request) -> bool:
        if self._entry.hosts is None:
            return True
        try:
            name = urlsplit(f"//{request.headers.get('host', '')}").hostname
        except ValueError:
            return False
        return name in self._entry.hosts

    def _ask_in(self, request: Request) -> Response:
        if path_of(request) == METRICS:
            # Prometheus fills in no form.
            why = "Say who you are: Authorization: Bearer, and the token of a viewer."
            return PlainTextResponse(why, 401, {"WWW-Authenticate": "Bearer"})
        if not (self._entry.token or self._entry.viewer_token):
            return PlainTextResponse("Nobody says who you are, so this dashboard shows you nothing.", 401)
        if request.headers.get("hx-request"):
            # The page that polls goes to the form, instead of showing it in itself.
            return PlainTextResponse("", 401, {"HX-Redirect": f"{root_of(request)}/sign-in"})
        return RedirectResponse(f"{root_of(request)}/sign-in", 303)


def root_of(request: Request) -> str:
    """What stands before our paths in an address."""
    return str(request.scope.get("root_path", "")).rstrip("/")


def path_of(request: Request) -> str:
    """Our part of the path."""
    path = str(request.scope["path"])
    root = root_of(request)
    return path.removeprefix(root) if path.startswith(f"{root}/") else path


def is_own(request: Request) -> bool:
    """Whether a browser says that one of our pages sent it."""
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    origin = request.headers.get("origin", "")
    return bool(origin) and origin.partition("://")[2] == request.headers.get("host")
