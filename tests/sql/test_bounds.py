"""Whatever a parameter is given, a function works or says what is wrong: no error of its own insides."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import psycopg
import pytest

from calling import answer, ask, call, lease, new_names, publish, refused
from conftest import Connect

Connection = psycopg.Connection[Any]

LONG: Final = "repeat('x', 10000)"
ODD: Final = "E'a\"b''c;%s\\\\ \\n\\u00e9'"

TIMES: Final = ("'infinity'", "'-infinity'", "'200000-01-01'", "'4713-01-01 BC'", "'1970-01-01'")

EDGES: Final[dict[str, tuple[str, ...]]] = {
    "text": ("''", "'default'", "'1'", LONG, ODD),
    "integer": ("0", "-1", "2147483647", "-2147483648"),
    "smallint": ("0", "-1", "32767", "-32768"),
    "bigint": ("0", "-1", "9223372036854775807", "-9223372036854775808"),
    "real": ("0", "-1", "'NaN'", "'Infinity'", "'-Infinity'", "1e-37", "3e38"),
    "double precision": ("0", "-1", "'NaN'", "'Infinity'", "'-Infinity'", "1e-13", "1e-300", "1e300"),
    "boolean": ("true", "false"),
    "interval": (
        "'0'",
        "'-1 second'",
        "'1 microsecond'",
        "'178000000 years'",
        "'-178000000 years'",
        "'1 month'",
    ),
    "timestamp with time zone": TIMES,
    "jsonb": ("'null'", "'{}'", "'[]'", "'\"x\"'", "'1e400'", "'{\"a\": null}'", f"to_jsonb({LONG})"),
    "bytea": ("''", "'\\x00ff'", f"{LONG}::bytea"),
    "xid8": ("'0'", "'18446744073709551615'"),
}

OF_ARRAYS: Final = ("'{}'", "'{null}'", "array[array[@, @], array[@, @]]", "'[0:1]={null,null}'")

ALLOWED: Final = ("TQ", "23")
"""Errors of ours; and what a constraint does not let in, by its name."""

LEFT_OUT: Final = {"adopt", "rebase", "elect", "resign", "drop_queue", "empty_queue", "perform_duties"}
"""These need none of it, or change what the others are called for."""

PARAMETERS: Final = """
    select p.proname, p.proargnames[:p.pronargs], p.pronargdefaults, array(
      select format_type(u.type, null) from unnest(p.proargtypes::oid[])
      with ordinality u(type, at) order by at)
    from pg_proc p
    where p.pronamespace = 'trunq'::regnamespace and p.prokind = 'f' and p.proname !~ '^_' order by 1
"""

BASE: Final = {
    "text": "'x'", "integer": "1", "smallint": "1", "bigint": "1", "real": "0.5", "double precision": "0.5",
    "boolean": "false", "interval": "'1 minute'", "timestamp with time zone": "now()", "jsonb": "'{}'",
    "bytea": "'x'", "xid8": "'1'",
}  # fmt: skip


@dataclass(frozen=True)
class Function:
    """A public function: its parameters' types by name, and how many of them have defaults."""

    name: str
    types: dict[str, str]
    optional: int

    def base(self, known: dict[str, str]) -> dict[str, str]:
        """Something sensible for each parameter that has no default."""
        needed = list(self.types)[: len(self.types) - self.optional]
        return {name: known.get(name) or something(self.types[name]) for name in needed} | {
            name: known[name] for name in self.types if name in ("p_queue", "p_subscription")
        }

    def calls(self, known: dict[str, str]) -> Iterator[str]:
        """Calls of it: as it is meant to be, and with one parameter at an edge, each in turn."""
        base = self.base(known)
        yield self.call(base)
        for name, type in self.types.items():
            for edge in ("null", *edges(type)):
                yield self.call({**base, name: edge})

    def call(self, given: dict[str, str]) -> str:
        named = ", ".join(f"{name} => ({value})::{self.types[name]}" for name, value in given.items())
        return f"select * from trunq.{self.name}({named})"


def something(type: str) -> str:
    return f"array[{BASE[type[:-2]]}]" if type.endswith("[]") else BASE.get(type, "null")


def edges(type: str) -> tuple[str, ...]:
    if type.endswith("[]"):
        of = EDGES[type[:-2]]
        return (*(f"array[{edge}]" for edge in of[:3]), *(each.replace("@", of[0]) for each in OF_ARRAYS))
    return EDGES.get(type, ())


