"""Queues of several sizes, whose costs are compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import psycopg

from engine import Engine
from trunq import embedded, install


@contextmanager
def each_in_its_database(sizes: Mapping[str, int], build: str) -> Iterator[dict[str, Engine]]:
    """A queue of each name and size, made by a statement with {queue} and {n}; nothing is common to them."""
    with embedded.start(settings={"fsync": "off", "autovacuum": "off"}) as server:
        made = {}
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            for name in sizes:
                connection.execute(f"create database {name}".encode())
        for name, n in sizes.items():
            dsn = psycopg.conninfo.make_conninfo(server.dsn, dbname=name)
            install.install(dsn)
            made[name] = Engine(psycopg.connect(dsn, autocommit=True), name).create()
            made[name].connection.execute(build.format(n=n, queue=name).encode())
        yield made
        for work in made.values():
            work.connection.close()
