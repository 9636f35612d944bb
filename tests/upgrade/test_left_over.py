"""Functions that took other arguments before go with an upgrade: beside the new ones, they stop who calls."""

from __future__ import annotations

from calling import ask, fetch, lease, refused
from conftest import Connect
from trunq import install

OF_BEFORE = """
create function trunq._drop_functions(p_queue trunq.queue) returns void language sql as 'select';
create function pgq._read_options(p_arguments text[]) returns text language sql as 'select null::text';
delete from trunq.migration where number >= (select number from trunq.migration where name ~ 'left_over');
"""


def test_a_queue_is_dropped_after_an_upgrade_from_functions_of_other_arguments(
    database: str, connect: Connect
) -> None:
    install.install(database, "pgq")
    session = connect()
    ask(session, "create_queue", queue="work")
    session.execute(OF_BEFORE)
    with refused("42725"):
        ask(session, "drop_queue", queue="work")
    assert install.install(database).functions
    ask(session, "drop_queue", queue="work")
    assert fetch(session, "select to_regprocedure('pgq._read_options(text[])')") is None


OF_LEASES = """
create function trunq._note_expired(p_id bigint) returns boolean language sql as 'select false';
create function trunq_queue.work_bury_noted(p_subscription_id integer, p_lease_id bigint, p_now timestamptz)
returns integer language sql as 'select 0';
drop function trunq_queue.work_bury;
create function trunq_queue.work_bury(integer, bigint, bigint[], timestamptz, "char", out xid8, out bigint)
language sql as 'select null::xid8, null::bigint';
delete from trunq.migration where number >= (select number from trunq.migration where name ~ '^0027_lease');
"""

OF_QUEUES = """
select p.proname from pg_proc p
where p.proname in ('_note_expired', 'work_bury_noted')
  or p.proname = 'work_bury' and p.proallargtypes is not null
"""


def test_functions_by_which_leases_noted_messages_go_with_an_upgrade(database: str, connect: Connect) -> None:
    session = connect()
    ask(session, "create_queue", queue="work")
    session.execute(OF_LEASES)
    assert len(session.execute(OF_QUEUES).fetchall()) == 3
    install.install(database)
    assert session.execute(OF_QUEUES).fetchall() == []
    expired = ask(session, "publish", queue="work", max_age="1 microsecond")
    id = ask(session, "publish", queue="work")
    assert lease(session, "work", 10).ids == [id]
    assert fetch(session, "select reason from trunq.dead where id = %s", expired) == "expired"
