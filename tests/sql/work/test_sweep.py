"""Acts on all messages that a filter finds, in parts: functions/work/sweep.sql."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from calling import ask, call, new_names, refused
from counting import cost_of
from engine import Engine
from granting import granting, make_shop, me

PART = 10_000


@pytest.fixture
def work(session: psycopg.Connection[Any]) -> Engine:
    return Engine(session, next(new_names("sweep"))).create()


def bury(work: Engine, count: int, error: str = "boom", subscription: str = "default") -> list[int]:
    """So many messages that died."""
    ids = []
    work.run("insert into {log} (kind) select 'k' from generate_series(1, %s)", count)
    while held := work.lease(10_000, subscription=subscription):
        work.answer("reject", held, errors=[error] * len(held.ids))
        ids += held.ids
    return ids


def of(work: Engine, sweep_id: int) -> Any:
    return next(row for row in work.call("list_sweeps") if row.sweep_id == sweep_id)


def carry(work: Engine, sweep_id: int) -> Any:
    """To its end."""
    while work.ask("carry_sweep", sweep_id=sweep_id):
        pass
    return of(work, sweep_id)


def deaths(work: Engine) -> int:
    return int(work.ask("count_dead"))


def test_all_that_matched_are_requeued_in_parts_and_nothing_that_died_since(work: Engine) -> None:
    ids = bury(work, PART + 500)
    other = bury(work, 1, "other")
    sweep = work.ask("start_sweep", act="requeue", error="boom", counted=len(ids))
    late = bury(work, 3)
    assert work.ask("carry_sweep", sweep_id=sweep) is True
    row = of(work, sweep)
    assert (row.state, row.done, row.looked) == ("running", PART, PART)
    # What was requeued dies again, and is not taken again.
    again = work.lease(10)
    work.answer("reject", again, errors=["boom"] * 10)
    row = carry(work, sweep)
    assert (row.state, row.done, row.kept, row.counted) == ("finished", PART + 500, 0, PART + 500)
    assert sorted(row.id for row in work.call("list_dead", limit=100)) == sorted([*other, *late, *again.ids])
    assert sorted(work.drain()) == sorted({*ids} - {*again.ids})
    assert work.ask("carry_sweep", sweep_id=sweep) is False


def test_the_leader_carries_it_on_and_each_part_is_in_the_audit_with_the_sum(work: Engine) -> None:
    bury(work, PART + 5)
    work.connection.execute("select set_config('trunq.who', 'ada', false)")
    sweep = work.ask("start_sweep", act="purge")
    work.connection.execute("reset trunq.who")
    while of(work, sweep).state == "running":
        call(work.connection, "perform_duty", duty="sweep")
    rows = call(work.connection, "list_audit", queue=work.queue, who="ada")
    assert [(row.did, row.messages) for row in rows] == [
        ("sweep", PART + 5),
        ("purge", 5),
        ("purge", PART),
        ("start_sweep", None),
    ]
    assert rows[0].arguments["state"] == "finished"
    assert deaths(work) == 0


def test_it_is_stopped_before_its_next_part(work: Engine) -> None:
    bury(work, PART + 5)
    sweep = work.ask("start_sweep", act="purge")
    work.ask("carry_sweep", sweep_id=sweep)
    assert work.ask("stop_sweep", sweep_id=sweep) is True
    row = carry(work, sweep)
    assert (row.state, row.done, row.stopped_by is not None) == ("stopped", PART, True)
    assert (deaths(work), work.ask("stop_sweep", sweep_id=sweep)) == (5, False)


def test_no_more_are_taken_than_were_counted(work: Engine) -> None:
    bury(work, 20)
    row = carry(work, work.ask("start_sweep", act="purge", counted=7))
    assert (row.done, row.state, deaths(work)) == (7, "finished", 13)


def test_of_one_subscription_only(work: Engine) -> None:
    work.ask("subscribe", subscription="mail")
    bury(work, 4)
    while held := work.lease(10, subscription="mail"):
        work.answer("reject", held, errors=["boom"] * len(held.ids))
    row = carry(work, work.ask("start_sweep", act="purge", subscription="mail"))
    assert (row.done, deaths(work)) == (4, 4)


def test_what_cannot_be_requeued_is_kept_and_told(session: psycopg.Connection[Any]) -> None:
    work = Engine(session, next(new_names("sweep"))).create(unique="refuse")
    work.ask("publish_unique", payload={}, unique_key="k")
    (dead,) = bury(work, 0)
    work.ask("publish_unique", payload={}, unique_key="k")
    row = carry(work, work.ask("start_sweep", act="requeue"))
    assert (row.done, row.kept, row.state) == (0, 1, "finished")
    assert work.state(dead) == "dead"


def test_one_that_runs_is_found_behind_all_that_ended(work: Engine) -> None:
    bury(work, 1)
    runs = work.ask("start_sweep", act="purge", kind="other")
    end(work, 20_000)
    work.connection.execute("analyze trunq.sweep")
    asks = f"select * from trunq.list_sweeps('{work.queue}', 5, p_state => 'running')"
    assert cost_of(work.connection, asks).pages < 500
    (row,) = work.call("list_sweeps", limit=5, state="running")
    assert (row.sweep_id, row.state) == (runs, "running")
    assert len(work.call("list_sweeps", limit=5, state="finished")) == 5
    assert work.call("list_sweeps", before=runs, state="running") == []
    with refused("TQ005", 'no sweep is "walking"', "running"):
        work.call("list_sweeps", state="walking")


def end(work: Engine, count: int) -> None:
    """So many newer sweeps that ended."""
    work.run(
        "insert into trunq.sweep (queue_id, queue, act, filter, before, until, started_at, who, role,"
        " carried_at, state, ended_at) select {id}, '{queue}', 'purge', '{{}}', 1, now(), now(), 'me', 'me',"
        " now(), 'finished', now() from generate_series(1, %s)",
        count,
    )


def test_a_queue_that_is_dropped_in_the_middle_ends_it(work: Engine) -> None:
    bury(work, PART + 5)
    sweep = work.ask("start_sweep", act="purge")
    work.ask("carry_sweep", sweep_id=sweep)
    work.ask("drop_queue", force=True)
    Engine(work.connection, work.queue).create()
    new = bury(work, 2)
    row = carry(work, sweep)
    assert (row.state, row.done) == ("dropped", PART)
    assert deaths(work) == len(new)


def test_a_role_that_lost_its_right_does_nothing_more(
    connection: psycopg.Connection[Any], connect: Any
) -> None:
    shop = make_shop(connection)
    for _ in range(3):
        held = call(shop, "lease", queue="mine", subscription="default", worker="w")
        call(shop, "reject", queue="mine", subscription="default", lease_id=held[0].lease_id,
             token=held[0].token, ids=[held[0].id])  # fmt: skip
    with granting(shop, connect) as grant:
        admin = grant("admin")
        sweep = ask(admin, "start_sweep", queue="mine", act="purge")
        assert sweep in [row.sweep_id for row in call(admin, "list_sweeps", queue="mine")]
        name = admin.execute("select current_user").fetchone()
        ask(shop, "revoke_role", queue="mine", role="admin", grantee=name[0])
        assert ask(shop, "carry_sweep", queue="mine", sweep_id=sweep) is False
        row = next(row for row in call(shop, "list_sweeps", queue="mine") if row.sweep_id == sweep)
        assert (row.state, row.done) == ("refused", 0)
        # A filter on what the role may not see would tell it.
        admin = grant("admin")
        with refused("42501", "sees no payloads"):
            ask(admin, "start_sweep", queue="mine", act="cancel", subscription="default", state="ready",
                payload={"n": 1})  # fmt: skip


def test_an_admin_who_reads_payloads_cancels_by_them_as_long_as_he_does(
    connection: psycopg.Connection[Any], connect: Any
) -> None:
    shop = make_shop(connection)
    with granting(shop, connect) as grant:
        both = grant("admin")
        ask(shop, "grant_role", queue="mine", role="reader", grantee=me(both), payload=True)
        sweeps = [
            ask(
                both,
                "start_sweep",
                queue="mine",
                act="cancel",
                subscription="default",
                state="ready",
                payload={"n": 1},
            )
            for _ in range(2)
        ]
        assert ask(both, "carry_sweep", queue="mine", sweep_id=sweeps[0]) is False
        ask(shop, "revoke_role", queue="mine", role="reader", grantee=me(both))
        assert ask(shop, "carry_sweep", queue="mine", sweep_id=sweeps[1]) is False
        states = {row.sweep_id: row.state for row in call(shop, "list_sweeps", queue="mine")}
        assert [states[sweep] for sweep in sweeps] == ["finished", "refused"]


def test_messages_in_one_state_are_cancelled(work: Engine) -> None:
    work.publish(5, kinds=["spam"])
    work.publish(2, kinds=["ham"])
    before = max(work.listed(state="ready")) + 1
    sweep = work.ask(
        "start_sweep", act="cancel", subscription="default", state="ready", kind="spam", before=before
    )
    work.publish(1, kinds=["spam"])
    row = carry(work, sweep)
    assert (row.state, row.done, row.kept) == ("finished", 5, 0)
    assert len(work.drain()) == 3


def test_the_audit_has_each_part_that_cancels_with_its_sweep(work: Engine) -> None:
    work.publish(5)
    work.ack(work.lease(1))
    sweep = work.ask("start_sweep", act="cancel", subscription="default", state="ready")
    row = carry(work, sweep)
    assert (row.done, row.kept) == (4, 0)
    rows = call(work.connection, "list_audit", queue=work.queue, did="cancel")
    told = [(row.arguments["sweep"], row.arguments["state"], row.messages) for row in rows]
    assert told == [(sweep, "ready", 4)]


def test_of_a_queue_with_lanes_a_part_is_smaller(connection: psycopg.Connection[Any]) -> None:
    work = Engine(connection, next(new_names("sweep"))).create(lanes="key")
    work.run("insert into {log} (key) select 'k' || n %% 50 from generate_series(1, %s) n", PART // 5 + 500)
    held = work.lease(10)
    sweep = work.ask("start_sweep", act="cancel", subscription="default", state="ready")
    assert work.ask("carry_sweep", sweep_id=sweep) is True
    row = of(work, sweep)
    assert (row.looked, row.done) == (PART // 5, PART // 5)
    row = carry(work, sweep)
    assert (row.state, row.done, row.kept) == ("finished", PART // 5 + 490, 0)
    work.ack(held)
    assert work.drain() == []


def test_what_a_payload_contains_chooses(work: Engine) -> None:
    for customer in ("acme", "acme", "b", "acme"):
        work.ask("publish", payload={"customer": customer, "n": 1})
    row = carry(
        work,
        work.ask(
            "start_sweep", act="cancel", subscription="default", state="ready", payload={"customer": "acme"}
        ),
    )
    assert (row.done, row.filter["payload"]) == (3, "(given)")
    assert len(work.drain()) == 1


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"act": "delete"}, "cannot delete messages"),
        ({"act": "purge", "state": "dead"}, "state is no filter of what to purge"),
        ({"act": "cancel", "reason": "rejected"}, "reason is no filter"),
        ({"act": "purge", "reason": "bored"}, "no message is dead by"),
        ({"act": "cancel", "state": "ready"}, "says of which subscription"),
        ({"act": "cancel", "subscription": "default", "state": "done"}, "that is done can be cancelled"),
        ({"act": "purge", "counted": -1}, "is not a number of messages"),
        ({"act": "purge", "older_than": "300000 years"}, "at most 1000 years"),
        ({"act": "requeue", "newer_than": "-300000 years"}, "at most 1000 years"),
    ],
)
def test_what_cannot_be_is_refused(work: Engine, given: dict[str, Any], said: str) -> None:
    with refused("TQ005", said):
        work.ask("start_sweep", **given)
    with refused("TQ005", "has no sweep 0"):
        work.ask("stop_sweep", sweep_id=0)


def test_a_time_to_come_makes_nothing_older(work: Engine) -> None:
    bury(work, 2)
    row = carry(work, work.ask("start_sweep", act="purge", older_than="1 day", until="infinity"))
    assert (row.state, row.done, deaths(work)) == ("finished", 0, 2)
    with work.clock("2 days"):
        # Whoever carries it on reads times in his own way.
        work.run("set IntervalStyle = sql_standard")
        sweep = work.ask("start_sweep", act="purge", older_than="1 day -1 second", newer_than="3 days")
        work.run("reset IntervalStyle")
        assert carry(work, sweep).done == 2


def test_of_a_long_filter_a_list_tells_the_beginning(work: Engine) -> None:
    work.ask("start_sweep", act="purge", error="x" * 100_000, key="k")
    (row,) = work.call("list_sweeps")
    assert (len(row.filter["error"]), row.filter["key"]) == (1000, "k")


def test_a_subscription_that_goes_in_the_middle_ends_it(work: Engine) -> None:
    work.ask("subscribe", subscription="other")
    bury(work, 3, subscription="other")
    sweep = work.ask("start_sweep", act="purge", subscription="other")
    work.ask("unsubscribe", subscription="other")
    work.ask("subscribe", subscription="other")
    assert (carry(work, sweep).state, carry(work, sweep).done) == ("dropped", 0)


def test_a_part_of_large_messages_is_a_smaller_one(connection: psycopg.Connection[Any]) -> None:
    """Else it takes longer than its line of duties has, and is tried for ever."""
    work = Engine(connection, "large").create()
    definition = work.fetch("select pg_get_functiondef('trunq._limit'::regproc)")
    work.connection.execute(definition.replace("67108864", "1000").encode())
    bury(work, 7, "x" * 600)
    small = bury(work, 1, "x")
    sweep = work.ask("start_sweep", act="requeue")
    parts = []
    while work.ask("carry_sweep", sweep_id=sweep):
        parts.append(of(work, sweep).done)
    row = of(work, sweep)
    assert (row.state, row.done, row.looked, deaths(work)) == ("finished", 8, 8, 0)
    # Errors are kept as they are, compressed or not: some in a part, and never none.
    assert len(parts) > 1
    assert parts == sorted({*parts})
    assert 0 not in parts
    assert small[0] in work.drain()
