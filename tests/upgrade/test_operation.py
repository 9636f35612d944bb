"""Upgrades of a database in use: who owns what, who waits for whom, and what the owner changed by hand."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from calling import OUTDATED, answer, ask, call, drain, fetch, lease, publish, refused
from conftest import Connect
from trunq import SchemaMissing, install
from trunq.cli.operate.upgrade import plan
from trunq.embedded import Embedded
from trunq.errors import SchemaError
from trunq.sql import Migration
from waiting import wait_until

Connection = psycopg.Connection[Any]

OWNERS = """
    select distinct pg_get_userbyid(o.owner) from (
      select relowner owner from pg_class where relnamespace::regnamespace::text like 'trunq%'
      union all select proowner from pg_proc where pronamespace::regnamespace::text like 'trunq%'
      union all select typowner from pg_type where typnamespace::regnamespace::text like 'trunq%'
      union all select nspowner from pg_namespace where nspname like 'trunq%') o
"""


@pytest.fixture
def roles(server: Embedded, new_database: Any) -> Iterator[tuple[str, str, str]]:
    """Addresses of a database as its owner, as a member of that role, and as somebody else."""
    dsn = new_database("template1")
    name = conninfo_to_dict(dsn)["dbname"]
    names = [f"{what}_{name}" for what in ("owner", "member", "other")]
    with psycopg.connect(dsn, autocommit=True) as admin:
        for role in names:
            admin.execute(f"create role {role} login".encode())
        admin.execute(f"grant {names[0]} to {names[1]}".encode())
        admin.execute(f"grant create on database {name} to {names[0]}, {names[2]}".encode())
        owner, member, other = (psycopg.conninfo.make_conninfo(dsn, user=role) for role in names)
        yield owner, member, other
        for role in names:
            admin.execute(f"drop owned by {role} cascade".encode())
            admin.execute(f"drop role {role}".encode())


@pytest.mark.slow
def test_what_a_member_of_the_owner_makes_belongs_to_the_owner(
    roles: tuple[str, str, str],
) -> None:
    owner_dsn, member_dsn, _ = roles
    install.install(owner_dsn)
    with (
        psycopg.connect(owner_dsn, autocommit=True) as owner,
        psycopg.connect(member_dsn, autocommit=True) as member,
        psycopg.connect(owner_dsn, user="postgres", autocommit=True) as superuser,
    ):
        assert ask(member, "create_queue", queue="orders") is True
        assert fetch(member, "select current_user") == member.info.user
        assert owner.execute(OWNERS.encode()).fetchall() == [(owner.info.user,)]
        ids = publish(member, "orders", 2)
        assert drain(owner, "orders") == ids
        member.execute(OUTDATED.encode())
        member.execute("drop trigger wake on trunq_log.orders")
        assert install.install(member).functions
        assert fetch(member, "select current_user") == member.info.user
        owner.execute(OUTDATED.encode())
        assert install.install(owner).functions
        assert owner.execute(OWNERS.encode()).fetchall() == [(owner.info.user,)]
        ask(owner, "drop_queue", queue="orders")
        ask(superuser, "create_queue", queue="more")
        assert superuser.execute(OWNERS.encode()).fetchall() == [(owner.info.user,)]


def run_script(session: Connection) -> None:
    """Run the script of an upgrade as psql does: the end of it commits, and so stands alone."""
    call = "call trunq._refresh_each();"
    before, _, after = install.render(since=install.newest()).partition(call)
    for part in (before, call, after):
        session.execute(part.encode())


@pytest.mark.slow
def test_a_member_that_does_not_inherit_upgrades_and_takes_the_role_for_the_rest(
    roles: tuple[str, str, str],
) -> None:
    owner_dsn, member_dsn, _ = roles
    install.install(owner_dsn)
    with (
        psycopg.connect(owner_dsn, user="postgres", autocommit=True) as superuser,
        psycopg.connect(owner_dsn, autocommit=True) as owner,
        psycopg.connect(member_dsn, autocommit=True) as member,
    ):
        names = owner.info.user, member.info.user
        superuser.execute(
            "revoke {0} from {1}; alter role {1} noinherit; grant {0} to {1}".format(*names).encode()
        )
        with refused("42501", "schema trunq"):
            ask(member, "create_queue", queue="orders")
        owner.execute(OUTDATED.encode())
        assert install.install(member).functions
        owner.execute(OUTDATED.encode())
        # As `trunq db upgrade` does it, with --dry-run and without.
        assert install.version(member_dsn) == install.newest()
        assert plan(member_dsn).functions
        assert install.install(member_dsn).functions
        assert not plan(member_dsn).functions
        owner.execute(OUTDATED.encode())
        run_script(member)
        assert install.install(member).functions is False
        assert fetch(member, "select current_user") == member.info.user
        member.execute(f"set role {names[0]}".encode())
        ask(member, "create_queue", queue="orders")
        member.execute("reset role")
        owner.execute(f"grant usage on schema trunq to {names[1]}".encode())
        ask(member, "create_queue", queue="more")
        assert fetch(member, "select current_user") == member.info.user
        assert owner.execute(OWNERS.encode()).fetchall() == [(names[0],)]


def test_in_a_transaction_of_a_member_the_role_is_as_before(roles: tuple[str, str, str]) -> None:
    owner_dsn, member_dsn, _ = roles
    install.install(owner_dsn)
    with psycopg.connect(member_dsn) as member:
        ask(member, "create_queue", queue="orders")
        assert fetch(member, "select current_user") == member.info.user
        member.execute(OUTDATED.encode())
        member.execute("set local lock_timeout = '7s'")
        install.install(member)
        assert fetch(member, "select current_user") == member.info.user
        assert fetch(member, "select current_setting('lock_timeout')") == "7s"
        assert fetch(member, "select current_setting('check_function_bodies')") == "on"
        with refused("TQ004"), member.transaction():
            ask(member, "create_queue", queue="NOT A NAME")
        assert fetch(member, "select current_user") == member.info.user


def test_one_who_may_not_act_as_the_owner_is_told_so(roles: tuple[str, str, str]) -> None:
    owner_dsn, _, other_dsn = roles
    install.install(owner_dsn)
    with psycopg.connect(owner_dsn, autocommit=True) as owner:
        owner.execute("grant usage on schema trunq to public")
        owner.execute("grant select on all tables in schema trunq to public")
    with psycopg.connect(other_dsn, autocommit=True) as other, refused("42501", "owner_", "member of that"):
        ask(other, "create_queue", queue="orders")


def wait_for_nobody(connection: Connection) -> None:
    connection.execute("set lock_timeout = '1s'")


@pytest.mark.slow
def test_an_upgrade_beside_an_old_open_publisher_waits_for_nobody_and_nobody_for_it(
    database: str, connect: Connect
) -> None:
    session, old, upgrader = connect(), connect(autocommit=False), connect(autocommit=False)
    for queue in ("one", "two"):
        ask(session, "create_queue", queue=queue)
    first = publish(old, "one")
    session.execute(OUTDATED.encode())
    assert install.install(upgrader).functions
    # The upgrade has not committed yet.
    wait_for_nobody(session)
    wait_for_nobody(old)
    second = publish(old, "two")
    more = publish(session, "one")
    upgrader.commit()
    old.commit()
    assert sorted(drain(session, "one")) == sorted([*first, *more])
    assert drain(session, "two") == second


def test_an_upgrade_that_must_lock_logs_never_makes_a_publisher_the_victim_of_a_deadlock(
    database: str, connect: Connect
) -> None:
    session, publisher = connect(), connect(autocommit=False)
    for queue in ("one", "two"):
        ask(session, "create_queue", queue=queue)
        session.execute(f"drop trigger wake on trunq_log.{queue}".encode())
    session.execute(OUTDATED.encode())
    ids = publish(publisher, "two")
    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(install.install, database)
        wait_until_thrown_back(session)
        wait_for_nobody(publisher)
        ids_of_one = publish(publisher, "one")
        assert not late.done()
        publisher.commit()
        assert late.result(120).functions
    assert fetch(session, "select count(*) from pg_trigger where tgname = 'wake' and tgparentid = 0") == 2
    assert (drain(session, "one"), drain(session, "two")) == (ids_of_one, ids)


def wait_until_thrown_back(session: Connection) -> None:
    """Wait until an upgrade has given back what it had, to try again."""
    query = """select count(*) from pg_stat_activity where datname = current_database()
      and query ~ '_refresh_next' and wait_event = 'PgSleep'"""
    wait_until(lambda: fetch(session, query), what="an upgrade is thrown back")


@pytest.mark.slow
def test_an_upgrade_gives_up_with_a_sentence_while_a_transaction_makes_a_queue(
    database: str, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, maker = connect(), connect(autocommit=False)
    session.execute(OUTDATED.encode())
    ask(maker, "create_queue", queue="orders")
    monkeypatch.setattr(install, "_PATIENCE", 2)
    with pytest.raises(SchemaError, match="open transaction") as caught:
        install.install(database)
    assert "pg_stat_activity" in str(caught.value)
    maker.commit()
    assert install.install(database).functions


def test_others_wait_for_an_open_create_queue_only_so_long_and_hear_why(connect: Connect) -> None:
    session, maker = connect(), connect(autocommit=False)
    ask(maker, "create_queue", queue="orders")
    limit = fetch(session, "select proconfig::text from pg_proc where proname = 'create_queue'")
    assert "lock_timeout=5s" in limit
    maker.commit()
    signature = fetch(session, "select 'trunq.create_queue'::regproc::regprocedure::text")
    session.execute(f"alter function {signature} set lock_timeout = '50ms'".encode())
    ask(maker, "create_queue", queue="more")
    with refused("TQ009", 'queue "more"', "open transaction", "pg_stat_activity"):
        ask(session, "create_queue", queue="more")
    maker.rollback()
    assert ask(session, "create_queue", queue="more") is True


@pytest.mark.slow
@pytest.mark.parametrize("quoted", ["off", "on"])
def test_what_the_owner_changed_about_functions_survives_queues_and_upgrades(
    database: str, connect: Connect, quoted: str
) -> None:
    session = connect()
    name = conninfo_to_dict(database)["dbname"]
    session.execute(f"alter database {name} set quote_all_identifiers = {quoted}".encode())
    session = connect()
    ask(session, "create_queue", queue="orders")
    takes = "jsonb, text, text, jsonb, bytea, smallint, interval, timestamptz, jsonb, interval"
    publish_, own = f"trunq.publish(text, {takes})", f"trunq_queue.orders_publish({takes})"
    # A list is kept as it was written: "pg_catalog" is pg_catalog.
    state = (
        "select prosecdef, replace(proconfig::text, '\\\"', ''), proacl::text"
        " from pg_proc where oid = %s::regprocedure"
    )
    for function in (publish_, own):
        session.execute(
            f"""alter function {function} security definer;
            alter function {function} set search_path = pg_catalog, trunq, "a b", pg_temp;
            alter function {function} set statement_timeout = '3s';
            revoke execute on function {function} from public;""".encode()
        )
    changed = [session.execute(state, (function,)).fetchone() for function in (publish_, own)]
    assert all(
        row and row[0] and "a b, pg_temp" in row[1] and "statement_timeout=3s" in row[1] for row in changed
    )
    ask(session, "create_queue", queue="more")
    ask(session, "drop_queue", queue="more")
    for upgrade in (
        lambda: install.install(database),
        lambda: run_script(session),
    ):
        session.execute(OUTDATED.encode())
        upgrade()
        assert install.install(database).functions is False
        assert [session.execute(state, (function,)).fetchone() for function in (publish_, own)] == changed
    assert ask(session, "publish", queue="orders")
    assert fetch(session, f"select prosecdef from pg_proc where oid = '{own}'::regprocedure") is True


@pytest.mark.slow
def test_nothing_counts_as_changed_because_another_session_quotes_names(new_database: Any) -> None:
    """Settings that an older release gave would come back."""
    empty = new_database("template1")
    with psycopg.connect(empty, autocommit=True, options="-c quote_all_identifiers=on") as session:
        install.install(session)
        ask(session, "create_queue", queue="orders")
        for quoted in ("on", "off"):
            session.execute(f"set quote_all_identifiers = {quoted}".encode())
            assert fetch(session, "select trunq._find_changes()") == []


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_a_database_that_is_not_in_utf8_is_refused(server: Embedded, connect: Connect, encoding: str) -> None:
    name = f"encoded_{encoding.lower()}"
    with psycopg.connect(server.dsn, autocommit=True) as admin:
        admin.execute(f"create database {name} encoding {encoding} locale 'C' template template0".encode())
        try:
            dsn = psycopg.conninfo.make_conninfo(server.dsn, dbname=name, client_encoding="UTF8")
            with pytest.raises(SchemaError, match=f"UTF8.*{encoding}") as caught:
                install.install(dsn)
            assert "create database" in str(caught.value)
            with psycopg.connect(dsn) as connection, refused("55000", encoding, "UTF8"):
                connection.execute(install.render().encode())
        finally:
            admin.execute(f"drop database {name}".encode())


def dumped(server: Embedded, dsn: str, *options: str) -> bytes:
    command = [server.binaries / "pg_dump", "--schema-only", *options, f"--dbname={dsn}"]
    done = subprocess.run(command, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def restored(server: Embedded, dsn: str, dump: bytes) -> None:
    command = [server.binaries / "psql", "--quiet", "--no-psqlrc", "--set=ON_ERROR_STOP=1", f"--dbname={dsn}"]
    done = subprocess.run(command, input=dump, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()


@pytest.mark.slow
def test_a_copy_of_the_schema_alone_is_completed(
    server: Embedded, database: str, connect: Connect, new_database: Any
) -> None:
    session = connect()
    ask(session, "create_queue", queue="orders", retention="6 hours")
    ask(session, "create_queue", queue="gone")
    ask(session, "drop_queue", queue="gone")
    ask(session, "create_queue", queue="mail")
    ask(session, "create_queue", queue="laned", lanes="priority,key")
    publish(session, "orders", 3)
    copy = new_database("template0")
    restored(server, copy, dumped(server, database))
    with pytest.raises(SchemaMissing, match="trunq db install"):
        install.check(copy)
    with psycopg.connect(copy, autocommit=True) as session:
        with pytest.raises(psycopg.errors.RaiseException, match="schema alone"):
            session.execute(install.render().encode())
        session.rollback()
    assert install.install(copy) == install.Change(None, install.newest(), functions=True, queues=3)
    install.check(copy)
    assert install.install(copy).functions is False
    with psycopg.connect(copy, autocommit=True) as session:
        queues = {row.queue: row for row in call(session, "list_queues")}
        assert sorted(queues) == ["laned", "mail", "orders"]
        assert ask(session, "create_queue", queue="laned", lanes="priority,key") is False
        assert str(queues["orders"].retention) == "6:00:00"
        for queue in queues:
            ids = publish(session, queue, 2)
            held = lease(session, queue, 5)
            assert held.ids == ids
            assert answer(session, "ack", held) == 2
        assert call(session, "perform_duties")
        assert ask(session, "elect", name="leader") == 1
        ask(session, "create_queue", queue="new")
        ask(session, "drop_queue", queue="orders")


def test_tables_that_no_release_made_are_refused_and_left_alone(database: str, connect: Connect) -> None:
    session = connect()
    session.execute("delete from trunq.migration where number > 1")
    with pytest.raises(
        SchemaError, match=r"that no release made.* nothing was changed: .*already exists"
    ) as caught:
        install.install(database)
    assert "trunq db uninstall" in str(caught.value.hint)
    assert install.version(database) == 1
    assert ask(session, "create_queue", queue="orders") is True


def test_a_view_that_needs_what_a_migration_replaces_is_named_and_the_hint_helps(
    database: str, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = connect()
    ask(session, "create_queue", queue="orders")
    made = "create view public.my_dead as select dead_id from trunq.list_dead('orders')"
    session.execute(made.encode())
    session.execute("create view public.my_rows as select name from trunq.leader")
    drops = """do $$ begin execute format('drop function %s',
        (select p.oid::regprocedure from pg_proc p where proname = 'list_dead')); end $$"""
    newer = [
        Migration(install.newest() + 1, "9998_function.sql", drops),
        Migration(install.newest() + 2, "9999_column.sql", "alter table trunq.leader alter name type name"),
    ]
    known = install.migrations()
    monkeypatch.setattr(install, "migrations", lambda: (*known, *newer))
    before = fetch(session, "select max(number) from trunq.migration")
    for view, needed in (("my_dead", "function .*list_dead"), ("my_rows", "column .*name")):
        with pytest.raises(SchemaError, match=f"view .*{view} depends on {needed}") as caught:
            install.install(database)
        assert "changed nothing" in str(caught.value)
        assert fetch(session, "select max(number) from trunq.migration") == before
        # As the hint says.
        kept = fetch(session, "select pg_get_viewdef(%s::regclass)", view)
        session.execute(f"drop view {view}".encode())
    assert install.install(database).after == before + 2
    session.execute(f"create view my_rows as {kept}".encode())
    session.execute(made.encode())


@pytest.mark.slow
def test_a_copy_that_does_not_say_its_version_names_what_to_drop(
    server: Embedded, database: str, new_database: Any
) -> None:
    copy = new_database("template0")
    restored(server, copy, dumped(server, database, "--no-comments"))
    with pytest.raises(SchemaError, match="not their rows") as caught:
        install.install(copy)
    drop = str(caught.value.hint).partition(";")[0]
    with psycopg.connect(copy, autocommit=True) as session:
        session.execute(drop.encode())
    assert install.install(copy).before is None


def test_a_role_that_was_taken_can_do_no_more_than_it_may(roles: tuple[str, str, str]) -> None:
    """The user of the session is a superuser; SET ROLE asks it alone."""
    owner_dsn, _, other_dsn = roles
    install.install(owner_dsn)
    other = conninfo_to_dict(other_dsn)["user"]
    with psycopg.connect(owner_dsn, user="postgres", autocommit=True) as superuser:
        superuser.execute(f"grant usage on schema trunq to {other}".encode())
        superuser.execute(f"set role {other}".encode())
        with refused("42501", "owner_", "member of that role"):
            ask(superuser, "create_queue", queue="orders")
