"""Roles of a queue (functions/operate/role.sql): what each may do, and that it may do no more."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from calling import answer, ask, call, fetch, lease, publish, refresh, refused
from conftest import Connect
from granting import EVERYBODY, MAY, OWNER, ROLES, granting, make_shop, me, outcome
from trunq import install

Connection = psycopg.Connection[Any]

OF_A_QUEUE = {
    "publish_unique": "publisher",
    "unique_many": "publisher",
    "public_ids": "publisher",
    "lease": "worker",
    "answer": "worker",
    "extend": "worker",
    "lease_ids": "worker",
    "set_progress": "worker",
    "next_batch": "worker",
    "finish_batch": "worker",
    "work": "worker",
    "read": "reader",
    "read_payload": "reader",
    "administer": "admin",
    "resume": "publisher worker admin",
}
"""The functions of a queue that run with the owner's rights, and whose they are."""


@pytest.fixture
def shop(connection: Connection) -> Connection:
    """The owner, and two queues with everything a queue may have."""
    return make_shop(connection)


@pytest.fixture
def grant(shop: Connection, connect: Connect) -> Iterator[Callable[..., Connection]]:
    """Opens a session of a new database role that has these roles of the queue `mine`."""
    with granting(shop, connect) as give:
        yield give


def test_each_function_has_its_place_in_the_table(shop: Connection) -> None:
    """A new function needs a decision: who may call it?"""
    public = shop.execute(
        r"select proname from pg_proc where pronamespace = 'trunq'::regnamespace and proname !~ '^_'"
    ).fetchall()
    # Procedures, which lead and restore: for the owner.
    assert {name for (name,) in public} == {*MAY, "perform_each_duty", "rebase_each_queue"}
    privileged = shop.execute(
        "select p.pronamespace::regnamespace::text, p.proname from pg_proc p"
        " where p.prosecdef and p.prorettype <> 'trigger'::regtype and p.pronamespace in"
        r" ('trunq'::regnamespace, 'trunq_queue'::regnamespace) and p.proname !~ '^(mine|other)_'"
    ).fetchall()
    assert {(schema, name.partition("specimen_")[2]) for schema, name in privileged} == {
        ("trunq_queue", verb) for verb in OF_A_QUEUE
    }


def test_each_function_of_the_table_begins_with_its_doors_and_no_file_says_so(shop: Connection) -> None:
    rows = shop.execute(
        "select d.function, d.doors, p.prosrc from trunq._doors() d left join pg_proc p"
        " on p.pronamespace = 'trunq'::regnamespace and p.proname = d.function"
    ).fetchall()
    assert len({name for name, _, _ in rows}) == len(rows) > 60
    for name, doors, source in rows:
        # Those that list all queues come to that first.
        each = r"(?:  if p_queue is null .*\n    .*\n    return;\n  end if;\n)?"
        queue = r"(?:p_queue|trunq\._memo_queue\(p_scope\))"
        begins = rf"\nbegin\n{each}  declare\n    v_door .* trunq\._door\({queue}, '(.*)'\);"
        found = re.search(begins, source)
        assert found is not None, name
        assert found[1] == "{" + ",".join(doors) + "}", name
    asking = {name for name, text in install.function_files() if re.search(r"trunq\._(door|open_to)\(", text)}
    # A worker tells of itself to several queues at once.
    assert asking == {"functions/door.sql", "functions/rank.sql"}


def test_an_install_refuses_doors_to_what_is_no_function(shop: Connection) -> None:
    with shop.transaction(force_rollback=True):
        definition = fetch(shop, "select pg_get_functiondef('trunq._doors'::regproc)")
        shop.execute(definition.replace("{list_replies}", "{list_replies,lost_name}").encode())
        with pytest.raises(psycopg.errors.RaiseException, match="lost_name"), shop.transaction():
            shop.execute("select trunq._add_doors()")


def test_what_runs_with_the_owner_s_rights_is_executed_by_its_role_alone(
    shop: Connection, grant: Callable[..., Connection]
) -> None:
    for role in ROLES:
        session = grant(role, payload=role == "reader")
        may = {
            name
            for (name,) in session.execute(
                "select p.proname from pg_proc p where p.prosecdef"
                " and has_function_privilege(p.oid, 'execute') and"
                " p.pronamespace in ('trunq'::regnamespace, 'trunq_queue'::regnamespace)"
            )
        }
        assert may == {f"mine_{verb}" for verb, whose in OF_A_QUEUE.items() if role in whose.split()}, role
    assert (
        fetch(
            shop,
            "select count(*) from pg_proc p where p.prosecdef"
            " and has_function_privilege('public', p.oid, 'execute')"
            " and p.pronamespace in ('trunq'::regnamespace, 'trunq_queue'::regnamespace)",
        )
        == 0
    )


