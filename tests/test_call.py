"""How the functions of the database are called, by whichever part of trunq."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from conftest import Connect
from trunq import Client, InvalidName, QueueNotFound, SchemaMissing
from trunq.connection._sync.execute import execute
from trunq.connection.address import complete
from trunq.leader import duty
from trunq.record import Duty
from trunq.wire import call
from trunq.wire.call import Call, explained
from trunq.word import VERBS


def test_a_call_names_what_is_given_and_leaves_out_the_rest() -> None:
    made = Call("list_ticks", {"queue": "orders", "from_": 3, "to": None}, ("tick_id", "snapshot"))
    assert made.statement == b"select tick_id, snapshot from trunq.list_ticks(p_queue => %s, p_from => %s)"
    assert made.values == ["orders", "3"]
    assert Call("clock", {}).statement == b"select trunq.clock()"


def test_a_verb_of_the_hot_path_is_a_function_of_the_queue() -> None:
    made = Call("ack", {"queue": "orders", "subscription": "default", "ids": "{1}"})
    assert made.statement == b"select trunq_queue.orders_ack(p_subscription => %s, p_ids => %s)"
    assert made.values == ["default", "{1}"]
    assert Call("reap", {"queue": "orders"}).statement == b"select trunq.reap(p_queue => %s)"


@pytest.mark.parametrize("name", ["Orders", 'x"; drop table y; --', "", "a" * 49, "a b"])
def test_a_name_is_checked_before_it_becomes_part_of_a_statement(name: str) -> None:
    with pytest.raises(InvalidName):
        Call("publish", {"queue": name})


@pytest.mark.parametrize("verb", sorted(VERBS))
@pytest.mark.parametrize("queue", ["nope", "publish", "next_batch", "a_publish_many"])
def test_a_queue_that_is_not_there_is_named(
    connection: psycopg.Connection[Any], verb: str, queue: str
) -> None:
    connection.execute("create schema if not exists trunq_queue")
    with pytest.raises(QueueNotFound) as caught, explained:
        execute(connection, Call(verb, {"queue": queue, "subscription": "default"}))
    # The function of the queue may be what is missing: not every queue has it.
    which = " with unique keys" if verb == "publish_unique" else ""
    assert caught.value.message == f'there is no queue "{queue}"{which}'
    assert ("trunq.convert_queue" if which else "trunq.create_queue") in (caught.value.hint or "")


def test_what_is_said_of_a_missing_queue_is_what_the_database_says(
    connection: psycopg.Connection[Any],
) -> None:
    connection.execute("create schema if not exists trunq_queue")
    said = []
    for function in ("publish", "reap"):
        with pytest.raises(QueueNotFound) as caught, explained:
            execute(connection, Call(function, {"queue": "nope"}))
        said.append(str(caught.value))
    assert said[0] == said[1]


def test_a_database_without_the_schema_of_the_queues_lacks_trunq(
    new_database: Callable[..., str], connect: Connect
) -> None:
    connection = connect(new_database("template1"))
    with pytest.raises(SchemaMissing, match="trunq db install"), explained:
        execute(connection, Call("publish", {"queue": "orders"}))


def prepared(connection: psycopg.Connection[Any]) -> list[str]:
    rows = connection.execute("select statement from pg_prepared_statements", prepare=False).fetchall()
    return [statement for (statement,) in rows]


def test_a_publish_is_prepared_at_its_first_use_unless_the_connection_prepares_nothing(
    database: str, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As in a process that begins: others have used up the room for statements prepared at once.
    monkeypatch.setattr(call, "_hot", iter(range(100)))
    call._statement.cache_clear()
    with Client(database) as client:
        client.create_queue("orders")
        plain, never = connect(), connect()
        never.prepare_threshold = None
        for connection in (plain, never):
            client.publish("orders", {"n": 1}, connection=connection)
        assert ["publish" in statement for statement in prepared(plain)] == [True]
        assert prepared(never) == []


def test_statements_beyond_those_prepared_at_once_wait_for_their_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(call, "_hot", iter(range(call.AT_ONCE - 1, 100)))
    call._statement.cache_clear()
    assert Call("publish", {"queue": "orders"}).prepare is True
    assert Call("publish", {"queue": "orders", "kind": "new"}).prepare is None
    assert Call("create_queue", {"queue": "orders"}).prepare is None


TIME_OUTS = {
    "connect_timeout": "10",
    "keepalives_idle": "20",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "50000",
}


def test_every_connection_notices_a_server_that_vanished(database: str) -> None:
    with Client(database) as client, client.transaction() as connection:
        given = connection.info.get_parameters()
    assert {name: given.get(name) for name in TIME_OUTS} == TIME_OUTS
    assert (given["client_encoding"], given["application_name"]) == ("UTF8", "trunq")


def test_an_address_keeps_what_it_says_itself() -> None:
    said = conninfo_to_dict(complete("host=h connect_timeout=3 application_name=shop", "trunq"))
    assert said == {
        **TIME_OUTS,
        "host": "h",
        "connect_timeout": "3",
        "application_name": "shop",
        "client_encoding": "UTF8",
    }
    assert conninfo_to_dict(complete("", "x" * 80))["application_name"] == "x" * 63


def test_a_duty_is_called_for_a_queue_or_for_none() -> None:
    each = Duty("reap", True, timedelta(seconds=1), 1, 4, timedelta(seconds=1), "quick")
    once = Duty("fire", False, timedelta(seconds=2), None, None, None, "quick")
    assert duty.call(each, "orders").values == ["reap", "orders"]
    assert duty.call(once, None).values == ["fire"]
    assert (duty.pause(each, 2.0), duty.pause(each, 60.0), duty.pause(once, None)) == (0.5, 1.0, 2.0)
