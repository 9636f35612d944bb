"""The dashboard as an ASGI application: its pages, its acts, and what happens when one is refused."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from typing import Any, Final

import psycopg
from psycopg.conninfo import make_conninfo
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from trunq import settings
from trunq.client._async import AsyncClient
from trunq.connection.backoff import first_line
from trunq.errors import ClusterChanged, InvalidArgument, TrunqError
from trunq.explanation import explain
from trunq.web import act, metric
from trunq.web.database import ANSWER_WITHIN, CONNECTIONS, QUEUE, UNTIL, Database
from trunq.web.guard import COOKIE, METRICS, Entry, Guard, Who, root_of, ticket
from trunq.web.page import HERE, HIDEABLE, Desk, environment
from trunq.web.pages import PAGES

READY_WITHIN: Final = 2.0
_FORM_BYTES: Final = 4096

log = logging.getLogger("trunq.web")

View = Callable[[Desk, Request], Awaitable[Response]]


def app(
    database: str | AsyncClient | None = None,
    *,
    token: str | None = None,
    viewer_token: str | None = None,
    who: Who | None = None,
    user_header: str | None = None,
    trusted_proxies: Collection[str] = (),
    operators: Collection[str] | None = None,
    hosts: Collection[str] | None = None,
    read_only: bool = False,
    hide: Collection[str] = (),
) -> Starlette:
    """The application, to be served alone or mounted below a prefix.

    `database` is an address, or a client of yours, which you close; without one, the address is that of
    the settings. `token` makes who has it an operator, `viewer_token` a viewer; `who` is a function of yours
    from a request to a Person, or None; `user_header` names the header that a proxy sets, believed from
    `trusted_proxies` alone, and `operators` who of them may change anything. With none of these, whoever
    reaches it is an operator. `hosts` are the names it may be called by. `hide` takes payload, headers and
    error. Raises InvalidArgument for what cannot be.
    """
    wrong = sorted({*hide} - {*HIDEABLE})
    if wrong:
        raise InvalidArgument(f"{wrong[0]} cannot be hidden", f"what can: {', '.join(HIDEABLE)}")
    entry = Entry(token, viewer_token, who, user_header, tuple(trusted_proxies), operators, hosts)
    client = database if isinstance(database, AsyncClient) else _client(database)
    desk = Desk(Database(client, is_read_only=read_only), frozenset(hide), environment())

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        if client is not database:
            await client.close()

    made = Starlette(
        routes=_routes(desk, entry),
        lifespan=lifespan,
        middleware=[Middleware(Guard, entry=entry, is_read_only=read_only)],
        exception_handlers=_refusals(desk),
    )
    # For who mounts it: an application that is mounted is not told when the other one ends.
    made.state.close = client.close
    made.state.database = desk.database
    return made


def _client(database: str | None) -> AsyncClient:
    address = database if database is not None else settings.load().dsn or ""
    named = make_conninfo(address, application_name="trunq web")
    return AsyncClient(named, max_connections=CONNECTIONS, timeout=3)


def _routes(desk: Desk, entry: Entry) -> list[BaseRoute]:
    def route(path: str, view: View, *methods: str) -> Route:
        async def endpoint(request: Request) -> Response:
            UNTIL.set(time.monotonic() + ANSWER_WITHIN)
            QUEUE.set(request.path_params.get("queue"))
            return await view(desk, request)

        return Route(path, endpoint, methods=list(methods or ("GET",)))

    async def sign_in(request: Request) -> Response:
        return await _sign_in(desk, entry, request)

    async def ready(_: Request) -> Response:
        try:
            async with asyncio.timeout(READY_WITHIN), desk.database.reading():
                return PlainTextResponse("ready")
        except (psycopg.Error, TimeoutError, TrunqError, OSError) as error:
            # Who asks has not signed in: the address of the database is not theirs.
            log.warning("not ready: %s", first_line(error))
            return PlainTextResponse("the database does not answer", 503)

    return [
        *(route(path, view) for path, view in PAGES),
        route("/ask/{verb}", act.ask),
        route("/do/{verb}", act.do, "POST"),
        Route("/sign-in", sign_in, methods=["GET", "POST"]),
        Route("/sign-out", _sign_out, methods=["POST"]),
        route(METRICS, metric.show),
        Route("/healthz", _live),
        Route("/readyz", ready),
        Mount("/static", StaticFiles(directory=HERE / "static")),
    ]


async def _live(_: Request) -> Response:
    # No database is asked: one that is away is no reason to start this process again.
    return PlainTextResponse("live")


async def _sign_in(desk: Desk, entry: Entry, request: Request) -> Response:
    wrong = False
    if request.method == "POST":
        length = request.headers.get("content-length", "")
        if not length.isdigit() or int(length) > _FORM_BYTES:
            return PlainTextResponse("A form with a token is shorter.", 413)
        form = await request.form()
        given = str(form.get("token", "")).strip()
        if entry.knows(given):
            answer = RedirectResponse(f"{root_of(request)}/", 303)
            answer.set_cookie(
                COOKIE,
                ticket(given),
                httponly=True,
                samesite="strict",
                # Behind a proxy that ends TLS only the browser says so.
                secure="https" in (request.url.scheme, request.headers.get("origin", "").partition(":")[0]),
                path=f"{root_of(request)}/",
            )
            return answer
        wrong = True
    return desk.page(request, "sign_in.html", wrong=wrong, code=401 if wrong else 200)


async def _sign_out(request: Request) -> Response:
    answer = RedirectResponse(f"{root_of(request)}/sign-in", 303)
    answer.delete_cookie(COOKIE, path=f"{root_of(request)}/")
    return answer


def _refusals(desk: Desk) -> dict[Any, Any]:
    """What is shown in the place of a page: the sentence of the database, and its way out."""

    def said(request: Request, error: BaseException, status: int, title: str) -> Response:
        why, hint = first_line(error), getattr(error, "hint", None)
        if hint is None and isinstance(error, psycopg.Error):
            hint = error.diag.message_hint
        return desk.page(request, "sorry.html", title=title, why=why, hint=hint, code=status)

    async def refused(request: Request, error: Exception) -> Response:
        if isinstance(error, ClusterChanged):
            return said(request, error, 409, "This database is not ready")
        is_missing = type(error).__name__.endswith("NotFound")
        return said(request, error, 404 if is_missing else 400, "Not here" if is_missing else "Not done")

    async def failed(request: Request, error: Exception) -> Response:
        if isinstance(error, psycopg.errors.InsufficientPrivilege):
            what = "look" if request.method == "GET" else "do that"
            QUEUE.set(request.path_params.get("queue"))
            told = await desk.database.refusal(error, what)
            return desk.page(request, "sorry.html", title="Not allowed", why=told, hint=None, code=403)
        if isinstance(error, psycopg.errors.ReadOnlySqlTransaction):
            found = explain(error)
            assert found is not None
            return said(request, TrunqError(found.reason, found.advice), 403, "Not done")
        return said(request, error, 503, "The database does not answer")

    async def missing(request: Request, error: HTTPException) -> Response:
        return said(request, Exception("There is no such page."), error.status_code, "Not here")

    return {TrunqError: refused, psycopg.Error: failed, TimeoutError: failed, HTTPException: missing}
