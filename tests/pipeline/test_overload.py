"""What a runner asks Postgres about a source means Postgres's own functions: it may run as the owner."""

from __future__ import annotations

from conftest import Connect
from trunq.pipeline.source import table, window
from trunq.pipeline.work.frame import _bytes

NEARER = (
    "array_agg(bigint)",
    "unnest(bigint[])",
    "pg_relation_size(oid)",
    "pg_relation_filenode(oid)",
    "pg_table_size(oid)",
)
"""Nearer to what is given than Postgres's own, which take any element or a regclass."""


def test_functions_of_somebody_else_are_not_run(database: str, connect: Connect) -> None:
    session = connect()
    for signature in NEARER:
        session.execute(
            f"create function public.{signature} returns bigint language plpgsql as"
            f" $$ begin raise exception 'a function of somebody else was run: {signature}'; end $$".encode()
        )
    session.execute("create table things as select 1 as id")
    oid = session.execute("select 'things'::regclass::oid::bigint").fetchall()[0][0]
    sizes = session.execute(table._SIZES, {"table": "things", "oids": [oid]}).fetchall()
    assert [row[0] for row in sizes] == [oid]
    open_ids = session.execute(window._IN_PROGRESS, {"from": 1, "xmin": 3, "xmax": 3, "known": []})
    assert open_ids.fetchall() == [([],)]
    assert _bytes(database, "things") > 0