def known(connection: Connection, queue: str, subscription: str) -> dict[str, str]:
    """Arguments that name what is there."""
    ask(connection, "open_queue", queue=queue)
    ask(connection, "resume_queue", queue=queue)
    ask(connection, "set_publishing", queue=queue, kinds=[], max_waiting=0, max_per_transaction=-1)
    ask(connection, "subscribe", queue=queue, subscription="default", rate=0, max_running=0, filter={})
    ask(connection, "resume_subscription", queue=queue, subscription="default")
    publish(connection, queue)
    held = lease(connection, queue)
    named = {"p_lease_id": held.lease_id, "p_token": held.token} if held else {}
    return {
        "p_queue": f"'{queue}'",
        "p_subscription": f"'{subscription}'",
        "p_group": "'readers'",
        "p_id": str(held.ids[0]) if held else "1",
        "p_ids": f"array[{held.ids[0]}]" if held else "array[1]",
        "p_worker": "'w'",
        "p_mode": "'shared'",
        "p_schedule": "'often'",
        "p_pipeline": "'moves'",
        "p_webhook": "'hook'",
        **{name: str(value) for name, value in named.items()},
    }


@pytest.fixture
def system(connect: Connect) -> Connection:
    """A database with queues of each kind, and one that nobody harms."""
    connection = connect()
    connection.execute("set statement_timeout = '10s'; set client_min_messages = error")
    ask(connection, "create_queue", queue="healthy")
    for queue, options in {"plain": {}, "laned": {"lanes": "key"}, "keyed": {"unique": "replace"}}.items():
        ask(connection, "create_queue", queue=queue, **options)
        ask(connection, "subscribe", queue=queue, subscription="stream", mode="exclusive")
    ask(connection, "create_group", queue="plain", group="readers")
    ask(connection, "create_schedule", schedule="often", queue="plain", every="1 hour")
    return connection


def is_well(connection: Connection) -> None:
    """What everybody needs works, for the queues that were called and for one that was not."""
    ids = publish(connection, "healthy", 2)
    held = lease(connection, "healthy", 9)
    assert held.ids == ids
    assert answer(connection, "ack", held) == 2
    call(connection, "list_warnings")
    call(connection, "list_queues")
    for queue in ("healthy", "plain", "laned", "keyed"):
        ask(connection, "subscribe", queue=queue, subscription="default")
        call(connection, "status", queue=queue)
        call(connection, "list_messages", queue=queue)
        call(connection, "list_subscriptions", queue=queue)


def test_every_parameter_of_every_function_may_be_given_its_edges(system: Connection) -> None:
    functions = [
        Function(name, dict(zip(names or [], types, strict=True)), optional)
        for name, names, optional, types in system.execute(PARAMETERS.encode()).fetchall()
        if name not in LEFT_OUT
    ]
    assert len(functions) > 100
    called = 0
    wrong: list[str] = []
    for function in functions:
        queues = ("plain", "laned", "keyed") if is_of_kinds(function) else ("plain",)
        subscriptions = ("default", "stream") if "p_subscription" in function.types else ("default",)
        for queue in queues if "p_queue" in function.types else ("plain",):
            for subscription in subscriptions:
                for statement in function.calls(known(system, queue, subscription)):
                    called += 1
                    if said := fault(system, statement):
                        wrong.append(f"{said}: {statement[:300]}")
        try:
            is_well(system)
        except Exception as error:
            wrong.append(f"after {function.name}: {error!r}"[:300])
            break
    assert called > 2000
    assert wrong == [], "\n".join(wrong)


def is_of_kinds(function: Function) -> bool:
    """Whether queues of all kinds have something to say about it."""
    return any(word in function.name for word in ("publish", "lease", "lane", "list_messages"))


def fault(connection: Connection, statement: str) -> str | None:
    """What a call says that it should not."""
    try:
        connection.execute(statement.encode()).fetchall()
    except psycopg.Error as error:
        if not (error.sqlstate or "none").startswith(ALLOWED) or error.diag.message_primary is None:
            return f"{error.sqlstate} {error.diag.message_primary or error}"
    return None


@pytest.mark.parametrize("created_at", ["infinity", "-infinity", "200000-01-01", "4713-01-01 BC"])
def test_an_insert_says_no_time_that_nobody_could_read(
    session: Connection, queue: str, created_at: str
) -> None:
    insert = f"insert into trunq_log.{queue} (payload, created_at) values ('1', '{created_at}')"
    with refused("TQ005", "created at", "leave created_at out"):
        session.execute(insert.encode())
    assert publish(session, queue) == lease(session, queue, 9).ids


