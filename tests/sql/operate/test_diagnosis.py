"""What is wrong with this database? diagnose names each trouble that a test makes, and what it says helps."""

from __future__ import annotations

import re
import time

import psycopg
import pytest
from psycopg.types.json import Jsonb

from calling import ask, call, come_back, fetch, lease, move_clock, publish, refused
from diagnosing import Connection, findings, follow
from engine import Engine
from trunq import install
from trunq.embedded import Embedded
from trunq.record import Finding
from waiting import wait_until


def test_of_a_healthy_database_it_says_nothing(dba: Connection) -> None:
    publish(dba, "work", 2)
    assert findings(dba) == []
    assert [area for (area,) in dba.execute("select area from trunq._areas()")] == [
        name.removeprefix("_diagnose_")
        for (name,) in dba.execute(
            "select p.proname from pg_proc p join trunq._areas() a on p.proname = '_diagnose_' || a.area"
            " where p.pronamespace = 'trunq'::regnamespace order by a.place"
        )
    ]


def test_that_nobody_leads_is_said_with_since_when(dba: Connection) -> None:
    ask(dba, "resign", name="me", term=ask(dba, "elect", name="me", lease_time="1 day"))
    (row,) = findings(dba)
    assert (row.area, row.severity, row.queue) == ("leader", "error", None)
    assert row.finding.startswith("nobody performs the duties: ")
    ask(dba, "elect", name="me")
    with dba.transaction(force_rollback=True):
        move_clock(dba, "1 hour")
        (row,) = findings(dba, "leader")
        assert row.since is not None
        assert f"since {row.since:%Y-%m-%d %H:%M}" in row.finding
    move_clock(dba, "0")
    assert findings(dba) == []


def test_a_leader_that_has_fallen_silent_is_named_before_its_lease_ends(dba: Connection) -> None:
    ask(dba, "elect", name="me", lease_time="15 seconds")
    begun = fetch(dba, "select expires_at - lease_time from trunq.leader")
    age = float(fetch(dba, "select extract(epoch from clock_timestamp() - %s::timestamptz)", begun))
    try:
        # It renews every five seconds, and may be late.
        move_clock(dba, f"{6 - age} seconds")
        assert findings(dba, "leader") == []
        move_clock(dba, f"{9.1 - age} seconds")
        (row,) = findings(dba, "leader")
        assert (row.severity, row.since) == ("error", begun)
        said = r'leader "me" has said nothing for 00:00:\d\d: it is stopped, hangs or is gone, and until '
        assert re.match(said, row.finding)
        ask(dba, "elect", name="me", lease_time="15 seconds")
        assert findings(dba, "leader") == []
    finally:
        move_clock(dba, "0")
        ask(dba, "elect", name="me", lease_time="1 day")


def test_areas_are_looked_at_alone(healthy: Embedded, dba: Connection) -> None:
    dba.execute("grant create on schema trunq to public")
    with psycopg.connect(healthy.dsn, application_name="eve") as forgotten:
        ask(forgotten, "publish", queue="work", payload={"n": 1})
        try:
            move_clock(dba, "10 seconds")
            (row,) = wait_until(lambda: findings(dba, "sessions"))
            assert 'application "eve"' in row.finding
            assert 'has published to queue "work"' in row.finding
            (same,) = call(dba, "diagnose", areas=["sessions", "leader", "workers", "failures"])
            assert same.finding == row.finding
            (warned,) = call(dba, "list_warnings")
            assert (warned.warning, warned.hint) == (row.finding, row.hint)
            assert {each.area for each in findings(dba)} == {"sessions", "rights"}
        finally:
            move_clock(dba, "0")
    dba.execute("revoke create on schema trunq from public")
    assert call(dba, "diagnose", areas=[]) == []
    for unknown in ("weather", None):
        with refused("TQ005", f'there is no area "{unknown or ""}"', "leader"):
            call(dba, "diagnose", areas=["leader", unknown])


def test_positions_of_another_cluster_are_an_error_until_they_are_adopted(dba: Connection) -> None:
    dba.execute("update trunq.cluster set system_identifier = system_identifier + 1")
    row = findings(dba)[0]
    assert (row.area, row.severity) == ("cluster", "error")
    (command,) = re.findall(r'"(select trunq.adopt\(\))"', row.hint)
    dba.execute(command.encode())
    assert findings(dba) == []


