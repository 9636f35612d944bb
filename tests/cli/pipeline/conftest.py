"""A pipeline that the shell is given."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.pipeline.pipelining import FILE
from trunq import Client


@pytest.fixture
def file(tmp_path: Path, client: Client) -> str:
    with client.transaction() as connection:
        connection.execute("create table source (id int); insert into source values (1), (2)")
    path = tmp_path / "flights.toml"
    path.write_text(FILE)
    return str(path)
