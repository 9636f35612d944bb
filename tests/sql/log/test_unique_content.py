"""A queue that is unique on content: what is published twice is refused, whatever publishes it."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from calling import ask, call, fetch, new_names, refused
from engine import Engine
from laning import LATER

Connection = psycopg.Connection[Any]
INSERT = "insert into {log} (kind, payload) values ('SEND_EMAIL_WELCOME', '%s') returning id"
WELCOME = INSERT % '{{"email": "a@b.cz", "n": 1}}'
AGAIN = INSERT % '{{"n":1,"email":"a@b.cz"}}'


def make(session: Connection, **options: Any) -> Engine:
    return Engine(session, next(new_names("content"))).create(
        **{"unique": "refuse", "unique_on": "content", **options}
    )


@pytest.fixture(params=[None, "key", "priority"])
def tasks(session: Connection, request: pytest.FixtureRequest) -> Engine:
    return make(session, lanes=request.param)


def copy(work: Engine, payloads: list[Any]) -> None:
    with (
        work.connection.cursor() as cursor,
        cursor.copy(f"copy trunq_log.{work.queue} (kind, payload) from stdin".encode()) as rows,
    ):
        for payload in payloads:
            rows.write_row(("n", Jsonb(payload)))


def test_an_insert_of_the_same_content_fails_until_the_first_is_done(tasks: Engine) -> None:
    (id,) = tasks.run(WELCOME).fetchone() or ()
    with refused("TQ015", f"message {id} of queue", '"SEND_EMAIL_WELCOME"', '{"n": 1, "email": "a@b.cz"}'):
        tasks.run(AGAIN)
    held = tasks.lease(5)
    assert held.ids == [id]
    with refused("TQ015", f"message {id}"):
        tasks.run(AGAIN)
    tasks.ack(held)
    (second,) = tasks.run(AGAIN).fetchone() or ()
    assert tasks.lease(5).ids == [second]


def test_another_kind_or_payload_or_body_is_another_message(tasks: Engine) -> None:
    tasks.run(WELCOME)
    tasks.run("""insert into {log} (kind, payload) values ('x', '{{"email": "a@b.cz", "n": 1}}')""")
    tasks.run("""insert into {log} (kind, payload) values ('SEND_EMAIL_WELCOME', '{{"email": "a@b.cz"}}')""")
    tasks.run("insert into {log} (body) values ('a'), ('b')")
    tasks.run("insert into {log} (payload) values (null)")
    with refused("TQ015", "same kind (null) and content: 61"):
        tasks.run("insert into {log} (body) values ('a')")
    with refused("TQ015", "same kind (null) and content: null"):
        tasks.run("insert into {log} default values")
    assert tasks.status().ready == 6


def test_a_copy_of_ten_thousand_with_one_double_takes_none_and_says_which(session: Connection) -> None:
    work = make(session)
    with pytest.raises(psycopg.Error) as caught:
        copy(work, [{"n": n} for n in range(9_999)] + [{"n": 5_000}])
    assert caught.value.sqlstate == "TQ015"
    assert '{"n": 5000}' in str(caught.value.diag.message_primary)
    assert "line 10000" in str(caught.value.diag.context)
    assert work.status().ready == 0
    copy(work, [{"n": n} for n in range(100)])
    assert len(work.drain()) == 100


def test_every_way_to_publish_meets_every_other(tasks: Engine) -> None:
    ways = {
        "publish": {"payload": {"a": 1}, "kind": "k"},
        "publish_many": {"payloads": [{"a": 1}, {"b": 2}], "kinds": ["k"]},
        "publish_later": {"payload": {"a": 1}, "kind": "k", "delay": "1 hour"},
    }
    ask_of = {"publish_later": "publish"}
    for first, given in ways.items():
        tasks.ask(ask_of.get(first, first), **given)
        for second, other in ways.items():
            with refused("TQ015", "same kind"):
                tasks.ask(ask_of.get(second, second), **other)
        ((id, is_new),) = tasks.call("publish_unique", payload={"a": 1}, kind="k")
        assert not is_new
        rows = tasks.call("publish_many_unique", payloads=[{"a": 1}, {"c": 3}], kinds=["k"])
        assert [row.is_new for row in rows] == [False, True]
        assert rows[0].id == id
        with tasks.clock("2 hours"):
            tasks.ask("promote")
            tasks.drain()


def test_a_key_that_is_given_goes_before_the_content(tasks: Engine) -> None:
    rows = "insert into {log} (payload, unique_key) values ('1', 'a'), ('1', 'b'), ('2', 'a') returning id"
    assert len(tasks.run(rows).fetchall()) == 2
    tasks.ask("publish", payload="1")
    with refused("TQ015"):
        tasks.call("publish_many_unique", payloads=["1"], unique_keys=[None])


def test_what_retries_dies_and_comes_back_holds_its_content(tasks: Engine) -> None:
    tasks.ask("subscribe", subscription="default", backoff_base="0")
    (id,) = tasks.run(WELCOME).fetchone() or ()
    tasks.answer("retry", tasks.lease(), delays=["1 hour"])
    with refused("TQ015"):
        tasks.run(AGAIN)
    with tasks.clock("2 hours"):
        tasks.ask("promote")
        held = tasks.lease()
        assert (held.ids, held.messages[0].attempt) == ([id], 2)
        tasks.answer("reject", held)
        (second,) = tasks.run(AGAIN).fetchone() or ()
        # While another has its content it stays dead, with a warning.
        assert tasks.ask("requeue") == 0
        tasks.ack(tasks.lease(), [second])
        assert tasks.ask("requeue") == 1
        with refused("TQ015", f"message {id}"):
            tasks.run(AGAIN)


def test_a_rollback_takes_the_content_back(tasks: Engine) -> None:
    with tasks.connection.transaction(force_rollback=True):
        tasks.run(WELCOME)
    assert tasks.run(AGAIN).fetchone()


def test_what_was_cancelled_or_thrown_away_is_free(tasks: Engine) -> None:
    tasks.ask("publish", payload="1", delay="1 hour")
    (id,) = (row[0] for row in tasks.run("select id from trunq.delayed where queue_id = %s", tasks.queue_id))
    tasks.call("cancel", ids=[id])
    tasks.ask("publish", payload="1")
    tasks.ask("empty_queue")
    tasks.ask("publish", payload="1")
    assert tasks.status().ready == 1


def test_rotation_and_an_archive_leave_what_waits(session: Connection) -> None:
    work = make(session)
    work.ask("create_archive")
    (done,) = work.run(WELCOME).fetchone() or ()
    work.ack(work.lease())
    work.run("insert into {log} (payload) values ('1')")
    with work.clock(LATER):
        while work.ask("archive"):
            pass
    work.rotate(LATER)
    assert work.fetch("select count(*) from trunq_archive.{queue} where id = %s", done) == 1
    with refused("TQ015"):
        work.run("insert into {log} (payload) values ('1')")
    assert work.run(AGAIN).fetchone()


def test_a_publisher_s_grant_is_enough(session: Connection) -> None:
    work = make(session)
    role = f"publisher_of_{work.queue}"
    work.run(f"create role {role}")
    work.ask("grant_role", role="publisher", grantee=role)
    work.run(f"set role {role}")
    try:
        work.run("insert into {log} (payload) values ('1')")
        with refused("TQ015"):
            work.run("insert into {log} (payload) values ('1')")
    finally:
        work.run("reset role")
        work.run(f"drop owned by {role}")
        work.run(f"drop role {role}")


def test_tenants_do_not_meet_in_their_contents(session: Connection) -> None:
    work = make(session)
    work.ask("set_tenancy")
    for key in ("ann", "bob"):
        work.run("insert into {log} (payload, key) values ('1', %s)", key)
        with refused("TQ015"):
            work.run("insert into {log} (payload, key) values ('1', %s)", key)
        assert not work.call("publish_unique", payload="1", key=key)[0].is_new


def test_upgrades_leave_it_and_list_queues_tells_it(session: Connection) -> None:
    work, plain = make(session), Engine(session, next(new_names("content"))).create(unique="refuse")
    session.execute("select trunq._define_queue(trunq._find_queue(%s::text))", (work.queue,))
    work.run(WELCOME)
    with refused("TQ015"):
        work.run(AGAIN)
    told = {row.queue: row.unique_on for row in call(session, "list_queues")}
    assert (told[work.queue], told[plain.queue]) == ("content", None)
    plain.run(WELCOME)
    assert plain.run(AGAIN).fetchone()
    comment = fetch(session, "select obj_description(%s::regclass)", f"trunq_data.{work.queue}_unique")
    assert comment.endswith(" On content. Policy: refuse.")


def test_what_no_queue_is_unique_on_is_refused(session: Connection) -> None:
    name = next(new_names("content"))
    with refused("TQ005", 'unique on "kind"', "content"):
        ask(session, "create_queue", queue=name, unique="refuse", unique_on="kind")
    for unique in (None, "replace"):
        with refused("TQ005", "does not refuse doubles", "p_unique => 'refuse'"):
            ask(session, "create_queue", queue=name, unique=unique, unique_on="content")
    Engine(session, name).create(unique="refuse")
    with refused("TQ005", "is there and not unique on content"):
        ask(session, "create_queue", queue=name, unique="refuse", unique_on="content")
    same = make(session)
    assert same.ask("create_queue", unique="refuse", unique_on="content") is False
    assert same.ask("create_queue", unique="refuse") is False