def test_what_a_queue_lacks_is_an_error_until_it_is_put_back(dba: Connection) -> None:
    dba.execute("alter table trunq_log.work alter id drop default")
    (row,) = findings(dba)
    assert (row.area, row.severity, row.queue) == ("structure", "error", "work")
    assert row.finding == "column id of trunq_log.work has no default"
    follow(dba, row.hint.partition(", or: ")[2])
    assert findings(dba) == []


def test_what_list_warnings_says_is_among_it(dba: Connection) -> None:
    publish(dba, "work")
    try:
        move_clock(dba, "10 minutes")
        (row,) = findings(dba)
        (warned,) = call(dba, "list_warnings")
    finally:
        move_clock(dba, "0")
    assert row[:4] == ("warnings", "warning", "work", "default")
    assert (row.finding, row.hint) == (warned.warning, warned.hint)


@pytest.mark.parametrize("what", ["queue", "subscription"])
def test_a_pause_without_an_end_is_named_when_messages_wait(dba: Connection, what: str) -> None:
    ask(dba, "create_queue", queue="paused")
    given = {} if what == "queue" else {"subscription": "default"}
    ask(dba, f"pause_{what}", queue="paused", **given)
    assert findings(dba) == []
    publish(dba, "paused")
    (row,) = findings(dba)
    assert row[:4] == ("pauses", "warning", "paused", "default")
    assert row.since is not None
    follow(dba, row.hint)
    assert findings(dba) == []
    ask(dba, f"pause_{what}", queue="paused", until="2999-01-01", **given)
    assert findings(dba) == [], "somebody said until when"
    ask(dba, "drop_queue", queue="paused", force=True)


def test_that_everybody_may_make_objects_in_its_schemas_is_an_error(dba: Connection) -> None:
    dba.execute("grant create on schema trunq to public")
    dba.execute(b"alter function trunq_queue.work_publish reset search_path")
    found = findings(dba)
    assert {(row.area, row.severity) for row in found} == {("rights", "error")}
    follow(dba, found[0].hint)
    rest = findings(dba)
    dba.execute(b"alter function trunq_queue.work_publish set search_path = pg_catalog, pg_temp")
    assert [row.finding for row in rest] in ([], [found[-1].finding])
    assert findings(dba) == []


def test_a_role_without_rights_is_told_what_it_cannot_see_and_which_grant_shows_it(dba: Connection) -> None:
    dba.execute("create role guest; grant usage on schema trunq to guest; set role guest")
    found = findings(dba)
    assert {row.severity for row in found} == {"unseen"}
    assert {"leader", "warnings", "statistics"} <= {row.area for row in found}
    dba.execute("reset role")
    grants = {row.missing_grant for row in found if row.hint == f"{row.missing_grant} shows it"}
    assert grants == {f"grant {dba.info.user} to guest", "grant pg_read_all_stats to guest"}
    for grant in grants:
        dba.execute(grant.encode())
    dba.execute("set role guest")
    assert findings(dba) == []
    dba.execute("reset role; drop owned by guest; drop role guest")


def test_an_area_that_fails_leaves_the_others_their_turn(dba: Connection) -> None:
    with dba.transaction(force_rollback=True):
        dba.execute("alter table trunq.duty_done rename to gone")
        dba.execute("grant create on schema trunq to public")
        found = findings(dba)
    assert ("leader", "error") in {(row.area, row.severity) for row in found}
    assert "the look at leader failed: " in " ".join(row.finding for row in found)
    assert "rights" in {row.area for row in found}


