"""Upgrades and restores of many queues: the locks of one at a time, and on from where it was."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from calling import OUTDATED, ask, drain, fetch, lease, publish
from conftest import QUICK, Connect
from trunq import SchemaError, downgrade, embedded, install
from trunq.embedded import Embedded

Connection = psycopg.Connection[Any]

FEW_LOCKS: dict[str, Any] = {
    **QUICK,
    "max_connections": 10,
    "max_prepared_transactions": 0,
    "max_wal_senders": 0,
    "max_worker_processes": 2,
    "autovacuum_max_workers": 1,
    "autovacuum_worker_slots": 1,
    "max_locks_per_transaction": 115,
}
"""Room for some 3,100 locks in all; an install needs 1,700 of them, a queue 55, and 25 to be taken back."""

MANY = 50
"""Queues for all of whose locks such a server has no room."""

STRANGER = "update trunq.cluster set system_identifier = 1"

FUNCTIONS = """
    select p.oid::regprocedure::text, md5(pg_get_functiondef(p.oid)), p.proacl::text, obj_description(p.oid)
    from pg_proc p where p.pronamespace = 'trunq_queue'::regnamespace order by 1
"""

OWN = "select p.oid::regprocedure::text from pg_proc p where p.proname ~ '^queue_' and p.prokind = 'f'"

VERSIONS = """
  select p.proname, p.xmin from pg_proc p
  where p.pronamespace = 'trunq_queue'::regnamespace and p.proname ~ '^queue_' order by 1
"""

COLUMNS = """
    select replace(c.relname, %s, 'q'), a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull,
      a.attstorage
    from pg_class c join pg_attribute a on a.attrelid = c.oid
    where c.relname ~ ('^' || %s) and c.relkind in ('r', 'p') and a.attnum > 0 and not a.attisdropped
    order by 1, 2
"""

SIGNATURES = """
    select replace(oid::regprocedure::text, %s, 'q') from pg_proc
    where proname ~ ('^' || %s || '_') order by 1