@pytest.mark.parametrize("role", ROLES)
def test_each_verb_as_each_role(shop: Connection, grant: Callable[..., Connection], role: str) -> None:
    session = grant(role)
    done = {name: outcome(session, name, "mine", arguments) for name, (_, arguments) in MAY.items()}
    assert {name for name, state in done.items() if state != "42501"} == {
        name for name, (roles, _) in MAY.items() if role in roles
    }
    # What it may do it did, or it was told what of the arguments does not fit.
    assert {state for state in done.values() if state[:2] not in ("00", "TQ")} <= {"42501"}
    named = {name: roles for name, (roles, _) in MAY.items() if roles not in (OWNER, EVERYBODY)}
    elsewhere = {
        name: outcome(
            session,
            name,
            "other",
            MAY[name][1]
            | ({"scope": "other:one"} if "memo" in name else {})
            | ({"into": "mine"} if name == "forward" else {}),
        )
        for name in named
    }
    # It draws no ids, and says so with null; webhooks are those of all queues.
    assert {name for name, state in elsewhere.items() if state != "42501"} <= {"draw_ids", "list_webhooks"}


def test_a_role_has_no_right_to_a_table_but_the_names_of_queues_and_readers(
    shop: Connection, grant: Callable[..., Connection]
) -> None:
    for roles in (ROLES[1:], ROLES[1:3]):
        session = grant(*roles)
        readable = session.execute(
            "select c.oid::regclass::text from pg_class c"
            " where c.relnamespace in (select n.oid from pg_namespace n where n.nspname ~ '^trunq')"
            " and c.relkind in ('r', 'p', 'v')"
            " and has_table_privilege(c.oid, 'select,insert,update,delete,truncate')"
        ).fetchall()
        # Of samples a policy shows each the rows of its queues.
        assert {name for (name,) in readable} == {"trunq.queue", "trunq.sample", "trunq.subscription"}


def test_a_reader_sees_payloads_only_where_its_role_says_so(
    shop: Connection, grant: Callable[..., Connection]
) -> None:
    publish(shop, "mine", headers=[{"h": 1}])
    plain, full = grant("reader"), grant("reader", payload=True)
    (seen, *_) = call(plain, "list_messages", queue="mine")
    assert (seen.state, seen.payload, seen.headers) == ("ready", None, None)
    (seen, *_) = call(full, "list_messages", queue="mine")
    assert (seen.payload, seen.headers) == ({"n": 0}, {"h": 1})
    assert fetch(plain, "select count(*) from trunq_queue.mine_messages where state = 'ready'") == 4
    for column in ("payload", "headers", "result"):
        with refused("42501"):
            plain.execute(f"select {column} from trunq_queue.mine_messages".encode())
        with refused("42501"):
            door = f"trunq_queue.mine_read_payload('list_messages') t({column} jsonb)"
            plain.execute(f"select {column} from {door}".encode())
    assert full.execute("select payload from trunq_queue.mine_messages").fetchall()
    ask(shop, "grant_role", queue="mine", role="reader", grantee=me(full))
    assert call(full, "list_messages", queue="mine")[0].payload is None
    with refused("42501"):
        full.execute("select payload from trunq_queue.mine_messages")


def test_a_reader_with_payloads_may_select_from_the_log_until_it_is_revoked(
    shop: Connection, grant: Callable[..., Connection]
) -> None:
    plain, full = grant("reader"), grant("reader", payload=True)
    ask(shop, "grant_role", queue="mine", role="publisher", grantee=me(full))
    select = b"select id, payload from trunq_log.mine"
    assert len(full.execute(select).fetchall()) == 3
    for session, query in ((plain, select), (full, b"select id from trunq_log.other")):
        with refused("42501"):
            session.execute(query)
    ask(shop, "revoke_role", queue="mine", role="reader", grantee=me(full))
    with refused("42501"):
        full.execute(select)
    # What it may as a publisher stays.
    assert len(full.execute("select id from trunq_log.mine").fetchall()) == 3
    publish(full, "mine")


