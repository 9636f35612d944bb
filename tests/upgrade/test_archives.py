"""An archive that stood beside the takers goes on as one of them after an upgrade."""

from __future__ import annotations

from importlib.resources import files

import psycopg
import pytest

from conftest import Connect
from engine import Engine
from trunq import install

OLD = "3000 days"
"""Three spans on."""

OF_BEFORE = """
create table trunq.archive_policy (queue_id integer primary key references trunq.queue on delete cascade, archive_for interval);
create table trunq.archive_mark (
  queue_id integer not null references trunq.queue on delete cascade, subscription_id integer not null, subscription text not null,
  lease_id bigint not null default 0, open bigint[] not null default '{}', primary key (queue_id, subscription_id));
insert into trunq.archive_policy select queue_id, archive_for from trunq.taker where name = '(archive)';
insert into trunq.archive_mark select queue_id, subscription_id, subscription, lease_id, open from trunq.taker_mark where taker = '(archive)';
delete from trunq.taker where name = '(archive)';
alter table trunq.taker drop column archive_for, drop constraint name_is_short_and_plain,
  add constraint name_is_short_and_plain check (name ~ '^[a-z][a-z0-9_]{0,47}$');
create function trunq._write_archive(trunq.queue, trunq.archive_mark, bigint[]) returns void language sql as 'select';
create function trunq._archive(trunq.queue, integer, integer, boolean default false) returns integer language sql as 'select 0';
create function trunq._walk_leases(trunq.queue, integer, bigint, bigint[], bigint, boolean) returns integer language sql as 'select 0';
comment on schema trunq_data is 'functions of an older release';
"""  # noqa: E501
"""A policy and marks of its own, and functions that took them."""


@pytest.fixture
def work(connect: Connect) -> Engine:
    return Engine(connect(), "work").create(retention="2000 days")


def test_an_archive_of_before_goes_on_where_it_was_with_what_was_open_and_what_had_ended(
    work: Engine, database: str
) -> None:
    work.ask("create_archive", archive_for="90 days")
    work.ask("create_taker", taker="lake")
    work.ask("subscribe", subscription="mail")
    ids = work.publish(4)
    held = work.lease()
    work.ack(work.lease())
    work.ack(work.lease(3, subscription="mail"))
    work.ask("archive")
    work.ack(work.lease())
    work.ack(work.lease(subscription="mail"))
    work.ask("unsubscribe", subscription="mail")
    work.connection.execute(OF_BEFORE)
    (migration,) = (each for each in install.migrations() if each.name.endswith("_archive"))
    work.connection.execute(migration.sql.encode())
    assert install.install(database).functions
    assert work.rotate(OLD) == 0, "nothing is emptied that is not archived"
    work.ack(held)
    while work.ask("archive"):
        pass
    kept = work.run("select subscription, id from trunq_archive.{queue} order by 1, 2").fetchall()
    assert kept == [*(("default", id) for id in ids[:3]), *(("mail", id) for id in ids)]
    assert work.fetch("select archive_for = '90 days' from trunq.list_archives() where queue = 'work'")
    assert [row.taker for row in work.call("list_takers")] == ["lake"]
    work.ask("drop_taker", taker="lake")
    work.drain()
    work.ask("archive")
    assert work.rotate(OLD) > 0
    with pytest.raises(psycopg.errors.UniqueViolation):
        work.run("insert into trunq_archive.{queue} select * from trunq_archive.{queue}")


@pytest.mark.slow
def test_one_that_answers_write_goes_on_through_an_upgrade_and_is_the_leader_s_before_it(
    work: Engine, database: str
) -> None:
    work.ask("create_archive", at_once=True)
    ids = work.publish(4)
    held = work.lease(2)
    work.ack(held, ids[:1])
    work.run("comment on schema trunq_data is 'functions of an older release'")
    work.run(
        f"create or replace function trunq_data.archive_{work.queue_id}() returns trigger"
        " language plpgsql as 'begin return null; end'"
    )
    assert install.install(database).functions
    work.ack(work.lease())
    kept = "select id from trunq_archive.{queue} order by id"
    assert [id for (id,) in work.run(kept)] == [ids[0], ids[2]]
    # Back: what answers wrote of leases that the leader has yet to take, it writes again.
    number = next(each.number for each in install.migrations() if each.name.endswith("_at_once"))
    back = files("trunq") / "sql/migrations/back" / f"{number:04}_archive_at_once.sql"
    work.connection.execute(back.read_text().encode())
    assert work.run(kept).fetchall() == []
    (migration,) = (each for each in install.migrations() if each.number == number)
    work.connection.execute(migration.sql.encode())
    work.run("comment on schema trunq_data is 'functions of an older release'")
    assert install.install(database).functions
    work.ack(held, ids[1:2])
    work.ack(work.lease())
    while work.ask("archive"):
        pass
    assert [id for (id,) in work.run(kept)] == ids
