"""Columns of the user's own: in what readers get, in filters, in the view; kept wherever a message goes."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from calling import answer, ask, lease, move_clock, refused
from conftest import Connect
from engine import Engine
from streaming import LAKE, read, take
from widening import FORMS, GIVEN, put, told, widen

Connection = psycopg.Connection[Any]


@pytest.fixture(params=FORMS)
def wide(request: pytest.FixtureRequest, connect: Connect) -> Engine:
    """A queue with columns of the user's, of each form; time is UTC."""
    session = connect()
    session.execute("set time zone 'UTC'")
    ask(session, "create_queue", queue="wide", **FORMS[request.param])
    widen(session, "wide")
    return Engine(session, "wide")


@pytest.fixture
def plain(connect: Connect) -> Engine:
    session = connect()
    ask(session, "create_queue", queue="wide")
    return Engine(session, "wide")


WAYS = [
    "first",
    "at once",
    "delayed",
    "released",
    "expired",
    "dead and requeued",
    "published for later",
    "by id",
]


def test_a_lease_tells_the_columns_of_a_message_whatever_it_went_through(wide: Engine) -> None:
    for n, way in enumerate(WAYS):
        move_clock(wide.connection, f"{n} minutes")
        # Lanes say what comes next.
        if way != "by id" or not wide.fetch("select lanes from trunq.queue"):
            go(wide, way, n)


def go(wide: Engine, way: str, n: int) -> None:
    """Have two messages go that way."""
    session = wide.connection
    later = {"delay": "1 ms"} if way == "published for later" else {}
    id = put(session, "wide", **later)
    nothing = put(session, "wide", {}, **later)
    if later:
        move_clock(session, f"{n} minutes 10 seconds")
        wide.ask("promote")
    held = wide.lease(10) if way != "by id" else wide.take(id, nothing)
    assert {each.id: told(each) for each in held.messages} == {id: GIVEN, nothing: dict.fromkeys(GIVEN)}
    if way in ("at once", "delayed"):
        wide.answer("retry", held, delays=["0" if way == "at once" else "1 ms"] * 2)
    elif way == "released":
        wide.answer("release", held)
    elif way == "expired":
        ask(session, "extend", **held.named, lease_time="0")
        wide.ask("reap")
    elif way == "dead and requeued":
        wide.answer("reject", held)
        assert wide.ask("requeue") == 2
    else:
        wide.ack(held)
        return
    move_clock(session, f"{n} minutes 20 seconds")
    wide.ask("promote")
    again = wide.lease(10)
    wide.ack(again)
    assert {each.id: told(each) for each in again.messages} == {id: GIVEN, nothing: dict.fromkeys(GIVEN)}
    assert {each.attempt for each in again.messages} <= {1, 2}


def test_a_lease_of_one_message_tells_them_too(wide: Engine) -> None:
    put(wide.connection, "wide", {"customer": "acme"}, max_age="1 day")
    (message,) = wide.lease(1).messages
    assert told(message)["customer"] == "acme"
    assert "expires_at" in message.options


def test_messages_that_are_sorted_out_leave_the_others_theirs(wide: Engine) -> None:
    put(wide.connection, "wide", {"customer": "old"}, max_age="1 second")
    id = put(wide.connection, "wide", {"customer": "new"})
    move_clock(wide.connection, "1 minute")
    held = wide.lease(10)
    assert [(each.id, told(each)["customer"]) for each in held.messages] == [(id, "new")]


def test_batches_have_the_columns_page_by_page_and_whole(wide: Engine) -> None:
    session = wide.connection
    wide.ask("subscribe", **LAKE, mode="exclusive")
    ids = [put(session, "wide", {"customer": str(n)}, priority=0) for n in range(3)]
    wide.ask("tick", force=True)
    batch = take(wide)
    for rows in (read(wide, batch), read(wide, batch, limit=2) + read(wide, batch)[2:]):
        assert [(row.id, row.columns["customer"]) for row in rows] == [
            (id, str(n)) for n, id in enumerate(ids)
        ]
        assert set(rows[0].columns) == set(GIVEN)
    (page,) = read(wide, batch, limit=1)
    assert page.columns["total"] is None