def test_doors_lead_to_their_functions_and_queue_alone(
    shop: Connection, grant: Callable[..., Connection]
) -> None:
    session = grant("worker", "reader", "admin")
    hostile = [
        ("mine_administer", "drop_queue", ["p_force", "true"]),
        ("mine_administer", "_drop_queue", []),
        ("mine_administer", None, []),
        ("mine_read", "pause_queue", []),
        ("mine_work", "list_messages", []),
        ("mine_read_payload", "list_messages", []),
        ("other_work", "reclaim", ["p_subscription", "default", "p_worker", "w"]),
    ]
    for door, function, arguments in hostile:
        with refused("42501"):
            session.execute(
                f"select * from trunq_queue.{door}(%s, %s) t(v text)".encode(), (function, arguments)
            )
    for arguments in (
        ["p_queue", "other"],
        ["p_until => null); drop table trunq.queue; --", "x"],
        ["p_until", "'; drop table trunq.queue; --"],
        [None, None],
        [["p_until", "infinity"], ["p_until", "infinity"]],
    ):
        with pytest.raises(psycopg.Error):
            session.execute(
                b"select * from trunq_queue.mine_administer('pause_queue', %s) t(v text)", (arguments,)
            )
    assert not any(row.paused for row in call(shop, "list_queues"))


def test_a_worker_answers_in_every_way_with_its_role_alone(
    shop: Connection, grant: Callable[..., Connection]
) -> None:
    publish(shop, "mine", 6)
    session = grant("worker")
    held = lease(session, "mine", 9)
    ids = held.ids
    assert call(session, "extend", **held.named, lease_time="1 hour")
    assert answer(session, "ack", held, ids[:1]) == 1
    assert answer(session, "retry", held, ids[1:2], errors=["why"], delays=[timedelta(hours=1)]) == 1
    assert answer(session, "reject", held, ids[2:3], errors=["why"]) == 1
    assert answer(session, "release", held, ids[3:4]) == 1
    assert answer(session, "time_out", held, ids[4:5]) == 1
    assert [
        fate.reason
        for fate in call(session, "list_fates", queue="mine", subscription="default", ids=ids[2:3])
    ]
    ask(shop, "cancel", queue="mine", ids=ids[5:6])
    (extended,) = call(session, "extend", **held.named)
    assert extended.cancelled == ids[5:6]
    with refused("TQ005", 'no answer is "x"'):
        session.execute(
            b"select trunq_queue.mine_answer('default', %s, %s, %s, 'x', null, null, null, null)",
            (held.lease_id, held.token, ids[6:7]),
        )
    assert ask(session, "reclaim", queue="mine", subscription="default", worker="w") == 1


def test_a_worker_cannot_answer_for_another_queue_s_lease(
    shop: Connection, grant: Callable[..., Connection]
) -> None:
    session = grant("worker")
    elsewhere = lease(shop, "other", 2)
    # The same number, a lease of another queue.
    held = lease(session, "mine", 2)
    assert held.lease_id == elsewhere.lease_id
    with refused("TQ003"):
        ask(session, "ack", **{**elsewhere.named, "queue": "mine"}, ids=elsewhere.ids)
    with refused("42501"):
        answer(session, "ack", elsewhere)
    assert answer(shop, "ack", elsewhere) == 2


def test_grants_that_cannot_be_are_refused_whole(shop: Connection) -> None:
    for queue, role, grantee, sqlstate, word in (
        ("nowhere", "worker", "pg_monitor", "TQ001", "nowhere"),
        ("mine", "boss", "pg_monitor", "TQ005", "publisher, worker, reader or admin"),
        ("mine", None, "pg_monitor", "TQ005", "publisher, worker, reader or admin"),
        ("mine", "worker", "nobody_at_all", "TQ005", "create role"),
        ("mine", "worker", "public", "TQ005", 'no database role "public"'),
        ("mine", "worker", None, "TQ005", "no database role"),
        ("mine", "worker", me(shop), "TQ005", "owns trunq"),
    ):
        for verb in ("grant_role", "revoke_role"):
            with refused(sqlstate, word):
                ask(shop, verb, queue=queue, role=role, grantee=grantee)
    with refused("TQ005", "p_payload"):
        ask(shop, "grant_role", queue="mine", role="worker", grantee="pg_monitor", payload=True)
    assert call(shop, "list_roles") == []


