"""A facade is put there when asked for, brought up to date with trunq, and leaves no trace elsewhere."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import psycopg
import pytest
from psycopg import sql

from calling import ask, fetch
from trunq import Client, SchemaError, install
from trunq.cli.operate import uninstall
from trunq.embedded import Embedded

NewDatabase = Callable[..., str]

CONTENTS = """
select p.oid::regprocedure::text, md5(pg_get_functiondef(p.oid)), p.proacl::text
from pg_proc p where p.pronamespace = to_regnamespace('pgq') and p.prokind = 'f'
union all
select c.oid::regclass::text, md5(coalesce(pg_get_viewdef(c.oid), '')), c.relacl::text
from pg_class c where c.relnamespace = to_regnamespace('pgq')
union all
select t.tgname, t.tgrelid::regclass::text, null from pg_trigger t where t.tgfoid::regproc::text like 'pgq.%'
union all
select 'schema', obj_description(n.oid), n.nspacl::text from pg_namespace n where n.nspname like 'pgq%'
order by 1, 2
"""


def contents(dsn: str) -> list[tuple[str, ...]]:
    """All that the facade made, comparable."""
    with psycopg.connect(dsn) as connection:
        return connection.execute(CONTENTS.encode()).fetchall()


def test_whoever_does_not_ask_for_it_has_no_trace_of_it(new_database: NewDatabase) -> None:
    assert contents(new_database()) == []


def test_an_upgrade_without_its_package_leaves_nothing_half_done(
    new_database: NewDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    dsn = new_database()
    install.install(dsn, "pgq")
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("comment on schema trunq_data is 'functions of an older release'")
        before = contents(dsn)
        monkeypatch.setattr(install, "facades", dict[str, str])
        with pytest.raises(SchemaError, match="has the API of pgq") as refused:
            install.install(dsn)
        assert 'pip install "trunq[pgq]"' in str(refused.value)
        assert not install.is_applied(dsn)
        assert contents(dsn) == before
        # Somebody else's schema is not ours, whatever is said of it.
        connection.execute("alter schema pgq owner to pg_monitor")
        install.install(dsn)
        assert install.is_applied(dsn)
        with pytest.raises(ValueError, match='no facade "pgq" here'):
            install.install(dsn, "pgq")


def test_it_is_put_there_once_and_goes_along_with_upgrades(new_database: NewDatabase) -> None:
    dsn = new_database()
    assert install.install(dsn, "pgq").facades == ("pgq",)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("select pgq.create_queue('odd name'), pgq.register_consumer('odd name', 'c')")
        before = contents(dsn)
        assert install.install(dsn, "pgq").facades == install.install(dsn).facades == ()
        # As an older release left it.
        connection.execute("comment on schema pgq is 'trunq: functions of an older release'")
        connection.execute(
            "create or replace function pgq.version() returns text language sql as 'select null'"
        )
        # It had no table for the sessions of replicas.
        connection.execute("drop table pgq.event_1_replica")
        # And its functions of queues took other arguments.
        on_queue = fetch(connection, "select '_on_' || name from trunq.queue")
        for function in ("_on__specimen_find", f"{on_queue}_find"):
            connection.execute(f"create function pgq.{function}() returns int return 1".encode())
        assert install.install(dsn).facades == ("pgq",)
        assert contents(dsn) == before
        # Whatever of trunq is applied again, it is too.
        connection.execute("comment on schema trunq_data is 'functions of an older release'")
        assert install.install(dsn).facades == ("pgq",)
        assert contents(dsn) == before
        connection.execute("select pgq.insert_event('odd name', 'a', 'b')")


def test_the_script_does_the_same(server: Embedded, new_database: NewDatabase) -> None:
    dsn = new_database("template1")
    command = [str(server.binaries / "psql"), "-qX", "--set=ON_ERROR_STOP=1", f"--dbname={dsn}"]
    script = install.render(facade="pgq")
    done = subprocess.run(command, input=script, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert install.install(dsn, "pgq") == install.Change(install.newest(), install.newest(), functions=False)


def test_it_refuses_to_stand_in_for_pgq_where_pgq_is(new_database: NewDatabase) -> None:
    dsn = new_database()
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("create schema pgq")
    with pytest.raises(SchemaError, match=r"(?s)has a schema pgq already.*docs/operate/pgq\.md"):
        install.install(dsn, "pgq")
    assert install.install(dsn).facades == ()
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("drop schema pgq; create schema pgq_ext")
    with pytest.raises(SchemaError, match="has a schema pgq_ext already"):
        install.install(dsn, "pgq")
    with pytest.raises(ValueError, match="there is no facade"):
        install.install(dsn, "londiste")


def test_trunq_s_duties_tick_promote_and_rotate_its_queues(new_database: NewDatabase) -> None:
    dsn = new_database()
    install.install(dsn, "pgq")
    with psycopg.connect(dsn, autocommit=True) as pgq:
        pgq.execute("select pgq.create_queue('q'), pgq.register_consumer('q', 'c')")
        pgq.execute("update pgq.queue set queue_rotation_period = '4 seconds', queue_ticker_max_lag = '0'")
        pgq.execute("select pgq.insert_event('q', 'a', 'b')")
        ask(pgq, "tick", queue="q")
        assert fetch(pgq, "select pgq.seq_getval('pgq.event_1_tick_seq')") == 2
        batch = fetch(pgq, "select pgq.next_batch('q', 'c')")
        assert fetch(pgq, "select pgq.event_retry(%s, 1, 0)", batch) == 1
        assert fetch(pgq, "select pgq.finish_batch(%s)", batch) == 1
        assert ask(pgq, "promote", queue="q") == 1
        ask(pgq, "tick", queue="q", force=True)
        again = fetch(pgq, "select pgq.next_batch('q', 'c')")
        assert pgq.execute("select ev_id, ev_retry from pgq.get_batch_events(%s)", (again,)).fetchall() == [
            (1, 1)
        ]
        assert fetch(pgq, "select retention from trunq.queue").total_seconds() == 4


def test_an_uninstall_takes_it_along(new_database: NewDatabase) -> None:
    dsn = new_database()
    install.install(dsn, "pgq")
    with Client(dsn) as client:
        with client.transaction() as connection:
            connection.execute("select pgq.create_queue('odd name'), pgq.register_consumer('odd name', 'c')")
        found = uninstall.look(client)
        assert (len(found.queues), found.strangers) == (1, [])
        for queue in found.queues:
            uninstall.drop_queue(client, queue, force=True)
        uninstall.drop_schemas(client, found.schemas)
    assert contents(dsn) == []
    assert install.version(dsn) is None


def test_a_copy_of_the_schema_alone_keeps_names_and_triggers(
    server: Embedded, new_database: NewDatabase
) -> None:
    dsn = new_database()
    install.install(dsn, "pgq")
    odd = "odd 'name'"
    with psycopg.connect(dsn, autocommit=True) as pgq:
        for queue in ("gone", odd, "plain"):
            pgq.execute("select pgq.create_queue(%s)", (queue,))
        pgq.execute("select pgq.drop_queue('gone')")
        ask(pgq, "create_queue", queue="native")
        pgq.execute("create table things (id integer primary key)")
        pgq.execute(
            sql.SQL(
                "create trigger out after insert on things for each row execute function pgq.jsontriga({})"
            ).format(odd)
        )
    copy = new_database("template0")
    dump = [server.binaries / "pg_dump", "--schema-only", f"--dbname={dsn}"]
    text = subprocess.run(dump, capture_output=True, check=True).stdout
    command = [server.binaries / "psql", "-qX", "--set=ON_ERROR_STOP=1", f"--dbname={copy}"]
    subprocess.run(command, input=text, capture_output=True, check=True)
    assert install.install(copy).facades == ("pgq",)
    with psycopg.connect(copy, autocommit=True) as pgq:
        names = "select queue_id, queue_name from pgq.queue order by 1"
        assert pgq.execute(names.encode()).fetchall() == [(2, odd), (3, "plain")]
        assert fetch(pgq, "select queue_id from trunq.queue where name = 'native'") == 4
        # No subscription holds what no consumer reads.
        assert fetch(pgq, "select count(*) from trunq.subscription") == 1
        pgq.execute("select pgq.register_consumer(%s, 'c')", (odd,))
        pgq.execute("insert into things values (1)")
        pgq.execute("select pgq.force_tick(%s)", (odd,))
        pgq.execute("select pgq.ticker(%s)", (odd,))
        batch = fetch(pgq, "select pgq.next_batch(%s, 'c')", odd)
        assert fetch(pgq, "select count(*) from pgq.get_batch_events(%s)", batch) == 1
        assert fetch(pgq, "select pgq.create_queue('more')") == 1
