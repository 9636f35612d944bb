"""Whoever may create functions in a schema on somebody's search_path cannot have them run by PgQ's API."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

import mirroring
from calling import fetch
from conftest import Connect, opening
from hostile import plant
from trunq import install

NewDatabase = Callable[..., str]
Connection = psycopg.Connection[Any]

CHAPTERS = ("consumer", "event", "queue", "retry", "rotate", "tick")
"""Those that call PgQ alone, and no functions that are overloaded here."""

PATHS = {"public": False, "public, pg_catalog": True}

TABLE = """
    create type public.mood as enum ('sad', 'glad');
    create table public.things (
      id integer primary key, name text, numbers integer[], price numeric, at timestamptz, seen timestamp,
      mood public.mood, double integer generated always as (length('xx')) stored, of regclass)
"""


@pytest.fixture
def planted(new_database: NewDatabase) -> Callable[..., str]:
    def make(*, exact: bool = False) -> str:
        dsn = new_database()
        install.install(dsn, "pgq")
        with psycopg.connect(dsn, autocommit=True) as connection:
            assert plant(connection, exact=exact) > 1000
        return dsn

    return make


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_pgq_answers_as_ever_beside_hostile_overloads(planted: Callable[..., str], chapter: str) -> None:
    differences = mirroring.differences(mirroring.recorded(chapter), mirroring.ask_all(planted(), chapter))
    assert not differences, differences


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("format", mirroring.TRIGGERS)
def test_triggers_run_no_hostile_overload(planted: Callable[..., str], path: str, format: str) -> None:
    dsn = planted(exact=PATHS[path])
    with opening(dsn) as connect:
        session = connect()
        session.execute("select pgq.create_queue('q')")
        session.execute(TABLE)
        session.execute(f"set search_path = {path}".encode())
        for when, options in (
            ("after", "'backup'"),
            ("before", "'ignore=name, of', 'pkey=id'"),
            ("before", "'SKIP'"),
        ):
            count = fetch(session, "select count(*) from pgq.event_1")
            session.execute(
                f"create trigger out {when} insert or update or delete on public.things for each row"
                f" execute function pgq.{format}triga('q', {options})".encode()
            )
            session.execute(
                f"create trigger emptied {when} truncate on public.things execute function"
                f" pgq.{format}triga('q')".encode()
            )
            session.execute(
                "insert into public.things values"
                " (1, 'a', '{1,2}', 1.5, now(), now(), 'sad', default, 'pgq.queue')"
            )
            session.execute(
                "update public.things"
                " set name = 'b', price = 1.50, at = now(), mood = 'glad', numbers = '{3}'"
            )
            session.execute("update public.things set name = 'c', price = 2")
            session.execute("delete from public.things")
            session.execute("truncate public.things")
            session.execute("drop trigger out on public.things; drop trigger emptied on public.things")
            events = 2 if "SKIP" in options else 5
            assert fetch(session, "select count(*) from pgq.event_1") == count + events


@pytest.mark.parametrize("path", PATHS)
def test_batches_and_groups_run_no_hostile_overload(planted: Callable[..., str], path: str) -> None:
    with opening(planted(exact=PATHS[path])) as connect:
        go_round(connect, path)


def go_round(connect: Connect, path: str) -> None:
    session = connect()
    session.execute(f"set search_path = {path}".encode())
    session.execute("select pgq.create_queue('q'), pgq.register_consumer('q', 'c')")
    session.execute("select pgq_coop.register_subconsumer('q', 'team', 'one')")
    for _ in range(3):
        session.execute("select pgq.insert_event('q', 'kind', 'data')")
    session.execute("select pgq.force_tick('q')")
    assert fetch(session, "select pgq.ticker('q')") == 2
    batch = fetch(session, "select pgq.next_batch('q', 'c')")
    with session.transaction():
        cursor = "select ev_data from pgq.get_batch_cursor(%s, 'mine', 10, %s)"
        assert session.execute(cursor, (batch, "true")).fetchall() == [("data",)] * 3
    session.execute("select pgq.event_retry(%s, 1, 0), pgq.get_batch_info(%s)", (batch, batch))
    assert fetch(session, "select pgq.finish_batch(%s)", batch) == 1
    shared = fetch(session, "select pgq_coop.next_batch('q', 'team', 'one', '1 hour')")
    assert fetch(session, "select pgq_coop.finish_batch(%s)", shared) == 1
    session.execute(
        "select pgq.maint_operations(), pgq.maint_retry_events(), pgq.maint_rotate_tables_step1('q')"
    )
    session.execute("select pgq.get_queue_info(), pgq.get_consumer_info()")
    session.execute("select * from pgq.queue, pgq.subscription, pgq.tick, pgq.consumer")
    session.execute("select pgq_ext.set_batch_done('c', 1), pgq_ext.set_event_done('c', 2, 5)")
    session.execute(
        "select pgq_ext.is_event_done('c', 2, 5), pgq_ext.set_last_tick('c', 7), pgq_ext.get_last_tick('c')"
    )
    session.execute("select pgq_coop.unregister_subconsumer('q', 'team', 'one', 0)")
    assert fetch(session, "select pgq.drop_queue('q', true)") == 1


def test_no_cast_of_a_type_is_run(planted: Callable[..., str]) -> None:
    with opening(planted()) as connect:
        session = connect()
        session.execute("select pgq.create_queue('q')")
        session.execute(TABLE)
        session.execute(
            "create function public.cast_mood(public.mood) returns json language plpgsql as"
            " $$ begin raise exception 'a cast of somebody else was run'; end $$;"
            " create cast (public.mood as json) with function public.cast_mood(public.mood)"
        )
        session.execute(
            "create trigger out before insert or update on public.things for each row execute function"
            " pgq.jsontriga('q', 'backup')"
        )
        session.execute("insert into public.things (id, mood, at) values (1, 'sad', '2001-02-03 04:05+00')")
        session.execute("set timezone = 'UTC'")
        session.execute("update public.things set mood = 'glad', seen = at")
        assert fetch(session, "select ev_data from pgq.event_1 order by ev_id desc") == (
            '{"id":1,"name":null,"numbers":null,"price":null,"at":"2001-02-03T04:05:00+00:00",'
            '"seen":"2001-02-03T04:05:00","mood":"glad","double":2,"of":null}'
        )
