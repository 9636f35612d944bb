"""A folder in which a page or an example runs as its reader runs it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict


@pytest.fixture
def environment(database: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The variables of a reader's shell: programs of ours and of others find the test's database by them.

    His home is empty.
    """
    parts = conninfo_to_dict(database)
    names = {"PGHOST": "host", "PGPORT": "port", "PGUSER": "user", "PGDATABASE": "dbname"}
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith(("PG", "TRUNQ_"))},
        **{variable: str(parts[part]) for variable, part in names.items()},
        "HOME": str(tmp_path_factory.mktemp("home")),
        "TRUNQ_DSN": database,
        "PATH": programs,
        # As an installed trunq does by its entry point; this one may not be installed, or an older one.
        "PYTEST_PLUGINS": "pytest_trunq",
    }
