"""Who did what to how many: functions/operate/audit.sql."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from calling import ask, call, fetch, move_clock, new_names
from conftest import Connect
from counting import cost_of
from engine import Engine
from granting import granting, make_shop


@pytest.fixture
def work(connection: psycopg.Connection[Any]) -> Iterator[Engine]:
    work = Engine(connection, next(new_names("audit"))).create()
    connection.execute("truncate trunq.audit")
    yield work
    move_clock(connection, "0")


def told(work: Engine) -> list[tuple[str, dict[str, Any], int | None]]:
    """What the audit says of the queue, the oldest first."""
    return [(row.did, row.arguments, row.messages) for row in reversed(work.call("list_audit"))]


def test_what_people_do_is_noted_with_how_many(work: Engine) -> None:
    ids = work.publish(6)
    held = work.lease(4)
    work.answer("reject", held)
    work.ask("pause_queue", until="2999-01-01 00:00+00")
    work.ask("resume_queue")
    work.ask("requeue", ids=ids[:1])
    work.ask("purge")
    work.call("cancel", ids=[ids[5]])
    work.ask("close_queue")
    assert told(work) == [
        ("pause_queue", {"until": "2999-01-01T00:00:00+00:00"}, None),
        ("resume_queue", {}, None),
        ("requeue", {"ids": ids[:1]}, 1),
        ("purge", {}, 3),
        ("cancel", {"ids": [ids[5]]}, 1),
        ("close_queue", {}, None),
    ]
    work.ask("purge")
    assert len(told(work)) == 6, "there was nothing to purge"
    work.ask("drop_queue", force=True)
    assert told(work)[-1] == ("drop_queue", {"force": True}, None)


def test_a_cancel_is_noted_with_how_many_messages_were_not_over(work: Engine) -> None:
    work.ask("subscribe", subscription="mail")
    ids = work.publish(2)
    work.ack(work.lease(1))
    work.call("cancel", ids=ids, subscription="default")
    work.call("cancel", ids=ids[:1], subscription="default")
    assert [(did, n) for did, _, n in told(work)] == [("cancel", 1)]
    work.call("cancel", ids=ids)
    assert told(work)[-1] == ("cancel", {"ids": ids}, 2), "one subscription has yet to handle the first"


def test_it_is_there_exactly_if_it_was_done(work: Engine) -> None:
    with work.connection.transaction(force_rollback=True):
        work.ask("pause_queue")
        assert len(told(work)) == 1
    assert told(work) == []


def test_a_policy_is_noted_where_it_changes(work: Engine) -> None:
    work.ask("subscribe", subscription="default", rate=5)
    work.ask("subscribe", subscription="default", rate=5)
    work.ask("subscribe", subscription="default", rate=0, max_running=3)
    assert [arguments for _, arguments, _ in told(work)] == [
        {"subscription": "default", "rate": 5, "is_limited": True},
        {"subscription": "default", "rate": None, "max_running": 3},
    ]


def test_work_leaves_nothing_in_it(work: Engine) -> None:
    work.publish(5)
    work.ack(work.lease(5))
    call(work.connection, "perform_duties")
    work.ask("tick")
    # Readers of streams force them, too.
    work.ask("tick", force=True)
    assert told(work) == []


def test_a_program_says_for_whom_it_acts_and_the_login_stays(work: Engine, connect: Connect) -> None:
    page = connect()
    page.execute("set application_name = 'trunq web'")
    with page.transaction():
        page.execute("select set_config('trunq.who', 'ada', true)")
        ask(page, "pause_queue", queue=work.queue)
    ask(page, "resume_queue", queue=work.queue)
    ours, hers = work.call("list_audit")
    login = fetch(page, "select session_user::text")
    assert (hers.who, hers.login, hers.application) == ("ada", login, "trunq web")
    assert ours.who == login
    assert [row.did for row in work.call("list_audit", who="ada")] == ["pause_queue"]
    assert [row.did for row in work.call("list_audit", did="resume_queue")] == ["resume_queue"]
    assert [row.did for row in work.call("list_audit", before=ours.audit_id)] == ["pause_queue"]
    assert len(call(page, "list_audit", limit=1)) == 1


def test_an_administrator_of_a_queue_is_noted_and_a_reader_sees_it(
    connection: psycopg.Connection[Any], connect: Connect
) -> None:
    shop = make_shop(connection)
    with granting(shop, connect) as give:
        admin, reader = give("admin"), give("reader")
        ask(admin, "pause_subscription", queue="mine", subscription="default")
        rows = call(reader, "list_audit", queue="mine")
        assert [row.did for row in rows if row.did.startswith("pause")] == ["pause_subscription"]
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            admin.execute("delete from trunq.audit")


def test_what_is_older_than_the_setting_says_is_deleted(work: Engine) -> None:
    work.ask("pause_queue")
    move_clock(work.connection, timedelta(days=60))
    work.ask("resume_queue")
    move_clock(work.connection, timedelta(days=91))
    assert work.fetch("select trunq.forget_audit()") == 1
    assert [did for did, _, _ in told(work)] == ["resume_queue"]
    work.run("set trunq.audit_retention = '10 days'")
    assert work.fetch("select trunq.forget_audit()") == 1


def test_each_thing_that_is_noted_is_a_function_and_says_its_own_name(work: Engine) -> None:
    sources = work.run(
        "select proname, prosrc from pg_proc"
        " where pronamespace = 'trunq'::regnamespace and prosrc like '%trunq._audit(''%'"
    ).fetchall()
    assert len(sources) > 35
    for name, source in sources:
        assert set(re.findall(r"trunq\._audit\('(\w+)'", source)) == {name}


WORK = frozenset(
    {
        "ack",
        "add_reference",
        "advance",
        "begin_move",
        "delete_memo",
        "draw_ids",
        "end_mover",
        "extend",
        "fail_batch",
        "fail_move",
        "finish_batch",
        "finish_move",
        "forward",
        "forward_retries",
        "join_group",
        "lease",
        "lease_ids",
        "leave_group",
        "next_batch",
        "notify",
        "park",
        "publish",
        "publish_many",
        "publish_many_unique",
        "publish_unique",
        "read_batch",
        "read_on",
        "receive",
        "reclaim",
        "reject",
        "release",
        "resume",
        "retry",
        "retry_batch",
        "set_memo",
        "set_progress",
        "set_ranks",
        "start_mover",
        "time_out",
    }
)
"""What publishers, workers and readers do: far too often to be noted."""

DUTIES = frozenset(
    {
        "elect",
        "carry_sweep",
        "resign",
        "sweep",
        "perform_duties",
        "perform_duty",
        "perform_each_duty",
        "promote",
        "reap",
        "tick",
        "forget",
        "summarize",
        "roll_up",
        "archive",
        "rotate",
        "fire",
        "sample",
        "remind",
        "forget_audit",
        "forget_memos",
        "cut_tick",
        "give_bell",
        "take_bell",
    }
)
"""What leaders do, and workers for each other; readers of streams force ticks, too."""

MAKES = frozenset(
    {
        "capture",
        "create_archive",
        "create_group",
        "create_pipeline",
        "create_queue",
        "create_schedule",
        "create_taker",
        "create_webhook",
        "let_clock_move",
        "run_pipeline",
        "set_dead",
        "set_reminders",
        "sync_schedules",
        "uncapture",
    }
)
"""What makes something, or says once more how it is, as programs do at each start: the catalog has it."""

EACH = frozenset({"rebase_each_queue"})
"""What commits by itself, and notes its queues in trunq.rebased."""

LOOKS = re.compile(
    r"(list|show|count|find|preview|public|explain)_\w+|\w+_channel"
    r"|backlog|clock|diagnose|fleet|get_memo|latest_samples|overview|position|public_ids?|retry_after|sampled_at"
    r"|snapshot|statistics|status|version"
)


def test_each_function_that_changes_something_is_noted_or_said_not_to_be(
    connection: psycopg.Connection[Any],
) -> None:
    rows = connection.execute(
        "select proname, bool_or(prosrc like '%trunq._audit(%' or prosrc like '%trunq._audit_policy(%')"
        " from pg_proc where pronamespace = 'trunq'::regnamespace and proname ~ '^[a-z]' group by 1"
    ).fetchall()
    noted = {name for name, is_noted in rows if is_noted}
    said = WORK | DUTIES | MAKES | EACH
    assert {name for name, _ in rows if not LOOKS.fullmatch(name)} == noted | said
    assert not noted & said
    # What the page's buttons and people's commands do: all of it, but publish and a tick, which programs do.
    assert noted >= {"cancel", "requeue", "purge", "free_worker", "seek", "cancel_pipeline", "drop_queue"}
    assert noted >= {
        f"{verb}_{what}"
        for verb in ("pause", "resume")
        for what in ("queue", "subscription", "lane", "schedule", "pipeline", "ticks")
    }


def test_a_slot_by_its_name_and_the_policy_of_a_group_are_noted(work: Engine) -> None:
    work.ask("create_group", group="crew", slots=2)
    work.ask("pause_subscription", subscription="crew")
    work.ask("resume_subscription", subscription="crew#1")
    work.ask("seek", subscription="crew#1", start="latest")
    work.ask("subscribe", subscription="crew", mode="exclusive", max_attempts=3)
    work.ask("subscribe", subscription="crew", mode="exclusive", filter=Jsonb({"kinds": ["a"]}))
    work.ask("subscribe", subscription="crew", mode="exclusive", max_attempts=3)
    found = [(did, {**arguments}) for did, arguments, _ in told(work)]
    assert [did for did, _ in found] == [
        *("pause_subscription", "resume_subscription", "seek", "subscribe", "subscribe")
    ]
    assert [arguments["subscription"] for _, arguments in found] == [
        "crew",
        "crew#1",
        "crew#1",
        "crew",
        "crew",
    ]
    assert found[-2][1] == {"subscription": "crew", "max_attempts": 3}
    assert found[-1][1] == {"subscription": "crew", "filter": {"kinds": ["a"]}}


def test_an_old_row_is_deleted_by_the_thousand_oldest(work: Engine) -> None:
    work.connection.execute(
        "insert into trunq.audit (at, who, login, application, did, arguments)"
        " select trunq.clock() - interval '91 days', 'a', 'a', '', 'purge', '{}'"
        " from generate_series(1, 1001)"
    )
    assert [work.fetch("select trunq.forget_audit()") for _ in range(3)] == [1000, 1, 0]


def test_who_did_little_among_a_million_records_is_found_in_bounded_looks(work: Engine) -> None:
    insert = """insert into trunq.audit (at, who, login, application, did, queue, arguments)
        select now(), %s, 'app', '', 'purge', %s, '{}' from generate_series(1, %s)"""
    work.connection.execute(insert, ("ada", work.queue, 1))
    work.connection.execute(insert, ("others", work.queue, 1_000_000))
    work.connection.execute("vacuum analyze trunq.audit")
    for queue in ("null", f"'{work.queue}'"):
        for filter in ("p_who => 'ada'", "p_did => 'seek'", "p_who => 'ada', p_did => 'purge'"):
            ask = f"select * from trunq.list_audit({queue}, {filter})"
            assert cost_of(work.connection, ask).pages < 10_000
    before, looks = None, 0
    while not (rows := work.call("list_audit", who="ada", before=before)):
        with work.connection.transaction():
            work.call("list_audit", who="ada", before=before)
            before = int(fetch(work.connection, "select current_setting('trunq.looked_to')"))
        looks += 1
    assert ([row.who for row in rows], looks) == (["ada"], 10)