def test_functions_that_somebody_changed_or_dropped_are_errors_until_they_are_put_back(
    healthy: Embedded, dba: Connection
) -> None:
    dba.execute(
        "create or replace function trunq._seconds(p_interval interval) returns double precision language sql"
        " immutable set search_path = pg_catalog, pg_temp as 'select 0::double precision'"
    )
    (row,) = findings(dba)
    assert (row.area, row.severity) == ("functions", "error")
    assert row.finding == "function trunq._seconds(interval) was changed by hand"
    assert row.hint == "trunq db upgrade --repair"
    assert not install.install(healthy.dsn).functions, "an upgrade finds nothing to do"
    assert install.install(healthy.dsn, repair=True).functions
    assert findings(dba) == []
    definition = fetch(dba, "select pg_get_functiondef('trunq_queue.work_wake()'::regprocedure)")
    dba.execute(definition.lower().replace("begin", "begin null;", 1).encode())
    dba.execute("alter function trunq_queue.work_wake() set work_mem = '8MB'")
    dba.execute("drop function trunq_queue.work_extend")
    gone, changed = findings(dba)
    assert {gone.area, changed.area} == {"structure"}
    assert re.fullmatch(r"function trunq_queue\.work_extend\(.*\) is gone", gone.finding)
    assert changed.finding == "function trunq_queue.work_wake() was changed by hand"
    follow(dba, changed.hint.partition(", or: ")[2])
    assert findings(dba) == []
    settings = fetch(dba, "select proconfig from pg_proc where proname = 'work_wake'")
    assert "work_mem=8MB" in settings, "what a DBA set stays"
    dba.execute("alter function trunq_queue.work_wake() reset work_mem")


def test_that_nobody_can_be_elected_is_an_error(dba: Connection) -> None:
    dba.execute("alter table trunq.leader set unlogged")
    (row,) = findings(dba)
    assert (row.area, row.severity) == ("leader", "warning")
    dba.execute("delete from trunq.leader")
    error, warning = findings(dba)
    assert error.finding.startswith("the row of trunq.leader is gone: nobody can be elected")
    assert ask(dba, "elect", name="me") is None
    follow(dba, error.hint)
    follow(dba, warning.hint)
    assert ask(dba, "elect", name="me", lease_time="1 day") == 1
    assert findings(dba) == []


def say(
    connection: Connection, worker: str, host: str, version: str, seconds: float, clock: float | None
) -> None:
    ask(
        connection,
        "_report",
        worker=worker,
        queues=["work"],
        subscription="default",
        host=host,
        pid=7,
        seconds=seconds,
        version=version,
        slots=1,
        handling=Jsonb([]),
        last_word=None,
        clock=clock,
    )


def test_workers_of_different_versions_are_named_when_they_stay_side_by_side(dba: Connection) -> None:
    say(dba, "old", "shop-1", "0.1.0", 90_000, None)
    say(dba, "new", "shop-2", "0.2.0", 60, None)
    assert findings(dba) == [], "one release takes the place of another"
    say(dba, "new", "shop-2", "0.2.0", 700, None)
    (row,) = findings(dba)
    assert (row.area, row.severity) == ("version", "warning")
    assert re.match(
        r'workers are of different versions of trunq: 1 of 0\.1\.0 \("old", since .*\),'
        r' 1 of 0\.2\.0 \("new", ',
        row.finding,
    )
    shown = dba.execute(row.hint.partition(": ")[2].encode()).fetchall()
    assert [(name, version) for name, _, _, version, _ in shown] == [("old", "0.1.0"), ("new", "0.2.0")]
    dba.execute("truncate trunq.worker_report")
    assert findings(dba) == []


def test_clocks_of_workers_and_of_the_leader_that_are_wrong_are_named(dba: Connection) -> None:
    say(dba, "ada", "shop-1", "0.1.0", 1, time.time() + 1000)
    say(dba, "bob", "shop-1", "0.1.0", 1, time.time() + 60)
    say(dba, "eve", "shop-2", "0.1.0", 1, time.time())
    note = "select trunq._note_duties('{}', '{}', '{}', %s)"
    dba.execute(note, (time.time() - 30,))
    host, leader = findings(dba)
    assert {host.area, leader.area} == {"clocks"}
    # The report that was fastest tells best.
    assert host.finding == 'the clock of host shop-1, where worker "ada" runs, is 60 s ahead of the server\'s'
    assert leader.finding == 'the clock of leader "me" is 30 s behind the server\'s'
    dba.execute("truncate trunq.worker_report")
    dba.execute(note, (time.time(),))
    assert findings(dba) == []