def test_a_batch_longer_than_a_page_has_them_to_its_end(plain: Engine) -> None:
    plain.ask("add_column", column="n", type="integer")
    plain.ask("subscribe", **LAKE, mode="exclusive")
    plain.run("insert into {log} (kind, n) select 'k', n from generate_series(1, 700) n")
    plain.ask("tick", force=True)
    assert [row.columns for row in read(plain, take(plain))] == [{"n": n} for n in range(1, 701)]


def test_queues_without_such_columns_have_none(plain: Engine) -> None:
    plain.ask("subscribe", **LAKE, mode="exclusive")
    plain.publish(kinds=["k"])
    plain.ask("tick", force=True)
    (row,) = read(plain, take(plain))
    assert row.columns is None
    (message,) = plain.lease().messages
    assert message.options is None
    assert plain.call("list_columns") == []


def test_the_functions_of_a_queue_without_columns_say_nothing_of_them(plain: Engine) -> None:
    """Postgres puts the expression in the place of the call: a plan that names no function."""
    before = functions(plain)
    assert before["told_options"] == " select p_row.options::jsonb "
    assert before["sifted"] == " select p_headers "
    walk = "explain (verbose) select w.* from trunq_queue.wide_walk('1', 0, pg_current_snapshot()) w"
    shown = "\n".join(row[0] for row in plain.run(walk).fetchall())
    assert "told_options" not in shown
    assert "jsonb_build_object" not in shown
    plain.ask("add_column", column="customer", type="text")
    assert {name for name, text in functions(plain).items() if text != before[name]} == {
        "told_options",
        "sifted",
    }
    plain.ask("drop_column", column="customer")
    assert functions(plain) == before


def functions(engine: Engine) -> dict[str, str]:
    query = (
        "select substr(proname, 6), prosrc from pg_proc where pronamespace = 'trunq_queue'::regnamespace"
        " and proname like 'wide\\_%'"
    )
    return dict(engine.run(query).fetchall())


def test_publishers_give_some_and_the_others_have_their_defaults(plain: Engine) -> None:
    widen(plain.connection, "wide", total="7")
    put(plain.connection, "wide", {"customer": "acme"})
    put(plain.connection, "wide", {"customer": "acme", "total": None})
    plain.ask("publish", kind="k")
    plain.run("insert into {log} (kind, customer) values ('k', 'by insert')")
    with (
        plain.connection.cursor() as cursor,
        cursor.copy(b"copy trunq_log.wide (customer) from stdin") as copy,
    ):
        copy.write_row(("by copy",))
    found = [(told(each)["customer"], told(each)["total"]) for each in plain.lease(10).messages]
    assert found == [("acme", 7), ("acme", None), (None, 7), ("by insert", 7), ("by copy", 7)]


REFUSED: list[tuple[Any, tuple[str, ...]]] = [
    ({"custmer": "acme"}, ('"custmer"', '"wide"', "it has customer, total", "trunq.add_column")),
    ({"total": "much"}, ("cannot be read", "trunq.list_columns('wide')")),
    ({"total": "12345678901.5"}, ("cannot be read",)),
    (["acme"], ("JSON object, not array",)),
    ("acme", ("JSON object, not string",)),
    ({"txid": "1"}, ('"txid"',)),
    ({"unique_turn": 1}, ('"unique_turn"',)),
    ({"subscription_id": 1}, ('"subscription_id"',)),
]


def test_columns_that_cannot_be_are_refused_by_name(plain: Engine) -> None:
    widen(plain.connection, "wide")
    for columns, words in REFUSED:
        with refused("TQ005", *words):
            put(plain.connection, "wide", columns)


def test_the_hint_of_a_column_that_is_not_there_adds_it(plain: Engine) -> None:
    with pytest.raises(psycopg.Error) as caught:
        put(plain.connection, "wide", {"cust'omer": "acme"})
    hint = str(caught.value.diag.message_hint)
    plain.connection.execute(hint.removesuffix(" adds one").encode())
    put(plain.connection, "wide", {"cust'omer": "acme"})
    assert told(plain.lease().messages[0]) == {"cust'omer": "acme"}


