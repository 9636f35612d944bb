"""Unique keys: of the messages with one key, one at a time holds it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from calling import ask, fetch, refused
from engine import Engine
from keying import is_free, made, take

Connection = psycopg.Connection[Any]

PLAIN = [None, "key"]
"""Without lanes, and with."""


@pytest.fixture(params=PLAIN)
def lanes(request: pytest.FixtureRequest) -> str | None:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def refusing(session: Connection, lanes: str | None) -> Iterator[Engine]:
    yield from made(session, "refuse", lanes)


@pytest.fixture
def replacing(session: Connection, lanes: str | None) -> Iterator[Engine]:
    yield from made(session, "replace", lanes)


def test_a_message_whose_key_another_holds_is_left_out(refusing: Engine) -> None:
    first, is_new = take(refusing)
    assert is_new
    assert take(refusing) == (first, False)
    other, is_new = take(refusing, "other")
    assert is_new
    assert refusing.drain() == [first, other]


def test_a_key_is_held_until_its_message_is_done(refusing: Engine) -> None:
    first, _ = take(refusing)
    held = refusing.lease()
    assert not is_free(refusing)
    refusing.ack(held)
    second, is_new = take(refusing)
    assert is_new
    assert second != first


@pytest.mark.parametrize("count", [1, 10])
def test_a_key_is_held_until_its_message_is_leased(refusing: Engine, count: int) -> None:
    take(refusing, unique_until="leased")
    assert not is_free(refusing)
    held = refusing.lease(count)
    assert take(refusing, unique_until="leased")[1]
    refusing.answer("release", held)
    refusing.ask("promote")
    assert not is_free(refusing), "the second waits"


def test_a_key_is_held_for_a_time_whatever_becomes_of_its_message(refusing: Engine) -> None:
    take(refusing, unique_for="1 hour")
    refusing.ack(refusing.lease())
    assert not is_free(refusing)
    with refusing.clock("59 minutes"):
        assert not is_free(refusing)
    with refusing.clock("61 minutes"):
        assert is_free(refusing)


@pytest.mark.parametrize("verb", ["retry", "release"])
def test_what_comes_back_holds_its_key(refusing: Engine, verb: str) -> None:
    first, _ = take(refusing)
    for _ in range(2):
        refusing.answer(verb, refusing.lease())
        assert not is_free(refusing)
        refusing.ask("promote")
    held = refusing.lease()
    assert held.ids == [first]
    refusing.ack(held)
    assert is_free(refusing)


def test_what_was_reaped_or_reclaimed_holds_its_key(refusing: Engine) -> None:
    first, _ = take(refusing)
    refusing.lease()
    with refusing.clock("2 minutes"):
        refusing.ask("reap")
        assert not is_free(refusing)
    with refusing.clock("5 minutes"):
        refusing.ask("promote")
        assert refusing.lease(worker="w").ids == [first]
        assert refusing.ask("reclaim", subscription="default", worker="w") == 1
        assert not is_free(refusing)
    with refusing.clock("10 minutes"):
        refusing.ask("promote")
        refusing.ack(refusing.lease())
        assert is_free(refusing)


def test_what_dies_frees_its_key(refusing: Engine) -> None:
    take(refusing)
    refusing.answer("reject", refusing.lease(), errors=["no"])
    assert is_free(refusing)
    take(refusing)
    for _ in range(3):
        assert not is_free(refusing)
        refusing.ask("promote")
        refusing.answer("retry", refusing.lease())
    assert is_free(refusing)
    assert refusing.status().dead == 2


@pytest.mark.parametrize("lanes", [None])
def test_what_expires_frees_its_key_when_a_lease_finds_it(refusing: Engine) -> None:
    take(refusing, max_age="1 minute")
    with refusing.clock("2 minutes"):
        assert not is_free(refusing)
        assert not refusing.lease(5)
        assert is_free(refusing)
    assert refusing.status().dead == 1


def test_what_is_dead_takes_its_key_again_when_it_is_requeued(refusing: Engine) -> None:
    first, _ = take(refusing)
    refusing.answer("reject", refusing.lease(), errors=["no"])
    second, is_new = take(refusing)
    assert is_new
    assert refusing.ask("requeue") == 0, "the second holds the key"
    assert refusing.status().dead == 1
    refusing.ack(refusing.lease())
    assert refusing.ask("requeue") == 1
    assert take(refusing) == (first, False)
    held = refusing.lease()
    assert held.ids == [first]
    refusing.ack(held)
    assert is_free(refusing)
    assert second != first


def test_purging_frees_no_key_of_another_and_what_is_taken_back_frees_its_own(refusing: Engine) -> None:
    take(refusing)
    refusing.answer("reject", refusing.lease(), errors=["no"])
    take(refusing)
    assert refusing.ask("purge") == 1
    assert not is_free(refusing), "that of the living one"
    id, _ = take(refusing, "later", delay="1 hour")
    assert not is_free(refusing, "later")
    refusing.run("delete from trunq.delayed where queue_id = {id} and id = %s", id)
    refusing.fetch(f"select trunq._free_keys(q, array[{id}]) from trunq.queue q where name = %s", "keyed")
    assert is_free(refusing, "later")


def test_a_delayed_message_holds_its_key(refusing: Engine) -> None:
    id, _ = take(refusing, delay="1 hour")
    assert refusing.state(id) == "scheduled"
    assert take(refusing) == (id, False)
    with refusing.clock("2 hours"):
        refusing.ask("promote")
        held = refusing.lease()
        assert held.ids == [id]
        assert not is_free(refusing)
        refusing.ack(held)
    assert is_free(refusing)


@pytest.mark.parametrize("count", [1, 10])
def test_the_newest_stands_for_those_that_wait(replacing: Engine, count: int) -> None:
    ids = [take(replacing, payload={"n": n})[0] for n in range(4)]
    other = take(replacing, "other")[0]
    held = [replacing.lease(count) for _ in range(2)]
    assert sorted(id for each in held for id in each.ids) == [ids[-1], other]
    assert not replacing.lease(count)
    assert replacing.status().ready == 0
    message = replacing.message(ids[0])
    assert (message.state, message.error) == ("replaced", f"replaced by message {ids[-1]}")
    assert [attempt["outcome"] for attempt in message.attempts] == ["replaced"]
    view = replacing.run(
        "select id, state from trunq_queue.{queue}_messages where state = 'replaced' order by id"
    )
    assert view.fetchall() == [(id, "replaced") for id in ids[:-1]]


def test_a_replacement_of_what_runs_comes_after_it(replacing: Engine) -> None:
    first, _ = take(replacing)
    running = replacing.lease()
    second, is_new = take(replacing)
    assert is_new
    held = replacing.lease()
    assert (running.ids, held.ids) == ([first], [second])
    replacing.ack(running)
    assert not is_free(replacing), "the second holds it"
    replacing.ack(held)
    assert is_free(replacing)


def test_a_retry_of_what_was_replaced_meanwhile_gives_way(replacing: Engine) -> None:
    first, _ = take(replacing)
    running = replacing.lease()
    second, _ = take(replacing)
    replacing.answer("retry", running)
    replacing.ask("promote")
    assert replacing.drain() == [second]
    assert replacing.state(first) == "replaced"
    assert is_free(replacing)


def test_a_time_that_is_over_makes_no_message_the_replacement_of_what_still_waits(replacing: Engine) -> None:
    take(replacing, unique_for="1 hour")
    second, _ = take(replacing, unique_for="1 hour")
    with replacing.clock("2 hours"):
        third, _ = take(replacing, unique_for="1 hour")
        assert {second, third} <= set(replacing.drain())


def test_turns_that_are_over_are_forgotten_also_behind_one_that_runs(replacing: Engine) -> None:
    take(replacing)
    running = replacing.lease()
    for _ in range(20):
        take(replacing)
        replacing.ack(replacing.lease())
    count = "select count(*) from trunq_data.{queue}_unique"
    assert replacing.run(count).fetchone() <= (4,)
    replacing.ack(running)
    take(replacing)
    assert replacing.run(count).fetchone() <= (4,)


def test_a_queue_that_replaces_also_refuses_and_raises_when_asked(replacing: Engine) -> None:
    first, _ = take(replacing)
    assert take(replacing, on_conflict="refuse") == (first, False)
    with refused("TQ015", f"message {first}", '"k"'):
        take(replacing, on_conflict="raise")


def test_replaced_messages_hide_none_behind_them(replacing: Engine) -> None:
    keys = [f"k{n}" for n in range(20)]
    for _ in range(3):
        newest = [take(replacing, key)[0] for key in keys]
    (plain,) = replacing.publish()
    handed = []
    while held := replacing.lease(7):
        handed += held.ids
        replacing.ack(held)
    assert sorted(handed) == sorted([*newest, plain])
    assert replacing.status().ready == replacing.status().leased == 0


def test_many_are_published_but_for_those_whose_keys_are_held(refusing: Engine) -> None:
    first, _ = take(refusing, "b")
    rows = refusing.call(
        "publish_many_unique", payloads=["1", "2", "3", "4", "5"], unique_keys=["c", "b", "a", None, "c"]
    )
    assert [row.is_new for row in rows] == [True, False, True, True, False]
    assert rows[1].id == first
    assert rows[4].id == rows[0].id
    assert refusing.drain() == [first, rows[0].id, rows[2].id, rows[3].id]


def test_of_many_the_last_of_a_key_replaces(replacing: Engine) -> None:
    take(replacing, "b")
    rows = replacing.call("publish_many_unique", payloads=["1", "2", "3"], unique_keys=["b", "b", "a"])
    assert [row.is_new for row in rows] == [False, True, True]
    assert rows[0].id == rows[1].id
    assert sorted(replacing.drain()) == sorted([rows[1].id, rows[2].id])


def test_without_a_key_kind_and_content_are_the_key(refusing: Engine) -> None:
    first, is_new = take(refusing, None, payload={"a": 1, "b": [2]}, kind="x")
    assert is_new
    ((id,),) = refusing.run(
        "select id from trunq.publish_unique('{queue}', %s, p_kind => 'x')", '{"b":[2],   "a": 1}'
    ).fetchall()
    assert id == first
    assert take(refusing, None, payload={"a": 1, "b": [2]}, kind="y")[1]
    assert take(refusing, None, payload={"a": 1, "b": [3]}, kind="x")[1]
    rows = refusing.call("publish_many_unique", payloads=["1", "1", "2"], kinds=["x"])
    assert [row.is_new for row in rows] == [True, False, True]


def test_plain_insert_and_copy_leave_held_rows_out_and_say_so(refusing: Engine) -> None:
    first, _ = take(refusing, "a")
    done = refusing.run(
        "insert into {log} (payload, unique_key) values ('1', 'a'), ('2', 'b'), ('3', null), ('4', 'b')"
    )
    assert done.rowcount == 2
    with refusing.connection.cursor() as cursor:
        with cursor.copy(f"copy trunq_log.{refusing.queue} (payload, unique_key) from stdin") as copy:
            copy.write_row(["5", "b"])
            copy.write_row(["6", "c"])
        assert cursor.rowcount == 1
    held = refusing.lease(10)
    assert sorted(row.payload for row in held.messages if row.id != first) == [2, 3, 6]
    refusing.ack(held)
    assert is_free(refusing, "c")


def test_a_plain_insert_replaces_where_the_queue_does(replacing: Engine) -> None:
    take(replacing, "a")
    assert replacing.run("insert into {log} (payload, unique_key) values ('1', 'a')").rowcount == 1
    held = replacing.lease(10)
    assert [row.payload for row in held.messages] == [1]


def test_a_plain_insert_may_be_delayed_too(refusing: Engine) -> None:
    insert = "insert into {log} (payload, unique_key, due_at) values ('1', 'a', now() + interval '1 hour')"
    assert refusing.run(insert).rowcount == 1
    assert refusing.run(insert).rowcount == 0
    assert not is_free(refusing, "a")
    assert not refusing.lease()


def test_the_first_subscription_that_ends_a_message_frees_its_key(refusing: Engine) -> None:
    refusing.ask("subscribe", subscription="slow")
    first, _ = take(refusing)
    refusing.ack(refusing.lease())
    second, is_new = take(refusing)
    assert is_new
    assert refusing.drain("slow") == [first, second]
    refusing.ask("unsubscribe", subscription="slow")


def test_in_another_subscription_the_newest_stands_for_what_waits_there(replacing: Engine) -> None:
    replacing.ask("subscribe", subscription="slow")
    take(replacing)
    replacing.ack(replacing.lease())
    second, is_new = take(replacing)
    assert is_new
    assert replacing.drain("slow") == [second]


def test_what_is_requeued_stands_for_nothing_that_waits_in_another_subscription(replacing: Engine) -> None:
    replacing.ask("subscribe", subscription="slow")
    first, _ = take(replacing)
    replacing.answer("reject", replacing.lease())
    replacing.drain("slow")
    second, is_new = take(replacing)
    assert is_new
    replacing.ack(replacing.lease())
    assert replacing.ask("requeue") == 1
    assert replacing.drain("slow") == [second]
    replacing.ask("promote")
    assert replacing.drain() == [first]


@pytest.mark.parametrize("count", [1, 10])
def test_what_is_requeued_is_not_replaced_by_itself(replacing: Engine, count: int) -> None:
    replacing.ask("subscribe", subscription="slow")
    replacing.ask("subscribe", subscription="slower")
    id, _ = take(replacing)
    for name in ("default", "slow"):
        replacing.answer("reject", replacing.lease(subscription=name))
    assert replacing.ask("requeue") == 2
    for name in ("default", "slow", "slower"):
        held = replacing.lease(count, subscription=name)
        assert held.ids == [id]
        replacing.answer("retry", held, delays=["0"])
        replacing.ask("promote")
        assert replacing.lease(count, subscription=name).ids == [id]


def test_the_policy_is_chosen_when_a_queue_is_made(session: Connection, queue: str) -> None:
    with refused("TQ005", '"sometimes"', "refuse or replace"):
        ask(session, "create_queue", queue="other", unique="sometimes")
    assert fetch(session, "select count(*) from trunq.queue where name = 'other'") == 0
    with refused("TQ005", "has no unique keys"):
        ask(session, "create_queue", queue=queue, unique="refuse")
    assert ask(session, "create_queue", queue="other", unique="refuse")
    assert not ask(session, "create_queue", queue="other", unique="refuse")
    with refused("TQ005", "its unique keys refuse"):
        ask(session, "create_queue", queue="other", unique="replace")
    ask(session, "drop_queue", queue="other")
    assert fetch(session, "select count(*) from pg_class where relname like 'other\\_%'") == 0
    assert fetch(session, "select count(*) from pg_proc where proname like 'other\\_%'") == 0


def test_an_emptied_queue_has_free_keys(refusing: Engine) -> None:
    take(refusing)
    take(refusing, "later", delay="1 hour")
    assert refusing.ask("empty_queue") == 2
    assert is_free(refusing)
    assert is_free(refusing, "later")


def rows(engine: Engine) -> tuple[int, int]:
    return (
        engine.fetch("select count(*) from trunq_data.{queue}_unique"),
        engine.fetch("select count(*) from trunq_data.{queue}_freed"),
    )


def test_a_duty_forgets_the_keys_that_nobody_holds(refusing: Engine) -> None:
    for n in range(5):
        take(refusing, f"k{n}")
    take(refusing, "kept")
    take(refusing, "timed", unique_for="1 hour")
    refusing.ack(refusing.lease(5))
    assert rows(refusing) == (7, 5)
    assert refusing.ask("forget") == 5
    assert rows(refusing) == (2, 0)
    assert not is_free(refusing, "kept")
    with refusing.clock("2 hours"):
        assert refusing.ask("forget") == 1
    assert refusing.ask("forget") == 0


def test_a_duty_clears_away_what_freed_keys_that_were_forgotten_before(refusing: Engine) -> None:
    """Of a message that was replaced while it ran, or that a second subscription ends."""
    take(refusing)
    refusing.ack(refusing.lease())
    refusing.run("insert into trunq_data.keyed_freed select n from generate_series(1000001, 1040000) n")
    take(refusing)
    refusing.ask("forget")
    assert not is_free(refusing)
    refusing.ack(refusing.lease())
    assert rows(refusing)[1] <= 2


def test_keys_of_messages_that_nobody_is_to_handle_are_freed(refusing: Engine) -> None:
    take(refusing, "later", delay="1 hour")
    take(refusing)
    refusing.ask("forget")
    assert not is_free(refusing)
    refusing.ask("unsubscribe", subscription="default")
    refusing.ask("forget")
    assert is_free(refusing)
    assert is_free(refusing, "later")
    assert refusing.ask("subscribe", subscription="default")
    refusing.ask("forget")
    refusing.ask("promote")
    take(refusing, "again")
    refusing.lease()
    refusing.ask("forget")
    assert not is_free(refusing, "again")


@pytest.mark.parametrize("lanes", [None])
def test_a_key_that_every_filter_passes_over_is_freed(refusing: Engine) -> None:
    refusing.ask("subscribe", subscription="default", filter={"kinds": ["a"]})
    take(refusing, "a", kind="a")
    take(refusing, "b", kind="b")
    refusing.ask("forget")
    assert (is_free(refusing, "a"), is_free(refusing, "b")) == (False, True)


def test_rotation_keeps_the_keys_of_what_waits(refusing: Engine) -> None:
    take(refusing, "done")
    refusing.ack(refusing.lease())
    first, _ = take(refusing)
    refusing.rotate("10 days")
    assert take(refusing) == (first, False)
    assert refusing.lease().ids == [first]


def test_a_rolled_back_holder_holds_nothing(refusing: Engine) -> None:
    with refusing.connection.transaction(force_rollback=True):
        take(refusing)
    assert is_free(refusing)
    with refusing.connection.transaction():
        with refusing.connection.transaction(force_rollback=True):
            take(refusing)
        assert take(refusing)[1]
    refusing.ack(refusing.lease())
    with refusing.connection.transaction(force_rollback=True):
        assert take(refusing)[1]
    assert is_free(refusing)
