"""Who may come in, as what, and which requests change anything."""

from __future__ import annotations

from typing import Any

import httpx2
import psycopg
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Mount
from starlette.testclient import TestClient

from browsing import HERE, OURS, TOKEN, VIEWER, browse, serve
from engine import Engine
from trunq.errors import InvalidArgument
from trunq.web import Person, app

PAUSE = "/do/pause_queue"


def form(orders: Engine) -> dict[str, str]:
    return {"queue": orders.queue}


def is_paused(orders: Engine) -> bool:
    return bool(orders.fetch("select paused from trunq.list_queues() where queue = %s", orders.queue))


@pytest.fixture
def orders(session: psycopg.Connection[Any], queue: str) -> Engine:
    return Engine(session, queue)


@pytest.mark.parametrize(
    "headers",
    [
        {"sec-fetch-site": "cross-site", "origin": HERE},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "none"},
        {"origin": "http://evil.test"},
        {"origin": "null"},
        {},
    ],
    ids=["cross", "sibling", "none", "origin", "null", "nothing"],
)
def test_a_change_that_another_site_may_have_sent_is_refused(
    headers: dict[str, str], orders: Engine, shared_database: str
) -> None:
    with browse(shared_database) as client:
        answer = client.post(PAUSE, data=form(orders), headers=headers)
    assert (answer.status_code, "another site" in answer.text) == (403, True)
    assert not is_paused(orders)


@pytest.mark.parametrize("headers", [OURS, {"origin": HERE}], ids=["fetch", "origin"])
def test_a_change_from_a_page_of_ours_is_made(
    headers: dict[str, str], orders: Engine, shared_database: str
) -> None:
    with browse(shared_database) as client:
        assert client.post(PAUSE, data=form(orders), headers=headers).status_code == 303
    assert is_paused(orders)


def test_a_token_signs_in_by_a_cookie_that_does_not_hold_it(orders: Engine, shared_database: str) -> None:
    with browse(shared_database, token=TOKEN, viewer_token=VIEWER) as client:
        assert client.get("/").headers["location"] == "/sign-in"
        assert client.get(f"/queues/{orders.queue}").status_code == 303
        assert client.post("/sign-in", data={"token": "wrong"}, headers=OURS).status_code == 401
        assert client.post("/sign-in", data={"token": "x" * 5000}, headers=OURS).status_code == 413
        behind = client.post("/sign-in", data={"token": TOKEN}, headers=OURS | {"origin": "https://shop"})
        assert "secure" in behind.headers["set-cookie"].lower()
        client.cookies.clear()
        signed = client.post("/sign-in", data={"token": TOKEN}, headers=OURS)
        cookie = signed.headers["set-cookie"]
        assert TOKEN not in cookie
        assert all(word in cookie.lower() for word in ("httponly", "samesite=strict", "path=/"))
        assert "operator by token" in client.get("/").text
        assert client.post(PAUSE, data=form(orders), headers=OURS).status_code == 303
        assert is_paused(orders)
        client.post("/sign-out", headers=OURS)
        assert client.get("/").status_code == 303


def test_a_viewer_changes_nothing(orders: Engine, shared_database: str) -> None:
    bearer = {"authorization": f"Bearer {VIEWER}"}
    with browse(shared_database, token=TOKEN, viewer_token=VIEWER) as client:
        page = client.get(f"/queues/{orders.queue}", headers=bearer)
        assert page.status_code == 200
        assert "/do/" not in page.text
        assert client.post(PAUSE, data=form(orders), headers=bearer | OURS).status_code == 403
        assert not is_paused(orders)
        operator = {"authorization": f"Bearer {TOKEN}"}
        assert client.post(PAUSE, data=form(orders), headers=operator | OURS).status_code == 303


def test_a_read_only_dashboard_refuses_changes_and_so_does_the_database(
    orders: Engine, shared_database: str
) -> None:
    with browse(shared_database, read_only=True) as client:
        assert "/do/" not in client.get(f"/queues/{orders.queue}").text
        assert client.post(PAUSE, data=form(orders), headers=OURS).status_code == 403
        held = client.app.state.database  # type: ignore[attr-defined]

        async def change() -> None:
            async with held.changing("somebody") as connection:
                await held.client.pause_queue(orders.queue, connection=connection)

        assert client.portal is not None
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            client.portal.call(change)
        assert client.post("/sign-out", headers=OURS).status_code == 303
    assert not is_paused(orders)


