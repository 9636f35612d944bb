"""What messages died of, in groups: functions/work/fingerprint.sql."""

from __future__ import annotations

import random
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from calling import call, fetch, new_names, refused
from engine import Engine


@pytest.fixture
def work(session: psycopg.Connection[Any]) -> Engine:
    return Engine(session, next(new_names("groups"))).create()


def bury(work: Engine, *errors: str) -> list[int]:
    work.publish(len(errors))
    held = work.lease(len(errors))
    work.answer("reject", held, errors=list(errors))
    return held.ids


@pytest.mark.parametrize(
    ("error", "fingerprint"),
    [
        ("KeyError: 'iban of customer-17'\nshop.py, line 7", "KeyError: '...'"),
        ('ValueError: "it\'s" is no date', "ValueError: '...' is no date"),
        ("Failed: can't reach order 17 of 'ada'", "Failed: can't reach order # of '...'"),
        ("no row 3f2c1b00-0000-4000-8000-0123456789ab in deadbeef01", "no row # in #"),
        ("defaced facade", "defaced facade"),
        # A line that is long, and where the other quotation mark is far, or on another line.
        ("KeyError: '" + 40 * "customer " + "17' in orders", "KeyError: '...'"),
        ('KeyError: "customer\n17"', "KeyError: '...'"),
        ("<" + 60 * "'17' " + ">", "<" + 33 * "'...' " + "'"),
        ("  \nsecond", "rejected"),
        ("<b>" + 300 * "x", "<b>" + 197 * "x"),
    ],
)
def test_what_differs_from_message_to_message_is_masked(work: Engine, error: str, fingerprint: str) -> None:
    bury(work, error)
    (group,) = work.call("list_dead_groups")
    assert (group.fingerprint, group.messages) == (fingerprint, 1)
    assert [row.id for row in work.call("list_dead", fingerprint=fingerprint)] == [group.id]


def test_a_thousand_customers_are_one_group(work: Engine) -> None:
    bury(work, *(f"KeyError: 'customer-{n}'" for n in range(200)), "ValueError: 7")
    many, one = work.call("list_dead_groups")
    assert (many.fingerprint, many.messages, many.error) == (
        "KeyError: '...'",
        200,
        "KeyError: 'customer-199'",
    )
    assert (one.fingerprint, one.subscriptions, one.looked, one.looked_to) == (
        "ValueError: #",
        ["default"],
        201,
        None,
    )
    assert work.ask("count_dead", fingerprint=many.fingerprint) == 200
    assert work.ask("requeue", fingerprint=many.fingerprint, limit=50) == 50
    assert work.ask("purge", fingerprint=many.fingerprint) == 150
    assert [row.fingerprint for row in work.call("list_dead_groups")] == ["ValueError: #"]


def test_a_look_says_how_far_it_came_and_the_next_goes_on(work: Engine) -> None:
    bury(work, *(f"first {n}" for n in range(7)), *(f"second {n}" for n in range(5)))
    (newest,) = work.call("list_dead_groups", look=5)
    assert (newest.fingerprint, newest.messages, newest.looked) == ("second #", 5, 5)
    (older,) = work.call("list_dead_groups", look=7, before=newest.looked_to)
    assert (older.fingerprint, older.messages) == ("first #", 7)
    assert work.call("list_dead_groups", look=7, before=older.looked_to) == []


def test_all_queues_are_looked_at_together(
    connection: psycopg.Connection[Any],
) -> None:
    queues = [Engine(connection, f"work_{n}").create() for n in range(3)]
    for number, queue in enumerate(queues):
        bury(queue, *(f"lost {n}" for n in range(number + 1)))
    rows = call(connection, "list_dead_groups")
    assert [(row.queue, row.messages) for row in rows] == [("work_2", 3), ("work_1", 2), ("work_0", 1)]
    with refused("TQ005", "is one of a queue"):
        fetch(connection, "select 1 from trunq.list_dead_groups(p_subscription => 'default')")


def test_a_look_writes_no_file_and_tells_little_of_a_long_error(work: Engine) -> None:
    # As many as a look takes, with payloads: to carry them along would fill more than work_mem.
    work.run(
        "insert into trunq.dead"
        " (queue_id, subscription_id, id, reason, created_at, died_at, attempt, payload, errors)"
        " select {id}, s.subscription_id, n, 'rejected', trunq.clock(), trunq.clock(), 1,"
        " jsonb_build_object('order', repeat('x', 1500)),"
        " jsonb_build_array(jsonb_build_object('error', repeat('bad ', 2000)))"
        " from trunq.subscription s, generate_series(1, 8000) n where s.queue_id = {id}"
    )
    with work.connection.transaction():
        work.run("set local work_mem = '8MB'")
        plan = work.fetch(
            "explain (analyze, buffers, timing off, format json)"
            " select * from trunq.list_dead_groups('{queue}')"
        )
    assert plan[0]["Plan"]["Temp Written Blocks"] == 0
    (group,) = work.call("list_dead_groups")
    assert (group.messages, len(group.error)) == (8000, 1000)


def test_no_error_is_passed_over_that_has_the_fingerprint(work: Engine) -> None:
    """A look at many asks first whether an error begins alike."""
    chance = random.Random(22)
    letters = "'\"`#\n\\ -_.:af09ÄŽ😀"
    texts = ["".join(chance.choices(letters, k=chance.randrange(40))) for _ in range(3000)]
    texts += [" " * n + "x" * 300 for n in (0, 1, 198, 300, 1500)]
    errors: list[Any] = [[{"error": text}] for text in texts]
    errors += [None, [], [{}], [{"error": None}], {}, [1]]
    begins = "select trunq._begins_alike(e.errors, {}) from unnest(%s::jsonb[]) e(errors)"
    own = work.run(
        begins.replace("{}", "trunq._fingerprint(e.errors, 'rejected')"),
        [None if each is None else Jsonb(each) for each in errors],
    ).fetchall()
    assert own == [(True,)] * len(errors)
    other = work.run(begins.replace("{}", "'KeyError: ''...'''"), [Jsonb([{"error": "ValueError: 1"}])])
    assert other.fetchall() == [(False,)]
