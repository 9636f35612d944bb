"""Settings of the planner: a function names a profile, and the database has the settings of that alone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import psycopg
import pytest

from calling import OUTDATED
from capturing import capture, table_of_orders
from engine import Engine
from trunq import install
from trunq.plan import PROFILES

SQL = Path(install.__file__).parent / "sql"
MADE = re.compile(
    r"(?ms)^ *create or replace (?:function|procedure) (?P<name>[\w.%]+)\((?P<header>.*?)\bas (?:\$|%L)"
)
PROFILE = re.compile(r"\bset trunq\.plan = (\w+)")
PLANNER = """
    select name from pg_settings
    where category like 'Query Tuning%' or name like 'jit%' or name like 'max_parallel%'
      or name in ('plan_cache_mode', 'work_mem', 'hash_mem_multiplier', 'parallel_leader_participation')
"""
SET = """
    select p.oid::regprocedure::text, (
      select coalesce(jsonb_object_agg(split_part(c, '=', 1), split_part(c, '=', 2)), '{}')
      from unnest(p.proconfig) c where split_part(c, '=', 1) = any (%s))
    from pg_proc p join pg_namespace n on n.oid = p.pronamespace
    where n.nspname in ('trunq', 'trunq_queue', 'trunq_data', 'pgq')
"""


def profiles_named() -> dict[str, str]:
    """Which profile the files name for each function."""
    made = chain.from_iterable(MADE.finditer(path.read_text()) for path in SQL.rglob("*.sql"))
    return {found["name"]: name[1] for found in made if (name := PROFILE.search(found["header"]))}


@pytest.fixture
def work(database: str) -> Iterator[Engine]:
    """A queue with unique keys, a captured table, and the names of PgQ."""
    install.install(database, "pgq")
    with psycopg.connect(database, autocommit=True) as connection:
        work = Engine(connection, "work").create(unique="refuse")
        with table_of_orders(connection) as table:
            capture(connection, table, work.queue)
            yield work


@pytest.fixture
def planner(work: Engine) -> set[str]:
    return {name for (name,) in work.connection.execute(PLANNER)}


def settings_of(work: Engine, planner: set[str]) -> dict[str, dict[str, str]]:
    return {name.partition("(")[0]: found for name, found in work.connection.execute(SET, (list(planner),))}


def test_each_function_has_the_settings_of_the_profile_that_its_file_names(
    work: Engine, planner: set[str]
) -> None:
    named = profiles_named()
    assert len(named) > 100
    found = settings_of(work, planner)
    for name, profile in named.items():
        if "%" not in name:
            assert found[name] == PROFILES[profile], name
    # And none has any that names none: of those of a queue, the specimen's file does.
    of_specimens = {name: found[name] for name in found if "specimen_" in name}
    for name, settings in found.items():
        if settings and name not in named:
            assert settings in (*of_specimens.values(), PROFILES["merge"]), name


def test_a_queue_s_functions_have_the_settings_of_the_specimen_s(work: Engine, planner: set[str]) -> None:
    found = settings_of(work, planner)
    for name, settings in found.items():
        if name.startswith("trunq_queue._specimen_"):
            own = name.replace("_specimen", work.queue)
            assert own in found
            if name.replace("_specimen", "_uniquespecimen") not in found:
                assert found[own] == settings, own
        if name.startswith("trunq_queue._uniquespecimen_"):
            assert found[name.replace("_uniquespecimen", work.queue)] == settings


def test_no_file_names_a_setting_of_the_planner_by_itself(planner: set[str]) -> None:
    # Migrations were applied as they are.
    for path in (
        *(SQL / "functions").rglob("*.sql"),
        *(SQL / "specimen").rglob("*.sql"),
        *(SQL.parents[1] / "trunq_pgq").rglob("*.sql"),
    ):
        assert not set(re.findall(r"\bset (?:local )?(\w+) (?:=|to) ", path.read_text())) & planner, path


def test_profiles_are_used_known_and_differ(planner: set[str]) -> None:
    assert set(profiles_named().values()) == set(PROFILES)
    settings = [tuple(sorted(profile.items())) for profile in PROFILES.values()]
    assert len({*settings}) == len(settings)
    assert {name for profile in PROFILES.values() for name in profile} <= planner


def test_an_upgrade_writes_the_settings_of_the_profile(work: Engine, planner: set[str]) -> None:
    right = settings_of(work, planner)
    for name in (f"trunq_queue.{work.queue}_lease", "trunq_queue._specimen_lease", "trunq._is_held"):
        work.connection.execute(f"alter function {name} reset enable_seqscan".encode())
    assert settings_of(work, planner) != right
    work.connection.execute(OUTDATED)
    install.install(work.connection)
    assert settings_of(work, planner) == right
