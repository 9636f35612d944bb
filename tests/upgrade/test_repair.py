"""`trunq db upgrade --repair`: what queues lack is put back, and publishers go on meanwhile."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from calling import ask, call, drain, fetch, publish
from conftest import Connect
from trunq import SchemaError, repair
from trunq.record import Defect
from waiting import wait_until

DROPS = """
drop index trunq_log.plain_txid_id_idx, trunq_log.plain_id_idx, trunq_log.laned_priority_coalesce_txid_id_idx, trunq_data.laned_freed_id_idx;
alter table trunq_data.laned_unique drop constraint laned_unique_pkey;
alter table trunq_archive.plain drop constraint plain_pkey;
drop trigger wake on trunq_log.plain;
alter table trunq_log.plain detach partition trunq_data.plain_log_2;
alter table trunq_log.laned alter segment set default 0;
"""  # noqa: E501


@pytest.fixture
def session(connect: Connect) -> psycopg.Connection[tuple[object, ...]]:
    opened = connect()
    ask(opened, "create_queue", queue="plain")
    ask(opened, "create_queue", queue="laned", lanes="key", unique="refuse")
    ask(opened, "create_archive", queue="plain")
    return opened


def test_all_that_queues_lack_is_put_back_and_nothing_is_done_twice(
    session: psycopg.Connection[tuple[object, ...]], database: str
) -> None:
    ids = publish(session, "plain", 10)
    assert repair.mend(database) == []
    session.execute(DROPS.encode())
    told: list[Defect] = []
    done = repair.mend(database, told.append)
    assert (len(done), told) == (9, done)
    assert call(session, "list_defects") == []
    assert repair.mend(database) == []
    assert drain(session, "plain") == ids
    owners = "select count(distinct relowner) from pg_class where relname ~ '^plain'"
    assert fetch(session, owners) == 1


def test_an_index_comes_back_beside_an_open_publisher_who_may_go_on(
    session: psycopg.Connection[tuple[object, ...]], database: str, connect: Connect
) -> None:
    session.execute("drop index trunq_log.plain_txid_id_idx")
    publisher = connect(autocommit=False)
    with ThreadPoolExecutor(1) as pool:
        publisher.execute("select trunq.publish('plain', '1')")
        mending = pool.submit(repair.mend, database)
        waits = (
            "select count(*) from pg_stat_activity where application_name = 'trunq repair'"
            " and wait_event_type = 'Lock'"
        )
        wait_until(lambda: fetch(session, waits) == 1)
        # While it waits for this transaction, it and others publish.
        publisher.execute("select trunq.publish('plain', '2')")
        publish(session, "plain")
        publisher.commit()
        assert [defect.kind for defect in mending.result(60)] == ["index"]
    assert len(drain(session, "plain")) == 3
    assert call(session, "list_defects") == []


def test_a_repair_that_was_stopped_goes_on_where_it_was(
    session: psycopg.Connection[tuple[object, ...]], database: str
) -> None:
    session.execute("drop index trunq_log.plain_txid_id_idx")
    session.execute("create index half on only trunq_log.plain (txid, id)")
    session.execute("create index part on trunq_data.plain_log_1 (txid, id)")
    session.execute("alter index trunq_log.half attach partition trunq_data.part")
    session.execute("create index broken on trunq_data.plain_log_2 (txid, id)")
    session.execute("update pg_index set indisvalid = false where indexrelid = 'trunq_data.broken'::regclass")
    assert len(repair.mend(database)) == 1
    assert call(session, "list_defects") == []
    named = "select to_regclass('trunq_data.broken') is null and to_regclass('trunq_log.half') is not null"
    assert fetch(session, named)
    whole = "select count(*) from pg_inherits where inhparent = 'trunq_log.half'::regclass"
    assert fetch(session, whole) == 4


def test_what_stands_in_the_way_is_named(
    session: psycopg.Connection[tuple[object, ...]],
    database: str,
    connect: Connect,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session.execute("drop trigger wake on trunq_log.plain")
    monkeypatch.setattr(repair, "_PATIENCE", 2)
    publisher = connect(autocommit=False)
    publisher.execute("insert into trunq_log.plain (payload) values ('1')")
    with pytest.raises(SchemaError, match=r"no trigger wake, and an open transaction"):
        repair.mend(database)
    publisher.rollback()
    assert len(repair.mend(database)) == 1
    session.execute("alter table trunq_data.laned_unique drop constraint laned_unique_pkey")
    row = "insert into trunq_data.laned_unique values (1, 1, 1, null, 'd', 'k')"
    session.execute(f"{row}; {row}".encode())
    with pytest.raises(SchemaError, match=r"no unique index .* cannot be repaired"):
        repair.mend(database)
