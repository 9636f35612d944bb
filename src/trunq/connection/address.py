"""Where the database is, and how it is connected to."""

from __future__ import annotations

import re
from typing import Final

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from trunq.errors import InvalidArgument

_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*")

# A server that vanished without a word (power, network) is noticed within a minute, not within TCP's two
# hours.
_CONNECTING: Final = {
    "client_encoding": "UTF8",
    "connect_timeout": "10",
    "keepalives_idle": "20",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "50000",
}


def address(dsn: str | None = None) -> str:
    """The address given, else that of the settings: TRUNQ_DSN, trunq.toml. Empty: libpq's own defaults."""
    if dsn is not None:
        return dsn
    from trunq import settings  # noqa: PLC0415  # slow to import, and most name their database

    return settings.load().dsn or ""


def _check_scheme(dsn: str) -> None:
    """Refuse the address of another library, or database: libpq takes it for something else, and repeats it,
    password and all.
    """
    scheme, colon, _ = dsn.partition("://")
    if not colon or not _SCHEME.fullmatch(scheme) or scheme in ("postgresql", "postgres"):
        return
    name, plus, driver = scheme.partition("+")
    if plus and name in ("postgresql", "postgres"):
        raise InvalidArgument(
            f"an address that begins with {scheme}:// is for SQLAlchemy",
            f"leave out +{driver}: {name}://user@host/name",
        )
    raise InvalidArgument(
        f"an address that begins with {scheme}:// is not one of Postgres, in which trunq lives",
        "name a database as postgresql://user@host/name",
    )


def complete(dsn: str, application_name: str) -> str:
    """`dsn` with a name for pg_stat_activity and time-outs for a network that is down, where it gives none
    itself.
    """
    _check_scheme(dsn)
    given = conninfo_to_dict(dsn)
    defaults = {**_CONNECTING, "application_name": application_name[:63]}
    return make_conninfo(dsn, **{name: value for name, value in defaults.items() if name not in given})
