"""Answers through the client."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from client._async.orders import lease, prepared, states
from conftest import AsyncConnect
from trunq import (
    AsyncClient,
    InvalidArgument,
    LeaseLost,
    Message,
    MessageNotFound,
    QueueNotFound,
)


async def test_each_answer_has_its_outcome(database: str) -> None:
    async with AsyncClient(database) as client:
        one, two, three, four = await prepared(client, 4)
        hold = ("orders", "default", one.lease_id, one.token)
        assert await client.ack(*hold, [one.id], [{"made": 1}], [0.25]) == 1
        assert await client.retry(*hold, [two.id], ["later"], [timedelta(hours=1)], [None]) == 1
        assert await client.reject(*hold, [three.id], "never") == 1
        assert await client.release(*hold, [four.id]) == 1
        assert await states(client) == ["dead", "done", "ready", "retrying"]
        (done,) = await client.show_message("orders", one.id)
        assert (done.state, done.result, done.error) == ("done", {"made": 1}, None)
        assert done.attempts[0]["took"] == pytest.approx(0.25)
        (retrying,) = await client.show_message("orders", two.id)
        assert retrying.state == "retrying"
        assert retrying.due_at is not None
        assert retrying.due_at - await client.clock() > timedelta(minutes=50)
        (dead,) = await client.show_message("orders", three.id)
        assert (dead.state, dead.error) == ("dead", "never")


async def test_an_answer_given_twice_counts_once(database: str) -> None:
    async with AsyncClient(database) as client:
        one, two, _ = await prepared(client)
        hold = ("orders", "default", one.lease_id, one.token)
        assert await client.ack(*hold, [one.id, two.id]) == 2
        assert await client.ack(*hold, [one.id, two.id]) == 0
        assert await client.reject(*hold, [one.id]) == 0
        assert await states(client) == ["done", "done", "leased"]


async def test_an_answer_under_another_token_or_for_another_message_is_refused(database: str) -> None:
    async with AsyncClient(database) as client:
        one, *_ = await prepared(client)
        with pytest.raises(LeaseLost):
            await client.ack("orders", "default", one.lease_id, one.token + 1, [one.id])
        with pytest.raises(MessageNotFound):
            await client.ack("orders", "default", one.lease_id, one.token, [one.id + 1000])
        assert await states(client) == ["leased"] * 3


async def test_an_ack_joins_the_transaction_of_its_effects(
    database: str, async_connect: AsyncConnect
) -> None:
    async with AsyncClient(database) as client:
        one, *_ = await prepared(client)
        hold = ("orders", "default", one.lease_id, one.token)
        connection = await async_connect(autocommit=False)
        await connection.execute("create table effect (n int)")
        await client.ack(*hold, [one.id], connection=connection)
        await connection.rollback()
        assert await states(client) == ["leased"] * 3
        await connection.execute("create table effect (n int)")
        await client.ack(*hold, [one.id], connection=connection)
        await connection.commit()
        assert await states(client) == ["done", "leased", "leased"]


async def test_attempts_are_counted_until_the_message_is_dead(database: str) -> None:
    async with AsyncClient(database) as client:
        await prepared(client, 0, max_attempts=2, backoff_base=0, jitter=0)
        message_id = await client.publish("orders", 1)
        (first,) = await lease(client)
        assert (first.attempt, first.max_attempts, first.is_last_attempt) == (1, 2, False)
        await client.retry("orders", "default", first.lease_id, first.token, [first.id], ["first"])
        await client.promote("orders")
        (second,) = await lease(client)
        assert (second.id, second.attempt, second.is_last_attempt) == (message_id, 2, True)
        await client.retry("orders", "default", second.lease_id, second.token, [second.id], ["second"])
        (dead,) = await client.list_dead("orders")
        assert (dead.id, dead.reason, dead.attempts, dead.payload) == (message_id, "max_attempts", 2, 1)
        assert [error["error"] for error in dead.errors] == ["first", "second"]


async def test_messages_are_answered_for_without_naming_their_lease(database: str) -> None:
    async with AsyncClient(database) as client:
        one, two, three, four, five, six = await prepared(client, 6)
        assert await client.ack(one, result={"made": 1}, took=0.25) == 1
        assert await client.ack([two, three], results=["b", "c"], took=[1, 2]) == 2
        assert await client.retry(four, after=3600, error="later") == 1
        assert await client.reject(five, "never") == 1
        assert await client.release([six]) == 1
        assert await client.ack([one, two, three]) == 0
        assert await states(client) == ["dead", "done", "done", "done", "ready", "retrying"]
        results = [(await client.show_message("orders", id))[0].result for id in (one.id, two.id, three.id)]
        assert results == [{"made": 1}, "b", "c"]
        (retrying,) = await client.show_message("orders", four.id)
        assert retrying.error == "later"
        assert retrying.due_at is not None
        assert retrying.due_at - await client.clock() > timedelta(minutes=50)
        (dead,) = await client.list_dead("orders")
        assert (dead.id, dead.errors[-1]["error"]) == (five.id, "never")


async def test_one_reason_and_one_delay_stand_for_each_message(database: str) -> None:
    async with AsyncClient(database) as client:
        one, two, three, four = await prepared(client, 4)
        assert await client.retry([one, two], after=timedelta(hours=1), error="busy") == 2
        assert await client.reject([three, four], "wrong") == 2
        said = [(m.state, m.error) for m in await client.list_messages("orders")]
        assert sorted(said) == [
            ("dead", "wrong"),
            ("dead", "wrong"),
            ("retrying", "busy"),
            ("retrying", "busy"),
        ]
        retrying = [m.due_at for m in await client.list_messages("orders", "default", "retrying")]
        now = await client.clock()
        assert all(due_at is not None and due_at - now > timedelta(minutes=50) for due_at in retrying)


async def test_a_policy_and_a_delay_may_come_with_an_answer(database: str) -> None:
    async with AsyncClient(database) as client:
        one, two, three, four = await prepared(client, 4)
        assert await client.retry(one, max_attempts=1, error="no more") == 1
        assert (
            await client.retry(two, backoff="constant", backoff_base=3600, backoff_cap=86400, jitter=0) == 1
        )
        assert await client.release(three, after=timedelta(hours=1)) == 1
        assert await client.time_out(four, backoff_base=3600, backoff_cap=86400, jitter=0) == 1
        (dead,) = await client.list_dead("orders")
        assert (dead.id, dead.reason) == (one.id, "max_attempts")
        later = await client.list_messages("orders", "default", "retrying")
        now = await client.clock()
        assert all(each.due_at is not None and each.due_at - now > timedelta(minutes=50) for each in later)
        assert {each.id: each.attempt for each in later} == {two.id: 2, three.id: 1, four.id: 2}


async def test_a_message_says_itself_how_long_it_waits_and_where_it_goes(database: str) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("orders")
        await client.create_queue("failures")
        policy = {"backoff": "constant", "backoff_base": timedelta(hours=1), "backoff_cap": "1d", "jitter": 0}
        await client.publish("orders", 1, options=policy)
        await client.publish_many("orders", [2], options={"dead_into": "failures"})
        one, two = await client.lease("orders", "default", "ada", 2)
        assert (one.option("backoff_base"), one.option("backoff_cap")) == (3600, 86400)
        assert await client.retry(one) == await client.reject(two, "wrong") == 1
        (fate,) = await client.list_fates("orders", "default", [one.id])
        assert fate.wait is not None
        assert fate.wait > timedelta(minutes=50)
        (dead,) = await client.lease("failures", "default", "ada")
        assert (dead.payload, dead.headers["trunq_dead"][0]["id"]) == (2, two.id)
        with pytest.raises(QueueNotFound):
            await client.publish("orders", 3, options={"dead_into": "nowhere"})
        with pytest.raises(InvalidArgument, match="cannot be read"):
            await client.publish("orders", 3, options={"jitter": 2})


async def test_no_messages_need_no_answer() -> None:
    client = AsyncClient("host=/nonexistent")
    assert await client.ack([]) == await client.retry([]) == 0
    assert await client.reject([], "no") == await client.release([]) == 0
    with pytest.raises(InvalidArgument, match="no messages whose lease"):
        await client.extend([])


async def test_messages_of_two_leases_are_not_answered_together(database: str) -> None:
    async with AsyncClient(database) as client:
        first = await prepared(client, 2)
        await client.publish("orders", 2)
        with pytest.raises(InvalidArgument, match="these messages are of 2 leases"):
            await client.ack([*first, *await lease(client)])
        assert await states(client) == ["leased"] * 3


async def test_an_answer_that_names_too_much_or_too_little_says_so() -> None:
    client: Any = AsyncClient("host=/nonexistent")
    message = Message((1, 2, 3, 1, 5, None, None, None, None, None, 0, 0, 0, None), "orders", "default")
    with pytest.raises(TypeError, match="lease_id, token, ids must be given too"):
        await client.ack("orders", "default")
    with pytest.raises(TypeError, match="lease_id, token cannot be given with them"):
        await client.release(message, lease_id=1, token=2)
    with pytest.raises(TypeError, match="not int"):
        await client.ack([3])
    with pytest.raises(TypeError, match="not int"):
        await client.ack(3)


async def test_a_message_is_acked_in_the_transaction_of_its_effects(database: str) -> None:
    async with AsyncClient(database) as client:
        one, *_ = await prepared(client)
        with pytest.raises(ZeroDivisionError):
            async with client.transaction() as connection:
                await client.ack(one, connection=connection)
                raise ZeroDivisionError
        assert await states(client) == ["leased"] * 3


async def test_what_is_released_with_an_error_waits_and_its_fate_says_how_long(database: str) -> None:
    async with AsyncClient(database) as client:
        one, two, three = await prepared(client)
        assert await client.release([one, two], error="no handler for kind letter") == 2
        hold = ("orders", "default", three.lease_id, three.token)
        assert await client.release(*hold, [three.id], [None]) == 1
        fates = await client.list_fates("orders", "default", [one.id, two.id, three.id])
        assert [(fate.id, fate.reason) for fate in fates] == [(one.id, None), (two.id, None)]
        assert all(fate.wait is not None and 0 < fate.wait.total_seconds() <= 1 for fate in fates)
