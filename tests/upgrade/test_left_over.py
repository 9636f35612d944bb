"""Functions that took other arguments before go with an upgrade: beside the new ones, they stop who calls."""

from __future__ import annotations

from typing import Any

import psycopg

from calling import ask, fetch, refused
from conftest import Connect
from trunq import install

OF_BEFORE = b"""
create function trunq._drop_functions(p_queue trunq.queue) returns void language sql as 'select';
create function pgq._read_options(p_arguments text[]) returns text language sql as 'select null::text';
"""
DOORS_OF_BEFORE = b"""
create function trunq._doors(p_function text) returns text[] language sql as 'select null::text[]';
create function trunq._door(p_queue text, p_function text) returns text language sql as 'select null::text';
create function trunq._set_memo(text, text, text, jsonb, interval, bigint) returns bigint
language sql as 'select 1::bigint';
"""
NAMED_TWICE = """
select array_agg(n::text order by n not in ('_door', '_doors') desc, n) from (
  select proname from pg_proc where pronamespace = 'trunq'::regnamespace group by 1 having count(*) > 1) t(n)
"""


def migrate(session: psycopg.Connection[Any], topic: str) -> None:
    (migration,) = (each for each in install.migrations() if each.name.endswith(topic))
    session.execute(migration.sql.encode())


def test_a_queue_is_dropped_after_an_upgrade_from_functions_of_other_arguments(
    database: str, connect: Connect
) -> None:
    install.install(database, "pgq")
    session = connect()
    ask(session, "create_queue", queue="work")
    session.execute(OF_BEFORE)
    with refused("42725"):
        ask(session, "drop_queue", queue="work")
    migrate(session, "left_over")
    ask(session, "drop_queue", queue="work")
    assert fetch(session, "select to_regprocedure('pgq._read_options(text[])')") is None


def test_functions_of_former_doors_go(database: str, connect: Connect) -> None:
    session = connect()
    before = fetch(session, NAMED_TWICE)
    session.execute(DOORS_OF_BEFORE)
    assert fetch(session, NAMED_TWICE) == [*before, "_door", "_doors"]
    migrate(session, "door")
    assert fetch(session, NAMED_TWICE) == before
    assert fetch(session, "select to_regproc('trunq._set_memo')") is None


def test_an_upgrade_comments_on_its_own_function_beside_one_of_other_arguments(
    database: str, connect: Connect
) -> None:
    session = connect()
    owns = "from pg_proc where proname = '_owns'"
    comments = f"select array_agg(obj_description(oid, 'pg_proc') order by pronargs) {owns}"
    (told,) = fetch(session, comments)
    session.execute(
        "create function trunq._owns(p_role text) returns boolean language sql as 'select true';"
        "comment on function trunq._owns() is 'of before'; comment on schema trunq_data is 'of before'"
    )
    assert install.install(database).functions
    assert fetch(session, comments) == [told, None]