@pytest.mark.slow
def test_the_header_of_a_user_is_believed_from_a_trusted_proxy_alone(
    orders: Engine, shared_database: str
) -> None:
    made = app(
        shared_database, user_header="X-Forwarded-User", trusted_proxies=["10.0.0.0/8"], operators=["ada"]
    )
    ada, bob = {"x-forwarded-user": "ada"}, {"x-forwarded-user": "bob"}
    with TestClient(made, base_url=HERE, client=("203.0.113.9", 1)) as stranger:
        assert stranger.get("/", headers=ada).status_code == 401
    with TestClient(made, base_url=HERE, client=("10.0.0.7", 1), follow_redirects=False) as proxy:
        assert proxy.get("/").status_code == 401
        assert "bob" in proxy.get("/", headers=bob).text
        assert proxy.post(PAUSE, data=form(orders), headers=bob | OURS).status_code == 403
        assert proxy.post(PAUSE, data=form(orders), headers=ada | OURS).status_code == 303


@pytest.mark.slow
def test_an_application_says_itself_who_it_is(shared_database: str) -> None:
    async def who(request: Request) -> Person | None:
        return Person("grace", "viewer") if request.headers.get("x-session") == "7" else None

    with browse(shared_database, who=who) as client:
        assert client.get("/").status_code == 401
        assert "grace" in client.get("/", headers={"x-session": "7"}).text


def test_a_name_that_is_not_ours_is_refused(shared_database: str) -> None:
    with browse(shared_database, hosts=["127.0.0.1", "::1"]) as client:
        assert client.get("/").status_code == 200
        assert client.get("/", headers={"host": "[::1]:8460"}).status_code == 200
        for name in ("evil.test", "127.0.0.1.evil.test", "[", ""):
            refused = client.get("/", headers={"host": name})
            assert refused.status_code == 421
            assert "--allow-host" in refused.text
        # A probe asks by the address of a pod.
        assert client.get("/healthz", headers={"host": "10.1.2.3:8460"}).status_code == 200


@pytest.mark.parametrize("prefix", ["/ops/trunq"])
def test_it_stands_below_a_prefix_of_another_application(
    prefix: str, orders: Engine, shared_database: str
) -> None:
    inner = app(shared_database, token=TOKEN)
    outer = Starlette(routes=[Mount(prefix, inner)])
    with TestClient(outer, base_url=HERE, follow_redirects=False) as client:
        assert client.get(f"{prefix}/").headers["location"] == f"{prefix}/sign-in"
        signed = client.post(f"{prefix}/sign-in", data={"token": TOKEN}, headers=OURS)
        assert f"path={prefix}/" in signed.headers["set-cookie"].lower()
        body = client.get(f"{prefix}/queues/{orders.queue}").text
        links = [part.partition('"')[0] for part in body.replace('action="', 'href="').split('href="')[1:]]
        assert links
        assert all(link.startswith((prefix, "?", "#")) for link in links), links
        done = client.post(
            f"{prefix}{PAUSE}", data=form(orders) | {"back": f"{prefix}/queues/{orders.queue}"}, headers=OURS
        )
        assert done.headers["location"].startswith(f"{prefix}/queues/{orders.queue}?said=")
        assert client.portal is not None
        client.portal.call(inner.state.close)


def test_a_proxy_that_strips_the_prefix_is_told_of_to_the_server(
    orders: Engine, shared_database: str
) -> None:
    with serve(app(shared_database), prefix="/trunq") as address:
        answer = httpx2.get(f"{address}/queues/{orders.queue}")
        assert f'href="/trunq/queues/{orders.queue}/messages"' in answer.text
        assert httpx2.get(f"{address}/static/trunq.css").status_code == 200


@pytest.mark.parametrize(
    "back", ["https://evil.test/", "//evil.test/", "/\\evil.test", "javascript:alert(1)", ""]
)
def test_an_act_leads_back_to_pages_of_ours_alone(back: str, orders: Engine, shared_database: str) -> None:
    with browse(shared_database) as client:
        done = client.post(PAUSE, data=form(orders) | {"back": back}, headers=OURS)
    assert done.headers["location"].startswith("/?said=")


def test_health_asks_no_database_and_readiness_does(shared_database: str) -> None:
    with browse("postgresql://127.0.0.1:1/nothing") as client:
        assert client.get("/healthz").text == "live"
        away = client.get("/readyz")
        # Who asks has not signed in, and is not told where it is.
        assert (away.status_code, away.text) == (503, "the database does not answer")
        assert "the database is away" in client.get("/").text
    with browse(shared_database) as client:
        assert client.get("/readyz").text == "ready"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"token": "short"}, "at least 16 characters"),
        ({"user_header": "X-User"}, "anybody can send the header X-User"),
        ({"user_header": "X-User", "trusted_proxies": ["proxy"]}, "address or a network"),
        ({"hide": ["payloads"]}, "payloads cannot be hidden"),
        ({"operators": "ada"}, "operators is a list of texts"),
        ({"user_header": " ", "trusted_proxies": ["10.0.0.7"]}, "has no name"),
    ],
    ids=["token", "proxy", "address", "hide", "operators", "header"],
)
def test_what_cannot_be_is_refused_before_anything_is_shown(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        app("", **options)
