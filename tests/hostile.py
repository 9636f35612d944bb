"""Functions and operators of somebody else's, in a schema on everybody's search_path. All of them raise."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import psycopg

_PLANT: Final = Path(__file__).with_suffix(".sql")


def plant(session: psycopg.Connection[Any], *, exact: bool = False) -> int:
    """Overload what Postgres has for any type, or takes by a coercion; with `exact`, all. Returns how much.

    The former are found wherever public is on the path, the latter where it stands before pg_catalog.
    """
    session.execute("select set_config('hostile.exact', %s, false)", (str(exact),))
    session.execute(_PLANT.read_bytes())
    counted = session.execute(
        "select (select count(*) from pg_proc where pronamespace = 'public'::regnamespace)"
        " + (select count(*) from pg_operator where oprnamespace = 'public'::regnamespace)"
    ).fetchone()
    assert counted is not None
    return int(counted[0])