def test_a_revoked_role_is_gone_and_with_the_last_the_way_in(
    shop: Connection, grant: Callable[..., Connection]
) -> None:
    session = grant("worker", "reader", "publisher")
    name = me(session)
    listed = [tuple(row) for row in call(shop, "list_roles", queue="mine")]
    assert listed == [
        ("mine", role, name, False if role == "reader" else None)
        for role in ("publisher", "reader", "worker")
    ]
    assert ask(shop, "revoke_role", queue="mine", role="worker", grantee=name)
    assert not ask(shop, "revoke_role", queue="mine", role="worker", grantee=name)
    with refused("42501"):
        lease(session, "mine")
    assert call(session, "status", queue="mine")
    assert ask(session, "publish", queue="mine", payload={})
    assert call(session, "list_webhooks") == []
    ask(shop, "revoke_role", queue="mine", role="publisher", grantee=name)
    with refused("42501"):
        ask(session, "publish", queue="mine", payload={})
    with refused("42501"):
        call(session, "list_webhooks")
    ask(shop, "revoke_role", queue="mine", role="reader", grantee=name)
    with refused("42501", "schema trunq"):
        call(session, "status", queue="mine")
    # Nothing is left that would keep the role from being dropped.
    session.execute("reset role")
    shop.execute(f"drop role {name}; create role {name}".encode())


def test_dropping_a_queue_ends_its_roles(shop: Connection, grant: Callable[..., Connection]) -> None:
    session = grant(*ROLES)
    name = me(session)
    ask(shop, "drop_queue", queue="mine", force=True)
    assert call(shop, "list_roles") == []
    ask(shop, "create_queue", queue="mine")
    with refused("42501"):
        lease(session, "mine")
    session.execute("reset role")
    shop.execute(f"drop role {name}; create role {name}".encode())


def test_roles_outlive_whatever_makes_functions_again(
    shop: Connection, grant: Callable[..., Connection]
) -> None:
    session = grant(*ROLES)
    rights = (
        "select p.oid::regprocedure::text, p.proacl::text from pg_proc p where p.prosecdef"
        " and p.pronamespace = 'trunq_queue'::regnamespace and p.proname ~ '^mine_' order by 1"
    )
    before = shop.execute(rights.encode()).fetchall()
    ask(shop, "set_queue", queue="mine", tick_max_count=9)
    ask(shop, "set_tenancy", queue="mine")
    ask(shop, "set_tenancy", queue="mine", tenancy=False)
    ask(shop, "set_lanes", queue="mine", max_running=9)
    assert shop.execute(rights.encode()).fetchall() == before
    # A function that an upgrade brings: the role reaches it.
    shop.execute("drop function trunq_queue.mine_extend")
    assert len(refresh(shop)) == 2
    assert shop.execute(rights.encode()).fetchall() == before
    held = lease(session, "mine")
    assert call(session, "extend", **held.named)
    assert ask(shop, "rebase") >= 0
    assert shop.execute(rights.encode()).fetchall() == before
    assert lease(session, "mine")


@pytest.mark.parametrize("role", ["worker", "admin"])
def test_memos_of_a_queue_are_those_of_its_roles(
    shop: Connection, grant: Callable[..., Connection], role: str
) -> None:
    session = grant(role)
    for scope in ("mine", "mine:acme"):
        version = ask(session, "set_memo", scope=scope, name="page", value=Jsonb({"n": 7}))
        assert (
            ask(session, "set_memo", scope=scope, name="page", value=Jsonb(8), expected=version + 1) is None
        )
        (memo,) = call(session, "get_memo", scope=scope, name="page")
        assert (memo.value, memo.version) == ({"n": 7}, version)
        assert [each.name for each in call(session, "list_memos", scope=scope)] == ["page"]
        assert ask(session, "delete_memo", scope=scope, name="page") is True
    for scope in ("other", "mine_too", "other:mine"):
        for function, more in (("set_memo", {"value": Jsonb(1)}), ("get_memo", {}), ("delete_memo", {})):
            with refused("42501"):
                ask(session, function, scope=scope, name="page", **more)
        with refused("42501"):
            call(session, "list_memos", scope=scope)
    with refused("42501"):
        call(session, "list_memos")
    # Behind the door of its queue it asks for the scope of another, or of two, or of none.
    door = {"worker": "work", "admin": "administer"}[role]
    for arguments, refusal in (
        (["p_scope", "other"], "keep their memos in its scope"),
        (["p_prefix", "p_scope", "p_after", "mine", "p_scope", "other"], "keep their memos in its scope"),
        (["p_prefix", "p_scope", "p_after", "mine"], "keep their memos in its scope"),
        (["p_scope", "mine", "p_scope", "other"], "more than one row"),
    ):
        with pytest.raises(psycopg.Error, match=refusal):
            session.execute(
                f"select * from trunq_queue.mine_{door}('list_memos', %s) t(v text)".encode(), (arguments,)
            )


