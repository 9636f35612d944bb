"""Going back: what a release's migrations made is taken back, and what that drops lies in a file."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from calling import ask, call, come_back, drain, fetch, lease, publish, refused
from conftest import Connect
from scope import some
from trunq import Client, SchemaError, SchemaOlder, downgrade, install
from trunq.sql import Migration, back_migrations, function_files, migrations

Connection = psycopg.Connection[Any]
NewDatabase = Callable[..., str]

CATALOG = """
select 'function', p.oid::regprocedure::text, md5(pg_get_functiondef(p.oid)), p.proacl::text, obj_description(p.oid, 'pg_proc')
from pg_proc p where p.pronamespace = any (%(schemas)s::regnamespace[])
union all
select 'column', format('%%s.%%s', a.attrelid::regclass, a.attname), format('%%s %%s %%s %%s', format_type(a.atttypid, a.atttypmod),
  a.attnotnull, a.attstorage, pg_get_expr(d.adbin, d.adrelid)), a.attacl::text, col_description(a.attrelid, a.attnum)
from pg_attribute a join pg_class c on c.oid = a.attrelid
left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
where c.relnamespace = any (%(schemas)s::regnamespace[]) and a.attnum > 0 and not a.attisdropped
  and c.relkind in ('r', 'p', 'v', 'c')
