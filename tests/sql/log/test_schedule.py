"""Schedules: made, changed, fired, skipped, paused, synchronized; by the database's functions alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from calling import ask, call, fetch, move_clock, refused
from engine import Engine

START = datetime(2030, 1, 1, tzinfo=UTC)  # by the database's clock

HOUR = timedelta(hours=1)


def set_clock(connection: psycopg.Connection[Any], time: datetime) -> None:
    """Move the clock to a time, from where it goes on."""
    now = fetch(connection, "select clock_timestamp()")
    move_clock(connection, f"{(time - now) / timedelta(microseconds=1):.0f} microseconds")


@pytest.fixture
def work(connection: psycopg.Connection[Any]) -> Engine:
    set_clock(connection, START)
    return Engine(connection, "work").create()


def at(hours: float) -> datetime:
    return START + hours * HOUR


def fire(work: Engine, time: datetime | None = None) -> int:
    """Perform the duty, at a time."""
    if time is not None:
        set_clock(work.connection, time)
    return int(ask(work.connection, "fire"))


def schedule(work: Engine, name: str = "hourly", **options: Any) -> bool:
    options = {"every": HOUR, "start_at": START} | options
    return bool(work.ask("create_schedule", schedule=name, **options))


def cron(work: Engine, hours: Sequence[float], name: str = "hourly", **options: Any) -> bool:
    """A schedule with these times; what the text says the database does not read."""
    times = [at(hour) for hour in hours]
    given: dict[str, Any] = {"cron": "0 * * * *", "due_times": times} | options
    return bool(work.ask("create_schedule", schedule=name, **given))


def row(work: Engine, name: str = "hourly") -> Any:
    (found,) = [each for each in call(work.connection, "list_schedules") if each.schedule == name]
    return found


def runs(work: Engine, name: str = "hourly") -> list[Any]:
    """The history, the oldest first."""
    return call(work.connection, "list_schedule_runs", schedule=name)[::-1]


def fired(work: Engine, name: str = "hourly") -> list[float]:
    return [(run.due_at - START) / HOUR for run in runs(work, name) if run.id is not None]


def skipped(work: Engine, name: str = "hourly") -> list[tuple[float, float, int, str]]:
    return [
        ((run.due_at - START) / HOUR, (run.last_due_at - START) / HOUR, run.runs, run.skipped)
        for run in runs(work, name)
        if run.skipped is not None
    ]


def warnings(work: Engine) -> list[Any]:
    """Those about schedules."""
    return [each for each in call(work.connection, "list_warnings") if each.warning.startswith("schedule ")]


def test_a_due_time_publishes_once_with_what_publish_takes(work: Engine) -> None:
    assert schedule(
        work, kind="report", key="k", payload={"n": 1}, headers={"of": "me"}, options={"max_attempts": 2},
        max_age=HOUR,
    )  # fmt: skip
    assert row(work).next_due == at(1)
    assert fire(work, at(0.99)) == 0
    assert (fire(work, at(1)), fire(work)) == (1, 0)
    (message,) = work.lease(5).messages
    assert (message.kind, message.key, message.payload) == ("report", "k", {"n": 1})
    assert message.headers == {"of": "me", "schedule": "hourly", "due_at": "2030-01-01T01:00:00.000000Z"}
    assert message.max_attempts == 2
    assert message.options["expires_at"].startswith("2030-01-01T02:00:00")
    (run,) = runs(work)
    assert (run.id, run.due_at, run.runs, run.skipped) == (message.id, at(1), 1, None)
    assert (row(work).next_due, row(work).last_due, row(work).last_id) == (at(2), at(1), message.id)


def test_a_rollback_takes_message_run_and_next_time_back(work: Engine) -> None:
    schedule(work)
    set_clock(work.connection, at(1))
    with pytest.raises(ZeroDivisionError), work.connection.transaction():
        assert fire(work) == 1
        assert fired(work) == [1]
        raise ZeroDivisionError
    assert (fired(work), work.lease().ids, row(work).next_due) == ([], [], at(1))
    assert fire(work) == 1
    assert len(work.lease(5).ids) == 1


def test_every_counts_from_its_start_and_does_not_drift(work: Engine) -> None:
    schedule(work, start_at=START + timedelta(minutes=7))
    fire(work, at(1.9))
    fire(work, at(3))
    minutes = [round(hour * 60) for hour in fired(work)]
    assert minutes == [67, 127]
    assert row(work).next_due == at(3) + timedelta(minutes=7)


def test_every_minds_no_daylight_saving(work: Engine) -> None:
    work.connection.execute("set timezone = 'Europe/Prague'")
    schedule(work, every=timedelta(days=1), start_at=datetime(2030, 3, 29, 12, tzinfo=UTC))
    previewed = ask(work.connection, "preview_schedule", schedule="hourly", limit=4)
    assert [time.astimezone(UTC).hour for time in previewed] == [12] * 4
    set_clock(work.connection, datetime(2030, 4, 2, tzinfo=UTC))
    fire(work)
    assert row(work).next_due == datetime(2030, 4, 2, 12, tzinfo=UTC)


def test_the_first_time_is_the_start_or_one_interval_from_now(work: Engine) -> None:
    schedule(work, "later", start_at=at(5))
    work.ask("create_schedule", schedule="now", every=HOUR)
    assert row(work, "later").next_due == at(5)
    assert row(work, "now").next_due - row(work, "now").start_at == HOUR


@pytest.mark.parametrize(
    ("missed", "expected", "passed"),
    [
        ("skip", [], [(1, 12, 12, "missed")]),
        ("one", [12], [(1, 11, 11, "missed")]),
        ("all", [*range(1, 13)], []),
    ],
)
@pytest.mark.parametrize("make", [schedule, cron])
def test_missed_runs_are_skipped_collapsed_or_made_up_for(
    work: Engine, make: Any, missed: str, expected: list[int], passed: list[Any]
) -> None:
    given = {"hours": range(1, 100)} if make is cron else {}
    make(work, missed=missed, **given)
    fire(work, at(12.5))
    assert fired(work) == expected
    assert skipped(work) == passed
    assert row(work).next_due == at(13)
    fire(work, at(13))
    assert fired(work) == [*expected, 13]


def test_a_time_less_than_a_minute_ago_is_not_missed(work: Engine) -> None:
    schedule(work, missed="skip")
    fire(work, at(1) + timedelta(seconds=50))
    assert fired(work) == [1]


def test_a_round_publishes_a_thousand_at_most_and_each_schedule_has_its_share(work: Engine) -> None:
    schedule(work, "many", every=timedelta(seconds=1), missed="all")
    schedule(work, "few", every=timedelta(minutes=20), missed="all")
    schedule(work, "one")
    assert fire(work, at(1)) < 1000
    assert (len(fired(work, "one")), len(fired(work, "few"))) == (1, 3)
    first = fetch(work.connection, "select count(*) from trunq.schedule_run")
    assert 300 < first < 400
    while fire(work):
        pass
    # The clock goes on meanwhile.
    due = "select count(*) from trunq_log.work where headers->>'due_at' <= '2030-01-01T01:00:00.000000Z'"
    assert fetch(work.connection, due) == 3604


def test_the_history_keeps_the_newest_thousand(work: Engine) -> None:
    schedule(work, every=timedelta(seconds=1), missed="all")
    fire(work, at(1))
    fire(work)
    kept = "select count(*), max(due_at) from trunq.schedule_run"
    assert work.connection.execute(kept.encode()).fetchone() == (1000, START + timedelta(seconds=2000))


def test_two_schedules_due_at_once_both_run(work: Engine) -> None:
    schedule(work, "a", kind="a")
    schedule(work, "b", kind="b")
    assert fire(work, at(1)) == 2
    assert {message.kind for message in work.lease(5).messages} == {"a", "b"}


def test_a_schedule_leaves_a_time_out_while_its_last_message_is_not_finished(work: Engine) -> None:
    schedule(work, overlap="skip")
    fire(work, at(1))
    fire(work, at(2))
    held = work.lease()
    fire(work, at(3))
    work.answer("retry", held, delays=["30 minutes"])
    fire(work, at(4))
    assert (fired(work), skipped(work)) == ([1], [(2, 4, 3, "overlap")])
    ask(work.connection, "promote", queue="work")
    work.ack(work.lease())
    fire(work, at(5))
    assert fired(work) == [1, 5]


def test_every_shared_subscription_counts_for_an_overlap(work: Engine) -> None:
    work.ask("subscribe", subscription="audit")
    schedule(work, overlap="skip")
    fire(work, at(1))
    work.ack(work.lease())
    fire(work, at(2))
    work.ack(work.lease(subscription="audit"))
    fire(work, at(3))
    assert (fired(work), skipped(work)) == ([1, 3], [(2, 2, 1, "overlap")])


def test_a_message_that_a_filter_leaves_out_is_no_overlap(work: Engine) -> None:
    work.ask("subscribe", subscription="other", filter={"kinds": ["other"]})
    schedule(work, overlap="skip", kind="mine")
    fire(work, at(1))
    work.ack(work.lease())
    fire(work, at(2))
    assert fired(work) == [1, 2]


def test_a_dead_message_is_finished(work: Engine) -> None:
    schedule(work, overlap="skip")
    fire(work, at(1))
    work.answer("reject", work.lease())
    fire(work, at(2))
    assert fired(work) == [1, 2]


def test_what_was_due_during_a_pause_does_not_come_again(work: Engine) -> None:
    schedule(work, missed="all")
    work.connection.execute("select trunq.pause_schedule('hourly')")
    assert (row(work).paused, row(work).paused_until) == (True, None)
    for hour in (1, 2, 3):
        fire(work, at(hour))
    assert ask(work.connection, "resume_schedule", schedule="hourly") is True
    fire(work, at(4))
    assert (fired(work), skipped(work)) == ([4], [(1, 3, 3, "paused")])
    assert ask(work.connection, "resume_schedule", schedule="hourly") is False


def test_a_pause_ends_by_itself_though_nobody_fired_meanwhile(work: Engine) -> None:
    schedule(work, missed="all")
    ask(work.connection, "pause_schedule", schedule="hourly", until=at(3))
    fire(work, at(5))
    assert (fired(work), skipped(work)) == ([3, 4, 5], [(1, 2, 2, "paused")])
    assert row(work).paused is False


def test_resume_passes_over_what_nobody_fired(work: Engine) -> None:
    schedule(work)
    ask(work.connection, "pause_schedule", schedule="hourly")
    set_clock(work.connection, at(2.5))
    ask(work.connection, "resume_schedule", schedule="hourly")
    assert (skipped(work), row(work).next_due) == ([(1, 2, 2, "paused")], at(3))


def test_told_again_a_schedule_loses_no_time_and_keeps_its_pause(work: Engine) -> None:
    """As at each deployment: what is due at that moment still runs."""
    cron(work, range(1, 50))
    ask(work.connection, "pause_schedule", schedule="hourly")
    set_clock(work.connection, at(1))
    assert cron(work, range(2, 50)) is False
    assert row(work).paused is True
    assert row(work).next_due == at(1)
    work.connection.execute("update trunq.schedule set paused_until = null")
    fire(work)
    assert fired(work) == [1]


def test_told_again_without_a_start_the_old_one_goes_on(work: Engine) -> None:
    work.ask("create_schedule", schedule="hourly", every=HOUR)
    before = row(work)
    set_clock(work.connection, at(0.5))
    work.ask("create_schedule", schedule="hourly", every=HOUR, kind="now")
    after = row(work)
    assert (after.start_at, after.next_due, after.kind) == (before.start_at, before.next_due, "now")


def test_a_changed_text_leaves_nothing_of_the_old_one(work: Engine) -> None:
    cron(work, range(1, 50))
    fire(work, at(1))
    cron(work, [1, 1.5, 2.5], cron="30 * * * *")
    fire(work, at(2))
    fire(work, at(3))
    assert fired(work) == [1, 1.5, 2.5]
    schedule(work)
    assert row(work).due_times is None
    assert row(work).next_due == at(4)
    cron(work, [2.5, 3.5])
    # What was fired does not come again, whoever computes it.
    assert row(work).next_due == at(3.5)


def test_times_computed_anew_replace_those_to_come(work: Engine) -> None:
    """As when the rules of a time zone have changed: none twice, none left out."""
    cron(work, [1, 2, 3, 4])
    fire(work, at(1))
    set_clock(work.connection, at(2.1))
    given = {"schedule": "hourly", "cron": "0 * * * *", "zone": "UTC"}
    times = [at(hour) for hour in (1, 3.5, 4.5)]
    assert ask(work.connection, "_fill_schedule", **given, after=at(2.1), due_times=times) is True
    fire(work)
    fire(work, at(3.6))
    assert fired(work) == [1, 2, 3.5]
    assert not ask(
        work.connection, "_fill_schedule", **given | {"zone": "Asia/Tokyo"}, after=at(1), due_times=times
    )
    assert row(work).due_times == 1


def test_times_that_came_to_an_end_go_on_where_they_ended(work: Engine) -> None:
    """None of them is left out: as many as are wanted are computed later."""
    for missed in ("all", "one"):
        cron(work, [1, 2], missed, missed=missed)
    fire(work, at(2))
    set_clock(work.connection, at(100))
    found = work.connection.execute("select schedule, after, now from trunq._list_fillable(500)").fetchall()
    (name, after, now), (other, near, until) = found
    assert (name, after, now) == ("all", at(2), at(2))
    assert (other, round((near - START) / HOUR), round((until - START) / HOUR)) == ("one", 52, 100)
    cron(work, range(150, 200), "one")
    found = work.connection.execute("select schedule, after from trunq._list_fillable(500)").fetchall()
    assert round((dict(found)["one"] - START) / HOUR) == 100


def test_what_cannot_be_published_stays_due_and_says_why(work: Engine) -> None:
    schedule(work)
    schedule(work, "other", kind="fine")
    Engine(work.connection, "second").create()
    call(work.connection, "create_schedule", schedule="other", queue="second", every=HOUR, start_at=START)
    work.ask("close_queue")
    assert fire(work, at(1)) == 1
    assert "closed" in row(work).error
    (warned,) = warnings(work)
    assert (warned.queue, "is closed" in warned.warning) == ("work", True)
    fire(work, at(2))
    work.ask("open_queue")
    assert fire(work, at(2.5)) == 1
    assert (fired(work), skipped(work)) == ([2], [(1, 1, 1, "missed")])
    assert "is closed" in runs(work)[0].error
    assert row(work).error is None
    assert warnings(work) == []


def test_a_queue_that_takes_few_in_a_transaction_gets_no_more(work: Engine) -> None:
    schedule(work, missed="all")
    work.ask("set_publishing", max_per_transaction=2)
    set_clock(work.connection, at(5))
    assert [fire(work) for _ in range(6)] == [2, 2, 1, 0, 0, 0]
    assert fired(work) == [1, 2, 3, 4, 5]


def test_times_that_come_to_an_end_are_warned_of(work: Engine) -> None:
    cron(work, range(1, 101))
    assert warnings(work) == []
    fire(work, at(1))
    (warned,) = warnings(work)
    assert (warned.queue, warned.warning) == ("work", 'schedule "hourly" has 99 due times left')


def test_the_duties_alone_fire_a_cron_schedule(work: Engine) -> None:
    """As with pg_cron and no process of Python: a thousand times are there."""
    cron(work, range(1, 1001), missed="all")
    for hour in (1, 400, 1000):
        set_clock(work.connection, at(hour))
        (fired,) = [each for each in call(work.connection, "perform_duties") if each.duty == "fire"]
        assert fired.done > 0
        assert fired.error is None
    assert len(work.lease(2000).ids) == 1000


def test_a_source_owns_what_its_list_made_and_nothing_else(work: Engine) -> None:
    def sync(source: str, **wanted: int) -> list[tuple[str, str]]:
        given = [
            {"schedule": name, "queue": "work", "every": f"{hours} hours"} for name, hours in wanted.items()
        ]
        return [
            tuple(each)
            for each in call(work.connection, "sync_schedules", schedules=json.dumps(given), source=source)
        ]

    schedule(work, "mine")
    assert sync("shop", b=1, a=1) == [("a", "created"), ("b", "created")]
    assert sync("mail", z=1) == [("z", "created")]
    ask(work.connection, "pause_schedule", schedule="b")
    set_clock(work.connection, at(1.5))
    fire(work)
    assert sync("shop", b=1, a=2) == [("a", "changed")]
    assert row(work, "b").paused is True
    assert sync("shop", b=1) == [("a", "deleted")]
    assert [each.schedule for each in call(work.connection, "list_schedules")] == ["b", "mine", "z"]
    for name in ("mine", "z"):
        with refused("TQ017", f'"{name}" was not made by the list "shop"'), work.connection.transaction():
            sync("shop", new=1, **{name: 1})
    assert sync("shop") == [("b", "deleted")]
    assert len(call(work.connection, "list_schedules", queue="work")) == 2


MISTAKES: list[tuple[dict[str, Any], str, str]] = [
    ({"cron": "0 * * * *"}, "TQ017", "Postgres does not read cron texts"),
    ({"cron": " ", "due_times": [at(1)]}, "TQ017", "cannot be read"),
    ({"cron": "0 * * * *", "zone": "Mars/Base", "due_times": [at(1)]}, "TQ017", 'no time zone "Mars/Base"'),
    ({"cron": "0 * * * *", "due_times": [None]}, "TQ017", "due_times is a list"),
    ({"cron": "0 * * * *", "at": "9:30", "due_times": [at(1)]}, "TQ017", "p_at goes with an interval"),
    ({"cron": "0 * * * *", "every": HOUR, "due_times": [at(1)]}, "TQ017", "one of them"),
    ({}, "TQ017", "one of them"),
    ({"every": HOUR, "zone": "UTC"}, "TQ017", "by the calendar of a zone"),
    ({"every": HOUR, "due_times": [at(1)]}, "TQ017", "go with a cron text"),
    ({"every": "0.5 seconds"}, "TQ017", "a second to 1000 years"),
    ({"every": HOUR, "start_at": "infinity"}, "TQ017", "cannot start at infinity"),
    ({"every": HOUR, "missed": "some"}, "TQ017", "skip, one or all"),
    ({"every": HOUR, "overlap": "never"}, "TQ017", "allow or skip"),
    ({"every": HOUR, "headers": "[]"}, "TQ017", "headers are a JSON object, not array"),
    ({"every": HOUR, "options": {"expires_at": "2040-01-01T00:00:00Z"}}, "TQ017", "p_max_age"),
    ({"every": HOUR, "options": {"attempts": 1}}, "TQ005", 'no option "attempts"'),
    ({"every": HOUR, "priority": 3}, "TQ005", "has no priorities"),
    ({"every": HOUR, "key": "k" * 1001}, "TQ006", "too long"),
    ({"every": HOUR, "schedule": "No Name"}, "TQ004", "cannot be the name of a schedule"),
    ({"every": HOUR, "queue": "gone"}, "TQ001", 'no queue "gone"'),
]


@pytest.mark.parametrize(("given", "sqlstate", "words"), MISTAKES)
def test_what_cannot_be_a_schedule_is_refused_with_the_way_out(
    work: Engine, given: dict[str, Any], sqlstate: str, words: str
) -> None:
    with refused(sqlstate, words), work.connection.transaction():
        call(work.connection, "create_schedule", **{"schedule": "s", "queue": "work"} | given)
    assert call(work.connection, "list_schedules") == []


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("{}", "a JSON array of objects"),
        ('[{"queue": "work"}]', "has no name"),
        ('[{"schedule": "a", "queue": "work", "every": "1 h"}, {"schedule": "a", "queue": "work"}]', "twice"),
        ('[{"schedule": "a", "queue": "work", "interval": "1 h"}]', 'has no "interval"'),
    ],
)
def test_a_list_that_cannot_be_read_is_refused(work: Engine, given: str, words: str) -> None:
    with refused("TQ017", words), work.connection.transaction():
        call(work.connection, "sync_schedules", schedules=given)
    assert call(work.connection, "list_schedules") == []


@pytest.mark.parametrize(
    "function",
    ["pause_schedule", "resume_schedule", "delete_schedule", "preview_schedule", "list_schedule_runs"],
)
def test_a_schedule_that_is_not_there(work: Engine, function: str) -> None:
    with refused("TQ016", 'no schedule "gone"', "list_schedules"):
        call(work.connection, function, schedule="gone")


def test_a_deleted_schedule_leaves_nothing_but_its_messages(work: Engine) -> None:
    cron(work, range(1, 10))
    fire(work, at(1))
    ask(work.connection, "delete_schedule", schedule="hourly")
    for table in ("schedule", "schedule_due", "schedule_run"):
        assert fetch(work.connection, f"select count(*) from trunq.{table}") == 0
    assert len(work.lease(5).ids) == 1


def test_a_queue_with_schedules_is_not_dropped_unless_forced(session: psycopg.Connection[Any]) -> None:
    kept = Engine(session, "kept_for_schedules").create()
    schedule(kept, "of_a_dropped_queue")
    with refused("TQ009", 'has schedules: "of_a_dropped_queue"', "delete them first"):
        kept.ask("drop_queue")
    kept.ask("drop_queue", force=True)
    assert "of_a_dropped_queue" not in {each.schedule for each in call(session, "list_schedules")}


def test_who_may_publish_may_not_make_schedules(work: Engine) -> None:
    work.connection.execute("create role only_publishes")
    work.ask("grant_role", role="publisher", grantee="only_publishes")
    schedule(work)
    work.connection.execute("set role only_publishes")
    for function, given in {
        "create_schedule": {"queue": "work", "every": HOUR, "schedule": "s"},
        "sync_schedules": {"schedules": '[{"schedule": "s", "queue": "work", "every": "1 h"}]'},
        "delete_schedule": {"schedule": "hourly"},
        "list_schedules": {},
    }.items():
        with refused("42501", "permission denied"), work.connection.transaction():
            call(work.connection, function, **given)
    work.connection.execute("reset role")
    assert [each.schedule for each in call(work.connection, "list_schedules")] == ["hourly"]
