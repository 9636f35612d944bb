"""Messages that go on into another queue: functions/work/forward.sql."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import psycopg
import pytest

from calling import Lease, ask, call, move_clock, new_names, refused
from engine import Engine

Connection = psycopg.Connection[Any]
Make = Callable[..., Engine]


@pytest.fixture
def make(session: Connection) -> Make:
    return lambda **options: Engine(session, next(new_names("forward"))).create(**options)


@pytest.fixture
def stage(make: Make) -> Engine:
    return make()


@pytest.fixture
def work(make: Make) -> Engine:
    return make()


def forward(
    stage: Engine, held: Lease, into: Engine, ids: Sequence[int] | None = None, **more: Any
) -> list[int]:
    return ask(  # type: ignore[no-any-return]
        stage.connection,
        "forward",
        queue=stage.queue,
        subscription="default",
        lease_id=held.lease_id,
        token=held.token,
        ids=list(held.ids if ids is None else ids),
        into=into.queue,
        **more,
    )


def retries(work: Engine, into: Engine, **more: Any) -> int:
    return ask(  # type: ignore[no-any-return]
        work.connection, "forward_retries", queue=work.queue, subscription="default", into=into.queue, **more
    )


def shown(queue: Engine, id: int) -> dict[str, str]:
    return {row.subscription: row.state for row in queue.call("show_message", id=id)}


def test_a_message_arrives_as_it_was_published_and_the_first_queue_is_done_with_it(
    session: Connection, stage: Engine, work: Engine
) -> None:
    id = ask(
        session,
        "publish",
        queue=stage.queue,
        kind="mail",
        key="a",
        payload={"to": "x"},
        body=b"raw",
        headers={"trace": 1},
        options={"max_attempts": 7, "awaited": True},
    )
    created = stage.fetch("select created_at from {log}")
    (there,) = forward(stage, stage.lease(), work)
    (row,) = session.execute(
        f"select id, kind, key, payload, body, headers, options, created_at, attempt, errors"
        f" from trunq_log.{work.queue}".encode()
    )
    options = {"max_attempts": 7, "awaited": True}
    assert row == (there, "mail", "a", {"to": "x"}, b"raw", {"trace": 1}, options, created, 1, None)
    assert stage.lease().ids == []
    assert (stage.status().ready, stage.status().leased, stage.status().delayed) == (0, 0, 0)
    assert work.lease().ids == [there]
    assert shown(stage, id) == {f"{work.queue}/default": "leased"}


def test_the_fence_is_that_of_an_ack(stage: Engine, work: Engine) -> None:
    first, second, third = stage.publish(3)
    held = stage.lease(3)
    stage.ack(held, [first])
    # What was answered before is left alone, and forwarding again does nothing.
    assert forward(stage, held, work, [first, second])[0] is None
    assert forward(stage, held, work, [second]) == [None]
    with refused("TQ013"):
        forward(stage, held, work, [third, 10**9])
    with stage.clock("1 hour"):
        stage.ask("reap")
        with refused("TQ003"):
            forward(stage, held, work, [third])
    assert len(work.drain()) == 1


def test_a_message_that_was_retried_before_is_not_taken_from_its_delay(stage: Engine, work: Engine) -> None:
    (id,) = stage.publish()
    held = stage.lease()
    stage.answer("retry", held, delays=["1 day"])
    assert forward(stage, held, work) == [None]
    assert shown(stage, id) == {"default": "retrying"}


def test_a_cancelled_message_is_dead_instead(stage: Engine, work: Engine) -> None:
    ids = stage.publish(2)
    held = stage.lease(2)
    stage.call("cancel", ids=ids[:1])
    assert [there is None for there in forward(stage, held, work)] == [True, False]
    assert shown(stage, ids[0]) == {"default": "dead"}


def test_a_retry_returns_to_the_stage_under_the_id_it_had_there_and_goes_on_as_before(
    session: Connection, stage: Engine, work: Engine
) -> None:
    call(session, "subscribe", queue=stage.queue, subscription="audit")
    (id,) = stage.publish()
    assert stage.drain("audit") == [id]
    (there,) = forward(stage, stage.lease(), work)
    for turn in range(3):
        held = work.lease()
        assert held.ids == [there]
        work.answer("retry", held, errors=[f"failed {turn}"], delays=["1 minute"])
        assert retries(work, stage) == 1
        assert shown(stage, id) == {"default": "retrying", "audit": "done"}
        assert retries(work, stage) == 0
        with stage.clock(f"{turn + 1} hours"):
            assert stage.ask("promote") == 1
            # As a retry: of this subscription alone.
            assert stage.lease(subscription="audit").ids == []
            held = stage.lease()
            assert held.ids == [id]
            assert forward(stage, held, work) == [there]
    message = work.message(there)
    assert (message.attempt, message.state) == (4, "ready")
    assert work.fetch("select jsonb_array_length(errors) from {log} order by txid desc limit 1") == 3
    assert shown(stage, id) == {f"{work.queue}/default": "ready", "audit": "done"}


def test_of_retries_those_stay_that_may_have_killed_or_that_nobody_handles(
    session: Connection, stage: Engine, work: Engine
) -> None:
    work.publish(3)
    for _ in range(2):
        work.answer("release", work.lease(), errors=["no handler"])
    work.answer("retry", work.lease(), delays=["1 minute"])
    work.publish()
    work.answer("retry", work.lease(), delays=["1 minute"])
    work.run(
        "update trunq.delayed set expiries = 2 where queue_id = {id} and id = "
        "(select max(id) from trunq.delayed where queue_id = {id})"
    )
    assert (retries(work, stage), retries(work, stage)) == (1, 0)
    with refused("TQ005"):
        retries(work, stage, max=0)


def test_whoever_published_cancels_and_awaits_by_the_id_that_he_knows(stage: Engine, work: Engine) -> None:
    kept, unwanted, later = stage.publish(3, options={"awaited": True})
    there = forward(stage, stage.lease(3), work)
    stage.call("list_replies", ids=[kept, unwanted, later])
    assert {row[:3] for row in stage.call("cancel", ids=[unwanted])} == {
        ("default", unwanted, "done"),
        (f"{work.queue}/default", unwanted, "ready"),
    }
    held = work.lease(3)
    assert held.ids == [there[0], there[2]]
    work.answer("ack", held, [there[0]], results=['{"done": true}'])
    work.answer("reject", held, [there[2]], errors=["no"])
    replies = {
        row.id: (row.outcome, row.result) for row in stage.call("list_replies", ids=[kept, unwanted, later])
    }
    assert replies == {
        kept: ("success", {"done": True}),
        unwanted: ("cancelled", None),
        later: ("rejected", None),
    }
    assert shown(stage, later) == {f"{work.queue}/default": "dead"}


def test_a_reply_that_is_gone_is_refused_also_of_what_was_forwarded(stage: Engine, work: Engine) -> None:
    (id,) = stage.publish(options={"awaited": True})
    forward(stage, stage.lease(), work)
    work.ack(work.lease())
    with stage.clock("2 hours"), refused("TQ013"):
        stage.call("list_replies", ids=[id])


def test_a_time_out_is_told_where_it_was_published(stage: Engine, work: Engine) -> None:
    (id,) = stage.publish(options={"awaited": True, "max_attempts": 1})
    forward(stage, stage.lease(), work)
    work.answer("time_out", work.lease())
    assert [row.outcome for row in stage.call("list_replies", ids=[id])] == ["timed_out"]


def test_a_delay_is_kept_there(stage: Engine, work: Engine) -> None:
    (id,) = stage.publish()
    forward(stage, stage.lease(), work, delay="1 hour")
    assert shown(stage, id) == {f"{work.queue}/default": "scheduled"}
    assert work.lease().ids == []
    with work.clock("2 hours"):
        work.ask("promote")
        assert len(work.lease().ids) == 1


def test_what_arrives_for_the_first_time_meets_the_gate_and_what_returns_does_not(
    session: Connection, stage: Engine, work: Engine
) -> None:
    stage.publish(2)
    held = stage.lease(2)
    work.ask("close_queue")
    for delay in (None, "1 hour"):
        with refused("TQ018"), session.transaction():
            forward(stage, held, work, delay=delay)
    work.ask("open_queue")
    ask(session, "set_publishing", queue=work.queue, kinds=["mail"])
    for delay in (None, "1 hour"):
        with refused("TQ005"), session.transaction():
            forward(stage, held, work, delay=delay)
    ask(session, "set_publishing", queue=work.queue, kinds=[])
    ask(session, "set_publishing", queue=stage.queue, kinds=["mail"], max_per_transaction=1)
    forward(stage, held, work)
    stage.ask("close_queue")
    work.answer("retry", work.lease(2), delays=["1 minute", "1 minute"])
    assert retries(work, stage) == 2


@pytest.mark.parametrize("lanes", ["key", "priority", "priority,key"])
def test_lanes_of_either_queue_take_their_part(make: Make, lanes: str) -> None:
    stage, work = make(lanes=lanes), make(lanes=lanes)
    plain = make()
    ids = stage.publish(4, keys=["a", "b", "a", "b"])
    forward(stage, stage.lease(4), work)
    assert len(work.lease(4).ids) == 4
    assert stage.drain() == []
    other = make(lanes=lanes)
    (id,) = [ask(other.connection, "publish", queue=other.queue, priority=3 if "priority" in lanes else 0)]
    forward(other, other.lease(), plain)
    assert shown(other, id) == {f"{plain.queue}/default": "ready"}
    assert ids


def test_a_lane_in_order_goes_on_when_its_message_is_forwarded(make: Make) -> None:
    stage, work = make(lanes="key"), make()
    stage.ask("subscribe", subscription="default", in_order=True)
    first, second = stage.publish(2, keys=["a", "a"])
    held = stage.lease(2)
    assert held.ids == [first]
    forward(stage, held, work)
    assert stage.lease(2).ids == [second]


def test_unique_keys_are_free_here_and_taken_there(make: Make, session: Connection) -> None:
    stage, work = make(unique="refuse"), make(unique="refuse")

    def publish(queue: Engine, key: str) -> bool:
        (row,) = call(session, "publish_unique", queue=queue.queue, unique_key=key)
        return bool(row.is_new)

    assert publish(stage, "k")
    forward(stage, stage.lease(), work)
    assert not publish(work, "k")
    assert publish(stage, "k")
    held = stage.lease()
    with refused("TQ015"), session.transaction():
        forward(stage, held, work)
    # What returns while another has its key does without.
    work.answer("retry", work.lease(), delays=["1 minute"])
    assert retries(work, stage) == 1
    assert publish(work, "k")
    with stage.clock("1 hour"):
        stage.ask("promote")
        assert len(stage.lease(5).ids) == 1


def test_what_arrives_later_takes_its_content_at_once(make: Make, session: Connection) -> None:
    stage, work = make(), make(unique="refuse", unique_on="content")
    stage.run("insert into {log} (payload) values ('1'), ('1')")
    first, second = stage.lease(), stage.lease()
    (id,) = forward(stage, first, work, delay="1 hour")
    with refused("TQ015", f"message {id} of", "has the same kind"), session.transaction():
        work.run("insert into {log} (payload) values ('1')")
    for delay in (None, "2 hours"):
        with refused("TQ015", f"message {id} of", "has the same kind"), session.transaction():
            forward(stage, second, work, delay=delay)
    with work.clock("2 hours"):
        assert work.ask("promote") == 1
        assert work.ack(work.lease(5)) == 1
    assert forward(stage, second, work) != [None]


def test_a_key_is_left_behind_where_there_are_none_and_comes_to_nobody_later(make: Make) -> None:
    stage, work = make(unique="refuse"), make()
    stage.call("publish_unique", unique_key="k")
    (id,) = forward(stage, stage.lease(), work, delay="1 hour")
    work.ask("convert_queue", unique="refuse")
    ((rival, is_new),) = work.call("publish_unique", unique_key="k")
    assert is_new
    with work.clock("2 hours"):
        assert work.ask("promote") == 1
        assert sorted(work.lease(5).ids) == [id, rival]


def test_one_that_is_parked_for_ever_is_not_forwarded(stage: Engine, work: Engine) -> None:
    (id,) = stage.publish()
    held = stage.lease()
    ask(stage.connection, "park", **held.named, ids=[id], tokens=["t"], delays=["999 years"])
    assert forward(stage, held, work) == [None]
    assert stage.state(id) == "parked"


def test_a_queue_that_is_dropped_leaves_nothing_of_what_was_forwarded_there(
    session: Connection, stage: Engine, work: Engine
) -> None:
    (id,) = stage.publish(1)
    forward(stage, stage.lease(), work)
    call(session, "drop_queue", queue=work.queue, force=True)
    assert (
        stage.fetch(f"select count(*) from trunq.forwarded where origin_id = {id} and queue_id = {{id}}") == 0
    )


def test_columns_of_the_user_go_along(make: Make) -> None:
    stage, work = make(), make()
    for queue in (stage, work):
        queue.run("alter table {log} add column tenant text")
    stage.run("insert into {log} (tenant) values ('acme')")
    forward(stage, stage.lease(), work)
    assert work.fetch("select tenant from {log}") == "acme"


def test_messages_arrive_in_the_order_in_which_they_are_named(stage: Engine, work: Engine) -> None:
    ids = stage.publish(5)
    named = [ids[n] for n in (3, 0, 4, 1, 2)]
    there = forward(stage, stage.lease(5), work, named)
    assert there == sorted(there)
    assert work.drain() == there


def test_two_subscriptions_forward_two_messages(session: Connection, stage: Engine, work: Engine) -> None:
    call(session, "subscribe", queue=stage.queue, subscription="second")
    (id,) = stage.publish()
    forward(stage, stage.lease(), work)
    held = stage.lease(subscription="second")
    ask(session, "forward", **held.named, ids=held.ids, into=work.queue)
    assert len(set(work.drain())) == 2
    assert [row.state for row in stage.call("show_message", id=id)] == ["done", "done"]


def test_streams_read_what_arrives_and_not_what_returns(
    session: Connection, stage: Engine, work: Engine
) -> None:
    (id,) = stage.publish()
    forward(stage, stage.lease(), work)
    before = stage.fetch("select count(*) from {log} where subscription_id is null")
    work.answer("retry", work.lease(), delays=["0.1 seconds"])
    retries(work, stage)
    with stage.clock("1 hour"):
        stage.ask("promote")
    assert stage.fetch("select count(*) from {log} where subscription_id is null") == before
    assert stage.lease().ids == [id]


def test_ids_are_forgotten_when_the_message_is_gone_and_not_before(stage: Engine, work: Engine) -> None:
    stage.publish(2)
    forward(stage, stage.lease(2), work)
    held = work.lease(2)
    work.answer("reject", held, held.ids[:1])
    work.ack(held, held.ids[1:])
    count = f"select count(*) from trunq.forwarded where queue_id in ({stage.queue_id}, {work.queue_id})"
    with work.clock("3 days"):
        work.rotate()
        move_clock(work.connection, "3 days")
        for hours in range(72, 172, 6):
            move_clock(work.connection, f"{hours} hours")
            work.rotate(f"{hours} hours")
            work.ask("forget")
        assert work.fetch(count) == 2
        work.ask("purge")
        move_clock(work.connection, "14 days")
        work.ask("forget")
        assert work.fetch(count) == 0


def test_what_cannot_be_forwarded_is_refused(session: Connection, stage: Engine, work: Engine) -> None:
    stage.publish()
    held = stage.lease()
    with refused("TQ005"), session.transaction():
        forward(stage, held, stage)
    with refused("TQ001"), session.transaction():
        forward(stage, held, Engine(session, "nowhere"))
    with refused("TQ005"), session.transaction():
        forward(stage, held, work, delay="-1 second")
    assert forward(stage, held, work, []) == []


def test_the_second_step_takes_nothing_that_the_first_did_not_give(
    session: Connection, stage: Engine, work: Engine
) -> None:
    ids = stage.publish(1)
    # It was forwarded once, and returned.
    forward(stage, stage.lease(), work)
    work.answer("retry", work.lease(), delays=["1 minute"])
    retries(work, stage)
    with stage.clock("1 hour"):
        stage.ask("promote")
    stage.answer("retry", stage.lease(), delays=["1 hour"])
    assert ask(
        session,
        "_forward_in",
        queue=work.queue,
        **{"from": stage.queue},
        subscription="default",
        ids=ids,
        asked=ids,
        delay=None,
    ) == [None]
    assert shown(stage, ids[0]) == {"default": "retrying"}