def test_many_with_columns_are_refused_and_the_hint_says_how(plain: Engine) -> None:
    widen(plain.connection, "wide")
    with refused("TQ005", '"columns"', "insert or copy"):
        plain.ask("publish_many", payloads=[{"a": 1}], options={"columns": {"customer": "acme"}})


def test_json_null_stands_for_no_columns(plain: Engine) -> None:
    put(plain.connection, "wide", None)
    assert plain.lease().messages[0].options is None


def test_the_view_of_messages_shows_them_in_their_types(wide: Engine) -> None:
    session = wide.connection
    ids = [put(session, "wide"), put(session, "wide"), put(session, "wide", delay="1 hour")]
    held = wide.lease(2)
    ids.append(put(session, "wide"))
    wide.answer("reject", held, [ids[0]])
    wide.answer("retry", held, [ids[1]], delays=["1 hour"])
    rows = session.execute(
        'select id, state, customer, total::text, "At"::text, tags from trunq_queue.wide_messages order by id'
    ).fetchall()
    expected = ("acme", "1.50", "2030-01-31 10:00:00+00", ["a", "b,c"])
    states = ["dead", "retrying", "scheduled", "ready"]
    assert rows == [(id, state, *expected) for id, state in zip(ids, states, strict=True)]


CONDITIONS: list[tuple[dict[str, Any], set[str]]] = [
    ({"columns": {"customer": "acme"}}, {"acme"}),
    ({"columns": {"customer": "acme", "total": 2}}, set()),
    ({"columns": {"total": 1.5}}, {"acme"}),
    ({"columns": {"customer": None}}, {"nobody"}),
    ({"not_columns": {"customer": "acme"}}, {"other", "nobody"}),
    ({"not_columns": {"customer": "acme", "total": 3}}, {"nobody"}),
    ({"columns": {"customer": "other"}, "kinds": ["k"], "headers": {"a": 1}}, {"other"}),
    ({"columns": {"customer": "acme"}, "headers": {"a": 1}}, set()),
    ({"columns": {"customer": "acme"}, "not_headers": {"a": 1}}, {"acme"}),
]


@pytest.mark.slow
def test_filters_ask_of_columns(wide: Engine) -> None:
    session = wide.connection
    wide.ask("subscribe", subscription="all", mode="exclusive")
    for n, (filter, _) in enumerate(CONDITIONS):
        wide.ask("subscribe", subscription=f"some_{n}", filter=filter)
        wide.ask("subscribe", subscription=f"lake_{n}", mode="exclusive", filter=filter)
    named = {
        put(session, "wide", {"customer": "acme", "total": 1.5}): "acme",
        put(session, "wide", {"customer": "other", "total": 3}, headers={"a": 1}): "other",
        put(session, "wide", {}): "nobody",
    }
    wide.ask("tick", force=True)
    (batch,) = wide.call("next_batch", subscription="all", worker="w", max_ticks=99)
    for n, (filter, expected) in enumerate(CONDITIONS):
        some = f"some_{n}"
        waiting = session.execute(
            "select id from trunq_queue.wide_messages where subscription = %s and state = 'ready'", (some,)
        ).fetchall()
        assert {named[id] for (id,) in waiting} == expected, filter
        assert wide.status(some).ready == len(expected), filter
        listed = [row.id for row in wide.call("list_messages", subscription=some)]
        assert {named[id] for id in listed} == expected, filter
        held = lease(session, "wide", 10, subscription=some)
        assert {named[id] for id in held.ids} == expected, filter
        own = take(wide, subscription=f"lake_{n}", max_ticks=99)
        assert {named[row.id] for row in read(wide, own, subscription=f"lake_{n}")} == expected, filter
        rows = wide.call("read_batch", subscription="all", batch_id=batch.batch_id, filter=filter)
        assert {named[row.id] for row in rows} == expected, filter
        ((query,),) = session.execute(
            "select query from trunq._batch_query('wide', 'all', %s, %s)", (batch.batch_id, Jsonb(filter))
        ).fetchall()
        assert {named[row[0]] for row in session.execute(query.encode()).fetchall()} == expected, filter