def test_who_awaits_reads_replies_and_who_reads_finds_references(
    shop: Connection, grant: Callable[..., Connection]
) -> None:
    ids = publish(shop, "mine", 2, options={"awaited": True})
    held = lease(shop, "mine", 9)
    error = fetch(shop, "select trunq.add_reference('the card is no good', 'Sorry')")
    answer(shop, "reject", held, ids[:1], errors=[error])
    answer(shop, "ack", held, ids[1:], results=[Jsonb("done")])
    full, plain = grant("reader", payload=True), grant("reader")
    assert [row.outcome for row in call(full, "list_replies", queue="mine", ids=ids)] == [
        "rejected",
        "success",
    ]
    with refused("42501"):
        call(plain, "list_replies", queue="mine", ids=ids)
    (shown,) = call(plain, "show_public", queue="mine", id=ids[0])
    assert (shown.state, shown.public) == ("dead", "Sorry")
    for queue in ("mine", None):
        (row,) = call(plain, "find_reference", reference=shown.reference, queue=queue)
        assert row.id == ids[0]
    assert call(grant("worker"), "find_reference", reference=shown.reference) == []


def test_a_member_has_the_roles_of_its_group(shop: Connection, grant: Callable[..., Connection]) -> None:
    group, member = grant("reader"), grant()
    with refused("42501"):
        call(member, "status", queue="mine")
    shop.execute(f"grant {me(group)} to {me(member)}".encode())
    assert call(member, "status", queue="mine")
    assert {row.queue for row in call(member, "status")} == {"mine"}
    assert {row.queue for row in call(member, "list_subscriptions")} == {"mine"}


def test_a_function_of_another_s_does_not_borrow_the_rights_of_who_calls_it(
    shop: Connection, grant: Callable[..., Connection]
) -> None:
    """An index, a view or a definer's function that the owner touches runs somebody else's code."""
    mallory = grant("reader")
    shop.execute(f"create schema lair authorization {me(mallory)}".encode())
    mallory.execute(
        "create function lair.trap() returns text language sql security definer"
        " as $$ select trunq.purge('other')::text $$"
    )
    with refused("42501"):
        shop.execute("select lair.trap()")
    shop.execute("drop schema lair cascade")


def test_a_door_and_a_function_of_another_queue_may_have_one_name(
    shop: Connection, grant: Callable[..., Connection]
) -> None:
    """A queue q with lanes has a function q_is_read, which everybody may call; q_is has such a door."""
    worker = grant("worker")
    ask(shop, "create_queue", queue="q", lanes="key")
    ask(shop, "create_queue", queue="q_is")
    for function in ("status", "list_subscriptions"):
        assert {row.queue for row in call(worker, function)} == {"mine"}
    ask(shop, "grant_role", queue="q_is", role="reader", grantee=me(worker))
    assert {row.queue for row in call(worker, "status")} == {"mine", "q_is"}
    assert ask(shop, "revoke_role", queue="q_is", role="reader", grantee=me(worker))
    ask(shop, "drop_queue", queue="q_is")
    publish(shop, "q", 1)
    assert len(call(shop, "list_messages", queue="q")) == 1
    ask(shop, "create_queue", queue="q_is")
    ask(shop, "drop_queue", queue="q", force=True)
    ask(shop, "grant_role", queue="q_is", role="reader", grantee=me(worker))
    assert call(worker, "status", queue="q_is")


def test_a_worker_whose_clock_is_wrong_forgets_no_worker_of_another_queue(
    shop: Connection, grant: Callable[..., Connection]
) -> None:
    given = {"subscription": "default", "slots": 5}
    ask(shop, "_attend", worker="theirs", queues=["other"], **given)
    worker = grant("worker")
    worker.execute("set trunq.clock_offset = '3 hours'")
    ask(worker, "_attend", worker="ours", queues=["mine"], **given)
    (fleet,) = call(shop, "fleet", queue="other")
    assert fleet.workers == 1


def test_a_worker_has_no_more_slots_than_it_can_lease(
    shop: Connection, grant: Callable[..., Connection]
) -> None:
    worker = grant("worker")
    given = {"worker": "w", "queues": ["mine"], "subscription": "default"}
    for slots in (-1, 10_001, 2_000_000_000):
        with refused("TQ005", "slots", "--processes"):
            ask(worker, "_attend", **given, slots=slots)
    ask(worker, "_attend", **given, slots=10_000)
    (fleet,) = call(shop, "fleet", queue="mine")
    assert (fleet.workers, fleet.slots) == (1, 10_000)
