"""Functions that took other arguments before go with an upgrade: beside the new ones, they stop who calls."""

from __future__ import annotations

from calling import ask, fetch, refused
from conftest import Connect
from trunq import install

OF_BEFORE = """
create function trunq._drop_functions(p_queue trunq.queue) returns void language sql as 'select';
create function pgq._read_options(p_arguments text[]) returns text language sql as 'select null::text';
delete from trunq.migration where number = (select max(number) from trunq.migration where name ~ 'left_over');
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
