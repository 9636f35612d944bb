"""One process that leads several databases."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from shelling import start
from trunq.cli.operate.leader import Databases, _finder
from trunq.embedded import Embedded
from trunq.leader import Leaders
from waiting import async_wait_until, wait_until


def named(dsn: str) -> str:
    return str(conninfo_to_dict(dsn)["dbname"])


def leader_of(dsn: str) -> str | None:
    with psycopg.connect(dsn) as connection:
        row = connection.execute("select name from trunq.leader").fetchone()
    return None if row is None else row[0]


@asynccontextmanager
async def leading(leaders: Leaders) -> AsyncIterator[None]:
    running = asyncio.create_task(leaders.run_async())
    try:
        yield
        leaders.stop()
        async with asyncio.timeout(30):
            await running
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_each_is_led_and_one_that_is_away_disturbs_no_other(
    new_database: Callable[..., str], server: Embedded, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = new_database(), new_database()
    bare = new_database("template1")
    names = [named(dsn) for dsn in (one, two, bare)]

    async def find() -> list[str]:
        return [one, two, bare]

    leaders = Leaders(find, "both", lease_time=1.0)

    def led(dsn: str) -> bool:
        return leaders.terms.get(named(dsn)) is not None

    caplog.set_level(logging.INFO)
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        async with leading(leaders):
            await async_wait_until(lambda: led(one) and led(two), 30)
            connection.execute(f"alter database {names[1]} allow_connections false".encode())
            connection.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where datname = %s", names[1:2]
            )
            # Over several renewals.
            before = _expires(one)
            await async_wait_until(lambda: _expires(one) > before + 2, 30)
            assert led(one)
            connection.execute(f"alter database {names[1]} allow_connections true".encode())
            since = await async_wait_until(lambda: _expires(two), 30)
            await async_wait_until(lambda: _expires(two) > since + 1, 30)
    assert (leader_of(one), leader_of(two)) == (None, None)
    lines = [record.getMessage() for record in caplog.records]
    assert {f"{name}: leading, term 1" for name in names[:2]} <= set(lines)
    assert [
        line for line in lines if line.startswith(f"{names[2]}: cannot be led") and "install" in line
    ] != []
    assert set(leaders.performed) == set(names)


def _expires(dsn: str) -> float:
    """When the term of its leader ends, in seconds."""
    with psycopg.connect(dsn) as connection:
        row = connection.execute("select extract(epoch from expires_at)::float from trunq.leader").fetchone()
    assert row is not None
    return float(row[0])


async def test_all_databases_of_a_server_are_those_that_have_trunq(
    new_database: Callable[..., str], server: Embedded
) -> None:
    one, bare = new_database(), new_database("template1")
    found = {named(dsn) for dsn in await _finder(Databases([server.dsn], True), "")()}
    assert named(one) in found
    assert found.isdisjoint({named(bare), "template1"})
    away = make_conninfo("", host="127.0.0.1", port=1)
    both = await _finder(Databases([away, server.dsn], True), "")()
    assert named(one) in {named(dsn) for dsn in both}
    with pytest.raises(psycopg.OperationalError):
        await _finder(Databases([away], True), "")()


async def test_one_that_lets_nobody_in_for_a_moment_is_led_on_and_one_of_others_stops_no_look(
    new_database: Callable[..., str], server: Embedded, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = new_database(), new_database()
    role = f"looks_at_{named(one)}"
    with psycopg.connect(server.dsn, autocommit=True) as admin:
        admin.execute(f"create role {role} login".encode())
        try:
            with psycopg.connect(one, autocommit=True) as owner:
                # Enough to see that trunq is there.
                owner.execute(f"grant usage on schema trunq to {role}".encode())
                owner.execute(f"grant select on trunq.migration to {role}".encode())
            find = _finder(Databases([make_conninfo(server.dsn, user=role)], True), "")
            assert {named(dsn) for dsn in await find()} & {named(one), named(two)} == {named(one)}
            assert f"{named(two)} cannot be looked at" in caplog.text
            admin.execute(f"alter database {named(one)} connection limit 0".encode())
            assert named(one) in {named(dsn) for dsn in await find()}
            admin.execute(f"revoke connect on database {named(one)} from public".encode())
            assert named(one) not in {named(dsn) for dsn in await find()}
        finally:
            with psycopg.connect(one, autocommit=True) as owner:
                owner.execute(f"drop owned by {role}".encode())
            admin.execute(f"drop role {role}".encode())


def test_at_a_hangup_it_reads_the_settings_again(new_database: Callable[..., str], tmp_path: Path) -> None:
    one, two, three = new_database(), new_database(), new_database()

    def write(*dsns: str) -> None:
        (tmp_path / "trunq.toml").write_text(f"[leader]\ndsns = {list(dsns)}\n")

    write(one, two)
    process = start("leader", "--name", "mine", "--json", directory=tmp_path, TRUNQ_DSN="")
    try:
        wait_until(lambda: (leader_of(one), leader_of(two)) == ("mine", "mine"), 60)
        write(two, three)
        process.send_signal(signal.SIGHUP)
        wait_until(lambda: (leader_of(one), leader_of(three)) == (None, "mine"), 30)
        # What it cannot read changes nothing.
        (tmp_path / "trunq.toml").write_text("[leader\n")
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 0, err
    assert all(f'"{named(dsn)}"' in out for dsn in (one, two, three))
    assert "1 new, 1 gone, 2 led" in err
    assert [leader_of(dsn) for dsn in (one, two, three)] == [None, None, None]
