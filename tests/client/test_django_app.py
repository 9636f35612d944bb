"""The app for Django: its migration, its admin, and addresses from its settings."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from bridging import django_on
from trunq import AsyncClient, Client, InvalidArgument, install


@pytest.fixture
def empty(new_database: Callable[..., str]) -> str:
    """A database without trunq."""
    return new_database("template1")


@pytest.fixture
def django(empty: str) -> Iterator[Any]:
    with django_on(empty) as connection:
        yield connection


def migrate(*arguments: str) -> None:
    from django.core.management import call_command  # noqa: PLC0415  # asks for settings

    call_command("migrate", *arguments, verbosity=0)


def test_the_migration_installs_and_does_so_again(django: Any, empty: str) -> None:
    migrate("trunq")
    with Client(empty) as client:
        client.create_queue("orders")
        client.publish("orders", 1)
    migrate("trunq", "zero")
    migrate("trunq")
    with Client(empty) as client:
        assert [message.payload for message in client.lease("orders", "default", "w")] == [1]


def test_django_finds_nothing_that_a_migration_lacks(django: Any) -> None:
    from django.core.management import call_command  # noqa: PLC0415

    migrate("trunq")
    said = StringIO()
    call_command("makemigrations", "--check", "--dry-run", stdout=said)
    call_command("check", stdout=said)
    assert said.getvalue() == "No changes detected\nSystem check identified no issues (0 silenced).\n"


def test_a_migration_that_fails_installs_nothing(django: Any, empty: str) -> None:
    from django.db import transaction  # noqa: PLC0415

    with pytest.raises(psycopg.errors.UndefinedTable), transaction.atomic():
        migrate("trunq")
        django.connection.execute("select from nothing")
    with psycopg.connect(empty) as connection:
        assert connection.execute("select to_regnamespace('trunq')").fetchone() == (None,)


def test_a_database_that_is_no_postgres_is_passed_over_and_has_no_address(empty: str) -> None:
    from trunq.django import dsn  # noqa: PLC0415

    with django_on(empty, lite="sqlite"):
        migrate("trunq", "--database=lite")
        with pytest.raises(InvalidArgument, match='"lite" of Django is one of sqlite'):
            dsn("lite")


def test_the_address_is_that_of_the_settings(django: Any, empty: str) -> None:
    from trunq.django import dsn  # noqa: PLC0415

    migrate("trunq")
    with psycopg.connect(dsn()) as found, psycopg.connect(empty) as wanted:
        assert found.info.dbname == wanted.info.dbname


@pytest.fixture
def browser(django: Any, empty: str) -> Iterator[Callable[[str], Any]]:
    """Somebody who may look at queues, in a database with two messages."""
    from django.contrib.auth.models import Permission, User  # noqa: PLC0415
    from django.test import Client as Browser  # noqa: PLC0415

    migrate()
    with Client(empty) as client:
        client.create_queue("orders")
        client.publish_many("orders", [{"text": "<b>"}, 2], kinds=["placed", "<i>"], keys=["ada", None])
        client.lease("orders", "default", "w9")
        user = User.objects.create_user("ada", password="a", is_staff=True)
        browser = Browser(raise_request_exception=True)
        browser.force_login(user)
        assert browser.get("/admin/trunq/queue/").status_code == 403
        user.user_permissions.add(Permission.objects.get(codename="view_queue"))
        yield lambda where: browser.get(f"/admin/trunq/queue/{where}")


def test_the_admin_shows_queues_and_messages(browser: Callable[[str], Any]) -> None:
    assert "orders/default/" in browser("").content.decode()
    every = browser("orders/default/").content.decode()
    assert "ready" in every
    assert "w9" in every
    assert "<i>" not in every
    assert "&lt;i&gt;" in every
    some = browser("orders/default/?state=leased&kind=placed&key=ada").content.decode()
    assert "w9" in some
    assert "&lt;i&gt;" not in some
    one = browser("orders/default/1/").content.decode()
    assert "&quot;text&quot;: &quot;&lt;b&gt;&quot;" in one
    for nowhere in ("nowhere/default/", "orders/nobody/", "orders/default/77/", "orders/default/?state=odd"):
        assert browser(nowhere).status_code == 404


def test_the_admin_pages_through_many_messages(browser: Callable[[str], Any], empty: str) -> None:
    with Client(empty) as client:
        client.publish_many("orders", range(150), kind="many")
    first = browser("orders/default/?kind=many").content.decode()
    where = first.partition('href="?')[2].partition('"')[0].replace("&amp;", "&")
    second = browser(f"orders/default/?{where}").content.decode()
    assert (first.count("many</td>"), second.count("many</td>")) == (100, 50)
    assert "Older messages" not in second


def test_the_admin_changes_nothing(browser: Callable[[str], Any]) -> None:
    from django.contrib import admin  # noqa: PLC0415

    from trunq.django.models import Queue  # noqa: PLC0415

    page: Any = admin.site._registry[Queue]
    assert not any(
        allowed(None)
        for allowed in (page.has_add_permission, page.has_change_permission, page.has_delete_permission)
    )
    assert browser("add/").status_code == 404


def test_a_page_asks_for_the_permission_before_it_looks(browser: Callable[[str], Any], django: Any) -> None:
    from django.contrib.auth.models import User  # noqa: PLC0415
    from django.test import Client as Browser  # noqa: PLC0415

    stranger = Browser()
    stranger.force_login(User.objects.create_user("eve", password="e", is_staff=True))
    for where in ("", "orders/default/", "nowhere/default/", "orders/default/1/", "orders/default/77/"):
        assert stranger.get(f"/admin/trunq/queue/{where}").status_code == 403, where
    assert browser(f"orders/default/?before={'9' * 5000}").status_code == 200


def test_a_client_of_an_alias_follows_it_into_the_database_of_tests(django: Any, empty: str) -> None:
    from trunq.django import Client as ClientOf  # noqa: PLC0415

    migrate("trunq")
    with Client(empty) as real, ClientOf("default") as client:
        real.create_queue("orders")
        client.publish("orders", "real")
        name = django.settings_dict["NAME"]
        # As manage.py test does.
        django.creation.create_test_db(verbosity=0, autoclobber=True)
        try:
            client.create_queue("orders")
            client.publish("orders", "test")
            client.publish("orders", "joined", connection="default")
            assert [message.payload for message in client.list_messages("orders")] == ["joined", "test"]
            client.close()
        finally:
            django.creation.destroy_test_db(name, verbosity=0)
        assert [message.payload for message in real.list_messages("orders")] == ["real"]
        client.publish("orders", "real again")
        assert len(real.list_messages("orders")) == 2


async def test_an_alias_given_to_an_async_client_is_refused_with_a_way_out(empty: str) -> None:
    async with AsyncClient(empty) as client:
        with pytest.raises(InvalidArgument) as refused:
            await client.publish("orders", 1, connection="default")  # type: ignore[arg-type]
    assert "sync_to_async" in str(refused.value.hint)


def test_the_worker_command_says_what_it_does_where_nothing_is_said_of_logging(
    empty: str, tmp_path: Path
) -> None:
    parts = conninfo_to_dict(empty)
    names = {"USER": "user", "NAME": "dbname", "HOST": "host", "PORT": "port"}
    database = {"ENGINE": "django.db.backends.postgresql", **{k: str(parts[v]) for k, v in names.items()}}
    (tmp_path / "bare.py").write_text(
        f"SECRET_KEY = 'x'\nINSTALLED_APPS = ['trunq.django']\nDATABASES = {{'default': {database!r}}}\n"
    )
    (tmp_path / "tasks.py").write_text(
        "from trunq.django import Worker\n"
        "worker = Worker('orders')\n\n\n"
        "@worker.handler('bad')\n"
        "def handle(message):\n"
        "    raise ValueError('this went wrong')\n"
    )
    install.install(empty)
    with Client(empty) as client:
        client.create_queue("orders")
        client.publish("orders", 1, kind="bad", options={"max_attempts": 1})
    done = subprocess.run(
        [sys.executable, "-m", "django", "trunq_worker", "tasks:worker", "--until-empty"],
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "bare", "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "INFO trunq.worker" in done.stderr
    assert "this went wrong" in done.stderr
