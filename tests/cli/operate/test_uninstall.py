"""`trunq db uninstall` takes everything of trunq, and nothing else."""

from __future__ import annotations

from typing import Any

import psycopg

from shelling import Shell
from trunq import Client

Connection = psycopg.Connection[Any]


def schemas(connection: Connection) -> list[str]:
    query = "select nspname from pg_namespace where nspname like 'trunq%' order by 1"
    return [name for (name,) in connection.execute(query)]


def test_it_lists_what_it_drops_and_drops_it(trunq: Shell, client: Client, connection: Connection) -> None:
    client.create_queue("mail")
    client.create_queue("orders")
    client.subscribe("orders", "ledger", mode="exclusive")
    client.create_archive("orders")
    connection.execute("create table public.orders_of_mine (id integer)")
    asked = trunq("db", "uninstall")
    assert asked.status == 1
    for line in (
        "queue mail default: 0 ready, 0 leased, 0 delayed, 0 dead queue orders",
        "archive trunq_archive.orders schemas trunq, trunq_log, trunq_queue, trunq_data, trunq_archive",
        "Drop all of this? Nobody is here to answer",
    ):
        assert line in asked.said
    assert len(client.list_queues()) == 2
    done = trunq("db", "uninstall", "--yes", "--json")
    assert (done.status, done.json["queues"]) == (0, ["mail", "orders"])
    assert schemas(connection) == []
    assert connection.execute("select count(*) from public.orders_of_mine").fetchone() == (0,)
    assert "trunq db install" in trunq("db", "uninstall", "--yes").said
    assert "trunq is installed" in trunq("db", "install").said


def test_it_refuses_while_messages_wait(trunq: Shell, client: Client, connection: Connection) -> None:
    client.create_queue("mail")
    client.publish("mail", 1, delay=3600)
    refused = trunq("db", "uninstall", "--yes")
    assert refused.status == 1
    assert "1 message waits, and nothing was dropped" in refused.said
    assert client.list_messages("mail")
    assert trunq("db", "uninstall", "--yes", "--force").status == 0
    assert schemas(connection) == []


def test_it_refuses_where_others_need_it(trunq: Shell, client: Client, connection: Connection) -> None:
    client.create_queue("mail")
    connection.execute("create view public.waiting as select * from trunq.status()")
    connection.execute("create table public.of_mine (id bigint)")
    connection.execute(
        "create function public.tell() returns trigger language plpgsql as $$ begin return null; end $$"
    )
    connection.execute("create trigger mine after insert on trunq_log.mail execute function public.tell()")
    connection.execute("create table trunq_log.kept (id bigint references trunq.queue (queue_id))")
    connection.execute("create view trunq_archive.failed as select 1")
    connection.execute("alter table public.of_mine add foreign key (id) references trunq.queue (queue_id)")
    refused = trunq("db", "uninstall", "--yes")
    assert refused.status == 1
    for stranger in (
        "view public.waiting",
        "table trunq_log.kept",
        "view trunq_archive.failed",
        "table public.of_mine",
    ):
        assert f"{stranger}, which needs them" in refused.said
    assert refused.said.count("which needs them") == 4
    assert "Others need trunq, and nothing was dropped." in refused.said
    assert trunq("db", "uninstall", "--yes", "--force").status == 0
    assert schemas(connection) == []
    assert connection.execute("select count(*) from public.of_mine").fetchone() == (0,)


def test_a_queue_in_use_stops_it_and_it_goes_on_when_run_again(
    trunq: Shell, client: Client, connection: Connection
) -> None:
    client.create_queue("mail")
    client.create_queue("orders")
    with connection.transaction():
        connection.execute("select count(*) from trunq_log.orders")
        stopped = trunq("db", "uninstall", "--yes")
        assert stopped.status == 1
        assert "in use by an open transaction" in stopped.said
    assert [row.queue for row in client.list_queues()] == ["orders"]
    assert client.publish("orders", 1)
    assert trunq("db", "uninstall", "--yes", "--force").status == 0
    assert schemas(connection) == []
