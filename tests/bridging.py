"""Engines of SQLAlchemy and settings of Django for a test's database."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import django
from django.conf import settings
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import URL

from trunq import Client


def url(database: str, driver: str = "psycopg") -> URL:
    """The address of a database for SQLAlchemy."""
    parts = conninfo_to_dict(database)
    return URL.create(
        f"postgresql+{driver}",
        username=str(parts["user"]),
        database=str(parts["dbname"]),
        query={"host": str(parts["host"]), "port": str(parts["port"])},
    )


class Through:
    """A client all of whose calls take one connection, be they sync or coroutines of a loop elsewhere."""

    def __init__(
        self, client: Any, given: Any, own: Client, loop: asyncio.AbstractEventLoop | None = None
    ) -> None:
        self._client = client
        self._given = given
        self._own = own
        self._loop = loop
        self.called: set[str] = set()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._client, name)
        if name in {"transaction", "copy"} or "connection" not in inspect.signature(method).parameters:
            return getattr(self._own, name)  # type: ignore[no-any-return]

        def call(*arguments: Any, **named: Any) -> Any:
            if "connection" in named:
                return getattr(self._own, name)(*arguments, **named)
            self.called.add(name)
            returned = method(*arguments, **named, connection=self._given)
            if self._loop is None:
                return returned
            return asyncio.run_coroutine_threadsafe(returned, self._loop).result()

        return call


APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "trunq.django",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = {
    "BACKEND": "django.template.backends.django.DjangoTemplates",
    "APP_DIRS": True,
    "OPTIONS": {
        "context_processors": [
            "django.template.context_processors.request",
            "django.contrib.auth.context_processors.auth",
            "django.contrib.messages.context_processors.messages",
        ]
    },
}


@contextmanager
def django_on(database: str, **more: str) -> Iterator[Any]:
    """Django's connections, `default` and `more`, which lead to these databases. Gives `default`.

    The settings of Django are those of the process: the first test makes them.
    """
    if not settings.configured:
        settings.configure(
            SECRET_KEY="of a test",
            ALLOWED_HOSTS=["testserver"],
            INSTALLED_APPS=APPS,
            MIDDLEWARE=MIDDLEWARE,
            ROOT_URLCONF="shop_urls",
            TEMPLATES=[TEMPLATES],
            USE_TZ=True,
        )
        django.setup()
    from django.db import connections  # noqa: PLC0415  # asks for settings

    databases = {alias: _settings(dsn) for alias, dsn in {"default": database, **more}.items()}
    for alias in databases:
        with suppress(AttributeError):
            del connections[alias]
    connections.settings = connections.configure_settings(databases)
    try:
        yield connections["default"]
    finally:
        connections.close_all()
        for alias in databases:
            del connections[alias]
        del connections.settings


def _settings(dsn: str) -> dict[str, Any]:
    if dsn == "sqlite":
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
    parts = conninfo_to_dict(dsn)
    names = {"USER": "user", "NAME": "dbname", "HOST": "host", "PORT": "port"}
    return {
        "ENGINE": "django.db.backends.postgresql",
        **{name: str(parts[part]) for name, part in names.items()},
    }
