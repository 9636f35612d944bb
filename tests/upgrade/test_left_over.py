"""Functions that took other arguments before go with an upgrade: beside the new ones, they stop who calls."""

from __future__ import annotations

from typing import Any

import psycopg

from calling import ask, call, fetch, lease, refused
from conftest import Connect
from trunq import diagnosis, install

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


def test_internal_functions_that_an_upgrade_does_not_define_go_with_the_last_queue(
    database: str, connect: Connect
) -> None:
    session = connect()
    ask(session, "create_queue", queue="work")
    session.execute(
        b"create function trunq._of_before(p_x text) returns text language sql as 'select p_x';"
        b"create function trunq._fail(p_x text) returns text language sql as 'select p_x';"
        b"create function trunq.by_hand() returns text language sql as 'select 1::text';"
        b"comment on schema trunq_data is 'trunq: functions of before'"
    )
    install.install(database)
    remaining = (
        "select array_agg(f::text order by f::text) from unnest(array[to_regprocedure('trunq.by_hand()'),"
        " to_regprocedure('trunq._of_before(text)'), to_regprocedure('trunq._fail(text)'),"
        " to_regprocedure('trunq._fail(text, text, text)')]) f where f is not null"
    )
    assert fetch(session, remaining) == ["trunq._fail(text,text,text)", "trunq.by_hand()"]
    assert fetch(session, "select count(*) from trunq.former") == 0


def test_a_diagnosis_of_before_goes(database: str, connect: Connect) -> None:
    session = connect()
    session.execute(
        b"create function trunq.diagnose(p_queues integer default 20) returns text"
        b" language sql as 'select null';"
    )
    with refused("42725"):
        call(session, "diagnose")
    # Two of them are no reason to say that all is well.
    found = diagnosis.diagnose(database)
    assert "is not unique" in str([each.finding for each in found if each.severity == "error"])
    migrate(session, "area")
    call(session, "diagnose")


def test_a_former_function_that_something_depends_on_stays_until_it_does_no_longer(
    database: str, connect: Connect
) -> None:
    session = connect()
    session.execute(
        b"create function trunq._of_before() returns integer language sql as 'select 1';"
        b"create view public.uses as select trunq._of_before();"
        b"comment on schema trunq_data is 'trunq: functions of before'"
    )
    install.install(database)
    assert fetch(session, "select array_agg(function) from trunq.former") == ["trunq._of_before()"]
    session.execute(b"drop view public.uses")
    install.install(database)
    assert fetch(session, "select to_regproc('trunq._of_before')") is None


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
    assert fetch(session, comments) == [told]


OF_LEASES = """
create function trunq_queue.work_bury_noted(p_subscription_id integer, p_lease_id bigint, p_now timestamptz)
returns integer language sql as 'select 0';
drop function trunq_queue.work_bury;
create function trunq_queue.work_bury(integer, bigint, bigint[], timestamptz, "char", out xid8, out bigint)
language sql as 'select null::xid8, null::bigint';
"""

OF_QUEUES = """
select p.proname from pg_proc p
where p.proname = 'work_bury_noted'
  or p.proname = 'work_bury' and p.proallargtypes is not null
"""


def test_functions_by_which_leases_noted_messages_go_with_an_upgrade(database: str, connect: Connect) -> None:
    session = connect()
    ask(session, "create_queue", queue="work")
    session.execute(OF_LEASES)
    assert len(session.execute(OF_QUEUES).fetchall()) == 2
    # A queue that is not up to date yet still calls what notes: whoever finds none left drops that.
    session.execute("select trunq._outdate_queues('[]')")
    assert ask(session, "_refresh_next") == "work"
    assert ask(session, "_refresh_next") is None
    assert session.execute(OF_QUEUES).fetchall() == []
    expired = ask(session, "publish", queue="work", max_age="1 microsecond")
    id = ask(session, "publish", queue="work")
    assert lease(session, "work", 10).ids == [id]
    assert fetch(session, "select reason from trunq.dead where id = %s", expired) == "expired"