def test_a_filter_counts_for_what_is_cancelled_before_its_time(plain: Engine) -> None:
    plain.ask("add_column", column="customer", type="text")
    plain.ask("subscribe", subscription="some", filter={"columns": {"customer": "acme"}})
    ids = [put(plain.connection, "wide", {"customer": name}, delay="1 hour") for name in ("acme", "other")]
    plain.call("cancel", ids=ids)
    assert [row.id for row in plain.call("list_dead", subscription="some")] == ids[:1]


def test_a_group_by_key_filters_by_columns(plain: Engine) -> None:
    plain.ask("add_column", column="customer", type="text")
    plain.call("create_group", group="crew", slots=2)
    plain.ask("subscribe", subscription="crew", mode="exclusive", filter={"columns": {"customer": "acme"}})
    for n in range(6):
        put(plain.connection, "wide", {"customer": "acme" if n % 2 else "other"}, key=str(n))
    plain.ask("tick", force=True)
    found: list[str] = []
    while rows := plain.call("next_batch", subscription="crew", worker="m"):
        (batch,) = rows
        named = {"subscription": "crew", "batch_id": batch.batch_id}
        found += [row.columns["customer"] for row in plain.call("read_batch", **named)]
        plain.ask("finish_batch", **named, token=batch.token)
    assert found == ["acme"] * 3


def test_a_filter_of_a_column_that_is_not_there_is_refused(plain: Engine) -> None:
    for name in ("columns", "not_columns"):
        with refused("TQ005", '"customer"', "trunq.add_column('wide', 'customer', 'text')"):
            plain.ask("subscribe", subscription="some", filter={name: {"customer": "acme"}})
    with refused("TQ005", "object of columns, not array"):
        plain.ask("subscribe", subscription="some", filter={"columns": ["customer"]})


def test_a_column_that_a_filter_names_goes_after_what_the_hint_says(plain: Engine) -> None:
    plain.ask("add_column", column="customer", type="text")
    plain.ask("subscribe", subscription="some", filter={"not_columns": {"customer": "acme"}})
    with pytest.raises(
        psycopg.Error, match='filter of subscription "some" names column "customer"'
    ) as caught:
        plain.ask("drop_column", column="customer")
    _, _, statement = str(caught.value.diag.message_hint).partition(": ")
    plain.connection.execute(statement.encode())
    plain.ask("drop_column", column="customer")
    assert plain.call("list_columns") == []


def test_what_dies_takes_along_the_columns_that_the_other_queue_has(plain: Engine) -> None:
    session = plain.connection
    widen(session, "wide")
    ask(session, "create_queue", queue="failed")
    ask(session, "add_column", queue="failed", column="customer", type="text")
    ask(session, "add_column", queue="failed", column="total", type="text")
    plain.ask("set_dead", into="failed")
    put(session, "wide")
    plain.answer("reject", plain.lease())
    (dead,) = lease(session, "failed").messages
    assert told(dead) == {"customer": "acme", "total": None}


def test_the_archive_keeps_them_and_delete_erases_them(plain: Engine) -> None:
    session = plain.connection
    widen(session, "wide")
    plain.ask("create_archive", at_once=True)
    id = put(session, "wide")
    plain.ack(plain.lease())
    assert plain.fetch("select extra from trunq_archive.wide") == GIVEN
    plain.call("delete", ids=[id])
    assert plain.fetch("select count(*) from {log} where customer is not null") == 0


def test_the_rows_of_two_answers_at_once_keep_their_columns(plain: Engine) -> None:
    plain.ask("add_column", column="customer", type="text")
    names = [str(n) for n in range(20)]
    for name in names:
        put(plain.connection, "wide", {"customer": name})
    held = plain.lease(20)
    answer(plain.connection, "retry", held, held.ids[:10], delays=["0"] * 10)
    answer(plain.connection, "retry", held, held.ids[10:], delays=["1 ms"] * 10)
    move_clock(plain.connection, "10 seconds")
    plain.ask("promote")
    again = {each.id: told(each)["customer"] for each in plain.lease(20).messages}
    assert again == dict(zip(held.ids, names, strict=True))
