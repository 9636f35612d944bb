"""A client of a database of Django's settings."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from psycopg import Connection

import trunq
from trunq.connection.address import complete
from trunq.django.worker import dsn


class Client(trunq.Client):
    """A client of a database of Django's settings, which is looked up at each call: `manage.py test` puts
    another in its place after your modules were imported. Everything else is as in `trunq.Client`.
    """

    def __init__(self, using: str = "default", **options: Any) -> None:
        self._using = using
        self._opened_for: str | None = None
        super().__init__("", **options)

    @property
    def _conninfo(self) -> str:
        return complete(dsn(self._using), "trunq")

    @_conninfo.setter
    def _conninfo(self, value: str | None) -> None:
        """That of the settings counts."""

    def _borrow(self) -> AbstractContextManager[Connection[Any]]:
        now = self._conninfo
        if self._opened_for not in (None, now):
            # Opened before the database of tests took the place of the other.
            self.close()
        self._opened_for = now
        return super()._borrow()
