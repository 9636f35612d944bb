"""What other libraries, and the client of the other colour, have for a connection."""

from __future__ import annotations

import asyncio
import copy
import pickle
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import psycopg
import pytest
from fastapi import FastAPI, HTTPException

from conftest import AsyncConnect
from trunq import AsyncClient, Client, InvalidArgument, Message, Reject, Retry, Worker
from waiting import async_wait_until, wait_until


async def test_a_connection_of_the_other_colour_is_refused_with_the_client_it_goes_with(
    database: str, connection: psycopg.Connection[object], async_connect: AsyncConnect
) -> None:
    with pytest.raises(InvalidArgument, match="this one with AsyncClient"):
        Client(database).publish("orders", 1, connection=await async_connect())  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="this one with Client"):
        await AsyncClient(database).publish("orders", 1, connection=connection)  # type: ignore[arg-type]


def test_what_publishes_and_handles_imports_no_library_that_it_does_not_use(database: str) -> None:
    program = f"""
import sys, trunq
with trunq.Client({database!r}) as client:
    client.create_queue("orders")
    with client.transaction() as connection:
        client.publish("orders", 1, connection=connection)
worker = trunq.Worker("orders", dsn={database!r}, until_empty=True)
worker.handler("*")(lambda message: print("handled"))
worker.run()
print(sorted({{"sqlalchemy", "django", "pydantic", "fastapi", "opentelemetry"}} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "handled\n[]\n"


async def test_the_lifespan_of_an_application_runs_a_worker_and_closes_what_it_opened(
    database: str, connection: psycopg.Connection[object]
) -> None:
    client, worker = AsyncClient(database), Worker("orders", dsn=database, name="inside", lead=False)
    connection.execute("select trunq.create_queue('orders')")
    connection.execute("create table placed (id bigint, confirmed boolean not null default false)")

    @worker.handler("placed")
    async def confirm(message: Message, connection: psycopg.AsyncConnection[Any]) -> None:
        await connection.execute("update placed set confirmed = true where id = %s", (message.payload,))

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with client:
            serving = asyncio.create_task(worker.run_async())
            yield
            worker.stop()
            await serving

    app = FastAPI(lifespan=lifespan)

    @app.post("/orders/{order}")
    async def place(order: int, fails: bool = False) -> int:
        async with client.transaction() as own:
            await own.execute("insert into placed (id) values (%s)", (order,))
            message = await client.publish("orders", order, kind="placed", connection=own)
            if fails:
                raise HTTPException(409)
        return message

    @app.get("/messages/{message}")
    async def show(message: int) -> dict[str, str | None]:
        (seen,) = await client.show_public("orders", message)
        return seen._asdict()

    browser = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop")
    async with app.router.lifespan_context(app), browser:
        assert (await browser.post("/orders/1?fails=true")).status_code == 409
        message = (await browser.post("/orders/2")).json()
        confirmed = "select id from placed where confirmed"
        await async_wait_until(lambda: connection.execute(confirmed).fetchall() == [(2,)])
        assert (await browser.get(f"/messages/{message}")).json()["state"] == "done"
    assert connection.execute("select id, confirmed from placed").fetchall() == [(2, True)]
    wait_until(lambda: connection.execute(OTHERS).fetchone() == (0,))


OTHERS = (
    "select count(*) from pg_stat_activity"
    " where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'"
)

ANSWERS = [Retry(), Retry(after=5), Retry(error="e"), Reject("r"), Reject(detail="r", public="p")]


@pytest.mark.parametrize("answer", ANSWERS)
def test_an_answer_travels_to_another_process(answer: Retry | Reject) -> None:
    for made in (pickle.loads(pickle.dumps(answer)), copy.copy(answer)):  # noqa: S301
        assert (type(made), made, hash(made), str(made)) == (type(answer), answer, hash(answer), str(answer))