union all
select 'constraint', format('%%s.%%s', c.conrelid::regclass, c.conname), pg_get_constraintdef(c.oid), null, null
from pg_constraint c where c.connamespace = any (%(schemas)s::regnamespace[])
union all
select 'relation', c.oid::regclass::text, c.relkind::text, (select array_agg(a::text order by a::text) from aclexplode(c.relacl) a where a.grantee <> c.relowner)::text, obj_description(c.oid, 'pg_class')
from pg_class c where c.relnamespace = any (%(schemas)s::regnamespace[])
union all
select 'trigger', format('%%s.%%s', g.tgrelid::regclass, g.tgname), pg_get_triggerdef(g.oid), null, null
from pg_trigger g where not g.tgisinternal
union all
select 'schema', n.nspname, n.nspacl::text, null, obj_description(n.oid, 'pg_namespace')
from pg_namespace n where n.oid = any (%(schemas)s::regnamespace[])
order by 1, 2, 3
"""  # noqa: E501
SCHEMAS = ["trunq", "trunq_log", "trunq_data", "trunq_queue", "trunq_archive"]

VERSIONS = [
    number
    for number in range(downgrade.lowest(), install.newest())
    if number >= install.newest() - some(2, 99)
]
"""Those to go back to: the oldest is tried by a test of its own."""

QUEUES: dict[str, dict[str, Any]] = {
    "plain": {},
    "keyed": {"unique": "replace"},
    "laned": {"lanes": "priority,key", "unique": "refuse"},
}


def catalog(session: Connection) -> list[tuple[Any, ...]]:
    """All that an install, and queues, have in the catalog."""
    return session.execute(CATALOG.encode(), {"schemas": SCHEMAS}).fetchall()


def make_queues(session: Connection) -> None:
    """Queues of each form; one with an archive, captures, a group by key and roles."""
    for queue, options in QUEUES.items():
        ask(session, "create_queue", queue=queue, **options)
    ask(session, "add_column", queue="laned", column="customer", type="text", default="acme")
    ask(session, "create_archive", queue="plain")
    ask(session, "create_taker", queue="plain", taker="lake")
    ask(session, "create_group", queue="plain", group="readers")
    session.execute("create table public.goods (id integer primary key)")
    session.execute("select trunq.capture('public.goods', 'plain')")
    session.execute(
        "alter function trunq.list_queues() security definer set search_path = pg_catalog, pg_temp"
    )


def refill(session: Connection) -> dict[str, list[int]]:
    """Messages in each queue, one of them leased."""
    ids = {queue: publish(session, queue, 3) for queue in QUEUES}
    for queue in QUEUES:
        assert lease(session, queue, 1, worker="before")
    return ids


@pytest.fixture
def reader(connect: Connect) -> Iterator[str]:
    """A role of the server."""
    session = connect()
    name = f"worker_{fetch(session, 'select current_database()')}"
    session.execute(f"create role {name}".encode())
    yield name
    session.execute(f"drop owned by {name} cascade; drop role {name}".encode())


def test_each_migration_from_the_first_that_has_one_has_a_file_that_takes_it_back() -> None:
    backs = back_migrations()
    there = [each for each in migrations() if each.number >= min(backs)]
    assert {each.number: each.name for each in there} == {back.number: back.name for back in backs.values()}
    assert downgrade.lowest() >= min(backs)
    assert all(back.sql.strip() for back in backs.values())
    assert "back" not in {each.name for each in migrations()}


@pytest.mark.slow
@pytest.mark.each_version
@pytest.mark.parametrize("to", [downgrade.lowest(), *VERSIONS])
def test_a_downgrade_and_an_upgrade_leave_the_catalog_and_the_messages_as_they_were(
    database: str, connect: Connect, tmp_path: Path, reader: str, to: int
) -> None:
    session = connect()
    make_queues(session)
    ask(session, "grant_role", queue="plain", role="worker", grantee=reader)
    ask(session, "grant_role", queue="keyed", role="reader", grantee=reader)
    before, ids = catalog(session), refill(session)
    roles = call(session, "list_roles")
    done = downgrade.downgrade(database, to, tmp_path / "dropped")
    assert (done.before, done.after, install.version(database)) == (install.newest(), to, to)
    assert done == downgrade.Plan(**{name: getattr(done, name) for name in done.__slots__})
    change = install.install(database)
    assert (change.before, change.after, change.queues) == (to, install.newest(), 3)
    assert catalog(session) == before
    assert call(session, "list_roles") == roles
    for queue, published in ids.items():
        ask(session, "reclaim", queue=queue, subscription="default", worker="before")
        handled = drain(session, queue)
        come_back(session, queue)
        handled += drain(session, queue)
        assert sorted({*handled}) == sorted(published)
    while ask(session, "archive", queue="plain"):
        pass
    archived = "select count(distinct id) from trunq_archive.plain where outcome = 'success'"
    assert fetch(session, archived) == 3
    session.execute("insert into public.goods values (1)")
    assert len(lease(session, "plain").ids) == 1


NEWER = """
alter table trunq.subscription add column colour text;
alter table trunq_data._specimen_receipt add column colour text;
create table trunq.paint (queue_id integer primary key references trunq.queue, litres integer);
"""
BACK = """
drop table trunq.paint;
alter table trunq_data._specimen_receipt drop column colour;
alter table trunq.subscription drop column colour;
"""
NEWER_FUNCTIONS = """
drop function trunq.list_queues();
create function trunq.list_queues() returns table (queue text, colour text) language sql as $$ select 'q', 'red' $$;
comment on function trunq.list_queues() is 'Other columns than before.';
create or replace function trunq.paint(p_queue text) returns integer language sql as $$ select 1 $$;
comment on function trunq.paint(text) is 'A function that the older release does not know.';
create or replace function trunq.pause(p_queue text, p_subscription text, p_until timestamptz, p_for interval, p_why text default null)
returns void language sql as $$ select $$;
comment on function trunq.pause(text, text, timestamptz, interval, text) is 'Called as the older one, it would be meant as well as that.';
"""  # noqa: E501


@pytest.fixture
def newer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """A newer release, with a migration and functions of its own, until it is called."""
    number = install.newest() + 1
    backs = {**back_migrations(), number: Migration(number, f"{number:04}_paint", BACK)}
    with monkeypatch.context() as patch:
        for module in (install, downgrade):
            patch.setattr(
                module, "migrations", lambda: (*migrations(), Migration(number, backs[number].name, NEWER))
            )
        patch.setattr(downgrade, "back_migrations", lambda: backs)
        patch.setattr(
            install, "function_files", lambda: (*function_files(), ("operate/paint.sql", NEWER_FUNCTIONS))
        )
        patch.setattr(install, "_digest", lambda: "of the newer")

        yield patch.undo


@pytest.mark.slow
def test_the_older_release_goes_on_where_a_newer_one_was_taken_back(
    database: str, connect: Connect, tmp_path: Path, newer: Callable[[], None]
) -> None:
    session = connect()
    make_queues(session)
    before = catalog(session)
    assert install.install(database).after == install.newest()
    ids = refill(session)
    session.execute("update trunq.subscription set colour = 'red' where queue_id = 1")
    session.execute("insert into trunq.paint values (2, 10)")
    file = tmp_path / "dropped"
    done = downgrade.downgrade(database, install.newest() - 1, file)
    assert [(loss.table, loss.columns, loss.rows) for loss in done.losses] == [
        ("trunq.paint", (), 1),
        ("trunq.subscription", ("colour",), 2),
    ]
    newer()
    head, *lines = map(json.loads, file.read_text().splitlines())
    assert (head["before"], head["after"]) == (install.newest() + 1, install.newest())
    assert {"table": "trunq.paint", "row": {"queue_id": 2, "litres": 10}} in lines
    painted = [line["row"] for line in lines if line["table"] == "trunq.subscription"]
    assert [(set(row), row["colour"]) for row in painted] == [({"subscription_id", "colour"}, "red")] * 2
    assert file.stat().st_mode & 0o777 == 0o600

    session.execute(
        "alter table trunq_data.plain_receipt drop column colour, add constraint x check (true);"
        "alter table trunq_data.plain_receipt drop constraint x"
    )
    assert install.version(database) == install.newest(), "its own schema, and yet no functions"
    with pytest.raises(SchemaOlder, match="taken back"), Client(database) as client:
        client.list_queues()
    assert install.install(database).functions
    found = [row for row in catalog(session) if ".colour" not in row[1]]
    assert found == before
    for queue, published in ids.items():
        ask(session, "reclaim", queue=queue, subscription="default", worker="before")
        handled = drain(session, queue)
        come_back(session, queue)
        assert sorted({*handled, *drain(session, queue)}) == sorted(published)


@pytest.mark.slow
def test_nobody_publishes_past_functions_that_are_gone(
    database: str, connect: Connect, tmp_path: Path
) -> None:
    session = connect()
    make_queues(session)
    with Client(database) as running:
        running.publish("plain", 1)
        downgrade.downgrade(database, install.newest() - 1, tmp_path / "dropped")
        with pytest.raises(SchemaError):
            running.publish("plain", 1)
    for statement in (
        "select trunq.version()",
        "insert into trunq_log.plain (payload) values ('1')",
        "insert into trunq_log.keyed (payload, unique_key) values ('1', 'k')",
        "insert into public.goods values (1)",
        "delete from trunq_log.plain",
    ):
        with refused("TQ040", "trunq db upgrade", f"schema {install.newest() - 1}"):
            session.execute(statement.encode())
    with pytest.raises(SchemaOlder, match=r"taken back.*\n.*trunq db upgrade"), Client(database) as client:
        client.publish("plain", 1)
    left = (
        "select array_agg(proname::text order by 1) from pg_proc where pronamespace = 'trunq'::regnamespace"
    )
    assert {"_become_owner", "_fail", "_find_changes", "version", "_refuse_rewrite"} >= {
        *fetch(session, left)
    } - {"_reply_dead", "_send_dead", "_unpark"}


def test_a_migration_that_cannot_be_taken_back_says_why(database: str, connect: Connect) -> None:
    lowest = downgrade.lowest()
    with pytest.raises(SchemaError, match=rf"cannot be taken back.*\n.*schema {lowest} is the oldest"):
        downgrade.plan(database, lowest - 1)
    with pytest.raises(SchemaError, match="cannot go back to 9999"):
        downgrade.plan(database, 9999)
    connect().execute("comment on schema trunq_data is 'functions of another release'")
    with pytest.raises(SchemaError, match="are not those of this release"):
        downgrade.plan(database, lowest)


def test_what_is_in_the_way_is_named_and_nothing_is_changed(
    database: str,
    connect: Connect,
    tmp_path: Path,
    newer: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    del newer
    session, file = connect(), tmp_path / "dropped"
    install.install(database)
    ask(session, "create_queue", queue="plain")
    session.execute("create view public.mine as select colour from trunq.subscription")
    before = catalog(session)
    with pytest.raises(SchemaError, match=r"view .*mine"):
        downgrade.downgrade(database, install.newest() - 1, file)
    session.execute("drop view public.mine")
    monkeypatch.setattr(downgrade, "_PATIENCE", 1)
    with connect(autocommit=False) as busy:
        busy.execute("select from trunq.subscription")
        with pytest.raises(SchemaError, match="open transaction"):
            downgrade.downgrade(database, install.newest() - 1, file)
    assert catalog(session) == before
    assert not file.exists()
    file.write_text("mine")
    with pytest.raises(FileExistsError):
        downgrade.downgrade(database, install.newest() - 1, file)
    assert file.read_text() == "mine"
    assert catalog(session) == before


def test_grants_by_hand_are_kept_as_statements(
    database: str, connect: Connect, tmp_path: Path, reader: str
) -> None:
    session, file = connect(), tmp_path / "dropped"
    session.execute(f"grant execute on function trunq.list_queues() to {reader}".encode())
    session.execute("revoke execute on function trunq.list_archives() from public")
    plan = downgrade.plan(database, install.newest() - 1)
    assert plan.grants == (
        f"grant execute on function trunq.list_queues() to {reader};",
        "revoke execute on function trunq.list_archives() from public;",
    )
    downgrade.downgrade(database, install.newest() - 1, file)
    assert [json.loads(line)["statement"] for line in file.read_text().splitlines()[1:]] == [*plan.grants]
    install.install(database)
    for statement in plan.grants:
        session.execute(statement.encode())


@pytest.mark.slow
def test_a_view_of_the_users_keeps_the_function_it_needs(
    database: str, connect: Connect, tmp_path: Path
) -> None:
    session = connect()
    ask(session, "create_queue", queue="plain")
    session.execute("create view public.queues as select trunq.version() as version")
    session.execute("create view public.waiting as select id from trunq_queue.plain_messages")
    downgrade.downgrade(database, install.newest() - 1, tmp_path / "dropped")
    install.install(database)
    publish(session, "plain", 2)
    assert fetch(session, "select version from public.queues") == install.newest()
    assert fetch(session, "select count(*) from public.waiting") == 2


@pytest.mark.slow
def test_what_fell_due_waits_like_the_rest_where_due_first_is_taken_back(
    database: str, connect: Connect, tmp_path: Path
) -> None:
    session = connect()
    ask(session, "create_queue", queue="jobs")
    ask(session, "subscribe", queue="jobs", subscription="default", due_first=True)
    waiting = publish(session, "jobs", 3)
    due = publish(session, "jobs", 2, delay="1 microsecond")
    assert ask(session, "promote", queue="jobs") == 2
    held = lease(session, "jobs", 1)
    assert held.ids == due[:1]
    (number,) = [each.number for each in migrations() if each.name == "0045_due_first"]
    downgrade.downgrade(database, number - 1, tmp_path / "dropped")
    assert fetch(session, "select to_regclass('trunq.due')") is None
    install.install(database)
    (row,) = call(session, "list_subscriptions", queue="jobs")
    assert row.due_first is False
    assert drain(session, "jobs") == waiting + due[1:]
    assert ask(session, "ack", **held.named, ids=held.ids) == 1


@pytest.mark.slow
def test_what_is_set_aside_comes_back_in_the_older_release(
    database: str, connect: Connect, tmp_path: Path
) -> None:
    session = connect()
    ask(session, "create_queue", queue="plain")
    ids = publish(session, "plain", 3, kinds=["fax"])
    assert not lease(session, "plain", asks={"kinds": ["mail"]})
    numbers = [each.number for each in migrations()]
    own = next(each.number for each in migrations() if each.name.endswith("_ask"))
    downgrade.downgrade(database, numbers[numbers.index(own) - 1], tmp_path / "dropped")
    install.install(database)
    assert ask(session, "promote", queue="plain") == 3
    assert drain(session, "plain") == ids


@pytest.mark.slow
def test_a_filter_of_columns_holds_a_downgrade_up_and_the_hint_helps(
    database: str, connect: Connect, tmp_path: Path
) -> None:
    session = connect()
    ask(session, "create_queue", queue="orders")
    ask(session, "add_column", queue="orders", column="customer", type="text")
    filter = {"columns": {"customer": "acme"}}
    ask(session, "subscribe", queue="orders", subscription="some", filter=filter)
    before = install.newest()
    with pytest.raises(SchemaError, match='filter of subscription "some" of queue "orders"') as caught:
        downgrade.downgrade(database, 43, tmp_path / "dropped")
    assert "kinds, keys or headers" in str(caught.value.hint)
    assert install.version(database) == before
    ask(session, "subscribe", queue="orders", subscription="some", filter={})
    session.execute("insert into trunq_log.orders (kind, customer) values ('k', 'acme')")
    downgrade.downgrade(database, 43, tmp_path / "dropped")
    install.install(database)
    assert fetch(session, "select customer from trunq_queue.orders_messages limit 1") == "acme"
    (message,) = lease(session, "orders").messages
    assert message.options == {"columns": {"customer": "acme"}}