def test_an_insert_takes_no_option_that_publish_refuses(session: Connection, queue: str) -> None:
    options = ('{"checkpoint": true}', '{"awaited": "x"}', '{"time_out": 0}', '{"x": 1}', "[]")
    for option in options:
        for statement in (
            f"insert into trunq_log.{queue} (payload, options) values ('1', '{option}')",
            f"select trunq.publish('{queue}', '1', p_options => '{option}')",
        ):
            with pytest.raises(psycopg.Error) as caught:
                session.execute(statement.encode())
            assert caught.value.sqlstate in ("TQ005", "23514"), statement
    assert not lease(session, queue)


@pytest.mark.parametrize(
    "column", ["created_at", "options"], ids=["a time that nobody could read", "a checkpoint"]
)
def test_an_insert_with_a_due_time_is_refused_what_one_without_is(
    session: Connection, queue: str, column: str
) -> None:
    """Else promotion, which inserts it later, would fail with all that is due beside it."""
    bad = {"created_at": "infinity", "options": '{"checkpoint": true}'}[column]
    insert = f"insert into trunq_log.{queue} (payload, due_at, {column}) values ('1', now(), '{bad}')"
    with refused("TQ005", "a message"):
        session.execute(insert.encode())
    session.execute(f"insert into trunq_log.{queue} (payload, due_at) values ('1', now())".encode())
    assert ask(session, "promote", queue=queue) == 1
    assert len(lease(session, queue, 9).ids) == 1


def test_a_handler_goes_on_from_its_checkpoint_all_the_same(session: Connection, queue: str) -> None:
    (id,) = publish(session, queue)
    held = lease(session, queue)
    ask(session, "set_progress", **held.named, id=id, checkpoint={"at": 1})
    answer(session, "retry", held, delays=["0"])
    (message,) = lease(session, queue).messages
    assert message.options == {"checkpoint": True}


def test_a_rate_or_a_pause_that_nothing_could_be_added_to_is_refused(session: Connection) -> None:
    laned = next(new_names("laned"))
    ask(session, "create_queue", queue=laned, lanes="key")
    for rate in (1e-13, 1e-300, float("nan"), float("inf")):
        with refused("TQ005", "rate of a lane", "twelve days"):
            ask(session, "set_lane", queue=laned, lane="a", rate=rate)
        with refused("TQ005", "rate of a lane"):
            ask(session, "set_lanes", queue=laned, rate=rate)
        with refused("TQ005", "rate of subscription"):
            ask(session, "subscribe", queue=laned, subscription="default", rate=rate)
    for function, more in {
        "pause_queue": {},
        "pause_lane": {"lane": "a"},
        "pause_subscription": {"subscription": "default"},
    }.items():
        with refused("TQ005", "year 9999", "until it is resumed"):
            ask(session, function, queue=laned, until="200000-01-01", **more)
    ask(session, "set_lane", queue=laned, lane="a", rate=0.000001)
    ids = publish(session, laned, 3, keys=["a", "a", "b"])
    assert lease(session, laned, 9).ids == [ids[0], ids[2]]
    assert not lease(session, laned, 9)
    publish(session, laned, keys=["c"])
    assert len(lease(session, laned, 9).ids) == 1


def test_arrays_of_two_dimensions_are_refused_where_each_message_has_its_own(session: Connection) -> None:
    keyed = next(new_names("keyed"))
    ask(session, "create_queue", queue=keyed, unique="refuse")
    given = "array[array['1', '2'], array['3', '4']]::jsonb[], array[array['a', 'b'], array['c', 'd']]"
    with refused("TQ005", "one dimension", "one key for each message"):
        session.execute(f"select * from trunq.publish_many_unique('{keyed}', {given})".encode())
    assert not lease(session, keyed)


def test_a_delay_that_is_over_before_it_begins_is_refused(session: Connection, queue: str) -> None:
    with refused("TQ005", "now + -00:00:05", "0 to 1000 years"):
        ask(session, "publish", queue=queue, payload={}, delay="-5 seconds")
    with refused("TQ005", "10000000", "draw them in parts"):
        ask(session, "draw_ids", queue=queue, count=2147483647)