def test_a_bell_that_nobody_answers_is_named_and_freed(healthy: Embedded, dba: Connection) -> None:
    with psycopg.connect(healthy.dsn, autocommit=True, application_name="trunq worker ada") as frozen:
        assert ask(frozen, "take_bell", queue="work") == "held"
        assert findings(dba, "bells") == []
        try:
            move_clock(dba, "6 minutes")
            (row,) = findings(dba, "bells")
            assert ask(dba, "take_bell", queue="work") == "sleeper"
            follow(dba, row.hint)
        finally:
            move_clock(dba, "0")
        assert (row.severity, row.queue) == ("warning", "work")
        assert 'application "trunq worker ada", holds the bell of queue "work"' in row.finding
        wait_until(lambda: ask(dba, "take_bell", queue="work") == "held")
        ask(dba, "give_bell", queue="work")
    assert findings(dba) == []


def test_a_worker_that_says_nothing_and_holds_messages_is_named_until_it_is_freed(dba: Connection) -> None:
    work = Engine(dba, "silent").create()
    work.publish(3)
    held = work.lease(2, worker="ada's")
    said = {"queues": ["silent"], "subscription": "default", "host": "shop-3", "pid": 7, "seconds": 1.0}
    more = {"version": "0.1.0", "slots": 4, "handling": Jsonb([])}
    ask(dba, "_report", worker="ada's", **said, **more)
    # One that holds nothing, and one that said good-bye.
    ask(dba, "_report", worker="idle", **said, **more)
    ask(dba, "_report", worker="gone", **said, **more, last_word="drained")
    assert findings(dba, "workers") == []
    try:
        move_clock(dba, "13 seconds")
        (row,) = findings(dba, "workers")
        assert (row.severity, row.queue, row.subscription) == ("error", "silent", "default")
        assert row.finding.startswith(
            'worker "ada\'s" has said nothing for 00:00:13, and holds 2 messages: process 7 on shop-3'
        )
        follow(dba, row.hint.partition(" hands them")[0])
        assert findings(dba, "workers") == []
        come_back(dba, "silent")
        assert set(work.drain()) >= set(held.ids)
    finally:
        move_clock(dba, "0")
        work.ask("drop_queue", force=True)


def test_handlers_that_fail_are_named_with_kinds_and_the_last_error(dba: Connection) -> None:
    work = Engine(dba, "failing").create()
    try:
        work.run("insert into {log} (kind) select 'paid' from generate_series(1, 40)")
        for at in (0, 5):
            move_clock(dba, f"{at} seconds")
            call(dba, "sample")
            work.ack(work.lease(10))
        assert findings(dba, "failures") == []
        held = work.lease(20)
        work.answer("reject", held, held.ids[:12], errors=["KeyError: 'iban'\nshop.py, line 7"] * 12)
        work.ack(held, held.ids[12:])
        move_clock(dba, "10 seconds")
        call(dba, "sample")
        (row,) = findings(dba, "failures")
        assert (row.severity, row.queue, row.subscription) == ("warning", "failing", "default")
        assert re.search(r"^12 of the last \d+ answers in subscription", row.finding)
        assert row.finding.endswith(": kind paid; the last error: KeyError: 'iban'")
        assert "trunq dead list failing" in row.hint
        # Half a minute without failures.
        for at in range(15, 60, 5):
            move_clock(dba, f"{at} seconds")
            work.publish(1)
            work.ack(work.lease(1))
            call(dba, "sample")
        assert findings(dba, "failures") == []
    finally:
        move_clock(dba, "0")
        work.ask("drop_queue", force=True)
        dba.execute("truncate trunq.sample")


def test_what_begins_to_fail_is_named_by_the_next_sample_however_much_went_well_before(
    dba: Connection,
) -> None:
    work = Engine(dba, "breaking").create()
    try:
        work.run("insert into {log} (kind) select 'paid' from generate_series(1, 1000)")
        for at in range(0, 45, 5):
            move_clock(dba, f"{at} seconds")
            call(dba, "sample")
            work.ack(work.lease(100))
        # A third of what is answered in five seconds: a twentieth of half a minute.
        held = work.lease(90)
        work.answer("reject", held, held.ids[:40], errors=["boom"] * 40)
        work.ack(held, held.ids[40:])
        move_clock(dba, "45 seconds")
        call(dba, "sample")
        (row,) = findings(dba, "failures")
        assert re.match(r"40 of the last [12]90 answers", row.finding), row.finding
    finally:
        move_clock(dba, "0")
        work.ask("drop_queue", force=True)
        dba.execute("truncate trunq.sample")


