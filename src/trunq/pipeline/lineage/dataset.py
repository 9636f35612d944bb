"""What sources and sinks are called in lineage: by OpenLineage's rules for the names of datasets."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from psycopg import pq
from psycopg.conninfo import conninfo_to_dict

from trunq.arrow.catalog import split_name
from trunq.pipeline.definition.jdbc import place_of


def name_of(part: Any, dsn: str) -> tuple[str, str]:
    """Namespace and name of a source or a sink; `dsn` is the database of trunq.

    A table is called the same whoever reads or writes it, so that pipelines join where one writes what
    another reads. Nothing of it is secret: of an API's address, neither user nor parameters.
    """
    match part.format:
        case "table":
            return _in_postgres(part.dsn or dsn, ".".join(["public", *split_name(part.table)][-2:]))
        case "queue":
            return _in_postgres(part.dsn or dsn, f"trunq_log.{part.queue}")
        case "history":
            return _in_postgres(part.dsn or dsn, f"trunq_data.{part.queue}_receipt")
        case "python":
            return "python", part.function
        case "jdbc":
            return place_of(part).removeprefix("jdbc:"), part.table or "query"
        case "http":
            address = urlsplit(part.url)
            host = address.hostname or "localhost"
            place = f"{host}:{address.port}" if address.port else host
            return f"{address.scheme}://{place}", address.path or "/"
    scheme, separator, rest = part.path.partition("://")
    if not separator:
        return "file", part.path
    bucket, _, key = rest.partition("/")
    return f"{scheme}://{bucket}", key or "/"


def _in_postgres(dsn: str, name: str) -> tuple[str, str]:
    given = {option.keyword.decode(): option.val for option in pq.Conninfo.get_defaults()}
    known = {name: value.decode() for name, value in given.items() if value is not None}
    known |= {name: str(value) for name, value in conninfo_to_dict(dsn).items() if value is not None}
    host = known.get("host") or known.get("hostaddr") or "localhost"
    # A directory of sockets is a place of this machine.
    host = "localhost" if host.startswith("/") else host
    database = known.get("dbname") or known.get("user", "postgres")
    return f"postgres://{host}:{known.get('port', '5432')}", f"{database}.{name}"