"""


def left_over(session: Connection) -> list[str]:
    """The queues that an upgrade has yet to bring up to date."""
    left = "select q.name from trunq.outdated o join trunq.queue q using (queue_id) order by 1"
    return [name for (name,) in session.execute(left)]


@pytest.fixture(scope="module")
def crowded() -> Iterator[str]:
    """Address of a server of its own, with many queues and few locks."""
    with embedded.start(settings=FEW_LOCKS) as small:
        install.install(small.dsn)
        with psycopg.connect(small.dsn, autocommit=True) as session:
            for number in range(MANY):
                ask(session, "create_queue", queue=f"queue_{number}")
        yield small.dsn


@pytest.mark.slow
def test_an_upgrade_needs_the_locks_of_one_queue_at_a_time(crowded: str) -> None:
    told: list[tuple[str, int]] = []
    with psycopg.connect(crowded, autocommit=True) as session:
        session.execute(OUTDATED.encode())
        session.execute("drop trigger keep on trunq_log.queue_7")
        # Functions that have changed since.
        for (function,) in session.execute(OWN.encode()).fetchall():
            session.execute(f"comment on function {function} is 'of before'".encode())
        with psycopg.connect(crowded) as one:
            one.execute("select 1")
            with pytest.raises((psycopg.errors.OutOfMemory, psycopg.OperationalError), match="shared memory"):
                install.install(one)
            one.rollback()
        change = install.install(crowded, tell=lambda queue, left: told.append((queue, left)))
        assert (change.functions, change.queues) == (True, MANY)
        assert told == [(f"queue_{number}", MANY - 1 - number) for number in range(MANY)]
        assert fetch(session, "select count(*) from pg_trigger where tgname = 'keep'") == MANY
        publish(session, "queue_7")
        assert len(drain(session, "queue_7")) == 1


@pytest.mark.slow
def test_functions_that_are_right_are_left_alone(crowded: str) -> None:
    """Or each session of the server would look all its own ones up again, a thousand times."""
    with psycopg.connect(crowded, autocommit=True) as session:
        install.install(crowded)
        before = session.execute(VERSIONS.encode()).fetchall()
        session.execute(OUTDATED.encode())
        assert install.install(crowded).queues == MANY
        assert session.execute(VERSIONS.encode()).fetchall() == before


def test_adopt_gives_back_the_locks_of_each_queue(crowded: str) -> None:
    with psycopg.connect(crowded) as session:
        session.execute(STRANGER.encode())
        assert ask(session, "adopt") is True
        held = "select count(*) from pg_locks where pid = pg_backend_pid()"
        assert fetch(session, held) < 40
        session.rollback()


def test_a_rebase_of_each_queue_goes_on_where_it_was_stopped(crowded: str) -> None:
    with psycopg.connect(crowded, autocommit=True) as session:
        ids = publish(session, f"queue_{MANY - 1}", 2)
        publish(session, "queue_0", 3)
        session.execute(STRANGER.encode())
        locks = "select count(*) from pg_locks where pid = pg_backend_pid()"
        with session.transaction(force_rollback=True):
            session.execute("select trunq._rebase_next()")
            of_one = fetch(session, locks)
        with session.transaction(force_rollback=True):
            ask(session, "rebase")
            assert fetch(session, locks) > 10 * of_one
        assert "queue_0" in fetch(session, "select trunq._rebase_next()")
        with pytest.raises(psycopg.Error, match="another Postgres cluster"):
            lease(session, "queue_0")
        told: list[str] = []
        session.add_notice_handler(lambda notice: told.append(str(notice.message_primary)))
        session.execute("call trunq.rebase_each_queue()")
        assert len(told) == MANY - 1
        assert told[-1] == f'queue "queue_{MANY - 1}": 2 messages published again, 0 queues left'
        assert drain(session, f"queue_{MANY - 1}") == ids
        assert len(drain(session, "queue_0")) == 3
        assert fetch(session, "select count(*) from trunq.rebased") == 0


@pytest.mark.slow
def test_an_upgrade_that_was_killed_goes_on_where_it_was(database: str, connect: Connect) -> None:
    session = connect()
    for number in range(4):
        ask(session, "create_queue", queue=f"queue_{number}")
    ack = "trunq_queue.queue_3_ack(text,bigint,bigint,bigint[],jsonb[],real[])"
    session.execute(f"alter function {ack} set statement_timeout = '3s'".encode())
    before = session.execute(FUNCTIONS.encode()).fetchall()
    session.execute(OUTDATED.encode())

    def die(queue: str, _left: int) -> None:
        if queue == "queue_1":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        install.install(database, tell=die)
    assert left_over(session) == ["queue_2", "queue_3"]
    # Queues of before and queues of now work, and new ones are made.
    for number in range(4):
        ids = publish(session, f"queue_{number}", 2)
        assert drain(session, f"queue_{number}") == ids
    ask(session, "create_queue", queue="queue_4")
    ask(session, "drop_queue", queue="queue_2", force=True)
    assert install.install(database) == install.Change(
        install.newest(), install.newest(), functions=False, queues=1
    )
    ask(session, "drop_queue", queue="queue_4")
    after = session.execute(FUNCTIONS.encode()).fetchall()
    assert after == [row for row in before if not row[0].startswith("trunq_queue.queue_2_")]
    assert install.install(database).queues == 0


@pytest.mark.slow
def test_twenty_installers_at_once_bring_each_queue_up_to_date_once(database: str, connect: Connect) -> None:
    session = connect()
    for number in range(6):
        ask(session, "create_queue", queue=f"queue_{number}")
    session.execute(OUTDATED.encode())
    with ThreadPoolExecutor(20) as pool:
        changes = list(pool.map(install.install, [database] * 20))
    assert sum(change.functions for change in changes) == 1
    assert sum(change.queues for change in changes) == 6
    assert fetch(session, "select count(*) from trunq.outdated") == 0


def test_a_queue_in_use_holds_up_none_of_the_others(
    database: str, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, publisher = connect(), connect(autocommit=False)
    for queue in ("one", "two"):
        ask(session, "create_queue", queue=queue)
        session.execute(f"drop trigger keep on trunq_log.{queue}".encode())
    definition = fetch(session, "select pg_get_functiondef('trunq._refresh_next()'::regprocedure)")
    impatient = ("impatient.sql", definition.replace("15 seconds", "1 second"))
    files = (*install.function_files(), impatient)
    monkeypatch.setattr(install, "function_files", lambda: files)
    session.execute(OUTDATED.encode())
    publish(publisher, "one")
    with pytest.raises(SchemaError, match='queue "one"') as caught:
        install.install(database)
    assert "pg_stat_activity" in str(caught.value.hint)
    assert left_over(session) == ["one"]
    publisher.commit()
    assert install.install(database).queues == 1
    with pytest.raises(psycopg.Error, match=r"trunq_log\.one are neither changed nor deleted"):
        session.execute("delete from trunq_log.one")


@pytest.mark.slow
def test_a_queue_of_an_older_release_gets_the_columns_and_functions_of_now(
    database: str, connect: Connect
) -> None:
    session = connect()
    ask(session, "create_queue", queue="aged", lanes="key", unique="refuse")
    ask(session, "create_queue", queue="fresh", lanes="key", unique="refuse")
    session.execute("drop view trunq_queue.aged_messages")
    session.execute("alter table trunq_data.aged_lease drop column awaited, drop column tokens")
    session.execute("drop function trunq_queue.aged_next_batch, trunq_queue.aged_wake cascade")
    old = "trunq_queue.aged_next_batch(p_subscription text) returns text language sql as $$ select 'old' $$"
    session.execute(f"create function {old}".encode())
    session.execute(OUTDATED.encode())
    assert install.install(database).queues == 2
    for query in (COLUMNS, SIGNATURES):
        aged, fresh = (session.execute(query.encode(), (name, name)).fetchall() for name in ("aged", "fresh"))
        assert aged == fresh
    ids = publish(session, "aged", 2)
    assert drain(session, "aged") == ids


@pytest.mark.slow
def test_the_script_takes_a_queue_a_transaction_too(
    server: Embedded, database: str, connect: Connect
) -> None:
    session = connect()
    for number in range(3):
        ask(session, "create_queue", queue=f"queue_{number}")
    session.execute(OUTDATED.encode())
    command = [
        server.binaries / "psql",
        "--quiet",
        "--no-psqlrc",
        "--set=ON_ERROR_STOP=1",
        f"--dbname={database}",
    ]
    script = install.render(since=install.newest())
    done = subprocess.run(command, input=script, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert fetch(session, "select count(*) from trunq.outdated") == 0
    assert install.install(database) == install.Change(install.newest(), install.newest(), functions=False)
    assert script.index("\ncommit;") < script.index("call trunq._refresh_each()")


def test_queues_that_are_written_to_come_last(connect: Connect) -> None:
    """Each may cost the whole wait, its publishers too: tried before each of the others, hours."""
    session, publisher = connect(), connect(autocommit=False)
    definition = fetch(session, "select pg_get_functiondef('trunq._refresh_queue(integer)'::regprocedure)")
    telling = definition.replace(
        "\nbegin\n", "\nbegin\n  raise notice '%', (trunq._find_queue(p_queue_id)).name;\n", 1
    )
    session.execute(telling.encode())
    for queue in ("one", "two", "three"):
        ask(session, "create_queue", queue=queue)
        session.execute(f"drop trigger keep on trunq_log.{queue}".encode())
    session.execute("select trunq._outdate_queues('[]')")
    publish(publisher, "one")
    publish(publisher, "two")
    tried: list[str] = []
    session.add_notice_handler(lambda notice: tried.append(str(notice.message_primary)))
    assert fetch(session, "select trunq._refresh_next()") == "three"
    assert tried == ["three"]
    publisher.commit()
    assert fetch(session, "select trunq._refresh_next()") == "one"


def test_many_queues_in_use_are_waited_for_as_long_as_one(connect: Connect) -> None:
    session, publisher = connect(), connect(autocommit=False)
    definition = fetch(session, "select pg_get_functiondef('trunq._refresh_next()'::regprocedure)")
    session.execute(definition.replace("'15 seconds'", "'0'").encode())
    queues = [f"queue_{number}" for number in range(4)]
    for queue in queues:
        ask(session, "create_queue", queue=queue)
        session.execute(f"drop trigger keep on trunq_log.{queue}".encode())
        publish(publisher, queue)
    session.execute("select trunq._outdate_queues('[]')")
    session.execute("set statement_timeout = '30s'")
    with pytest.raises(psycopg.Error, match="cannot be brought up to date"):
        session.execute("select trunq._refresh_next()")


@pytest.mark.slow
def test_a_downgrade_needs_the_locks_of_functions_alone(crowded: str) -> None:
    to = downgrade.lowest()
    assert downgrade.plan(crowded, to).after == to