def test_who_may_write_past_the_functions_or_open_every_door_is_named(dba: Connection) -> None:
    dba.execute("create role sly")
    dba.execute("grant insert, delete on trunq_data.work_lease to sly")
    dba.execute("grant execute on function trunq_queue.work_work(text, text[]) to public")
    door, rows = findings(dba)
    assert {(row.area, row.severity) for row in (door, rows)} == {("rights", "error")}
    assert door.finding.startswith("everybody may call trunq_queue.work_work(text,text[]), which does with")
    assert rows.finding == "role sly may change rows of trunq_data.work_lease past the functions of trunq"
    follow(dba, door.hint)
    follow(dba, rows.hint)
    assert findings(dba) == []
    dba.execute("drop role sly")


def test_it_waits_for_no_lock_and_the_other_areas_have_their_turn(healthy: Embedded, dba: Connection) -> None:
    with psycopg.connect(healthy.dsn) as other:
        other.execute("lock table trunq.leader, trunq_log.work in access exclusive mode")
        dba.execute("grant create on schema trunq to public")
        found = {row.area: row for row in findings(dba)}
        assert found["leader"].severity == "unseen"
        assert (
            found["leader"].finding
            == "nobody looked at leader: an open transaction locks a table that it needs"
        )
        assert found["rights"].severity == "error"
        dba.execute("set statement_timeout = '90ms'")
        last = findings(dba)[-1]
        dba.execute("reset statement_timeout")
        assert last.severity == "unseen"
        assert "and what comes after it, took longer than the statement_timeout of 90ms" in last.finding
    dba.execute("revoke create on schema trunq from public")
    assert findings(dba) == []


def test_of_many_queues_some_are_looked_at_each_minute_and_all_on_demand(dba: Connection) -> None:
    names = [f"of_many_{n}" for n in range(4)]
    for name in names:
        ask(dba, "create_queue", queue=name)
        dba.execute(f"alter table trunq_log.{name} alter id drop default".encode())
    all_of_them = dba.execute("select queue from trunq.diagnose(0) where area = 'structure'").fetchall()
    assert [queue for (queue,) in all_of_them] == names
    told: list[tuple[str, ...]] = []
    # In the middle of each minute.
    middle = 90 - float(fetch(dba, "select extract(second from now())"))
    try:
        for minute in range(3):
            move_clock(dba, f"{middle + 60 * minute} seconds")
            rows = [Finding(*row) for row in dba.execute("select * from trunq.diagnose(2)")]
            (some,) = (row for row in rows if row.area == "queues")
            assert some.severity == "unseen"
            assert re.match(
                r"[12] of 5 queues were looked at one by one, those in trouble first: others follow each",
                some.finding,
            )
            told.append(tuple(str(row.queue) for row in rows if row.area == "structure"))
    finally:
        move_clock(dba, "0")
    assert sorted(told) == [(), ("of_many_0", "of_many_1"), ("of_many_2", "of_many_3")]
    for name in names:
        ask(dba, "drop_queue", queue=name, force=True)
    with refused("TQ005", "-1"):
        call(dba, "diagnose", queues=-1)


LOCKED = """
    select count(*) from pg_locks l join pg_class c on c.oid = l.relation
    where l.pid = pg_backend_pid() and c.relname like 'many%'"""


@pytest.mark.parametrize(
    "look",
    [
        "trunq._diagnose_pauses(null)",
        "trunq._diagnose_warnings(null)",
        "trunq.list_workers()",
        "trunq.free_worker('nobody')",
        "trunq.list_streams()",
        "trunq.overview()",
        "trunq._list_figures(true)",
    ],
)
def test_a_look_at_all_queues_keeps_the_locks_of_none(dba: Connection, look: str) -> None:
    """A thousand queues have more tables than the server has room for locks."""
    for number in range(2):
        queue = f"many_{number}"
        ask(dba, "create_queue", queue=queue)
        ask(dba, "subscribe", queue=queue, subscription="stream", mode="exclusive")
        publish(dba, queue, 3)
        lease(dba, queue, 1)
        ask(dba, "pause_queue", queue=queue)
    try:
        with dba.transaction():
            dba.execute(f"select * from {look}".encode())
            assert fetch(dba, LOCKED) == 0
    finally:
        for number in range(2):
            ask(dba, "drop_queue", queue=f"many_{number}", force=True)
