"""Install and upgrade: once, twice, twenty at a time, and as a script."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from conftest import Connect
from trunq import SchemaMissing, SchemaNewer, SchemaOlder, install
from trunq.embedded import Embedded

NewDatabase = Callable[..., str]

EVERYTHING = """
select 'function', p.oid::regprocedure::text, md5(pg_get_functiondef(p.oid)), obj_description(p.oid)
from pg_proc p where p.pronamespace = any (%(schemas)s::regnamespace[])
union all
select 'column', format('%%s.%%s', a.attrelid::regclass, a.attname),
  format('%%s %%s %%s', format_type(a.atttypid, a.atttypmod), a.attnotnull, pg_get_expr(d.adbin,
  d.adrelid)), null
from pg_attribute a join pg_class c on c.oid = a.attrelid
left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
where c.relnamespace = any (%(schemas)s::regnamespace[]) and a.attnum > 0 and not a.attisdropped
union all
select 'constraint', format('%%s.%%s', conrelid::regclass, conname), pg_get_constraintdef(oid), null
from pg_constraint where connamespace = any (%(schemas)s::regnamespace[])
union all
select 'grant', c.oid::regclass::text, c.relacl::text, obj_description(c.oid)
from pg_class c where c.relnamespace = any (%(schemas)s::regnamespace[])
union all
select 'schema', n.nspname, n.nspacl::text, obj_description(n.oid)
from pg_namespace n where n.oid = any (%(schemas)s::regnamespace[])
order by 1, 2, 3
"""
SCHEMAS = ["trunq", "trunq_log", "trunq_data"]


def contents(dsn: str) -> list[tuple[str, ...]]:
    """All that an install makes, comparable."""
    with psycopg.connect(dsn) as connection:
        return connection.execute(EVERYTHING, {"schemas": SCHEMAS}).fetchall()


@pytest.fixture
def empty(new_database: NewDatabase) -> str:
    """Address of a database without trunq."""
    return new_database("template1")


def test_an_install_is_recorded_migration_by_migration(empty: str) -> None:
    assert install.version(empty) is None
    change = install.install(empty)
    assert change == install.Change(None, install.newest(), functions=True)
    assert install.version(empty) == install.newest()
    with psycopg.connect(empty) as connection:
        rows = connection.execute("select number, name from trunq.migration order by number").fetchall()
    assert rows == [(migration.number, migration.name) for migration in install.migrations()]


def test_a_second_install_changes_nothing(empty: str) -> None:
    install.install(empty)
    before = contents(empty)
    assert install.install(empty) == install.Change(install.newest(), install.newest(), functions=False)
    assert contents(empty) == before


def test_twenty_installers_at_once_are_as_good_as_one(empty: str) -> None:
    with ThreadPoolExecutor(20) as pool:
        changes = list(pool.map(install.install, [empty] * 20))
    assert sorted(change.before is None for change in changes) == [False] * 19 + [True]
    assert sum(change.functions for change in changes) == 1


def test_an_install_that_fails_leaves_nothing_behind(empty: str, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = (
        ("broken.sql", "create function trunq.f() returns int language sql as $$ select 1 $$; select 1/0"),
    )
    monkeypatch.setattr(install, "function_files", lambda: broken)
    with pytest.raises(psycopg.errors.DivisionByZero):
        install.install(empty)
    assert install.version(empty) is None
    assert contents_of_schemas(empty) == []


def contents_of_schemas(dsn: str) -> list[tuple[str]]:
    with psycopg.connect(dsn) as connection:
        return connection.execute("select nspname from pg_namespace where nspname like 'trunq%'").fetchall()


def test_an_install_joins_the_callers_transaction(empty: str) -> None:
    with psycopg.connect(empty) as connection:
        connection.execute("create table mine (n int)")
        install.install(connection)
        connection.execute("select trunq.create_queue('orders')")
        connection.rollback()
    assert contents_of_schemas(empty) == []


@pytest.mark.slow
def test_functions_that_changed_are_applied_again(database: str, connect: Connect) -> None:
    connection = connect()
    connection.execute("select trunq.create_queue('orders')")
    before = contents(database)
    connection.execute(
        "create or replace function trunq.version() returns int language sql as $$ select -1 $$"
    )
    connection.execute("drop function trunq_queue.orders_wake() cascade")
    connection.execute("comment on schema trunq_data is 'functions of an older release'")
    newest = install.newest()
    assert install.install(database) == install.Change(newest, newest, functions=True, queues=1)
    assert [row for row in contents(database) if row[0] == "function"] == [
        row for row in before if row[0] == "function"
    ]
    connection.execute("select trunq.publish('orders', '1')")
    assert connection.execute("select payload from trunq.lease('orders', 'default', 'w')").fetchall() == [
        (1,)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["psql", "psycopg"])
def test_the_script_does_the_same_as_an_install(
    server: Embedded, new_database: NewDatabase, empty: str, how: str
) -> None:
    if how == "psql":
        command = [
            server.binaries / "psql",
            "--quiet",
            "--no-psqlrc",
            "--set=ON_ERROR_STOP=1",
            f"--dbname={empty}",
        ]
        done = subprocess.run(command, input=install.render(), capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
    else:
        with psycopg.connect(empty, autocommit=True) as connection:
            connection.execute(install.render().encode())
    assert install.install(empty) == install.Change(install.newest(), install.newest(), functions=False)
    with psycopg.connect(empty, autocommit=True) as connection:
        connection.execute("select trunq.let_clock_move()")  # as in every database of these tests
    assert contents(empty) == contents(new_database())


def test_the_script_refuses_a_database_it_was_not_written_for(database: str) -> None:
    before = contents(database)
    with (
        psycopg.connect(database, autocommit=True) as connection,
        pytest.raises(psycopg.errors.RaiseException, match="starts at schema 0") as caught,
    ):
        connection.execute(install.render().encode())
    assert "trunq db sql --since" in str(caught.value.diag.message_hint)
    assert contents(database) == before


def test_a_newer_database_is_refused_and_left_alone(database: str, connect: Connect) -> None:
    connect().execute("insert into trunq.migration (number, name) values (9999, 'future')")
    before = contents(database)
    with pytest.raises(SchemaNewer, match="9999"):
        install.install(database)
    with pytest.raises(SchemaNewer):
        install.check(database)
    assert contents(database) == before


def test_an_older_or_missing_schema_says_which_command_helps(
    database: str, empty: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    install.check(database)
    with pytest.raises(SchemaMissing, match="trunq db install"):
        install.check(empty)
    newer = (*install.migrations(), install.Migration(install.newest() + 1, "0002_next", "select 1"))
    monkeypatch.setattr(install, "migrations", lambda: newer)
    with pytest.raises(SchemaOlder, match="trunq db upgrade"):
        install.check(database)
    assert install.install(database).after == install.version(database) == len(newer)


def test_it_works_whatever_the_search_path_and_isolation(empty: str) -> None:
    options = "-c search_path= -c default_transaction_isolation=serializable -c check_function_bodies=on"
    with psycopg.connect(empty, autocommit=True, options=options) as connection:
        install.install(connection)
        connection.execute("set default_transaction_isolation = 'read committed'")
        connection.execute("select trunq.create_queue('orders')")
        connection.execute("select trunq.publish('orders', '1')")
        leased = connection.execute("select payload from trunq.lease('orders', 'default', 'w')").fetchall()
    assert leased == [(1,)]


def test_one_who_may_create_schemas_can_install(empty: str) -> None:
    name = psycopg.conninfo.conninfo_to_dict(empty)["dbname"]
    with psycopg.connect(empty, autocommit=True) as connection:
        connection.execute(f"create role owner_{name} login")
        try:
            connection.execute(f"grant create on database {name} to owner_{name}")
            with psycopg.connect(empty, user=f"owner_{name}", autocommit=True) as owner:
                install.install(owner)
                owner.execute("select trunq.create_queue('orders')")
                owner.execute("select trunq.publish('orders', '1')")
                leased = owner.execute("select payload from trunq.lease('orders', 'default', 'w')").fetchall()
            assert leased == [(1,)]
        finally:
            connection.execute(f"drop owned by owner_{name} cascade")
            connection.execute(f"drop role owner_{name}")
