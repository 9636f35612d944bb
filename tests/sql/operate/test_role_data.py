"""What each role gets to see, cell by cell, of two queues full of secrets: functions/operate/role.sql."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from calling import answer, ask, call, lease
from conftest import Connect
from granting import MAY, granting, make_shop

Connection = psycopg.Connection[Any]
Shop = tuple[Connection, dict[str, dict[str, Any]]]

SECRET = ("payload", "headers", "body", "result")
"""What only a role that may see payloads sees, of its own queue; of another queue nobody sees anything."""

SEES: dict[str, dict[str, set[str]]] = {
    "publisher": {},
    "worker": {
        "lease": {"payload", "headers", "body"},
        "read_batch": {"payload", "headers", "body"},
        "read_on": {"payload", "headers", "body"},
        "next_batch": set(),
    },
    "reader": {},
    "reader with payloads": {
        "list_messages": {"payload", "headers", "result"},
        "show_message": {"payload", "headers"},
        "list_dead": {"payload", "headers"},
        "list_replies": {"result"},
        "read_on": {"payload", "headers", "body"},
    },
    "admin": {},
}
"""What of its own queue's secrets each role is shown, by the functions that show any."""


def fill(session: Connection, queue: str) -> dict[str, Any]:
    """A message in every state, with secrets; gives what calls about them need, by function."""

    def put(word: str, **more: Any) -> int:
        secrets = {"payload": {"is": f"{queue}-payload {word}"}, "headers": {"is": f"{queue}-headers"}}
        return int(
            ask(session, "publish", queue=queue, key=word, body=f"{queue}-body".encode(), **secrets, **more)
        )

    dead, done, late = put("dead"), put("done", options={"awaited": 3600}), put("late", delay="1 hour")
    held = lease(session, queue, 100)
    for id in held.ids:
        if id == done:
            answer(session, "ack", held, [id], results=[Jsonb({"is": f"{queue}-result"})])
        elif id == dead:
            answer(session, "reject", held, [id], errors=[f"{queue}-error"])
        else:
            answer(session, "ack", held, [id])
    put("running")
    running = lease(session, queue, 1)
    (id,) = running.ids
    named = {"subscription": "default", "lease_id": running.lease_id, "token": running.token}
    ask(
        session,
        "set_progress",
        queue=queue,
        id=id,
        note=f"{queue}-note",
        checkpoint={"a": 1},
        **named,
    )
    put("waiting")
    ask(session, "set_memo", scope=f"{queue}:one", name="n", value=Jsonb(f"{queue}-memo"))
    ask(session, "tick", queue=queue, force=True)
    rows: list[Any] = []
    while not rows:
        (batch,) = call(session, "next_batch", queue=queue, subscription="stream", worker="w")
        opened = {"subscription": "stream", "batch_id": batch.batch_id}
        if not (rows := call(session, "read_batch", queue=queue, **opened)):
            ask(session, "finish_batch", queue=queue, **opened, token=batch.token)
    return {
        "show_message": {"id": dead},
        "show_public": {"id": dead},
        "cancel": {"ids": [late]},
        "list_replies": {"ids": [done]},
        "read_batch": opened,
        "show_batch": opened,
        "finish_batch": {**opened, "token": batch.token},
        "retry_batch": {**opened, "token": batch.token},
        "fail_batch": {**opened, "token": batch.token},
        "list_fates": {"subscription": "default", "ids": [dead, done, late]},
        "ack": {**named, "ids": [id]},
        "extend": named,
        "show_checkpoint": {"id": id},
    }


@pytest.fixture
def shop(connection: Connection) -> Shop:
    made = make_shop(connection)
    return made, {queue: fill(made, queue) for queue in ("mine", "other")}


@pytest.fixture
def grant(shop: Shop, connect: Connect) -> Iterator[Callable[..., Connection]]:
    with granting(shop[0], connect) as give:
        yield give


def told(session: Connection, function: str, arguments: dict[str, Any]) -> str:
    """All that a call says, undone: its rows, or its error."""
    with session.transaction(force_rollback=True):
        try:
            return str(call(session, function, **arguments))
        except psycopg.Error as error:
            return f"{error} {error.diag.message_hint} {error.diag.message_detail}"


@pytest.mark.parametrize("role", SEES)
def test_each_role_is_shown_the_secrets_that_are_its_own_and_no_others(
    shop: Shop, grant: Callable[..., Connection], role: str
) -> None:
    owner, given = shop
    name, _, payload = role.partition(" with ")
    session = grant(name, payload=bool(payload))
    takes_queue = {
        found
        for (found,) in owner.execute(
            "select p.proname from pg_proc p where p.pronamespace = 'trunq'::regnamespace"
            " and 'p_queue' = any (p.proargnames)"
        )
    }
    shown: dict[str, set[str]] = {}
    for function, (_, arguments) in MAY.items():
        for queue in ("mine", "other", None):
            named = {**arguments, **given[queue or "mine"].get(function, {})}
            if "scope" in named:
                named["scope"] = f"{queue}:one"
            elif queue is not None and function in takes_queue:
                named.setdefault("queue", queue)
            said = told(session, function, named)
            assert not [word for word in (*SECRET, "error", "note", "memo") if f"other-{word}" in said], (
                function,
                queue,
                said,
            )
            if seen := {word for word in SECRET if f"mine-{word}" in said}:
                shown.setdefault(function, set()).update(seen)
    assert shown == {function: seen for function, seen in SEES[role].items() if seen}


@pytest.mark.parametrize("role", SEES)
def test_no_table_view_or_door_shows_more(shop: Shop, grant: Callable[..., Connection], role: str) -> None:
    """Column by column of all that stands in our schemas, and each door by itself."""
    owner, _ = shop
    name, _, payload = role.partition(" with ")
    session = grant(name, payload=bool(payload))
    columns = owner.execute(
        "select format('%I.%I', n.nspname, c.relname), quote_ident(a.attname) from pg_attribute a"
        " join pg_class c on c.oid = a.attrelid join pg_namespace n on n.oid = c.relnamespace"
        " where n.nspname ~ '^trunq' and c.relkind in ('r', 'p', 'v') and a.attnum > 0 and not a.attisdropped"
    ).fetchall()
    seen = set()
    for table, column in columns:
        try:
            said = str(session.execute(f"select {column}::text from {table}".encode()).fetchall())
        except psycopg.errors.InsufficientPrivilege:
            continue
        assert "other-" not in said, (table, column)
        seen |= {
            (table, word)
            for word in SECRET
            if f"mine-{word}" in said or (word, "6d696e652d") == (column, said)
        }
    own = {"trunq_log.mine", "trunq_queue.mine_messages"}
    assert {table for table, _ in seen} == (own if payload else set())
    for door in ("work", "read", "read_payload", "administer"):
        for function in ("list_messages", "list_dead", "show_message", "list_replies"):
            for queue in ("mine", "other"):
                called = f"trunq_queue.{queue}_{door}('{function}', array['p_id', '1', 'p_ids', '{{1}}'])"
                with session.transaction(force_rollback=True), pytest.raises(psycopg.Error) as refusal:
                    session.execute(f"select * from {called} t(a text)".encode())
                assert "-payload" not in str(refusal.value)
